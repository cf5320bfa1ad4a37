"""Every reader keeps to the law of ``dsort/bounds.py`` over shards that are made to harm."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.bounds import READERS, Cost, check_reader, measure


def _parquet(column: pa.Array, **options: object) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"column": column}), file, **options)
    return file.getvalue()


def _equal_texts() -> bytes:
    """One text of a dictionary, which a few bytes say 10 million times."""
    rows = np.zeros(10_000_000, np.int32)
    return _parquet(pa.DictionaryArray.from_arrays(rows, ["a text of 20 letters"]))


def _padded(table: pa.Table, pad_bytes: int) -> bytes:
    """A file with so many more bytes in its footer: its rows may take ``max_expansion`` times
    that."""
    file, pad = io.BytesIO(), random.Random(1).randbytes(pad_bytes // 4).hex()  # there twice
    pq.write_table(table.replace_schema_metadata({"pad": pad}), file, compression=None)
    return file.getvalue()


def _flags() -> bytes:
    """4 million rows in a few bytes, in a file whose length allows them."""
    return _padded(pa.table({"flag": np.zeros(4_000_000, np.bool_)}), 300_000)


def _equal_keys() -> bytes:
    keys = pa.DictionaryArray.from_arrays(np.zeros(4_000_000, np.int32), ["key"])
    columns = {"__key__": keys, "flag": np.zeros(len(keys), np.bool_)}
    return _padded(pa.table(columns), 500_000)


ZOO: Final[dict[str, Callable[[], bytes]]] = {
    "empty-lines.txt": lambda: b"\n" * (2 << 20),
    "empty-lines.txt.gz": lambda: gzip.compress(b"\n" * (8 << 20), 1),
    "nulls.parquet": lambda: _parquet(pa.nulls(40_000_000, pa.int64())),
    "equal-texts.parquet": _equal_texts,
    "short-lines.txt": lambda: b"a\n" * (512 << 10),
    "flags.parquet": _flags,
    "equal-keys.parquet": _equal_keys,
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("zoo")
    for name, made in ZOO.items():
        (directory / name).write_bytes(made())
    return directory


LEFT_OUT: Final = {
    ("inspect --json", "short-lines.txt"),  # a list of all records is as long as they are many
    ("inspect --json", "flags.parquet"),
    ("inspect --json", "equal-keys.parquet"),
    ("scan", "flags.parquet"),  # jobs that convert tables make members of all rows of a shard
    ("scan", "equal-keys.parquet"),
}
CASES: Final = [case for case in product(READERS, ZOO) if case not in LEFT_OUT]


@pytest.mark.parametrize(("reader", "name"), CASES)
def test_readers_of_hostile_shards_keep_within_bounds(reader: str, name: str, zoo: Path) -> None:
    check_reader(reader, zoo / name)


@pytest.mark.parametrize("reader", ["scan", "dsort.open", "dsort.read_shards", "inspect", "cat"])
def test_of_a_line_readers_keep_a_few_numbers(reader: str, tmp_path: Path) -> None:
    peaks, counts = [], (1 << 20, 3 << 20)
    for count in counts:
        path = tmp_path / f"{count}.txt"
        path.write_bytes(b"a\n" * count)
        peaks.append(check_reader(reader, path).peak_bytes)
    assert (peaks[1] - peaks[0]) / (counts[1] - counts[0]) < 50  # bytes a line; an object has more


def test_the_meter_measures_what_a_reader_takes(tmp_path: Path) -> None:
    path = tmp_path / "a.bin.txt"
    path.write_bytes(bytes(48 << 20) + b"\n")
    cost = measure("dsort.read_shards", path)
    assert isinstance(cost, Cost)
    assert cost.error == ""
    assert 96 << 20 < cost.peak_bytes < 160 << 20  # its buffer, and the one record
    assert cost.read_bytes == (48 << 20) + 1
    assert (48 << 20) < cost.produced_bytes < (49 << 20)
