"""Tables of many types, and shards of them as Parquet and Arrow IPC, written by pyarrow itself."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["MEDIA", "SUFFIXES", "mixed_table", "read_table", "some_tables", "write_table"]

SUFFIXES = (".parquet", ".arrow", ".arrows")
MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FEATURES = {b"huggingface": b'{"info": {"features": {}}}'}


def mixed_table(rows: int, *, seed: int, views: bool = False) -> pa.Table:
    """A table of so many rows, with nulls, nested values, dictionaries and media."""
    rng = random.Random(seed)
    texts = pa.array([None if at % 9 == 4 else f"t{at}" * (at % 5) for at in range(rows)])
    columns: dict[str, Any] = {
        "id": pa.array([f"{seed}/{at:04d}" for at in range(rows)]),
        "image": pa.array(
            [
                None if at % 7 == 3 else {"bytes": rng.randbytes(at * 3), "path": f"{at}.jpg"}
                for at in range(rows)
            ],
            MEDIA,
        ),
        "score": pa.array([None if at % 5 == 0 else rng.random() for at in range(rows)]),
        "tags": pa.array(
            [None if at % 6 == 5 else [str(n) for n in range(at % 4)] for at in range(rows)],
            pa.list_(pa.string()),
        ),
        "kind": texts.cast(pa.string()).dictionary_encode(),
        "good": pa.array([at % 3 == 0 for at in range(rows)]),
        "pairs": pa.array([[("k", at)] for at in range(rows)], pa.map_(pa.string(), pa.int64())),
        "vector": pa.array([[at, at + 0.5] for at in range(rows)], pa.list_(pa.float32(), 2)),
        "at": pa.array(range(rows), pa.timestamp("us", tz="UTC")),
        "nothing": pa.nulls(rows),
    }
    if views:
        columns["view"] = texts.cast(pa.string_view())
    return pa.table(columns).replace_schema_metadata(FEATURES)


def write_table(path: Path, table: pa.Table, *, rows_a_group: int = 11) -> None:
    """A shard of the container that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows_a_group)
        return
    plain = pa.Table.from_batches(table.to_batches(rows_a_group), table.schema)
    opened = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
    with opened(path, table.schema) as writer:
        writer.write_table(plain)


def read_table(path: Path) -> pa.Table:
    """All of a shard."""
    if path.suffix == ".parquet":
        return pq.ParquetFile(path).read()
    opened = pa.ipc.open_file if path.suffix == ".arrow" else pa.ipc.open_stream
    with pa.memory_map(str(path)) as source:
        return opened(source).read_all()


def some_tables(directory: Path, suffix: str, *, shards: int = 3) -> pa.Table:
    """Shards of unequal length in ``directory``; all that is in them, in order."""
    for shard in range(shards):
        table = mixed_table(30 + 17 * shard, seed=shard)
        write_table(directory / f"in-{shard}{suffix}", table)
    return pa.concat_tables(read_table(path) for path in sorted(directory.iterdir()))
