"""The index of a shard's records as a file: small, the same read back, and never believed."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np

from dsort.errors import StorageError
from dsort.storage.bucket import ObjectInfo
from tests.support.internals import COUNTED_BYTES_MIN, BoundedIndexCache, BytesColumn, RecordIndex

SIZE_BYTES = 3_000_000


def index_of(records: int) -> RecordIndex:
    names = [
        f"{number:08d}.{extension}".encode() for number in range(records) for extension in "ab"
    ]
    files = len(names)
    return RecordIndex(
        np.arange(0, files + 1, 2, dtype=np.int64),
        np.full(records, 8, np.int64),
        BytesColumn.of(names),
        np.arange(files, dtype=np.int64) * 1024 + 512,
        np.arange(files, dtype=np.int64) % 500,
    )


def same(one: RecordIndex, other: RecordIndex) -> bool:
    return one.names.tolist() == other.names.tolist() and all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("offsets", "key_bytes", "start", "size")
    )


def test_an_index_file_is_small_and_read_back_as_it_was() -> None:
    index = index_of(1000)
    data = index.to_bytes()
    assert same(RecordIndex.from_bytes(data, "kept", SIZE_BYTES), index)
    assert len(data) < 2000 * (10 + 10 + 8)  # a name, and its offset
    empty = RecordIndex.joined([])
    assert len(RecordIndex.from_bytes(empty.to_bytes(), "kept", 0)) == 0
    assert same(RecordIndex.joined([index_of(3)]), index_of(3))


def test_what_is_damaged_is_refused_or_stays_inside_the_shard() -> None:
    data, rng, refused = index_of(100).to_bytes(), random.Random(5), 0
    for _ in range(400):
        broken = bytearray(data[: rng.choice([len(data), rng.randrange(len(data))])])
        for _ in range(rng.randrange(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            found = RecordIndex.from_bytes(bytes(broken), "kept", SIZE_BYTES)
        except StorageError:
            refused += 1
            continue
        assert (found.low >= 0).all()
        assert (found.high <= SIZE_BYTES).all()
        assert len(list(found.keys)) == len(found)
    assert refused > 100


def test_indexes_that_were_not_used_for_longest_go_where_all_have_a_bound(tmp_path: Path) -> None:
    cache = BoundedIndexCache(tmp_path / "kept", 3 * COUNTED_BYTES_MIN)
    infos = [ObjectInfo(f"{number}.tar", 10**6, 0, etag=str(number)) for number in range(4)]
    for number, info in enumerate(infos[:3]):
        cache.keep("file:///b", info, index_of(10))
        path = max((tmp_path / "kept").glob("*/*"), key=lambda each: each.stat().st_mtime_ns)
        os.utime(path, ns=(number, number))
    assert cache.find("file:///b", infos[0]) is not None  # it was used just now
    cache.keep("file:///b", infos[3], index_of(10))
    there = [cache.find("file:///b", info) is not None for info in infos]
    assert there == [True, False, True, True]
