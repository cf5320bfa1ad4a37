"""Reading shards again: digests and checksums do not depend on how much is read at a time, and what
is read is counted."""

from __future__ import annotations

import ast
import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import xxhash

from dsort.errors import JobStoppedError
from dsort.stop_flag import StopFlag
from tests.support.commands import ROOT
from tests.support.datasets import END, Member, Shard
from tests.support.internals import (
    Checksums,
    ShardReader,
    digest_of,
    joined_digests,
    member_digests,
)
from tests.support.memory_bucket import MemoryBucket
from tests.support.tar_reading import scan

MEMBERS = (
    Member("a.jpg", b"a" * 3000),
    Member("b.jpg", b"b" * 100_000),
    Member("b.link", kind="hardlink", target="a.jpg"),
    Member("c.jpg"),
    Member("d.jpg", b"d" * 600, form="pax"),
)
DATA = Shard(MEMBERS).data


def bucket(data: bytes) -> MemoryBucket:
    made = MemoryBucket()
    made.write("s.tar", data)
    return made


@pytest.mark.parametrize("buffer_bytes", [2048, 5000, 1 << 20])
def test_digests_are_those_of_the_bytes_to_be_stored(buffer_bytes: int) -> None:
    reader = ShardReader(buffer_bytes, None)
    with reader.open(bucket(DATA), "s.tar") as shard:
        members = shard.members()
        found = member_digests(shard, members)
    literals = members.literals
    starts, lengths = members.range_start.tolist(), members.range_length.tolist()
    stored = [
        literals.get(row, b"") + DATA[start : start + length]
        for row, (start, length) in enumerate(zip(starts, lengths, strict=True))
    ]
    assert stored[1] == MEMBERS[1].raw
    assert stored[2].endswith(b"a" * 3000 + bytes(72))
    wanted = [xxhash.xxh3_128_intdigest(each) for each in stored]
    assert [(high << 64) + low for high, low in found.tolist()] == wanted


def test_the_digest_of_a_run_depends_on_all_of_it_and_on_its_order() -> None:
    digests = np.arange(8, dtype=np.uint64).reshape(-1, 2)
    offsets = np.array([0, 1, 3, 4])
    runs = [tuple(run) for run in joined_digests(digests, offsets).tolist()]
    assert runs == [digest_of(digests[a:b]) for a, b in pairwise(offsets.tolist())]
    all_runs = {digest_of(digests[a:b]) for a in range(4) for b in range(a + 1, 5)}
    assert len(all_runs) == 10
    assert digest_of(digests[:2]) != digest_of(digests[1::-1])


@pytest.mark.parametrize("buffer_bytes", [2048, 5000, 1 << 20])
@pytest.mark.parametrize("end", [END, b"", bytes(9000)], ids=["plain", "no end", "long end"])
def test_checksums_are_those_of_the_whole_shard(buffer_bytes: int, end: bytes) -> None:
    plain = [member for member in MEMBERS if member.kind == "file"]
    data = Shard(tuple(plain), end).data
    reader = ShardReader(buffer_bytes, None)
    with reader.open(bucket(data), "s.tar") as shard:
        checksums = Checksums(shard, want_md5=True)
        member_digests(shard, shard.members(), seen=checksums.cover)
        found = checksums.finish()
    assert found == (xxhash.xxh3_64_hexdigest(data), hashlib.md5(data).hexdigest())
    assert reader.bytes_read >= len(data)
    if buffer_bytes >= len(data):
        assert reader.bytes_read == len(data)


def test_checksums_need_no_members() -> None:
    data = b"rubbish" * 1000
    with ShardReader(2048, None).open(bucket(data), "s.tar") as shard:
        assert Checksums(shard, want_md5=False).finish() == (xxhash.xxh3_64_hexdigest(data), "")


def test_reading_stops_when_the_user_asks_for_it() -> None:
    with StopFlag() as stop:
        reader = ShardReader(2048, stop)
        with reader.open(bucket(DATA), "s.tar") as shard:
            stop.request()
            with pytest.raises(JobStoppedError):
                shard.members()


def test_verification_uses_nothing_that_a_job_has_planned() -> None:
    """It would believe what it is there to doubt."""
    planning = {
        "dsort.job.commit",
        "dsort.job.coordinator",
        "dsort.order.sort",
        "dsort.order.cut",
        "dsort.job.plan",
        "dsort.workers.creator",
        "dsort.workers.extractor",
        "dsort.scratch.index",
        "dsort.workers.orderer",
        "dsort.workers.sealer",
    }
    used = set()
    for path in [
        ROOT / "dsort/verification/verify.py",
        *(ROOT / "dsort/verification").glob("*.py"),
    ]:
        for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                used.add(node.module)
    assert "dsort.verification.compare" in used
    assert not used & planning


def test_the_reader_sees_the_whole_of_a_shard_that_scan_sees() -> None:
    with ShardReader(4096, None).open(bucket(DATA), "s.tar") as shard:
        windowed = shard.members()
    assert windowed.names.tolist() == scan("s.tar", DATA).names.tolist()
