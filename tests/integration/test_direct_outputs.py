"""Output shards that are written past the page cache are those that are written through it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dsort.storage.directory.files import LocalStagedObject
from dsort.workers import creator
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.page_cache import cached_pages

EXT4, NETWORK = 0xEF53, 0x6969
RECORDS = {
    "short": {"records": 1500, "payload_bytes_max": 1500},
    "long": {"records": 40, "payload_bytes_max": 120_000},
}
MOVES = {
    "map": Moved(workers=2),
    "spill": Moved("spill", workers=2, partitions=3, buffer_bytes=8 << 20),
}


class DirectCalls:
    """Writes past the page cache: how many bytes each wrote. From ``fails_after`` calls on, the
    disk takes none."""

    def __init__(self) -> None:
        self.written_bytes: list[int] = []
        self.failed = 0
        self.fails_after: int | None = None


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> DirectCalls:
    found = DirectCalls()
    write_vectors = os.pwritev

    def pwritev(fd: int, slices: Sequence[memoryview], offset: int) -> int:
        if not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            return write_vectors(fd, slices, offset)
        if found.fails_after is not None and len(found.written_bytes) >= found.fails_after:
            found.failed += 1
            raise OSError(errno.EINVAL, "this disk takes no more")
        written = write_vectors(fd, slices, offset)
        found.written_bytes.append(written)
        return written

    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(LocalStagedObject, "file_system", lambda _: EXT4)
    return found


def job_of(kind: str, root: Path) -> dict[str, Any]:
    """Inputs, and a job that makes a few shards of more than a megabyte of them."""
    write_shards(root / "in", small_dataset(kind, shards=3, **RECORDS[kind]))
    sizes = {"output_shard_records": None, "output_shard_size": "2MB"}
    return spec_of(algorithm={"kind": "shuffle", "seed": "7"}, **sizes)


def takes_direct_writes(directory: Path) -> bool:
    try:
        os.close(os.open(directory / "probe", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(("move", "kind"), [("map", "short"), ("map", "long"), ("spill", "long")])
def test_the_bytes_are_those_that_go_through_the_cache_and_the_cache_has_none_of_them(
    move: str, kind: str, tmp_path: Path, calls: DirectCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not takes_direct_writes(tmp_path):
        pytest.skip("this file system has no direct writes")
    spec = job_of(kind, tmp_path)
    run_inline(spec, tmp_path, MOVES[move])
    names = sorted((tmp_path / "out").glob("*.tar"))
    large = [path for path in names if path.stat().st_size >= creator.PAST_CACHE_BYTES_MIN]
    assert large
    assert sum(calls.written_bytes) >= sum(path.stat().st_size - 4096 for path in large)
    assert not any(any(cached_pages(path)[:-1]) for path in large)
    found = files_of(tmp_path / "out")

    calls.written_bytes.clear()
    monkeypatch.setattr(creator, "takes_any_memory", lambda _: False)
    run_inline(spec, tmp_path, MOVES[move], overwrite=True)
    assert not calls.written_bytes
    assert all(any(cached_pages(path)) for path in large)
    assert files_of(tmp_path / "out") == found


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("fails_after", [0, 1])
def test_a_disk_that_takes_no_more_gets_the_rest_through_the_cache(
    fails_after: int, kind: str, tmp_path: Path, calls: DirectCalls
) -> None:
    if not takes_direct_writes(tmp_path):
        pytest.skip("this file system has no direct writes")
    spec = job_of(kind, tmp_path)
    run_inline(spec, tmp_path, MOVES["map"])
    found = files_of(tmp_path / "out")
    calls.written_bytes.clear()
    calls.fails_after = fails_after
    run_inline(spec, tmp_path, MOVES["map"], overwrite=True)
    assert calls.failed, "the fault struck"
    assert files_of(tmp_path / "out") == found


def test_short_records_that_were_spilled_go_through_the_cache(
    tmp_path: Path, calls: DirectCalls
) -> None:
    spec = job_of("short", tmp_path)
    run_inline(spec, tmp_path, MOVES["map"])
    found = files_of(tmp_path / "out")
    calls.written_bytes.clear()
    run_inline(spec, tmp_path, MOVES["spill"], overwrite=True)
    assert not calls.written_bytes
    assert files_of(tmp_path / "out") == found


def test_a_file_system_of_a_network_is_written_through_the_cache(
    tmp_path: Path, calls: DirectCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStagedObject, "file_system", lambda _: NETWORK)
    spec = job_of("long", tmp_path)
    run_inline(spec, tmp_path, MOVES["map"])
    assert files_of(tmp_path / "out")
    assert not calls.written_bytes
