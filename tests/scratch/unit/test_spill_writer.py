"""Spill files while they are appended to: what is too much for the page cache goes past it, or
leaves it on the way, and is whole on the disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.internals import (
    DIRECT_BYTES_MIN,
    FLUSH_BYTES,
    Scratch,
    SpillFiles,
    SpillWriter,
    spill_name,
)
from tests.support.page_cache import cached_pages, forget

pytestmark = pytest.mark.disk

BLOCKS_MAX = 64
"""Pages that have just come may stay, though no reader wants them: then the next turn takes
them."""


@pytest.fixture
def forgetful(tmp_path: Path) -> Path:
    """A directory whose file system forgets what it is asked to; else the test is left out."""
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(FLUSH_BYTES))
    forget(probe)
    return tmp_path


def read_spill(scratch: Scratch, worker: int, partition: int, start: int, found: bytearray) -> None:
    with contextlib.closing(SpillFiles(scratch, partition)) as files:
        files.of(worker).read(memoryview(found), start, len(found))


@pytest.mark.parametrize("past_cache", [True, False])
def test_spill_of_small_parts_that_is_read_past_the_page_cache_leaves_it_on_the_way(
    past_cache: bool, forgetful: Path
) -> None:
    rng = random.Random(5)
    blocks: list[bytes] = []
    path = forgetful / "scratch" / spill_name(3, 1)
    with Scratch(forgetful / "scratch", make=True) as scratch:
        writer = SpillWriter(scratch, 3, 2, to_disk=True, past_cache=past_cache)
        with writer.appending():
            writer.append(1, [b""], 0)  # small: it goes through the page cache from here on
        is_there = True
        while is_there and len(blocks) < BLOCKS_MAX:
            blocks.append(rng.randbytes(FLUSH_BYTES))
            writer.append(1, [memoryview(blocks[-1])], FLUSH_BYTES)
            with path.open("rb") as file:
                os.fsync(file.fileno())  # the disk is fast
            pages = cached_pages(path)
            is_there = any(pages[: len(pages) // len(blocks)])
        writer.close()
        found = bytearray(len(blocks) * FLUSH_BYTES)
        read_spill(scratch, 3, 1, 0, found)
    assert found == b"".join(blocks)
    assert is_there is not past_cache
    assert pages[-1], "it is on its way"


@pytest.fixture
def memory() -> Iterator[memoryview]:
    """Random bytes, from where a page begins."""
    mapped = mmap.mmap(-1, 4 * DIRECT_BYTES_MIN)
    mapped[:] = random.Random(7).randbytes(len(mapped))
    with memoryview(mapped) as view:
        yield view


def test_large_parts_go_past_the_page_cache_and_begin_with_a_block(
    forgetful: Path, memory: memoryview
) -> None:
    parts = [memory[: 2 * DIRECT_BYTES_MIN + 1024], memory[512 : 3 * DIRECT_BYTES_MIN]]
    with Scratch(forgetful / "scratch", make=True) as scratch:
        writer = SpillWriter(scratch, 3, 2, to_disk=True, past_cache=True)
        begun = []
        for part in parts:
            with writer.appending() as starts:
                half = len(part) // 1024 * 512
                writer.append(1, [part[:half]], half)
                writer.append(1, [part[half:]], len(part) - half)
            begun.append(int(starts[1]))
        writer.close()
        assert not any(cached_pages(forgetful / "scratch" / spill_name(3, 1)))
        for start, part in zip(begun, parts, strict=True):
            assert start % mmap.PAGESIZE == 0
            found = bytearray(len(part))
            read_spill(scratch, 3, 1, start, found)
            assert found == part


@pytest.mark.parametrize("fails_after", [0, 1, 3, None])
@pytest.mark.parametrize("seed", range(5))
def test_any_parts_are_read_as_they_were_appended_whatever_the_disk_takes(
    seed: int,
    fails_after: int | None,
    tmp_path: Path,
    memory: memoryview,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")
    calls: list[int] = []
    write_vectors = os.pwritev

    def pwritev(fd: int, slices: list[memoryview], offset: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            calls.append(offset)
            if fails_after is not None and len(calls) > fails_after:
                raise OSError(errno.EINVAL, "this disk takes no more")
        return write_vectors(fd, slices, offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    unit = rng.choice([512, 1])
    with Scratch(tmp_path / "scratch", make=True) as scratch:
        writer = SpillWriter(scratch, 0, 2, to_disk=rng.random() < 0.5, past_cache=True)
        appended: list[tuple[int, int, bytes]] = []
        for _ in range(8):
            parts: dict[int, bytes] = {}
            with writer.appending() as starts:
                for _ in range(rng.randrange(4)):
                    least = rng.choice([0, *3 * [DIRECT_BYTES_MIN]])
                    size = rng.randrange(least, 4 * DIRECT_BYTES_MIN) // unit * unit
                    cut, partition = rng.randrange(size // unit + 1) * unit, rng.randrange(2)
                    writer.append(partition, [memory[:cut], memory[cut:size]], size)
                    parts[partition] = parts.get(partition, b"") + bytes(memory[:size])
            appended.extend((at, int(starts[at]), part) for at, part in parts.items())
        writer.close()
        for partition, start, part in appended:
            found = bytearray(len(part))
            read_spill(scratch, 0, partition, start, found)
            assert found == part
    assert len(calls) > (fails_after or 0), "the disk was asked, and refused"
