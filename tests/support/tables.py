"""Tables of many types, and shards of them as Parquet and Arrow IPC, written by pyarrow itself."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SUFFIXES = (".parquet", ".arrow", ".arrows")
MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FEATURES = {b"huggingface": b'{"info": {"features": {}}}'}


def mixed_table(rows: int, *, seed: int, views: bool = False) -> pa.Table:
    """A table of ``rows`` rows, with nulls, nested values, dictionaries and media."""
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


def long_table(rows: int, *, seed: int) -> pa.Table:
    """Rows with long values: pictures, texts and binaries, some of them null, some empty."""
    rng = random.Random(seed)
    pictures = [
        None
        if at % 7 == 3
        else {
            "bytes": None if at % 5 == 4 else rng.randbytes(rng.randrange(4000)),
            "path": f"{at}.jpg",
        }
        for at in range(rows)
    ]
    texts = [None if at % 6 == 1 else f"{at}" * rng.randrange(900) for at in range(rows)]
    columns = {
        "id": pa.array([f"{seed}/{at:04d}" for at in range(rows)]),
        "image": pa.array(pictures, MEDIA),
        "text": pa.array(texts, pa.large_string()),
        "score": pa.array([rng.random() for _ in range(rows)]),
        "raw": pa.array([rng.randbytes(800 + at) for at in range(rows)]),
    }
    return pa.table(columns).replace_schema_metadata(FEATURES)


def write_plain(path: Path, table: pa.Table, **options: Any) -> None:
    """A Parquet shard in which pictures are not encoded again, as Hugging Face's libraries write
    them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = {"row_group_size": 17, "compression": "none", "use_dictionary": False}
    pages = {"data_page_size": 9000, "write_batch_size": 5}
    pq.write_table(table, path, **(wanted | pages | options))


def many_types() -> pa.Table:
    """Three rows of types that writers of Parquet use: decimals, times, nested, extensions."""
    decimals = [Decimal("1.23"), None, Decimal("-9.99")]
    nested = pa.struct([("a", pa.list_(pa.int32())), ("b", pa.string())])
    uuids = pa.array([b"1" * 16, None, b"2" * 16], pa.binary(16))
    return pa.table(
        {
            "id": ["a", "b", "c"],
            "decimal": pa.array(decimals, pa.decimal128(10, 2)),
            "wide": pa.array([Decimal(10**40), None, None], pa.decimal256(50, 0)),
            "zoned": pa.array([1, None, 3], pa.timestamp("ns", tz="Europe/Berlin")),
            "seconds": pa.array([1, 2, None], pa.timestamp("s")),
            "time": pa.array([1, 2, None], pa.time32("s")),
            "date": pa.array([1, None, -9], pa.date32()),
            "half": pa.array([1.0, 2.0, None], pa.float16()),
            "nested": pa.array([[{"a": [1, 2], "b": "x"}], None, []], pa.list_(nested)),
            "map": pa.array([[("k", [1])], [], None], pa.map_(pa.string(), pa.list_(pa.int8()))),
            "large": pa.array(["x", None, "z"], pa.large_string()),
            "lists": pa.array([["a"], None, []], pa.large_list(pa.string())),
            "view": pa.array(["x" * 20, None, "z"], pa.string_view()),
            "kind": pa.array(["u", "v", "u"]).dictionary_encode(),
            "null": pa.nulls(3),
            "fixed": pa.array([b"12", None, b"34"], pa.binary(2)),
            "long": pa.array([b"x" * 3000, b"", None]),
            "uuid": pa.ExtensionArray.from_storage(pa.uuid(), uuids),
            "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", None, "[1]"])),
            "byte": pa.array([1, None, 0], pa.uint8()),
        }
    )


def write_table(path: Path, table: pa.Table, *, rows_a_group: int = 11) -> None:
    """Write a shard, whose container is that of its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows_a_group)
        return
    plain = pa.Table.from_batches(table.to_batches(rows_a_group), table.schema)
    opened = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
    with opened(path, table.schema) as writer:
        writer.write_table(plain)


def read_table(path: Path) -> pa.Table:
    """The whole table of a shard."""
    if path.suffix == ".parquet":
        return pq.ParquetFile(path).read()
    opened = pa.ipc.open_file if path.suffix == ".arrow" else pa.ipc.open_stream
    with pa.memory_map(str(path)) as source:
        return opened(source).read_all()


def some_tables(directory: Path, suffix: str, *, shards: int = 3) -> pa.Table:
    """Write shards of unequal length into ``directory``. Returns all of their rows, in order."""
    for shard in range(shards):
        table = mixed_table(30 + 17 * shard, seed=shard)
        write_table(directory / f"in-{shard}{suffix}", table)
    return pa.concat_tables(read_table(path) for path in sorted(directory.iterdir()))
