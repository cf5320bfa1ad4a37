"""Reading an object of a store makes one request, reads on from one stream, and opens another one
where the stream breaks."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from dsort.errors import ChangedInputError, StorageError, TransientStorageError
from dsort.retry import RetryPolicy
from dsort.storage.bucket import ObjectInfo
from dsort.storage.limit import StoreLimits
from dsort.storage.object_reader import ObjectReader
from dsort.storage.transport import Transport
from tests.support.byte_streams import FetchedObject

SIZE = 50_000
RANGE = 12_000


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
def test_a_stream_that_breaks_is_gone_on_with_from_there(
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
    with pytest.raises(
        StorageError, match=r"tried 8 times .* a in bucket s3://b was cut short: 10,500 of 50,000"
    ):
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
    with pytest.raises(StorageError, match="ended at byte 50,000, 50,001 expected"):
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
