"""Tries again what an object store could not do just now: :class:`RetryingBucket`.

Backends say what may succeed if tried again, by ``TransientStorageError``; here alone is decided
how often and how soon. Whatever else they raise passes at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from dsort.closing import ClosesOnExit
from dsort.errors import (
    InvariantError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
)
from dsort.log_lines import Sparing, logger_of
from dsort.retry import RetryPolicy
from dsort.storage.bucket import Bucket, ObjectInfo, RandomReads, ReadObject
from dsort.storage.wrapped import WrappedBucket

if TYPE_CHECKING:
    from dsort.storage.limit import StoreLimits

__all__ = [
    "ReadCutShortError",
    "RetryingBucket",
    "SomeUnansweredError",
    "call_store",
    "retry_policy",
]

T = TypeVar("T")

WARNED_EACH_S = 5.0
"""Attempts in between are lines of the level ``debug``."""

log = logger_of("storage")

_HINT = "`dsort resume` goes on where the job stopped, once the store answers again"


class ReadCutShortError(TransientStorageError):
    """A ``read_into`` that failed after its first ``filled_bytes`` bytes were filled, for good: the
    next try goes on behind them."""

    def __init__(self, message: str, *, filled_bytes: int, hint: str = "") -> None:
        self.filled_bytes = filled_bytes
        super().__init__(message, hint=hint)


class SomeUnansweredError(TransientStorageError):
    """A ``stat_many`` that ``found`` some objects, and failed for the names ``unanswered``; all
    others are not there."""

    def __init__(
        self, message: str, *, found: Mapping[str, ObjectInfo], unanswered: Collection[str]
    ) -> None:
        self.found = found
        self.unanswered = unanswered
        super().__init__(message)


def retry_policy(
    limits: StoreLimits, *, pause: Callable[[float], None] | None = None
) -> RetryPolicy:
    """The policy that ``limits`` ask for; one serves all buckets of a process. ``pause``: how to
    wait, if not by ``time.sleep``."""
    return RetryPolicy(
        tries_max=limits.tries_max,
        seconds_max=limits.retry_seconds_max,
        sleep=pause or time.sleep,
    )


def call_store(policy: RetryPolicy, action: Callable[[], T], *, what: str) -> T:
    """``action()``, again and again while it raises ``TransientStorageError``.

    ``what`` completes "cannot ...", such as "read a.tar in bucket s3://b". ``StorageError``
    when tries or time are used up; it is not transient, so calls around this one let it pass.
    """
    return policy.call(
        action,
        TransientStorageError,
        given_up=partial(_given_up, what),
        waiting=partial(_tell_again, what, policy.tries_max),
    )


_WARNED = Sparing(WARNED_EACH_S, time.monotonic)


def _tell_again(
    what: str, tries_max: int | None, last: TransientStorageError, delay_s: float, tries: int
) -> None:
    """Log that the store is asked again. A store that fails a thousand requests causes a warning
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
    return last.message.removeprefix(f"cannot {what}: ")  # backends put it that way, too


def _given_up(what: str, last: TransientStorageError, tries: int, seconds: float) -> StorageError:
    tried = "tried once" if tries == 1 else f"tried {tries} times"
    reason = _reason(what, last)
    log.debug("cannot %s: given up after %d attempts in %.1f s", what, tries, seconds)
    return StorageError(
        f"cannot {what}: {tried} in {seconds:.1f} s, the last time: {reason}",
        hint=last.hint or _HINT,
    )


def _order(info: ObjectInfo) -> bytes:
    return info.name.encode("utf-8", "surrogateescape")


class _RetryingReadObject(ClosesOnExit):
    """An object whose reads are tried again, each from where it stopped."""

    def __init__(self, inner: ReadObject, policy: RetryPolicy, what: str) -> None:
        self.inner = inner
        self.info: ObjectInfo = inner.info
        self.rereads_cheaply: bool = inner.rereads_cheaply
        self._policy = policy
        self._what = what

    def read_into(self, buffer: memoryview, offset: int) -> None:
        buffer = buffer.cast("B")
        filled_bytes = 0

        def read_on() -> None:
            nonlocal filled_bytes
            try:
                self.inner.read_into(buffer[filled_bytes:], offset + filled_bytes)
            except ReadCutShortError as error:
                if not 0 <= error.filled_bytes <= len(buffer) - filled_bytes:
                    raise InvariantError(
                        f"{self._what}: {error.filled_bytes:,} bytes filled of "
                        f"{len(buffer) - filled_bytes:,}"
                    ) from error
                filled_bytes += error.filled_bytes
                raise

        call_store(self._policy, read_on, what=self._what)

    def forget(self) -> None:
        self.inner.forget()

    def mapping(self) -> memoryview | None:
        return self.inner.mapping()

    def random_reads(self) -> RandomReads | None:
        return self.inner.random_reads()

    def close(self) -> None:
        self.inner.close()


_WHAT: Mapping[str, str] = MappingProxyType(
    {
        "exists": "look for bucket {uri}",
        "create": "create bucket {uri}",
        "list": "list {name}* in bucket {uri}",
        "stat": "find {name} in bucket {uri}",
        "stat_many": "find {name} objects in bucket {uri}",
        "open": "read {name} in bucket {uri}",
        "read": "read {name} in bucket {uri}",
        "write": "write {name} in bucket {uri}",
        "write_new": "write {name} in bucket {uri}",
        "write_over": "write {name} in bucket {uri}",
        "delete": "remove {name} in bucket {uri}",
        "stage": "begin {name} in bucket {uri}",
        "publish": "publish {name} in bucket {uri}",
        "still_staged": "look for staged objects of bucket {uri}",
        "published": "look for published objects of bucket {uri}",
        "keep_aside": "keep {name} in bucket {uri}",
        "put_back": "put back {name} in bucket {uri}",
        "make_durable": "write published names of bucket {uri} to disk",
        "discard": "remove {name}* in bucket {uri}",
        "free_bytes": "find the room left in bucket {uri}",
    }
)
"""What each operation does, behind "cannot"."""


class RetryingBucket(WrappedBucket):
    """A bucket whose operations are tried again as ``policy`` says (see
    :class:`~dsort.storage.bucket.Bucket`).

    A try whose reply was lost may have taken effect, so every operation has to bear repetition:
    all of the protocol do, and ``write_new`` and ``write_over`` are made to. What is staged is the
    backend's own to retry, since only it still has the bytes: ``stage`` returns the backend's
    object as it is. Listings of many pages also belong there; here a broken one is begun anew.
    """

    def __init__(self, inner: Bucket, policy: RetryPolicy) -> None:
        super().__init__(inner)
        self.policy = policy
        tries = "any number of" if policy.tries_max is None else policy.tries_max
        seconds = policy.seconds_max
        log.debug("bucket %s is open: %s attempts a request, in %.0f s", self.uri, tries, seconds)

    def around(self, operation: str, name: str, action: Callable[[], T]) -> T:
        return call_store(self.policy, action, what=self._what(operation, name))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """A listing that breaks is begun anew, and goes on behind the last name it gave. Tries are
        counted from one name to the next."""
        last: bytes | None = None
        listing: Iterator[ObjectInfo] | None = None
        passed: bytes | None = None  # names up to here a listing begun anew has to give first

        def next_info() -> ObjectInfo | None:
            nonlocal listing, passed
            try:
                if listing is None:
                    listing, passed = iter(self.inner.list(prefix)), last
                for info in listing:
                    if passed is None or _order(info) > passed:
                        passed = None
                        return info
            except TransientStorageError:
                listing = None
                raise
            return None

        while (info := self.around("list", prefix, next_info)) is not None:
            if last is not None and _order(info) <= last:
                raise InvariantError(f"bucket {self.uri} lists {info.name!r} too late")
            yield info
            last = _order(info)

    def stat_many(self, names: Collection[str]) -> dict[str, ObjectInfo]:
        """Only the names that were not answered are asked for again."""
        found: dict[str, ObjectInfo] = {}
        left = names

        def ask() -> dict[str, ObjectInfo]:
            nonlocal left
            try:
                return self.inner.stat_many(left)
            except SomeUnansweredError as error:
                found.update(error.found)
                left = error.unanswered
                raise

        return self.around("stat_many", f"{len(names):,}", ask) | found

    def open(self, name: str) -> ReadObject:
        return _RetryingReadObject(super().open(name), self.policy, self._what("open", name))

    def pinned(self, info: ObjectInfo) -> ReadObject | None:
        pinned, what = super().pinned(info), self._what("open", info.name)
        return None if pinned is None else _RetryingReadObject(pinned, self.policy, what)

    def write_new(self, name: str, data: bytes) -> bool:
        """After a try whose reply was lost, "there is one" may mean our own: it is read back, and
        if it is ``data`` to the byte the answer is True. So ``data`` has to say who wrote it."""
        return self._write_certainly(
            "write_new", name, data, partial(self.inner.write_new, name, data)
        )

    def write_over(self, name: str, data: bytes, etag: str) -> bool:
        """As ``write_new``: after a try whose reply was lost, what is there may be ours."""
        write = partial(self.inner.write_over, name, data, etag)
        return self._write_certainly("write_over", name, data, write)

    def _write_certainly(
        self, operation: str, name: str, data: bytes, write: Callable[[], bool]
    ) -> bool:
        is_certain = True

        def written() -> bool:
            nonlocal is_certain
            try:
                return write()
            except TransientStorageError:
                is_certain = False
                raise

        if self.around(operation, name, written):
            return True
        return not is_certain and self._holds(name, data)

    def put_back(self, token: str, name: str, *, receipt: str) -> None:
        """After a try whose reply was lost, an object that is not kept any more was put back."""
        is_certain = True

        def put_back() -> None:
            nonlocal is_certain
            try:
                self.inner.put_back(token, name, receipt=receipt)
            except ObjectNotFoundError:
                if is_certain:
                    raise
            except TransientStorageError:
                is_certain = False
                raise

        self.around("put_back", name, put_back)

    def _holds(self, name: str, data: bytes) -> bool:
        try:
            return self.read(name) == data
        except ObjectNotFoundError:  # it was there, and somebody removed it since
            return False

    def _what(self, operation: str, name: str) -> str:
        return _WHAT[operation].format(name=name, uri=self.uri)
