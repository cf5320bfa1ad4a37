"""Laws of retries and limits, whatever goes wrong and however long it takes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from dsort.errors import StorageError, TransientStorageError
from dsort.retry import RetryPolicy
from dsort.storage.limit import Bandwidth, StoreLimiter, StoreLimits
from dsort.storage.transport import Transport
from tests.support.fake_clock import FakeClock
from tests.support.faulty_bucket import TRANSIENT, RandomFaults
from tests.support.faulty_client import FaultyClient, stored_in_memory
from tests.support.sampling import examples

SECONDS = st.floats(0.0, 1000.0, allow_subnormal=False)
SEEDS = st.integers(0, 2**32 - 1)
NAMED = st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="/.")
"""The characters of names that obstore lists."""
READING = (*TRANSIENT, "cut", "reply lost")


@given(
    delays=st.tuples(SECONDS, SECONDS).map(sorted),
    failures=st.integers(1, 10_000),
)
def test_delays_are_within_their_bounds(delays: list[float], failures: int) -> None:
    low, high = delays
    policy = RetryPolicy(delay_s_min=low, delay_s_max=high)
    for _ in range(5):
        assert low <= policy.delay_s(failures) <= high
        if failures <= 64:
            assert policy.delay_s(failures) <= low * 2.0**failures


@given(
    tries_max=st.integers(1, 12),
    seconds_max=SECONDS,
    delays=st.tuples(SECONDS, SECONDS).map(sorted),
    durations=st.lists(SECONDS, min_size=12, max_size=12),
    failures=st.integers(0, 12),
)
def test_tries_and_time_are_bounded(
    tries_max: int,
    seconds_max: float,
    delays: list[float],
    durations: list[float],
    failures: int,
) -> None:
    clock = FakeClock(0.0)
    policy = RetryPolicy(
        tries_max=tries_max,
        seconds_max=seconds_max,
        delay_s_min=delays[0],
        delay_s_max=delays[1],
        clock=clock.now,
        sleep=clock.sleep,
    )
    began: list[float] = []

    def action() -> str:
        began.append(clock.seconds)
        clock.seconds += durations[len(began) - 1]
        if len(began) <= failures:
            raise TransientStorageError("503")
        return "done"

    given_up: StorageError | None = None
    try:
        assert Transport(StoreLimits(), policy=policy).call("try", action) == "done"
    except StorageError as error:
        given_up = error
    if given_up is None:
        assert len(began) == failures + 1
    else:
        assert type(given_up) is StorageError
        assert len(began) <= failures
        next_at_the_latest = clock.seconds - durations[0] + policy.delay_s_max
        assert len(began) == tries_max or next_at_the_latest > seconds_max * (1 - 1e-9)
    assert len(began) <= tries_max
    assert len(began) - 1 == len(clock.slept)
    assert began[-1] <= durations[0] + seconds_max * (1 + 1e-9) + 1e-9


@given(
    bytes_per_s=st.floats(1e7, 1e10),
    burst_bytes=st.integers(0, 10**9),
    asked=st.lists(st.tuples(SECONDS, st.integers(0, 10**9)), min_size=1, max_size=20),
)
def test_bandwidth_is_kept_from_any_moment_on_and_never_wasted(
    bytes_per_s: float, burst_bytes: int, asked: list[tuple[float, int]]
) -> None:
    clock = FakeClock(0.0)
    bandwidth = Bandwidth(bytes_per_s, burst_bytes=burst_bytes, clock=clock.now, sleep=clock.sleep)
    begun, ended = [], []
    for idle_s, size_bytes in asked:
        clock.seconds += idle_s
        begun.append(clock.seconds)
        bandwidth.take(size_bytes)
        ended.append(clock.seconds)
    sizes = [size_bytes for _, size_bytes in asked]
    for first in range(len(asked)):
        passed = 0
        for last in range(first, len(asked)):
            passed += sizes[last]
            allowed = bytes_per_s * (ended[last] - begun[first]) + burst_bytes
            assert passed <= allowed * (1 + 1e-6) + bytes_per_s * 1e-6
    waited_s = sum(end - begin for begin, end in zip(begun, ended, strict=True))
    assert waited_s <= sum(sizes) / bytes_per_s * (1 + 1e-6) + 1e-6


@settings(max_examples=examples(50))
@given(
    seed=SEEDS,
    rate=st.sampled_from([0.0, 0.3, 1.0]),
    size_bytes=st.integers(0, 300_000),
    offset=st.integers(0, 1000),
    bytes_per_s=st.sampled_from([None, 1000.0, 1e6]),
)
def test_whatever_is_read_in_the_end_is_right(
    seed: int, rate: float, size_bytes: int, offset: int, bytes_per_s: float | None
) -> None:
    clock = FakeClock()
    data = random.Random(seed).randbytes(size_bytes + offset)
    client = FaultyClient(RandomFaults(seed, rate=rate, kinds=READING))
    limits = StoreLimits(bandwidth_max_bytes_per_s=bytes_per_s, tries_max=40)
    limiter = StoreLimiter(limits, clock=clock.now, sleep=clock.sleep)
    policy = RetryPolicy(tries_max=40, seconds_max=1e9, clock=clock.now, sleep=clock.sleep)
    bucket = stored_in_memory(client, limits=limits, policy=policy, limiter=limiter)
    bucket.write("a", data)
    buffer = bytearray(b"?" * size_bytes)
    with bucket.open("a") as opened:
        opened.read_into(memoryview(buffer), offset)
    assert buffer == data[offset : offset + size_bytes]
    assert bucket.read("a") == data


@settings(max_examples=examples(50))
@given(
    seed=SEEDS,
    names=st.sets(st.text(NAMED, min_size=1)),
)
def test_a_listing_gives_every_name_once_and_in_order(seed: int, names: set[str]) -> None:
    kinds = (*TRANSIENT, "cut")
    client = FaultyClient(RandomFaults(seed, rate=0.7, kinds=kinds))
    bucket = stored_in_memory(client, policy=RetryPolicy(sleep=lambda _: None))
    for name in names:
        bucket.write(name, b"")
    assert [info.name for info in bucket.list()] == sorted(names, key=str.encode)


@settings(max_examples=examples(50))
@given(seed=SEEDS, writers=st.integers(1, 6))
def test_of_several_writers_exactly_one_learns_that_it_was_first(seed: int, writers: int) -> None:
    store = MemoryStore()
    kinds = (*TRANSIENT, "reply lost")
    # Four faults in a row of each operation: a read begins a stream up to 25 times.
    policy = RetryPolicy(tries_max=30, sleep=lambda _: None)
    first = []
    for writer in range(writers):
        faults = RandomFaults(f"{seed}/{writer}", rate=0.6, kinds=kinds, in_a_row_max=4)
        client = FaultyClient(faults, store=store)
        bucket = stored_in_memory(client, policy=policy)
        if bucket.write_new("lease", b"held by %d" % writer):
            first.append(writer)
    assert first == [0]
    assert stored_in_memory(FaultyClient(store=store)).read("lease") == b"held by 0"


def test_delays_differ_between_workers() -> None:
    """Requests that failed together do not come back together."""
    delays = {RetryPolicy().delay_s(8) for _ in range(100)}
    assert len(delays) > 90
    assert max(delays) - min(delays) > 10
    assert sum(delays) / len(delays) == pytest.approx(15, abs=7)
