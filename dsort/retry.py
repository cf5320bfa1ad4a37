"""Repeats calls that failed and may succeed the next time: to stores, the database, the service.

tenacity is not used: its clock and random numbers are global, and it takes 11.6 µs for a call that
succeeds, in place of 0.7.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from msgspec import Struct

from dsort.errors import InvariantError

__all__ = ["JITTER", "Failures", "RetryPolicy"]

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

JITTER: Final = random.SystemRandom().uniform
"""Random numbers that differ from process to process, also in forks."""
_DOUBLINGS_MAX = 32  # far beyond any delay_s_max


class RetryPolicy(Struct, frozen=True):
    """How often, how long and how soon something that failed is tried again.

    Delays are exponential with "full jitter" (AWS architecture blog, "Exponential Backoff And
    Jitter"): anything between ``delay_s_min`` and a bound that begins at twice that and doubles up
    to ``delay_s_max``. ``delay_s_min`` prevents first retries without a delay.

    ``tries_max``: None if only time bounds them. ``seconds_max`` counts from the *first failure*,
    so a request that hung until its timeout is tried again like any other. A delay that would end
    after ``seconds_max`` does not begin. With the defaults the other side may be away for 31 s on
    average, 61 s at most. One policy serves all threads of a process.
    """

    tries_max: int | None = 8
    seconds_max: float = 120.0
    delay_s_min: float = 0.25
    delay_s_max: float = 30.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[float, float], float] = JITTER

    def __post_init__(self) -> None:
        tries_max = 1 if self.tries_max is None else self.tries_max
        if tries_max < 1 or not 0 <= self.delay_s_min <= self.delay_s_max:
            raise InvariantError(f"impossible retry policy: {self}")

    def call(
        self,
        action: Callable[[], T],
        retried: type[E] | tuple[type[E], ...],
        *,
        given_up: Callable[[E, int, float], Exception] | None = None,
        waiting: Callable[[E, float, int], None] = lambda error, delay_s, tries: None,
        least_delay_s: Callable[[E], float] = lambda error: 0.0,
    ) -> T:
        """``action()``, again and again while it raises one of ``retried``.

        When tries or time are used up, this method raises the last error. With ``given_up``, it
        raises the result of ``given_up(last error, number of tries, their seconds)``. ``waiting``
        is called before each new try, with the error, the seconds until then, and the number of
        tries so far; ``least_delay_s`` returns how long an error asks to wait.
        """
        began_s = self.clock()
        failures = Failures(self)
        while True:
            try:
                return action()
            except retried as error:
                delay_s = failures.add(least_delay_s(error))
                if delay_s is None:
                    if given_up is None:
                        raise
                    raise given_up(error, failures.count, self.clock() - began_s) from error
                waiting(error, delay_s, failures.count)
            self.sleep(delay_s)

    def delay_s(self, failures: int) -> float:
        """Seconds to wait after ``failures`` >= 1 failures in a row."""
        return self.uniform(self.delay_s_min, self.longest_delay_s(failures))

    def longest_delay_s(self, failures: int) -> float:
        """The upper bound of :meth:`delay_s`."""
        doubled_s = self.delay_s_min * 2.0 ** min(failures, _DOUBLINGS_MAX)
        return min(self.delay_s_max, doubled_s)


class Failures(Struct):
    """The consecutive failures of one operation that is repeated by ``policy``. For one thread, and
    for operations that cannot be an action of :meth:`RetryPolicy.call`, such as a stream."""

    policy: RetryPolicy
    count: int = 0
    _first_s: float = 0.0

    def add(self, least_delay_s: float = 0.0) -> float | None:
        """Count one more. The seconds to wait before the next try, ``least_delay_s`` or more; None
        if tries or time are used up."""
        policy, now_s = self.policy, self.policy.clock()
        if not self.count:
            self._first_s = now_s
        self.count += 1
        if policy.tries_max is not None and self.count >= policy.tries_max:
            return None
        delay_s = max(policy.delay_s(self.count), least_delay_s)
        return delay_s if now_s - self._first_s + delay_s <= policy.seconds_max else None

    def clear(self) -> None:
        """Note a success: the next failure is the first one again."""
        self.count = 0

    @property
    def seconds_left(self) -> float:
        """The seconds until the time for new tries is over."""
        return max(self.policy.seconds_max - (self.policy.clock() - self._first_s), 0.0)
