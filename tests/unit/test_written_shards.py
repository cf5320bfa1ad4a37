"""The file of an output shard gets exactly the slices that it is given, whatever their lengths."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
import xxhash

from dsort.storage.directory.bucket import LocalBucket
from dsort.workers.shard_writer import PIECE_BYTES, StagedFile, Writeback

MIB = 1 << 20


@pytest.mark.parametrize(
    "lengths",
    [
        [],
        [0, 0],
        [5],
        [3000] * 1500,
        [PIECE_BYTES],
        [PIECE_BYTES + 1],
        [1] * 2000 + [3 * PIECE_BYTES + 7] + [0, 1] * 1000,
        [100_000] * 40,
        [5 * MIB, 1, 5 * MIB],
        random.Random(1).choices([0, 1, 66, 3000, 20_000, 700_000], k=60),
    ],
    ids=lambda lengths: f"{len(lengths)}-slices-{sum(lengths)}-bytes",
)
def test_a_shard_has_the_bytes_and_checksums_of_its_slices(
    tmp_path: Path, lengths: list[int]
) -> None:
    data = random.Random(2).randbytes(sum(lengths))
    slices, at = [], 0
    for length in lengths:
        slices.append(memoryview(data)[at : at + length])
        at += length
    bucket = LocalBucket(tmp_path)
    writeback = Writeback()
    staged = bucket.stage(".dsort/job/staged/0")
    file = StagedFile(staged, writeback, want_md5=True, seals_on_finish=False)

    assert file.write(slices) == len(data)
    assert file.write([memoryview(b"end")]) == 3

    found = memoryview(bytearray(file.written_bytes))
    staged.read_into(found, 0)
    file.finish()
    writeback.close()
    assert bytes(found) == data + b"end"
    assert file.checksum == xxhash.xxh3_64_hexdigest(data + b"end")
    assert file.md5 == hashlib.md5(data + b"end", usedforsecurity=False).hexdigest()
