"""Makes the requests to a store: the one place where a request is tried again. Buckets that are
opened together, for one job, share the clients that the first of them makes for a store.

Buckets raise ``TransientStorageError`` for requests that may succeed later. All other errors are
passed on at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from dsort.errors import StorageError, TransientStorageError
from dsort.log_lines import Sparing, logger_of
from dsort.retry import RetryPolicy
from dsort.storage.limit import StoreLimiter, StoreLimits

T = TypeVar("T")

WARNED_EACH_S = 5.0
"""The seconds between two warnings; attempts in between are logged with the level ``debug``."""

log = logger_of("storage")

_HINT = "`dsort resume` goes on where the job stopped, once the store answers again"


def retry_policy(
    limits: StoreLimits, *, pause: Callable[[float], None] | None = None
) -> RetryPolicy:
    """The policy by ``limits``. ``pause``: waits for a number of seconds, in place of
    ``time.sleep``."""
    return RetryPolicy(
        tries_max=limits.tries_max,
        seconds_max=limits.retry_seconds_max,
        sleep=pause or time.sleep,
    )


class Transport:
    """Makes the requests of a bucket. A request takes a place of ``limiter`` while it runs; while
    it waits for its next try (``policy``), it takes none. Used by several threads at once.

    A request must not make another request by the same transport: if ``limiter`` has only one
    place, the request would wait for itself. A try whose reply was lost may have taken effect, so
    every request has to be repeatable.
    """

    def __init__(
        self,
        limits: StoreLimits,
        *,
        limiter: StoreLimiter | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        """``limiter``: the limits that the buckets of this process share, if any."""
        self.limiter = limiter or StoreLimiter(limits)
        self.request_seconds_max = limits.request_seconds_max
        self.policy = policy or retry_policy(limits)

    def call(self, what: str, request: Callable[[], T]) -> T:
        """The result of ``request()``, which is repeated while it raises ``TransientStorageError``.

        ``what`` completes "cannot ...", such as "read a.tar in bucket s3://b". ``StorageError``
        when tries or time are used up.
        """
        return self.policy.call(
            partial(self.call_once, request),
            TransientStorageError,
            given_up=partial(_given_up, what),
            waiting=partial(_tell_again, what, self.policy.tries_max),
            least_delay_s=lambda error: error.retry_after_s,
        )

    def call_once(self, request: Callable[[], T]) -> T:
        """The result of ``request()``, which cannot be repeated, because its bytes are gone."""
        with self.limiter.requests:
            return request()


_WARNED = Sparing(WARNED_EACH_S, time.monotonic)


def _tell_again(
    what: str, tries_max: int | None, last: TransientStorageError, delay_s: float, tries: int
) -> None:
    """Log that a request is tried again. A store that fails a thousand requests causes a warning
    every ``WARNED_EACH_S``, and not a thousand warnings."""
    most = "" if tries_max is None else f" of {tries_max}"
    log.log(
        logging.WARNING if _WARNED.is_due() else logging.DEBUG,
        "cannot %s: %s; attempt %d%s comes in %.1f s",
        what,
        _reason(what, last),
        tries + 1,
        most,
        delay_s,
    )


def _reason(what: str, last: TransientStorageError) -> str:
    return last.message.removeprefix(f"cannot {what}: ")  # messages of buckets may begin so, too


def _given_up(what: str, last: TransientStorageError, tries: int, seconds: float) -> StorageError:
    tried = "tried once" if tries == 1 else f"tried {tries} times"
    reason = _reason(what, last)
    log.debug("cannot %s: given up after %d attempts in %.1f s", what, tries, seconds)
    return StorageError(
        f"cannot {what}: {tried} in {seconds:.1f} s, the last time: {reason}",
        hint=last.hint or _HINT,
    )


_made: ContextVar[dict[Hashable, Any] | None] = ContextVar("_made", default=None)


@contextmanager
def opened_together() -> Iterator[None]:
    """A context in which the buckets that this thread opens are opened together."""
    before = _made.set({})
    try:
        yield
    finally:
        _made.reset(before)


def made_once(key: Hashable, make: Callable[[], T]) -> T:
    """The result of ``make()``. Buckets that are opened together share one result for each ``key``:
    ``make`` is called for the first of them only."""
    made = _made.get()
    if made is None:
        return make()
    if key not in made:
        made[key] = make()
    found: T = made[key]
    return found
