"""Headers that are read ahead: they are in the page cache when a shard is scanned, payload is not,
and a shard that cannot be read ahead holds nobody up."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dsort.containers.tar.container import TAR
from dsort.containers.tar.header import BLOCK_BYTES, padded_bytes
from dsort.scratch.directory import Scratch
from dsort.scratch.index import IndexStore
from dsort.storage.open import open_bucket
from dsort.workers import header_reader
from dsort.workers.header_reader import HeaderReader, header_hops
from dsort.workers.source import INPUTS_FILE, InputShard, inputs_bytes
from dsort.workers.tasks import ExtractTask
from tests.support.datasets import Member, Shard, write_shards
from tests.support.runtime_work import make_work

SHARDS, RECORDS = 5, 6
PAYLOAD_BYTES = 300_000
FORGET_S_MAX = 5


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
def reading(tmp_path: Path, shards: list[InputShard]) -> Iterator[HeaderReader]:
    inputs = open_bucket((tmp_path / "in").as_uri(), root=Path("/"))
    with Scratch(tmp_path / "scratch", make=True) as scratch:
        (tmp_path / "scratch" / INPUTS_FILE).write_bytes(inputs_bytes(shards))
        setup = make_work(tmp_path / "work").setup
        reader = HeaderReader(setup, inputs, IndexStore(scratch))
        try:
            yield reader
        finally:
            reader.close()


def forget(path: Path) -> None:
    """Let the page cache have nothing of a file: it may take several times, right after it came."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        until_s = time.monotonic() + FORGET_S_MAX
        while time.monotonic() < until_s:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if not any(cached_pages(path)):
                return
    pytest.skip("this file system keeps what nobody asks for")


def task_of(shards: list[InputShard], number: int) -> ExtractTask:
    name, size_bytes = shards[number].name, shards[number].size_bytes
    return ExtractTask(number, name, size_bytes, "", "index", False, 1, hops=True)


def cached_pages(path: Path) -> list[bool]:
    """Which pages of a file the page cache has: to read them would fetch them."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        pages = (ctypes.c_ubyte * -(-len(view) // mmap.PAGESIZE))()
        begin, length = ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(view))
        assert ctypes.CDLL(None).mincore(begin, length, pages) == 0
        del view
        return [bool(page & 1) for page in pages]


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
            begins = [0, *(hop.next_at for hop in header_hops(TAR, reads, shards[0].size_bytes))]
    assert len(begins) == RECORDS + 1
    for pages in there.values():
        assert all(pages[at // mmap.PAGESIZE] for at in begins)
        assert pages[-1], "what pads it is looked at, too"
        assert sum(pages) < len(pages) / 4


@pytest.mark.parametrize("size_bytes", [0, 1, BLOCK_BYTES - 1])
def test_a_shard_that_is_shorter_than_a_header_holds_nobody_up(
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
    assert reader.opened(replace(task_of(shards, 0), hops=False)) is None
