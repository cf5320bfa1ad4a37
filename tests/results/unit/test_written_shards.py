"""The file of an output shard gets exactly the slices that it is given, whatever their lengths."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import random
from pathlib import Path

import pytest
import xxhash

from dsort.errors import StorageFullError
from dsort.storage.directory.bucket import LocalBucket
from dsort.storage.directory.direct_writes import direct_writes
from tests.support.internals import PIECE_BYTES, NoEncoder, StagedFile, Writeback, digest_in

pytestmark = pytest.mark.disk

MIB = 1 << 20
SECTOR_BYTES = 512


@pytest.mark.parametrize("past_cache", [False, True])
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
    tmp_path: Path, lengths: list[int], past_cache: bool
) -> None:
    data = random.Random(2).randbytes(sum(lengths))
    slices, at = [], 0
    for length in lengths:
        slices.append(memoryview(data)[at : at + length])
        at += length
    bucket = LocalBucket(tmp_path)
    writeback = Writeback()
    staged = bucket.stage(".dsort/job/staged/0")
    file = StagedFile(
        staged,
        writeback,
        digests=["md5", "sha256"],
        seals_on_finish=False,
        encoder=NoEncoder(),
        past_cache=past_cache,
    )

    assert file.write(slices) == len(data)
    assert file.write([memoryview(b"end")]) == 3

    file.finish()
    writeback.close()
    found = (tmp_path / ".dsort/job/staged/0").read_bytes()
    assert found == data + b"end"
    assert file.checksum == xxhash.xxh3_64_hexdigest(data + b"end")
    assert digest_in(file.digests, "md5") == hashlib.md5(data + b"end").hexdigest()
    assert digest_in(file.digests, "sha256") == hashlib.sha256(data + b"end").hexdigest()


@pytest.mark.parametrize(
    "sectors", [[1] * 3, [8, 16, 8], [1, 2, 5, 7, 1, 200, 3, 8] * 40, [1] * 3000]
)
def test_whole_sectors_go_past_the_cache_whatever_blocks_they_fill(
    tmp_path: Path, sectors: list[int]
) -> None:
    data = memoryview(mmap.mmap(-1, 2 * sum(sectors) * SECTOR_BYTES))
    data[:] = random.Random(3).randbytes(len(data))
    expected, at = bytearray(), 0
    bucket = LocalBucket(tmp_path)
    with bucket.stage(".dsort/job/staged/0") as staged:
        direct = direct_writes(staged)
        assert direct is not None
        with direct:
            for first in range(0, len(sectors), 1500):
                slices = []
                for count in sectors[first : first + 1500]:
                    slices.append(data[at : at + count * SECTOR_BYTES])
                    expected += slices[-1]
                    at += 2 * count * SECTOR_BYTES
                if direct.write(slices) < len(slices):
                    pytest.skip("the disk under the tests has larger sectors")
            written = direct.written_bytes
            assert written == len(expected) // 4096 * 4096
            assert bytes(direct.kept) == expected[written:]
    assert (tmp_path / ".dsort/job/staged/0").read_bytes() == expected[:written]


def test_a_full_disk_is_reported_by_the_file_that_was_written_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = LocalBucket(tmp_path)
    writeback = Writeback()
    file = StagedFile(
        bucket.stage(".dsort/job/staged/0"),
        writeback,
        digests=[],
        seals_on_finish=False,
        encoder=NoEncoder(),
        past_cache=True,
    )

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", refuse)
    with pytest.raises(StorageFullError):
        file.write([memoryview(bytes(8192))])
    file.abandon()
    writeback.close()
