"""Retries operations that an object store could not do at the moment: :class:`RetryingBucket`.

Backends raise ``TransientStorageError`` for operations that may succeed later; only the code here
decides how often and when they are tried again. All other errors are passed on at once.
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
"""The seconds between two warnings; attempts in between are logged with the level ``debug``."""

log = logger_of("storage")

_HINT = "`dsort resume` goes on where the job stopped, once the store answers again"


class ReadCutShortError(TransientStorageError):
    """A ``read_into`` failed after it had filled its first ``filled_bytes`` bytes. These are valid:
    the next try continues after them."""

    def __init__(self, message: str, *, filled_bytes: int, hint: str = "") -> None:
        self.filled_bytes = filled_bytes
        super().__init__(message, hint=hint)


class SomeUnansweredError(TransientStorageError):
    """A ``stat_many`` has ``found`` some objects, and failed for the names ``unanswered``. All
    other objects do not exist."""

    def __init__(
        self, message: str, *, found: Mapping[str, ObjectInfo], unanswered: Collection[str]
    ) -> None:
        self.found = found
        self.unanswered = unanswered
        super().__init__(message)


def retry_policy(
    limits: StoreLimits, *, pause: Callable[[float], None] | None = None
) -> RetryPolicy:
    """The policy by ``limits``. One policy serves all buckets of a process. ``pause``: waits for a
    number of seconds, in place of ``time.sleep``."""
    return RetryPolicy(
        tries_max=limits.tries_max,
        seconds_max=limits.retry_seconds_max,
        sleep=pause or time.sleep,
    )


def call_store(policy: RetryPolicy, action: Callable[[], T], *, what: str) -> T:
    """The result of ``action()``, which is repeated while it raises ``TransientStorageError``.

    ``what`` completes "cannot ...", such as "read a.tar in bucket s3://b". ``StorageError`` when
    tries or time are used up; it is not transient, so calls around this one do not retry it.
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
    return last.message.removeprefix(f"cannot {what}: ")  # messages of backends may begin so, too


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
    """An object whose reads are tried again, each from the byte where it stopped."""

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
"""The words for each operation, to follow "cannot"."""


class RetryingBucket(WrappedBucket):
    """A bucket whose operations are tried again by ``policy`` (see
    :class:`~dsort.storage.bucket.Bucket`).

    A try whose reply was lost may have taken effect, so every operation has to be repeatable: all
    of the protocol are, and ``write_new`` and ``write_over`` are made so here. Only the backend can
    retry writes of staged objects, because only it still has the bytes: ``stage`` returns the
    object of the backend unchanged. The backend should also retry the pages of long listings; here
    a broken listing begins again.
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
        """A listing that breaks is begun again, and continues after the last name that it yielded.
        Tries are counted from one name to the next."""
        last: bytes | None = None
        listing: Iterator[ObjectInfo] | None = None
        passed: bytes | None = None  # a new listing skips the names up to this one

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
        """Only names without an answer are requested again."""
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
        """If the reply of an earlier try was lost, an existing object may be that of this call: it
        is read back, and the result is True if it equals ``data``. So ``data`` has to identify its
        writer."""
        return self._write_certainly(
            "write_new", name, data, partial(self.inner.write_new, name, data)
        )

    def write_over(self, name: str, data: bytes, etag: str) -> bool:
        """As ``write_new``: if a reply was lost, the present object may be that of this call."""
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
        """If the reply of an earlier try was lost and the kept object is gone, that try has put it
        back."""
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
        except ObjectNotFoundError:  # it existed, and was removed since
            return False

    def _what(self, operation: str, name: str) -> str:
        return _WHAT[operation].format(name=name, uri=self.uri)
