"""Reading an object of a store makes one request, reads on from one stream, and opens another one
where the stream breaks; reads of ranges in any order bring what the file has, on any file
system."""

from __future__ import annotations

import platform
import random
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dsort.containers.tar.container import TAR
from dsort.errors import (
    ChangedInputError,
    InvariantError,
    StorageError,
    TransientStorageError,
)
from dsort.retry import RetryPolicy
from dsort.storage.bucket import ObjectInfo, RandomReads
from dsort.storage.limit import StoreLimits
from dsort.storage.object_reader import ObjectReader
from dsort.storage.open import open_bucket
from dsort.storage.transport import Transport
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
from tests.support.refusals import raises
from tests.support.tars import tar_of

SIZE = 50_000
RANGE = 12_000


class _Stream:
    def __init__(self, owner: FetchedObject, start: int, stop: int) -> None:
        self._owner = owner
        self._at = start
        self._stop = stop
        self.is_closed = False

    def read_into(self, view: memoryview) -> int:
        assert len(view)
        assert not self.is_closed
        size = min(len(view), self._owner.block_bytes, self._stop - self._at)
        breaks_at = min((at for at in self._owner.breaks if at >= self._at), default=self._stop)
        size = min(size, breaks_at - self._at)
        if not size and breaks_at < self._stop:
            self._owner.breaks.remove(breaks_at)
            if self._owner.ends_silently:
                return 0
            raise TransientStorageError("the connection broke")
        view[:size] = self._owner.data[self._at : self._at + size]
        self._at += size
        return size

    def close(self) -> None:
        self.is_closed = True


class FetchedObject:
    """``breaks``: offsets at which a connection breaks, once each; ``ends_silently``: it looks like
    the end. ``requests`` are the ranges that were asked for, the first at once."""

    def __init__(self, data: bytes, *, block_bytes: int = 1000) -> None:
        self.data = data
        self.block_bytes = block_bytes
        self.breaks: list[int] = []
        self.ends_silently = False
        self.has_changed = False
        self.requests: list[tuple[int, int | None]] = []
        self.streams: list[_Stream] = []
        self._lock = threading.Lock()

    def fetch(self, start: int, stop: int | None) -> _Stream:
        with self._lock:
            if self.has_changed:
                raise ChangedInputError("object a changed while it was read")
            self.requests.append((start, stop))
            self.streams.append(_Stream(self, start, len(self.data) if stop is None else stop))
            return self.streams[-1]


@pytest.fixture
def stored(rng: random.Random) -> FetchedObject:
    return FetchedObject(rng.randbytes(SIZE))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def reader_of(
    stored: FetchedObject, threads: ThreadPoolExecutor, *, range_bytes: int = 1 << 40
) -> ObjectReader:
    info = ObjectInfo("a", len(stored.data), 0, "e")
    return ObjectReader(
        info,
        stored.fetch(0, None),
        stored.fetch,
        bucket="s3://b",
        transport=Transport(StoreLimits(), policy=RetryPolicy(sleep=lambda _: None)),
        range_bytes=range_bytes,
        pool=lambda: threads,
    )


def read(reader: ObjectReader, offset: int, length: int) -> bytes:
    buffer = bytearray(length)
    reader.read_into(memoryview(buffer), offset)
    return bytes(buffer)


def test_windows_one_after_the_other_are_one_request(
    stored: FetchedObject, threads: ThreadPoolExecutor
) -> None:
    reader = reader_of(stored, threads)
    windows = [read(reader, at, 7_000) for at in range(0, 49_000, 7_000)]
    assert b"".join(windows) + read(reader, 49_000, 1_000) == stored.data
    assert stored.requests == [(0, None)]
    assert stored.streams[0].is_closed


def test_a_read_elsewhere_asks_for_its_range_and_one_behind_it_for_the_rest(
    stored: FetchedObject, threads: ThreadPoolExecutor
) -> None:
    reader = reader_of(stored, threads)
    for offset, length in ((100, 50), (150, 10), (160, 10), (5, 10), (SIZE, 0)):
        assert read(reader, offset, length) == stored.data[offset : offset + length]
    assert stored.requests == [(0, None), (100, 150), (150, None), (5, 15)]
    reader.close()
    assert all(stream.is_closed for stream in stored.streams)


@pytest.mark.parametrize("ends_silently", [False, True])
def test_a_stream_that_breaks_is_read_on_from_there(
    stored: FetchedObject, threads: ThreadPoolExecutor, ends_silently: bool
) -> None:
    stored.ends_silently = ends_silently
    stored.breaks = [0, 10_500, 10_500, 31_000]
    reader = reader_of(stored, threads)
    assert read(reader, 0, 30_000) + read(reader, 30_000, 20_000) == stored.data
    assert [start for start, _ in stored.requests] == [0, 0, 10_500, 10_500, 31_000]


def test_how_far_it_got_is_reported(stored: FetchedObject, threads: ThreadPoolExecutor) -> None:
    stored.breaks = [10_500] * 8
    stored.ends_silently = True
    reader = reader_of(stored, threads)
    buffer = bytearray(SIZE)
    with raises(StorageError, "8 times", "bucket s3://b", "10,500 of 50,000"):
        reader.read_into(memoryview(buffer), 0)
    assert buffer[:10_500] == stored.data[:10_500]


def test_a_large_read_is_several_requests_at_once(
    stored: FetchedObject, threads: ThreadPoolExecutor
) -> None:
    reader = reader_of(stored, threads, range_bytes=RANGE)
    assert read(reader, 0, SIZE) == stored.data
    first, *others = stored.requests
    assert first == (0, None)
    assert sorted(others) == [(at, at + 10_000) for at in range(10_000, SIZE, 10_000)]
    assert all(stream.is_closed for stream in stored.streams)
    assert read(reader, 7, RANGE + 1) == stored.data[7 : RANGE + 8]


@pytest.mark.parametrize("seed", range(20))
def test_a_large_read_with_broken_connections_is_whole(
    stored: FetchedObject, threads: ThreadPoolExecutor, seed: int
) -> None:
    chance = random.Random(seed)
    stored.ends_silently = chance.random() < 0.5
    stored.breaks = [chance.randrange(SIZE) for _ in range(chance.randrange(1, 9))]
    reader = reader_of(stored, threads, range_bytes=chance.choice([RANGE, 3_000]))
    assert read(reader, 0, SIZE) == stored.data


def test_an_object_that_changed_is_reported_from_any_range(
    stored: FetchedObject, threads: ThreadPoolExecutor
) -> None:
    reader = reader_of(stored, threads, range_bytes=RANGE)
    stored.has_changed = True
    with pytest.raises(ChangedInputError):
        read(reader, 0, SIZE)
    with pytest.raises(ChangedInputError):
        read(reader, 3, 10)


def test_nothing_is_asked_for_beyond_the_end(
    stored: FetchedObject, threads: ThreadPoolExecutor
) -> None:
    reader = reader_of(stored, threads)
    with raises(StorageError, "50,000", "50,001"):
        read(reader, SIZE - 1, 2)
    assert stored.requests == [(0, None)]


class _Pool(ThreadPoolExecutor):
    """``cancelled``: set once a caller cancels a task."""

    def __init__(self) -> None:
        super().__init__(4)
        self.cancelled = threading.Event()

    def submit(self, call: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future = super().submit(call, *arguments, **named)
        cancel = future.cancel

        def noted() -> bool:
            self.cancelled.set()
            return cancel()

        future.cancel = noted  # type: ignore[method-assign]
        return future


def test_ranges_are_not_tried_again_once_another_has_failed(stored: FetchedObject) -> None:
    with _Pool() as pool:
        has_failed, tries = threading.Event(), []

        def fetch(start: int, stop: int | None) -> Any:
            tries.append(start)
            has_failed.set()
            raise TransientStorageError("503")

        first = stored.fetch(0, None)

        def broken(view: memoryview) -> int:
            has_failed.wait()
            raise ChangedInputError("object a changed while it was read")

        first.read_into = broken  # type: ignore[method-assign]
        policy = RetryPolicy(sleep=lambda _: pool.cancelled.wait() and None)
        reader = ObjectReader(
            ObjectInfo("a", SIZE, 0, "e"),
            first,
            fetch,
            bucket="s3://b",
            transport=Transport(StoreLimits(), policy=policy),
            range_bytes=RANGE,
            pool=lambda: pool,
        )
        with pytest.raises(ChangedInputError):
            read(reader, 0, SIZE)
    assert sorted(set(tries)) == sorted(tries)


PAGE = 4096


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
    taken: memoryview = RangeBuffer(PayloadBuffer(size_bytes + PAGE), PAGE).take(size_bytes)
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
    with reads_of(path) as reads, raises(StorageError, "short.tar"):
        reads.read(room_of(2 * PAGE), 0, PAGE + 2)


def test_the_room_of_a_ring_is_given_back_oldest_first() -> None:
    rng = random.Random(2)
    ring = RangeBuffer(PayloadBuffer(17 * PAGE), PAGE)
    assert ring.size_bytes in (16 * PAGE, 17 * PAGE), "memory may begin at a page by chance"
    live: list[tuple[memoryview, bytes]] = []
    refused = 0
    for number in range(2000):
        size = rng.randint(1, 6) * PAGE
        has_room = ring.has_room(size)
        if not has_room:
            refused += 1
            assert live, "an empty ring has room"
            with raises(InvariantError, str(size)):
                ring.take(size)
        else:
            taken = ring.take(size)
            mark = number.to_bytes(4, "little") * (size // 4)
            taken[:] = mark
            live.append((taken, mark))
        if not has_room or rng.random() < 0.4:
            view, mark = live.pop(0)
            assert view == mark, "no other reader got the same room"
            ring.give_back()
    assert refused


def test_a_ring_with_room_to_spare_uses_little_of_it() -> None:
    ring = RangeBuffer(PayloadBuffer(1024 * PAGE), PAGE)
    whole = ring.take(ring.size_bytes)
    whole[:] = bytes(len(whole))
    ring.give_back()
    held = False
    for _ in range(100):  # one is written while the next is read
        taken = ring.take(3 * PAGE)
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
        with raises(StorageError, "a.tar", "byte 36,864"):
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
    path.write_bytes(tar_of(members, tarfile.GNU_FORMAT))
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
