"""``content_defined_chunks``: Parquet results that differ by a row have most bytes in common."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.engine import run_local, spec_of
from tests.support.tables import MEDIA

ROWS = 12_000
BLOCK_BYTES = 1 << 10
STEP_BYTES = 16 << 10


def table(*, insert: bool) -> pa.Table:
    """Rows of short and long texts and of small files, sorted by key."""
    rng = random.Random(5)
    rows = []
    for at in range(ROWS):
        text, file = f"{rng.getrandbits(1200):x}", rng.randbytes(300)
        rows.append({"id": f"{at:06d}", "text": text, "image": {"bytes": file, "path": f"{at}"}})
        if insert and at == ROWS // 10:
            rows.append({**rows[-1], "id": f"{at:06d}b", "text": "a new row " * 9})
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("image", MEDIA)])
    return pa.Table.from_pylist(rows, schema)


def written(root: Path, name: str, *, insert: bool, workers: int = 1, **fields: Any) -> bytes:
    """The only shard of a job that sorts the rows."""
    source = root / f"in-{insert}"
    if not source.exists():
        source.mkdir(parents=True)
        whole = table(insert=insert)
        for part in range(3):
            rows = whole.slice(part * ROWS // 3, ROWS // 3 if part < 2 else None)
            pq.write_table(rows, source / f"{part}.parquet")
    spec = spec_of(
        input_bck=source.name,
        input_extension=".parquet",
        output_bck=name,
        output_format="out-%d.parquet",
        output_extension=".parquet",
        output_shard_records=2 * ROWS,
        key_field="id",
        row_group_rows=1_000_000,
        algorithm={"kind": "alphanumeric"},
        **fields,
    )
    run_local(root, spec, workers=workers)
    (path,) = (root / name).glob("*.parquet")
    data = path.read_bytes()
    assert pq.read_table(pa.BufferReader(data)).num_rows == ROWS + insert
    return data


def in_common(one: bytes, other: bytes) -> float:
    """The share of blocks of ``one`` that are somewhere in ``other``."""
    blocks = [one[at : at + BLOCK_BYTES] for at in range(0, len(one) - STEP_BYTES, STEP_BYTES)]
    return sum(block in other for block in blocks) / len(blocks)


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_results_that_differ_by_a_row_have_most_bytes_in_common(
    tmp_path: Path, compression: str
) -> None:
    fields: dict[str, Any] = {"output_compression": compression, "content_defined_chunks": True}
    before = written(tmp_path, "before", insert=False, **fields)
    after = written(tmp_path, "after", insert=True, **fields)
    assert in_common(before, after) > 0.85
    assert pq.read_table(pa.BufferReader(after)).equals(table(insert=True))


def test_without_it_compressed_pages_behind_the_row_differ(tmp_path: Path) -> None:
    """So that the test above says something."""
    fields: dict[str, Any] = {
        "output_compression": "zstd",
        "transform": {"steps": [{"fields": {"keep": ["id", "text"]}}]},
    }
    before = written(tmp_path, "before", insert=False, **fields)
    after = written(tmp_path, "after", insert=True, **fields)
    assert in_common(before, after) < 0.3
    cut: dict[str, Any] = {**fields, "content_defined_chunks": True}
    before = written(tmp_path, "cut-before", insert=False, **cut)
    assert in_common(before, written(tmp_path, "cut-after", insert=True, **cut)) > 0.6


def test_the_bytes_do_not_depend_on_the_workers(tmp_path: Path) -> None:
    one = written(tmp_path, "one", insert=True, content_defined_chunks=True)
    assert written(tmp_path, "two", insert=True, workers=2, content_defined_chunks=True) == one
