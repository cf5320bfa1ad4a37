"""Headers that are read ahead are in the page cache when a shard is scanned, payload is not, and a
shard that cannot be read ahead holds nothing up; bytes behind those of a shard are put wherever
there is room."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsort.containers.tar.container import TAR
from dsort.containers.tar.header import BLOCK_BYTES, padded_bytes
from dsort.storage.directory.bucket import LocalBucket
from dsort.storage.open import open_bucket
from tests.support.datasets import Member, Shard, write_shards
from tests.support.engine import record
from tests.support.internals import (
    INPUTS_FILE,
    WAYS,
    ExtractTask,
    HeaderReader,
    IndexStore,
    InputShard,
    PayloadBuffer,
    RangeQueue,
    Scratch,
    ShardBytes,
    Stage,
    header_hops,
    header_reader,
    inputs_bytes,
)
from tests.support.page_cache import cached_pages, forget
from tests.support.runtime_work import make_work

pytestmark = pytest.mark.disk


SHARDS, RECORDS = 5, 6
PAYLOAD_BYTES = 300_000


@pytest.fixture
def shards(tmp_path: Path) -> list[InputShard]:
    """Files of which the page cache has nothing; of one, payload looks like headers, one is no tar,
    and one does not exist."""
    rng = random.Random(1)
    write_shards(
        tmp_path / "in",
        {
            f"{number}.tar": Shard(
                tuple(Member(f"{key}.jpg", rng.randbytes(PAYLOAD_BYTES)) for key in range(RECORDS))
            )
            for number in range(SHARDS)
        },
    )
    with (tmp_path / "in" / "1.tar").open("r+b") as file:
        header = file.read(BLOCK_BYTES)
        for key in range(RECORDS):
            file.seek(key * (BLOCK_BYTES + padded_bytes(PAYLOAD_BYTES)) + BLOCK_BYTES)
            file.write(header * (PAYLOAD_BYTES // BLOCK_BYTES))
    (tmp_path / "in" / "2.tar").write_bytes(rng.randbytes(PAYLOAD_BYTES))
    sizes = [(tmp_path / "in" / f"{number}.tar").stat().st_size for number in range(SHARDS)]
    (tmp_path / "in" / "3.tar").unlink()
    for path in (tmp_path / "in").iterdir():
        forget(path)
    return [InputShard(f"{number}.tar", size, 0, "") for number, size in enumerate(sizes)]


@pytest.fixture
def reader(tmp_path: Path, shards: list[InputShard]) -> Iterator[HeaderReader]:
    with reading(tmp_path, shards) as reader:
        yield reader


@contextlib.contextmanager
def reading(
    tmp_path: Path, shards: list[InputShard], *, hops: bool = True
) -> Iterator[HeaderReader]:
    inputs = open_bucket((tmp_path / "in").as_uri(), root=Path("/"))
    with Scratch(tmp_path / "scratch", make=True) as scratch:
        (tmp_path / "scratch" / INPUTS_FILE).write_bytes(inputs_bytes(shards))
        setup = make_work(tmp_path / "work").setup
        setup = replace(setup, movement=replace(setup.movement, way=WAYS["range"], hops=hops))
        reader = HeaderReader(setup, inputs, IndexStore(scratch))
        try:
            yield reader
        finally:
            reader.close()


def task_of(shards: list[InputShard], number: int) -> ExtractTask:
    name, size_bytes = shards[number].name, shards[number].size_bytes
    return ExtractTask(number, name, size_bytes, "", Stage("index"))


@pytest.mark.parametrize("part_bytes", [8 << 20, 500_000])
def test_headers_are_there_before_a_scan_and_payload_is_not(
    tmp_path: Path,
    shards: list[InputShard],
    reader: HeaderReader,
    part_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(header_reader, "PART_BYTES_MIN", part_bytes)
    reader.begin(range(SHARDS))
    for number in range(SHARDS):
        assert reader.opened(task_of(shards, number)) is None, "it is no store"
    there = {name: cached_pages(tmp_path / "in" / name) for name in ("0.tar", "1.tar", "4.tar")}
    with open_bucket((tmp_path / "in").as_uri(), root=Path("/")).open("0.tar") as source:
        reads = source.random_reads()
        assert reads is not None
        with reads:
            begins = [
                0,
                *(hop.next_at for hop in header_hops(TAR.hops, reads, shards[0].size_bytes)),
            ]
    assert len(begins) == RECORDS + 1
    for pages in there.values():
        assert all(pages[at // mmap.PAGESIZE] for at in begins)
        assert pages[-1], "what pads it is looked at, too"
        assert sum(pages) < len(pages) / 4


@pytest.mark.parametrize("size_bytes", [0, 1, BLOCK_BYTES - 1])
def test_a_shard_that_is_shorter_than_a_header_holds_nothing_up(
    tmp_path: Path, shards: list[InputShard], size_bytes: int
) -> None:
    os.truncate(tmp_path / "in" / "0.tar", size_bytes)
    shards[0] = replace(shards[0], size_bytes=size_bytes)
    with reading(tmp_path, shards) as reader:
        reader.begin(range(SHARDS))
        for number in range(SHARDS):
            assert reader.opened(task_of(shards, number)) is None, "its scan says what it is"


def test_shards_that_another_worker_had_are_left_alone(
    shards: list[InputShard], reader: HeaderReader
) -> None:
    reader.begin(range(SHARDS))
    assert reader.opened(task_of(shards, 4)) is None
    assert reader.opened(task_of(shards, 1)) is None
    reader.begin([0, 1])


def test_nothing_is_opened_where_shards_are_read_whole(
    tmp_path: Path, shards: list[InputShard]
) -> None:
    with reading(tmp_path, shards, hops=False) as reader:
        assert reader.opened(task_of(shards, 0)) is None


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
        assert shard.is_whole == (room == "all")
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
        assert not shard.is_whole or shard.whole == data
        assert shard.content(found, 59) == payloads[59]
        shard.close()
    queue.close()
