"""Bytes that are put behind those of a shard, wherever there is room for them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dsort.containers.tar.container import TAR
from dsort.storage.directory.bucket import LocalBucket
from tests.support.datasets import Member, Shard
from tests.support.engine import record
from tests.support.internals import PayloadBuffer, RangeQueue, Scratch, ShardBytes


@pytest.mark.parametrize("room", ["all", "the shard", "a part of it"])
@pytest.mark.parametrize("tails", [1, 2])
def test_a_shard_that_grows_is_read_wherever_its_parts_are(
    room: str, tails: int, tmp_path: Path, rng: random.Random
) -> None:
    parts = [
        Shard(tuple(each for n in range(40) for each in record(f"{part}-{n}"))).data
        for part in range(tails + 1)
    ]
    (tmp_path / "a.tar").write_bytes(parts[0])
    whole = sum(map(len, parts))
    size = {"all": whole, "the shard": len(parts[0]), "a part of it": len(parts[0]) // 3}[room]
    scratch = Scratch(tmp_path / "scratch", make=True)
    bucket = LocalBucket(tmp_path)
    with bucket.open("a.tar") as source:
        shard = ShardBytes("a.tar", source, PayloadBuffer(size), mapped=False, spool=scratch)
        shard.members()
        for part in parts[1:]:
            tail, begin = shard.tail(), shard.size_bytes
            for at in range(0, len(part), 7000):
                tail.append(part[at : at + 7000])
            members = shard.grow(tail, TAR)
            assert members.names.tolist() == TAR.scan("", part).names.tolist()
            assert int(members.payload_start[0]) == 512
            assert shard.size_bytes == begin + len(part)
        assert (shard.whole is not None) == (room == "all")
        data = b"".join(parts)
        for _ in range(20):
            start, stop = sorted(rng.sample(range(whole + 1), 2))
            assert b"".join(map(bytes, shard.range(start, stop - start))) == data[start:stop]
            filled = bytearray(stop - start)
            shard.fill(memoryview(filled), start)
            assert filled == data[start:stop]
        shard.close()
    assert [*scratch.names()] == []


@pytest.mark.parametrize("payload_bytes", [700, 5_000, 70_000])
@pytest.mark.parametrize("room", ["the shard", "a part of it"])
def test_a_shard_that_is_read_past_the_page_cache_has_the_same_members(
    payload_bytes: int, room: str, tmp_path: Path, rng: random.Random
) -> None:
    payloads = [rng.randbytes(payload_bytes + rng.randrange(2000)) for _ in range(60)]
    members = tuple(Member(f"{key}.jpg", payload) for key, payload in enumerate(payloads))
    data = Shard(members).data
    (tmp_path / "a.tar").write_bytes(data)
    size = len(data) if room == "the shard" else len(data) // 3
    queue = RangeQueue(2, by_kernel=True)
    with LocalBucket(tmp_path).open("a.tar") as source:
        buffer = PayloadBuffer(size)
        shard = ShardBytes("a.tar", source, buffer, mapped=False, past_cache=queue)
        found, expected = shard.members(), TAR.scan("a.tar", data)
        assert found.names.tolist() == expected.names.tolist()
        assert found.payload_start.tolist() == expected.payload_start.tolist()
        assert shard.whole is None or shard.whole == data
        assert shard.content(found, 59) == payloads[59]
        shard.close()
    queue.close()
