"""No more requests at once and no more bytes a second than allowed, and no cost without a limit."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from dsort.errors import InvariantError, StorageError
from dsort.retry import RetryPolicy
from dsort.storage.bucket import Bucket, Buffer, ReadObject, StagedObject
from dsort.storage.limit import Bandwidth, LimitedBucket, StoreLimiter, StoreLimits
from dsort.storage.retry import RetryingBucket
from tests.support.fake_clock import FakeClock
from tests.support.faulty_bucket import Fault, FaultyBucket
from tests.support.hooked_bucket import HookedBucket, HookedReadObject, HookedStagedObject
from tests.support.memory_bucket import MemoryBucket

T = TypeVar("T")

MIB = 1 << 20


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def limited(inner: Bucket, clock: FakeClock, bytes_per_s: float | None) -> LimitedBucket:
    limits = StoreLimits(bandwidth_max_bytes_per_s=bytes_per_s)
    return LimitedBucket(inner, StoreLimiter(limits, clock=clock.now, sleep=clock.sleep))


class Noting(HookedBucket):
    """Notes the time and the size of all that is read into buffers and written to staged objects,
    and the objects handed over."""

    def __init__(self, inner: Bucket, clock: FakeClock) -> None:
        super().__init__(inner)
        self.clock = clock
        self.moved: list[tuple[float, int]] = []
        self.handed: list[object] = []

    def opened(self, inner: ReadObject) -> HookedReadObject:
        return NotingReadObject(inner, self)

    def staged(self, inner: StagedObject, name: str) -> HookedStagedObject:
        return NotingStagedObject(inner, self, name)

    def note(self, size_bytes: int, handed: object) -> None:
        self.moved.append((self.clock.seconds - 1000, size_bytes))
        self.handed.append(handed)


class NotingReadObject(HookedReadObject):
    owner: Noting

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.owner.note(len(buffer), buffer)
        super().read_into(buffer, offset)


class NotingStagedObject(HookedStagedObject):
    owner: Noting

    def write_at(self, offset: int, slices: Sequence[Buffer]) -> None:
        self.owner.note(sum(map(len, slices)), slices)
        super().write_at(offset, slices)


# --- requests ----------------------------------------------------------------------------------


class Pairing(HookedBucket):
    """Lets operations through two at a time, and notes how many there are."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self.pair = threading.Barrier(2, timeout=120)
        self.lock = threading.Lock()
        self.in_flight = self.in_flight_max = 0

    def around(self, operation: str, name: str, action: Callable[[], T]) -> T:
        with self.lock:
            self.in_flight += 1
            self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            self.pair.wait()
            return action()
        finally:
            with self.lock:
                self.in_flight -= 1


def use_stat(bucket: Bucket) -> None:
    bucket.stat("a")


def use_read_into(bucket: Bucket) -> None:
    with bucket.open("a") as opened:
        opened.read_into(memoryview(bytearray(1)), 0)


def use_write(bucket: Bucket) -> None:
    bucket.write(f"b-{threading.get_ident()}", b"x")


@pytest.mark.parametrize("use", [use_stat, use_read_into, use_write])
def test_as_many_requests_are_in_flight_as_allowed_and_no_more(
    use: Callable[[Bucket], None],
) -> None:
    """Each waits for another one, so two at least are in flight; two are allowed."""
    memory = MemoryBucket()
    memory.write("a", b"x")
    pairing = Pairing(memory)
    bucket = LimitedBucket(pairing, StoreLimiter(StoreLimits(requests_in_flight_max=2)))
    threads = [threading.Thread(target=use, args=(bucket,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not pairing.pair.broken
    assert pairing.in_flight_max == 2


def test_buckets_of_one_process_share_the_places() -> None:
    pairings = [Pairing(MemoryBucket()) for _ in range(2)]
    pairings[1].pair = pairings[0].pair
    limiter = StoreLimiter(StoreLimits(requests_in_flight_max=2))
    used = [LimitedBucket(pairing, limiter) for pairing in pairings] * 4
    threads = [threading.Thread(target=use_write, args=(bucket,)) for bucket in used]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not pairings[0].pair.broken
    assert sum(pairing.in_flight for pairing in pairings) == 0


def test_one_place_is_enough_for_all_that_one_thread_does() -> None:
    """A listing under way, and what is open, take no place while nothing is asked of them."""
    bucket = LimitedBucket(MemoryBucket(), StoreLimiter(StoreLimits(requests_in_flight_max=1)))
    bucket.write("a", b"x")
    bucket.write("b", b"y")
    with bucket.open("a") as opened, bucket.stage(".dsort/j/0", name="c") as staged:
        for info in bucket.list():
            assert bucket.stat(info.name) == info
            opened.read_into(memoryview(bytearray(1)), 0)
            staged.write_at(staged.size_bytes(), [b"z"])
        assert staged.size_bytes() == 2


def test_a_place_is_given_back_after_an_error() -> None:
    bucket = LimitedBucket(MemoryBucket(), StoreLimiter(StoreLimits(requests_in_flight_max=1)))
    for _ in range(3):
        with pytest.raises(StorageError):
            bucket.stat("nothing")
    assert bucket.exists()


def test_no_place_at_all_is_a_bug() -> None:
    with pytest.raises(InvariantError):
        StoreLimiter(StoreLimits(requests_in_flight_max=0))


# --- bandwidth ---------------------------------------------------------------------------------


def test_a_burst_passes_at_once_and_the_rest_as_it_is_earned(clock: FakeClock) -> None:
    bandwidth = Bandwidth(1000, burst_bytes=500, clock=clock.now, sleep=clock.sleep)
    passed = []
    for size_bytes in (300, 200, 100, 100, 5000, 0, 1):
        bandwidth.take(size_bytes)
        passed.append(clock.seconds - 1000)
    assert passed == pytest.approx([0, 0, 0.1, 0.2, 5.2, 5.2, 5.201])


def test_what_was_not_used_is_kept_up_to_one_burst(clock: FakeClock) -> None:
    bandwidth = Bandwidth(1000, burst_bytes=500, clock=clock.now, sleep=clock.sleep)
    bandwidth.take(500)
    clock.seconds += 3600
    bandwidth.take(500)
    assert clock.slept == []
    bandwidth.take(1)
    assert sum(clock.slept) == pytest.approx(0.001)


def test_waits_come_in_slices(clock: FakeClock) -> None:
    Bandwidth(1000, burst_bytes=0, clock=clock.now, sleep=clock.sleep).take(10_100)
    assert sum(clock.slept) == pytest.approx(10.1)
    assert max(clock.slept) <= 0.25


@pytest.mark.parametrize(("bytes_per_s", "burst_bytes"), [(0, 1), (-1, 1), (1, -1)])
def test_a_bandwidth_that_cannot_be_is_a_bug(bytes_per_s: float, burst_bytes: int) -> None:
    with pytest.raises(InvariantError):
        Bandwidth(bytes_per_s, burst_bytes=burst_bytes)


@pytest.mark.parametrize(
    ("bytes_per_s", "window_bytes"), [(10.0 * MIB, MIB), (200.0 * MIB, 8 * MIB), (5e5, 64 << 10)]
)
def test_a_large_read_flows_evenly(clock: FakeClock, bytes_per_s: float, window_bytes: int) -> None:
    inner = Noting(MemoryBucket(), clock)
    data = random.Random(3).randbytes(50 * MIB)
    inner.inner.write("a", data)
    with limited(inner, clock, bytes_per_s).open("a") as opened:
        buffer = bytearray(len(data) - 3)
        opened.read_into(memoryview(buffer), 3)
    assert buffer == data[3:]
    flowed = 0
    for seconds, size_bytes in inner.moved:
        flowed += size_bytes
        assert flowed <= bytes_per_s * (seconds + 0.1) + 1
    assert flowed == len(buffer)
    assert max(size_bytes for _, size_bytes in inner.moved) == window_bytes
    assert sum(clock.slept) == pytest.approx(len(buffer) / bytes_per_s - 0.1)


def test_a_large_write_flows_evenly(clock: FakeClock) -> None:
    inner = Noting(MemoryBucket(), clock)
    bucket = limited(inner, clock, 10.0 * MIB)
    pieces = [bytes([number]) * (number * 300_000) for number in range(14)]
    with bucket.stage(".dsort/j/0", name="a") as staged:
        staged.write_at(0, [b"head"])
        staged.write_at(4, pieces)
        receipt = staged.finish()
    bucket.publish(".dsort/j/0", "a", overwrite=False, receipt=receipt)
    data = b"head" + b"".join(pieces)
    assert inner.read("a") == data
    assert max(size_bytes for _, size_bytes in inner.moved) == MIB
    assert sum(clock.slept) == pytest.approx((len(data) / MIB - 1) / 10, abs=0.01)


def test_small_objects_count_both_ways(clock: FakeClock) -> None:
    bucket = limited(MemoryBucket(), clock, 1000.0)
    bucket.write("a", bytes(1000))
    bucket.write_new("b", bytes(1000))
    assert len(bucket.read("a")) == 1000
    assert sum(clock.slept) == pytest.approx(2.9)


def test_reading_and_writing_share_the_bandwidth_of_all_buckets(clock: FakeClock) -> None:
    limits = StoreLimits(bandwidth_max_bytes_per_s=1000.0)
    limiter = StoreLimiter(limits, clock=clock.now, sleep=clock.sleep)
    first, second = (LimitedBucket(MemoryBucket(), limiter) for _ in range(2))
    first.write("a", bytes(600))
    second.write("a", first.read("a"))
    assert sum(clock.slept) == pytest.approx(1.7)


def test_without_a_limit_everything_is_handed_on_as_it_is(clock: FakeClock) -> None:
    inner = Noting(MemoryBucket(), clock)
    bucket = limited(inner, clock, None)
    slices = [bytes(20 * MIB), b"", b"x"]
    with bucket.stage(".dsort/j/0", name="a") as staged:
        staged.write_at(0, slices)
        receipt = staged.finish()
    bucket.publish(".dsort/j/0", "a", overwrite=False, receipt=receipt)
    buffer = memoryview(bytearray(20 * MIB + 1))
    with bucket.open("a") as opened:
        opened.read_into(buffer, 0)
    written, read = inner.handed
    assert written is slices
    assert read is buffer
    assert clock.slept == []


def test_a_read_cut_short_in_a_later_window_goes_on_from_there(clock: FakeClock) -> None:
    """Retries go around limits: what was filled by windows before is known to them."""
    faulty = FaultyBucket(
        MemoryBucket(),
        [Fault("read_into", "cut", first=3), Fault("read_into", "reset", first=5)],
    )
    noting = Noting(faulty, clock)
    data = random.Random(5).randbytes(500_000)
    faulty.inner.write("a", data)
    slept: list[float] = []
    policy = RetryPolicy(clock=clock.now, sleep=slept.append)
    with RetryingBucket(limited(noting, clock, 1e6), policy).open("a") as opened:
        buffer = bytearray(500_000)
        opened.read_into(memoryview(buffer), 0)
    assert buffer == data
    assert [size for _, size in noting.moved] == [100_000] * 3 + [100_000] * 2 + [100_000, 50_000]
    assert len(slept) == 2


def test_what_a_backend_offers_besides_is_reached_through_inner(clock: FakeClock) -> None:
    memory = MemoryBucket()
    bucket = limited(memory, clock, None)
    assert bucket.inner is memory
    assert (bucket.uri, bucket.seals_on_finish) == (memory.uri, memory.seals_on_finish)
    bucket.write("a", b"x")
    assert bucket.open("a").rereads_cheaply is memory.open("a").rereads_cheaply
