"""Reads of ranges in any order: what comes is what the file has, on any file system."""

from __future__ import annotations

import io
import platform
import random
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsort.containers.tar.container import TAR
from dsort.errors import StorageError
from dsort.storage.bucket import RandomReads
from dsort.storage.open import open_bucket
from tests.support.internals import (
    InputShard,
    PayloadBuffer,
    RangeBuffer,
    RangeQueue,
    RangeRead,
    _answers_quickly,
    header_hops,
    range_queue,
)

PAGE = 4096


def tar_of(members: list[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, payload in members:
            info = tarfile.TarInfo(name)
            info.size = len(payload)
            tar.addfile(info, io.BytesIO(payload))
    return out.getvalue()


@pytest.fixture(params=["disk", "memory"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk, and one in memory, where older kernels know no direct reads."""
    if request.param == "disk":
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shm:
        yield Path(shm)


def reads_of(path: Path) -> RandomReads:
    with open_bucket(path.parent.as_uri(), root=Path("/")).open(path.name) as source:
        found = source.random_reads()
    assert found is not None
    return found


def room_of(size_bytes: int) -> memoryview:
    taken = RangeBuffer(PayloadBuffer(size_bytes + PAGE), PAGE).take(size_bytes)
    assert taken is not None
    return taken


def test_ranges_come_as_the_file_has_them_also_at_its_end(directory: Path) -> None:
    data = random.Random(1).randbytes(5 * PAGE + 100)
    path = directory / "a.tar"
    path.write_bytes(data)
    with reads_of(path) as reads:
        path.unlink()  # the file that is open is read, whatever has its name
        room = room_of(2 * PAGE)
        for first in (3, 0, 4):
            least = min(2 * PAGE, len(data) - first * PAGE)
            reads.read(room, first * PAGE, least)
            assert room[:least] == data[first * PAGE :][:least]
        few = memoryview(bytearray(10))
        assert reads.peek(few, len(data) - 4) == 4
        assert few[:4] == data[-4:]


def test_a_file_that_ends_too_soon_is_named(directory: Path) -> None:
    path = directory / "short.tar"
    path.write_bytes(bytes(PAGE + 1))
    with reads_of(path) as reads, pytest.raises(StorageError, match=r"short\.tar.* ended at byte"):
        reads.read(room_of(2 * PAGE), 0, PAGE + 2)


def test_the_room_of_a_ring_is_given_back_oldest_first() -> None:
    rng = random.Random(2)
    ring = RangeBuffer(PayloadBuffer(17 * PAGE), PAGE)
    assert ring.size_bytes in (16 * PAGE, 17 * PAGE), "memory may begin at a page by chance"
    live: list[tuple[memoryview, bytes]] = []
    refused = 0
    for number in range(2000):
        size = rng.randint(1, 6) * PAGE
        taken = ring.take(size)
        if taken is None:
            refused += 1
            assert live, "an empty ring has room"
        else:
            mark = number.to_bytes(4, "little") * (size // 4)
            taken[:] = mark
            live.append((taken, mark))
        if taken is None or rng.random() < 0.4:
            view, mark = live.pop(0)
            assert view == mark, "nobody else got the same room"
            ring.give_back()
    assert refused


def test_a_ring_with_room_to_spare_uses_little_of_it() -> None:
    ring = RangeBuffer(PayloadBuffer(1024 * PAGE), PAGE)
    whole = ring.take(ring.size_bytes)
    assert whole is not None
    whole[:] = bytes(len(whole))
    ring.give_back()
    held = False
    for _ in range(100):  # one is written while the next is read
        taken = ring.take(3 * PAGE)
        assert taken is not None
        taken[:] = b"x" * len(taken)
        if held:
            ring.give_back()
        held = True
    assert bytes(whole).rstrip(b"\0").count(b"x") == 6 * PAGE


@pytest.mark.parametrize("by_kernel", [False, True])
def test_one_failing_read_fails_its_batch_and_no_other(tmp_path: Path, by_kernel: bool) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"x" * 4 * PAGE)
    queue = RangeQueue(4, by_kernel=by_kernel)
    with reads_of(path) as reads:
        room = room_of(4 * PAGE)
        parts = [room[at : at + PAGE] for at in range(0, 4 * PAGE, PAGE)]
        good = [RangeRead(reads, part, n * PAGE, PAGE) for n, part in enumerate(parts[:3])]
        bad = queue.begin([*good, RangeRead(reads, parts[3], 9 * PAGE, PAGE)])
        also_good = queue.begin(good)
        with pytest.raises(StorageError, match="ended at byte"):
            bad.wait()
        assert bad.failed is not None
        assert bad.failed.offset == 9 * PAGE
        also_good.wait()
        assert bytes(room[: 3 * PAGE]) == b"x" * 3 * PAGE
    queue.close()


@pytest.mark.parametrize("machine", [platform.machine(), "abacus"])
def test_more_reads_than_the_queue_has_room_for_all_come(
    directory: Path, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)  # threads do it on the other
    monkeypatch.setattr(range_queue, "KERNEL_DEPTH", 5)
    data = random.Random(3).randbytes(64 * PAGE)
    path = directory / "a.tar"
    path.write_bytes(data)
    queue = RangeQueue(4, by_kernel=True)
    with reads_of(path) as reads:
        rooms = [room_of(64 * PAGE) for _ in range(3)]
        batches = []
        for number, room in enumerate(rooms):
            order = random.Random(number).sample(range(64), 64)
            parts = {at: room[at * PAGE : (at + 1) * PAGE] for at in order}
            batches.append(
                queue.begin([RangeRead(reads, parts[at], at * PAGE, PAGE) for at in order])
            )
        for batch, room in reversed(list(zip(batches, rooms, strict=True))):
            batch.wait()
            assert room == data
        queue.begin([]).wait()
    queue.close()


def test_headers_are_found_past_payload_until_something_is_no_header(tmp_path: Path) -> None:
    members = [("a.jpg", bytes(70_000)), ("a.json", b"{}"), ("n" * 150 + ".txt", bytes(600))]
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of(members))
    with reads_of(path) as reads:
        hops = list(header_hops(TAR.hops, reads, path.stat().st_size))
    names = [hop.name for hop in hops if hop.name]
    assert names[:2] == [b"a.jpg", b"a.json"]
    assert len(names) == 3
    assert hops[-1].next_at <= path.stat().st_size
    path.write_bytes(b"no tar" * 1000)
    with reads_of(path) as reads:
        assert list(header_hops(TAR.hops, reads, 6000)) == []


def test_a_disk_is_asked_within_the_shards_and_small_ones_are_spilled(tmp_path: Path) -> None:
    opened = []
    for name, size_bytes in (("a.tar", 3 << 20), ("b.tar", (1 << 20) + 5)):
        (tmp_path / name).write_bytes(bytes(size_bytes))
        opened.append((InputShard(name, size_bytes, 0, ""), reads_of(tmp_path / name)))
    for record_bytes in (40_000, 5 << 20):
        assert _answers_quickly(opened, record_bytes) in (True, False)
    (tmp_path / "small.tar").write_bytes(bytes(PAGE))
    small = [(InputShard("small.tar", PAGE, 0, ""), reads_of(tmp_path / "small.tar"))]
    assert _answers_quickly(small, 40_000) is False
    for _, reads in [*opened, *small]:
        reads.close()
