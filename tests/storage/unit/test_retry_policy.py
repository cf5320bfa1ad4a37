"""How often, how long and how soon a failed request is tried again: exact bounds, on a clock that
stands still."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from dsort.errors import (
    InvariantError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    StorageFullError,
    TransientStorageError,
)
from dsort.retry import Failures, RetryPolicy
from dsort.storage.limit import StoreLimits
from dsort.storage.transport import Transport, retry_policy
from tests.support.fake_clock import FakeClock
from tests.support.refusals import raises

WHAT = "read a.tar in bucket s3://b"
ALWAYS = 10**9

T = TypeVar("T")


def call_store(policy: RetryPolicy, action: Callable[[], T], *, what: str) -> T:
    return Transport(StoreLimits(), policy=policy).call(what, action)


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
    assert call_store(policy, failing(0), what=WHAT) == "done"
    assert clock.slept == []


def test_delays_double_up_to_the_longest(policy: RetryPolicy, clock: FakeClock) -> None:
    assert call_store(policy, failing(7), what=WHAT) == "done"
    assert clock.slept == [0.5, 1, 2, 4, 8, 16, 30]


def test_tries_are_bounded(policy: RetryPolicy, clock: FakeClock) -> None:
    named = ("a.tar in bucket s3://b", "8 times", "61.5 s", "503, 0 to come")
    with raises(StorageError, *named, hint="dsort resume") as raised:
        call_store(policy, failing(8), what=WHAT)
    assert isinstance(raised.value.__cause__, TransientStorageError)
    assert len(clock.slept) == 7


def test_the_backends_hint_is_passed_on(policy: RetryPolicy) -> None:
    def action() -> None:
        raise TransientStorageError("429", hint="ask for a higher quota")

    with pytest.raises(StorageError) as raised:
        call_store(policy, action, what=WHAT)
    assert raised.value.hint == "ask for a higher quota"


def test_what_failed_is_said_once(policy: RetryPolicy) -> None:
    def action() -> None:
        raise TransientStorageError(f"cannot {WHAT}: 503 SlowDown")

    with pytest.raises(StorageError) as raised:
        call_store(policy, action, what=WHAT)
    assert raised.value.message.count("a.tar") == 1
    assert raised.value.message.endswith(": 503 SlowDown")


def test_one_try_is_no_retry(clock: FakeClock) -> None:
    policy = RetryPolicy(tries_max=1, clock=clock.now, sleep=clock.sleep)
    with raises(StorageError, "0.0 s", "503"):
        call_store(policy, failing(1), what=WHAT)
    assert clock.slept == []


@pytest.mark.parametrize(("seconds_max", "tries"), [(0.49, 1), (0.5, 2), (7.49, 4), (7.5, 5)])
def test_a_delay_that_would_end_too_late_is_not_begun(
    clock: FakeClock, seconds_max: float, tries: int
) -> None:
    policy = RetryPolicy(
        seconds_max=seconds_max, clock=clock.now, sleep=clock.sleep, uniform=longest
    )
    with pytest.raises(StorageError):
        call_store(policy, failing(ALWAYS), what=WHAT)
    assert len(clock.slept) == tries - 1
    assert clock.seconds <= 1000 + seconds_max


def test_a_request_that_hung_is_tried_again_within_the_time(
    policy: RetryPolicy, clock: FakeClock
) -> None:
    """Time counts from the first failure, so one timeout cannot use it up."""
    assert call_store(policy, failing(1, clock=clock, seconds=300), what=WHAT) == "done"
    with raises(StorageError, "2 times", "600.5 s"):
        call_store(policy, failing(ALWAYS, clock=clock, seconds=300), what=WHAT)


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
def test_anything_else_is_reported_at_once(
    policy: RetryPolicy, clock: FakeClock, error: BaseException
) -> None:
    tried = []

    def action() -> None:
        tried.append(1)
        raise error

    with pytest.raises(type(error)) as raised:
        call_store(policy, action, what=WHAT)
    assert raised.value is error
    assert (len(tried), clock.slept) == (1, [])


def test_a_policy_inside_another_does_not_multiply(policy: RetryPolicy) -> None:
    tried = []

    def action() -> None:
        tried.append(1)
        raise TransientStorageError("503")

    with pytest.raises(StorageError):
        call_store(policy, lambda: call_store(policy, action, what="fetch a part"), what=WHAT)
    assert len(tried) == 8


def test_threads_that_share_a_policy_fail_each_for_themselves(clock: FakeClock) -> None:
    slept: list[float] = []
    policy = RetryPolicy(tries_max=4, clock=clock.now, sleep=slept.append)
    done: list[str] = []

    def work() -> None:
        done.extend(call_store(policy, failing(3), what=WHAT) for _ in range(200))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(done), len(slept)) == (8 * 200, 8 * 200 * 3)


def test_a_policy_comes_from_the_limits_and_stays(clock: FakeClock) -> None:
    policy = retry_policy(StoreLimits(tries_max=3, retry_seconds_max=7.0))
    assert (policy.tries_max, policy.seconds_max) == (3, 7.0)
    with pytest.raises(AttributeError):
        policy.tries_max = 4  # type: ignore[misc]
    assert retry_policy(StoreLimits()) == RetryPolicy()


@pytest.mark.parametrize(
    "wrong", [{"tries_max": 0}, {"delay_s_min": -1.0}, {"delay_s_min": 2.0, "delay_s_max": 1.0}]
)
def test_a_policy_that_cannot_be_is_a_bug(wrong: dict[str, float]) -> None:
    with pytest.raises(InvariantError):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


class AwayError(Exception):
    """Each server is away, and says for how long."""

    def __init__(self, away_s: float) -> None:
        super().__init__(away_s)
        self.away_s = away_s


def away(*seconds: float) -> Callable[[], str]:
    left = list(seconds)

    def action() -> str:
        if left:
            raise AwayError(left.pop(0))
        return "done"

    return action


def test_the_last_error_comes_out_as_it_is(policy: RetryPolicy) -> None:
    with pytest.raises(AwayError, match="8"):
        policy.call(away(*range(1, 100)), AwayError)


def test_only_time_bounds_tries_without_a_number(clock: FakeClock) -> None:
    policy = RetryPolicy(
        tries_max=None,
        seconds_max=10.0,
        delay_s_min=0.5,
        delay_s_max=1.0,
        clock=clock.now,
        sleep=clock.sleep,
        uniform=longest,
    )
    with pytest.raises(AwayError):
        policy.call(away(*[0.0] * 100), AwayError)
    assert clock.slept == [1.0] * 10


def test_an_error_may_ask_for_a_longer_wait(policy: RetryPolicy, clock: FakeClock) -> None:
    heard: list[tuple[float, float]] = []
    policy.call(
        away(0.0, 9.0, 0.0),
        AwayError,
        least_delay_s=lambda error: error.away_s,
        waiting=lambda error, delay_s, tries: heard.append((error.away_s, delay_s)),
    )
    assert clock.slept == [0.5, 9.0, 2.0]
    assert heard == [(0.0, 0.5), (9.0, 9.0), (0.0, 2.0)]


def test_who_asks_for_more_time_than_there_is_is_not_waited_for(
    policy: RetryPolicy, clock: FakeClock
) -> None:
    with pytest.raises(AwayError):
        policy.call(away(121.0), AwayError, least_delay_s=lambda error: error.away_s)
    assert clock.slept == []


def test_failures_in_a_row_begin_anew_after_a_success(
    policy: RetryPolicy, clock: FakeClock
) -> None:
    failures = Failures(policy)
    assert [failures.add() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, None]
    failures.clear()
    clock.seconds += 1000
    assert failures.add() == 0.5
    clock.seconds += 50
    assert failures.seconds_left == 70
