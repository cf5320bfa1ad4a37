"""No more requests at once and no more bytes a second than allowed, and no cost without a limit."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import obstore
import pytest
from obstore.store import MemoryStore

from dsort.errors import InvariantError, StorageError
from dsort.retry import RetryPolicy
from dsort.storage.bucket import Bucket, ObjectInfo
from dsort.storage.limit import Bandwidth, StoreLimiter, StoreLimits
from dsort.storage.objects import Fetched
from dsort.storage.obstore import ObstoreBucket, ObstoreClient
from tests.support.fake_clock import FakeClock
from tests.support.faulty_bucket import Fault
from tests.support.faulty_client import FaultyClient, stored_in_memory

if TYPE_CHECKING:
    from dsort.storage.object_reader import ByteStream

MIB = 1 << 20


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def limited(client: ObstoreClient, clock: FakeClock, bytes_per_s: float | None) -> ObstoreBucket:
    limits = StoreLimits(bandwidth_max_bytes_per_s=bytes_per_s)
    limiter = StoreLimiter(limits, clock=clock.now, sleep=clock.sleep)
    return stored_in_memory(client, limits=limits, limiter=limiter)


class Noting(FaultyClient):
    """Notes the time and the size of all that is read into buffers, and the buffers."""

    def __init__(self, clock: FakeClock, faults: Sequence[Fault] = ()) -> None:
        super().__init__(faults)
        self.clock = clock
        self.moved: list[tuple[float, int]] = []

    def fetch(self, name: str, start: int, stop: int | None, pinned: ObjectInfo | None) -> Fetched:
        info, stream = super().fetch(name, start, stop, pinned)
        return Fetched(info, NotingStream(stream, self))


class NotingStream:
    def __init__(self, inner: ByteStream, owner: Noting) -> None:
        self.inner = inner
        self.owner = owner

    def read_into(self, view: memoryview) -> int:
        got = self.inner.read_into(view)
        self.owner.moved.append((self.owner.clock.seconds - 1000, got))
        return got

    def close(self) -> None:
        self.inner.close()


# --- requests ----------------------------------------------------------------------------------


class Pairing(ObstoreClient):
    """Lets requests through two at a time, and notes how many there are."""

    def __init__(self, pair: threading.Barrier | None = None) -> None:
        super().__init__(MemoryStore(), uri="memory://test", scheme="gs")
        self.pair = pair or threading.Barrier(2, timeout=120)
        self.lock = threading.Lock()
        self.in_flight = self.in_flight_max = 0

    def head(self, name: str) -> ObjectInfo:
        with self.paired():
            return super().head(name)

    def fetch(self, name: str, start: int, stop: int | None, pinned: ObjectInfo | None) -> Fetched:
        with self.paired():
            return super().fetch(name, start, stop, pinned)

    def put(self, name: str, data: bytes) -> None:
        with self.paired():
            super().put(name, data)

    @contextlib.contextmanager
    def paired(self) -> Iterator[None]:
        with self.lock:
            self.in_flight += 1
            self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            self.pair.wait()
            yield
        finally:
            with self.lock:
                self.in_flight -= 1


def use_stat(bucket: Bucket) -> None:
    bucket.stat("a")


def use_read(bucket: Bucket) -> None:
    bucket.read("a")


def use_write(bucket: Bucket) -> None:
    bucket.write(f"b-{threading.get_ident()}", b"x")


@pytest.mark.parametrize("use", [use_stat, use_read, use_write])
def test_as_many_requests_are_in_flight_as_allowed_and_no_more(
    use: Callable[[Bucket], None],
) -> None:
    """Each waits for another one, so two at least are in flight; two are allowed."""
    pairing = Pairing()
    obstore.put(pairing.store, "a", b"x")
    bucket = stored_in_memory(pairing, limits=StoreLimits(requests_in_flight_max=2))
    threads = [threading.Thread(target=use, args=(bucket,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not pairing.pair.broken
    assert pairing.in_flight_max == 2


def test_buckets_of_one_process_share_the_places() -> None:
    first = Pairing()
    pairings = [first, Pairing(first.pair)]
    limiter = StoreLimiter(StoreLimits(requests_in_flight_max=2))
    used = [stored_in_memory(pairing, limiter=limiter) for pairing in pairings] * 4
    threads = [threading.Thread(target=use_write, args=(bucket,)) for bucket in used]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not first.pair.broken
    assert sum(pairing.in_flight for pairing in pairings) == 0


def test_one_place_is_enough_for_all_that_one_thread_does() -> None:
    """A listing under way, and what is open, take no place while nothing is asked of them."""
    bucket = stored_in_memory(FaultyClient(), limits=StoreLimits(requests_in_flight_max=1))
    bucket.write("a", b"x")
    bucket.write("b", b"y")
    with bucket.open("a") as opened, bucket.stage(".dsort/j/0", name="c") as staged:
        for info in bucket.list():
            assert bucket.stat(info.name) == info
            opened.read_into(memoryview(bytearray(1)), 0)
            staged.write_at(staged.size_bytes(), [b"z"])
        assert staged.size_bytes() == 2


def test_a_place_is_given_back_after_an_error() -> None:
    bucket = stored_in_memory(FaultyClient(), limits=StoreLimits(requests_in_flight_max=1))
    for _ in range(3):
        with pytest.raises(StorageError):
            bucket.stat("nothing")
    assert bucket.exists()


def test_a_request_that_waits_for_its_next_try_takes_no_place(clock: FakeClock) -> None:
    limits = StoreLimits(requests_in_flight_max=1)
    limiter = StoreLimiter(limits)
    other = stored_in_memory(FaultyClient(), limiter=limiter)

    def meanwhile(_: float) -> None:
        other.write("b", b"x")

    policy = RetryPolicy(clock=clock.now, sleep=meanwhile)
    faulty = FaultyClient([Fault("write", "503", times=2)])
    stored_in_memory(faulty, policy=policy, limiter=limiter).write("a", b"x")
    assert other.read("b") == b"x"


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
    client = Noting(clock)
    data = random.Random(3).randbytes(50 * MIB)
    obstore.put(client.store, "a", data)
    with limited(client, clock, bytes_per_s).open("a") as opened:
        buffer = bytearray(len(data) - 3)
        opened.read_into(memoryview(buffer), 3)
    assert buffer == data[3:]
    flowed = 0
    for seconds, size_bytes in client.moved:
        flowed += size_bytes
        assert flowed <= bytes_per_s * (seconds + 0.1) + 1
    assert flowed == len(buffer)
    assert max(size_bytes for _, size_bytes in client.moved) == window_bytes
    assert sum(clock.slept) == pytest.approx(len(buffer) / bytes_per_s - 0.1)


def test_a_large_write_is_as_slow_as_allowed(clock: FakeClock) -> None:
    bucket = limited(FaultyClient(), clock, 10.0 * MIB)
    pieces = [bytes([number]) * (number * 300_000) for number in range(14)]
    with bucket.stage(".dsort/j/0", name="a") as staged:
        staged.write_at(0, [b"head"])
        staged.write_at(4, pieces)
        receipt = staged.finish()
    data = b"head" + b"".join(pieces)
    assert sum(clock.slept) == pytest.approx((len(data) / MIB - 1) / 10, abs=0.01)
    bucket.publish(".dsort/j/0", "a", overwrite=False, receipt=receipt)
    assert bucket.stat("a").size_bytes == len(data)


def test_small_objects_count_both_ways(clock: FakeClock) -> None:
    bucket = limited(FaultyClient(), clock, 1000.0)
    bucket.write("a", bytes(1000))
    bucket.write_new("b", bytes(1000))
    assert len(bucket.read("a")) == 1000
    assert sum(clock.slept) == pytest.approx(2.9)


def test_reading_and_writing_share_the_bandwidth_of_all_buckets(clock: FakeClock) -> None:
    limits = StoreLimits(bandwidth_max_bytes_per_s=1000.0)
    limiter = StoreLimiter(limits, clock=clock.now, sleep=clock.sleep)
    first, second = (stored_in_memory(FaultyClient(), limiter=limiter) for _ in range(2))
    first.write("a", bytes(600))
    second.write("a", first.read("a"))
    assert sum(clock.slept) == pytest.approx(1.7)


def test_without_a_limit_a_read_is_one_window(clock: FakeClock) -> None:
    limiter = StoreLimiter(StoreLimits(), clock=clock.now, sleep=clock.sleep)
    assert list(limiter.windows(20 * MIB + 1)) == [slice(0, 20 * MIB + 1)]
    assert clock.slept == []


def test_a_read_cut_short_in_a_later_window_goes_on_from_there(clock: FakeClock) -> None:
    client = Noting(clock, [Fault("read_into", "cut")])
    data = random.Random(5).randbytes(500_000)
    slept: list[float] = []
    limits = StoreLimits(bandwidth_max_bytes_per_s=1e6)
    bucket = stored_in_memory(
        client,
        limits=limits,
        limiter=StoreLimiter(limits, clock=clock.now, sleep=clock.sleep),
        policy=RetryPolicy(clock=clock.now, sleep=slept.append),
    )
    obstore.put(client.store, "a", data)
    with bucket.open("a") as opened:
        buffer = bytearray(500_000)
        opened.read_into(memoryview(buffer), 0)
    assert buffer == data
    assert [size for _, size in client.moved] == [50_000, 50_000] + [100_000] * 4
    assert client.ranges == [(0, None), (50_000, None)]
    assert len(slept) == 1


def test_a_pinned_read_waits_for_all_of_its_bytes(clock: FakeClock) -> None:
    client = Noting(clock)
    bucket = limited(client, clock, 1e6)
    obstore.put(client.store, "a", bytes(500_000))
    with bucket.pinned(bucket.stat("a")) as pinned:
        pinned.read_into(memoryview(bytearray(500_000)), 0)
    assert client.ranges == [(0, 500_000)]
    assert client.moved[0][0] == pytest.approx(0.4)


def test_large_pieces_pass_in_windows_so_that_others_get_in_between(clock: FakeClock) -> None:
    limits = StoreLimits(bandwidth_max_bytes_per_s=MIB)
    limiter, taken = StoreLimiter(limits, clock=clock.now, sleep=clock.sleep), []
    assert limiter.bandwidth is not None
    limiter.bandwidth.take = taken.append  # type: ignore[method-assign]
    limiter.take(16 * MIB)
    assert sum(taken) == 16 * MIB
    assert max(taken) == limiter.window_bytes < MIB
