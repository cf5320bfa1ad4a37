"""Spill that is too much for the page cache leaves it on the way, and is whole on the disk."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from dsort.scratch.directory import Scratch
from dsort.scratch.spill import FLUSH_BYTES, SpillWriter, read_spill, spill_name
from tests.support.page_cache import cached_pages, forget

BLOCKS_MAX = 64
"""Pages that have just come may stay, though nobody wants them: then the next turn takes them."""


@pytest.fixture
def forgetful(tmp_path: Path) -> Path:
    """A directory whose file system forgets what it is asked to; else the test is left out."""
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(FLUSH_BYTES))
    forget(probe)
    return tmp_path


@pytest.mark.parametrize("past_cache", [True, False])
def test_spill_that_is_read_past_the_page_cache_leaves_it_on_the_way(
    past_cache: bool, forgetful: Path
) -> None:
    rng, blocks = random.Random(5), []
    path = forgetful / "scratch" / spill_name(3, 1)
    with Scratch(forgetful / "scratch", make=True) as scratch:
        writer = SpillWriter(scratch, 3, 2, to_disk=True, past_cache=past_cache)
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
        read_spill(scratch, 3, 1, 0, memoryview(found))
    assert found == b"".join(blocks)
    assert is_there is not past_cache
    assert pages[-1], "it is on its way"
