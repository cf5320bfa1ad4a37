"""How often, how long and how soon a failed request is tried again: exact bounds, on a clock that
stands still."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest

from dsort.errors import (
    InvariantError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    StorageFullError,
    TransientStorageError,
)
from dsort.storage.limit import StoreLimits
from dsort.storage.retry import ReadCutShortError, RetryPolicy
from tests.support.fake_clock import FakeClock

WHAT = "read a.tar in bucket s3://b"
ALWAYS = 10**9


def longest(low: float, high: float) -> float:
    assert low <= high
    return high


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def policy(clock: FakeClock) -> RetryPolicy:
    """The defaults, with the longest delays that may be."""
    return RetryPolicy(clock=clock.now, sleep=clock.sleep, uniform=longest)


def failing(times: int, *, clock: FakeClock | None = None, seconds: float = 0) -> Callable[[], str]:
    """Takes ``seconds`` and fails ``times`` times, then goes well."""
    left = [times]

    def action() -> str:
        if clock is not None:
            clock.seconds += seconds
        if left[0]:
            left[0] -= 1
            raise TransientStorageError(f"503, {left[0]} to come")
        return "done"

    return action


def test_what_goes_well_is_done_once_and_at_once(policy: RetryPolicy, clock: FakeClock) -> None:
    assert policy.call(failing(0), what=WHAT) == "done"
    assert (policy.retries, clock.slept) == (0, [])


def test_delays_double_up_to_the_longest(policy: RetryPolicy, clock: FakeClock) -> None:
    assert policy.call(failing(7), what=WHAT) == "done"
    assert clock.slept == [0.5, 1, 2, 4, 8, 16, 30]
    assert policy.retries == 7


def test_tries_are_bounded(policy: RetryPolicy, clock: FakeClock) -> None:
    with pytest.raises(StorageError) as raised:
        policy.call(failing(8), what=WHAT)
    assert type(raised.value) is StorageError
    assert raised.value.message == (
        "cannot read a.tar in bucket s3://b: tried 8 times in 61.5 s, the last time: 503, 0 to come"
    )
    assert "dsort resume" in raised.value.hint
    assert isinstance(raised.value.__cause__, TransientStorageError)
    assert (policy.retries, len(clock.slept)) == (7, 7)


def test_the_backends_hint_is_passed_on(policy: RetryPolicy) -> None:
    def action() -> None:
        raise TransientStorageError("429", hint="ask for a higher quota")

    with pytest.raises(StorageError) as raised:
        policy.call(action, what=WHAT)
    assert raised.value.hint == "ask for a higher quota"


def test_what_failed_is_said_once(policy: RetryPolicy) -> None:
    def action() -> None:
        raise TransientStorageError(f"cannot {WHAT}: 503 SlowDown")

    with pytest.raises(StorageError) as raised:
        policy.call(action, what=WHAT)
    assert raised.value.message.count("a.tar") == 1
    assert raised.value.message.endswith("the last time: 503 SlowDown")


def test_one_try_is_no_retry(clock: FakeClock) -> None:
    policy = RetryPolicy(tries_max=1, clock=clock.now, sleep=clock.sleep)
    with pytest.raises(StorageError, match=r"tried once in 0\.0 s, the last time: 503"):
        policy.call(failing(1), what=WHAT)
    assert clock.slept == []


@pytest.mark.parametrize(("seconds_max", "tries"), [(0.49, 1), (0.5, 2), (7.49, 4), (7.5, 5)])
def test_a_delay_that_would_end_too_late_is_not_begun(
    clock: FakeClock, seconds_max: float, tries: int
) -> None:
    policy = RetryPolicy(
        seconds_max=seconds_max, clock=clock.now, sleep=clock.sleep, uniform=longest
    )
    with pytest.raises(StorageError):
        policy.call(failing(ALWAYS), what=WHAT)
    assert policy.retries == tries - 1
    assert clock.seconds <= 1000 + seconds_max


def test_a_request_that_hung_is_tried_again_within_the_time(
    policy: RetryPolicy, clock: FakeClock
) -> None:
    """Time counts from the first failure, so one timeout cannot use it up."""
    assert policy.call(failing(1, clock=clock, seconds=300), what=WHAT) == "done"
    with pytest.raises(StorageError, match=r"tried 2 times in 600\.5 s"):
        policy.call(failing(ALWAYS, clock=clock, seconds=300), what=WHAT)


@pytest.mark.parametrize(
    "error",
    [
        StorageError("lasting"),
        ObjectNotFoundError("lasting"),
        StorageAccessError("lasting"),
        StorageFullError("lasting"),
        ZeroDivisionError("lasting"),
        KeyboardInterrupt("lasting"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_anything_else_is_told_at_once(
    policy: RetryPolicy, clock: FakeClock, error: BaseException
) -> None:
    tried = []

    def action() -> None:
        tried.append(1)
        raise error

    with pytest.raises(type(error)) as raised:
        policy.call(action, what=WHAT)
    assert raised.value is error
    assert (len(tried), clock.slept) == (1, [])


def test_a_policy_inside_another_does_not_multiply(policy: RetryPolicy) -> None:
    tried = []

    def action() -> None:
        tried.append(1)
        raise TransientStorageError("503")

    with pytest.raises(StorageError):
        policy.call(lambda: policy.call(action, what="fetch a part"), what=WHAT)
    assert len(tried) == 8


def test_retries_of_all_threads_are_counted(clock: FakeClock) -> None:
    policy = RetryPolicy(clock=clock.now, sleep=lambda _: None)
    threads = [
        threading.Thread(target=lambda: [policy.call(failing(3), what=WHAT) for _ in range(200)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert policy.retries == 8 * 200 * 3


def test_a_policy_comes_from_the_limits_and_stays(clock: FakeClock) -> None:
    policy = RetryPolicy.of(StoreLimits(tries_max=3, retry_seconds_max=7.0))
    assert (policy.tries_max, policy.seconds_max) == (3, 7.0)
    with pytest.raises(FrozenInstanceError):
        policy.tries_max = 4  # type: ignore[misc]
    assert RetryPolicy.of(StoreLimits()) == RetryPolicy()


@pytest.mark.parametrize(
    "wrong", [{"tries_max": 0}, {"delay_s_min": -1.0}, {"delay_s_min": 2.0, "delay_s_max": 1.0}]
)
def test_a_policy_that_cannot_be_is_a_bug(wrong: dict[str, float]) -> None:
    with pytest.raises(InvariantError):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


def test_how_much_was_filled_survives_the_way_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(ReadCutShortError("cut", filled_bytes=7, hint="h")))
    assert (type(error), error.filled_bytes, error.message, error.hint) == (
        ReadCutShortError,
        7,
        "cut",
        "h",
    )
