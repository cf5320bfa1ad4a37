"""What all buckets in object stores share: :class:`ObjectBucket`, over what a client can do."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import NamedTuple, Protocol

from dsort.closing import ClosesOnExit
from dsort.errors import (
    ChangedInputError,
    InvariantError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    StorageFullError,
    TransientStorageError,
)
from dsort.storage.bucket import (
    INTERNAL_PREFIX,
    ObjectInfo,
    RandomReads,
    encoded_name,
    encoded_prefix,
    encoded_token,
)
from dsort.storage.limit import StoreLimits
from dsort.storage.pinned import PinnedObject
from dsort.storage.retry import ReadCutShortError, SomeUnansweredError

__all__ = [
    "ACCESS_HINT",
    "CREDENTIALS_HINT",
    "PRECONDITION_FAILED",
    "RANGE_NOT_SATISFIABLE",
    "ByteStream",
    "Fetched",
    "KeyPrefix",
    "Meaning",
    "ObjectBucket",
    "ObjectClient",
    "ObjectErrors",
    "ObjectReader",
    "PreconditionError",
    "check_copy",
    "checked",
    "checked_token",
    "common_prefix",
    "error_of",
    "meaning_of_status",
    "one_line",
]


CREDENTIALS_HINT = (
    "set the credentials of the store in the environment (S3: AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE), or use a machine whose role has them; workers need "
    "them, too"
)
ACCESS_HINT = (
    "check what these credentials may do with the bucket, and that they are the right ones"
)
_TEXT_CHARS_MAX = 200


class PreconditionError(StorageError):
    """A request was made under a condition (``If-Match``, ``If-None-Match``, a range) that does not
    hold. Backends catch it; nobody else sees it."""


class Meaning(NamedTuple):
    """What an error of a client library means: dsort's class for it, why, and what would help."""

    kind: type[StorageError]
    reason: str
    hint: str = ""


PRECONDITION_FAILED = Meaning(PreconditionError, "it is not what it was expected to be")
RANGE_NOT_SATISFIABLE = Meaning(PreconditionError, "it is shorter than it was")

_STATUSES: Mapping[int, Meaning] = MappingProxyType(
    {
        401: Meaning(StorageAccessError, "the store wants credentials", CREDENTIALS_HINT),
        403: Meaning(StorageAccessError, "access is denied", ACCESS_HINT),
        404: Meaning(ObjectNotFoundError, "there is no such object"),
        408: Meaning(TransientStorageError, "the request took too long"),
        409: Meaning(TransientStorageError, "another request was in its way"),
        412: PRECONDITION_FAILED,
        416: RANGE_NOT_SATISFIABLE,
        429: Meaning(TransientStorageError, "too many requests"),
        501: Meaning(StorageError, "the store does not offer that"),
        507: Meaning(StorageFullError, "no room is left there", "free some room, or ask for more"),
    }
)


def meaning_of_status(status: int) -> Meaning:
    """What a reply with HTTP status ``status`` means, if it says no more."""
    known = _STATUSES.get(status)
    if known is not None:
        return known
    if status >= 500:
        return Meaning(TransientStorageError, f"the store failed (HTTP status {status})")
    return Meaning(StorageError, f"the store refused it (HTTP status {status})")


def error_of(meaning: Meaning, action: str) -> StorageError:
    """The error to raise. ``action`` completes "cannot ...": ``read a.tar in bucket s3://b``."""
    return meaning.kind(f"cannot {action}: {meaning.reason}", hint=meaning.hint)


def one_line(text: str) -> str:
    """``text`` of a server as a part of a message: one line, not long, no query of any URL."""
    without_queries = re.sub(r"\?[^\s\"'<>)]*", "", text)
    return " ".join(without_queries.split())[:_TEXT_CHARS_MAX]


class ObjectErrors:
    """A context in which a client library's errors become the ``StorageError`` that they mean.

    ``meaning_of`` gives None for what is no error of the library; that passes as it is. ``action``
    as of :func:`error_of`.
    """

    __slots__ = ("_action", "_meaning_of")

    def __init__(self, meaning_of: Callable[[BaseException], Meaning | None], action: str) -> None:
        self._meaning_of = meaning_of
        self._action = action

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return
        meaning = self._meaning_of(error)
        if meaning is not None:
            # The library's own error may hold a signed URL: it must not be printed as the cause.
            raise error_of(meaning, self._action) from None


class ByteStream(Protocol):
    """The body of one reply."""

    def read_into(self, view: memoryview) -> int:
        """Put the next bytes into ``view``, which is not empty; how many, 0 at the end.

        ``TransientStorageError`` if the connection breaks."""

    def close(self) -> None:
        """Release it; bytes not read yet are not waited for."""


class ObjectReader(ClosesOnExit):
    """See :class:`~dsort.storage.bucket.ReadObject`. For one thread at a time.

    ``stream`` gives the object from its first byte on. ``fetch(start, stop)`` gives bytes
    ``start:stop`` of the same content (``stop`` None: to the end), or raises ``ChangedInputError``.
    ``pool`` gives other threads for large reads.

    What fails in mid-read raises ``ReadCutShortError``; a next read goes on from there.
    """

    rereads_cheaply = False

    def __init__(
        self,
        info: ObjectInfo,
        stream: ByteStream,
        fetch: Callable[[int, int | None], ByteStream],
        *,
        bucket: str,
        range_bytes: int,
        pool: Callable[[], Executor],
    ) -> None:
        self.info: ObjectInfo = info
        self._stream: ByteStream | None = stream
        self._position = 0  # of the next byte that the stream gives, or gave
        self._stop = info.size_bytes  # where the stream ends
        self._fetch = fetch
        self._bucket = bucket
        self._range_bytes = range_bytes
        self._pool = pool

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``; ``StorageError`` if the object ends too soon."""
        buffer = buffer.cast("B")
        end = offset + len(buffer)
        if end > self.info.size_bytes:
            raise StorageError(
                f"{self.info.name} in bucket {self._bucket} ended at byte "
                f"{self.info.size_bytes:,}, {end:,} expected"
            )
        if len(buffer) > self._range_bytes:
            self._read_ranges(buffer, offset)
        elif len(buffer):
            self._read_on(buffer, offset)

    def forget(self) -> None:
        """Nothing is kept."""

    def mapping(self) -> memoryview | None:
        """What is elsewhere cannot be mapped."""
        return None

    def random_reads(self) -> RandomReads | None:
        """Each would be a request."""
        return None

    def close(self) -> None:
        """Release the connection. Closing again is harmless."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            stream.close()

    def _read_on(self, buffer: memoryview, offset: int) -> None:
        if offset != self._position:  # elsewhere: no more than is asked for
            self._begin(offset, offset + len(buffer))
        filled = 0
        try:
            while filled < len(buffer):
                if self._stream is None or self._position == self._stop:
                    self._begin(self._position, None)  # in order: the rest will be wanted, too
                assert self._stream is not None
                got = self._read_some(self._stream, buffer[filled:], offset + filled)
                filled += got
                self._position += got
        except TransientStorageError as error:
            self.close()
            raise _cut_short(error, filled) from error
        if self._position == self.info.size_bytes:
            self.close()

    def _begin(self, start: int, stop: int | None) -> None:
        self.close()
        self._position = start
        self._stop = self.info.size_bytes if stop is None else stop
        self._stream = self._fetch(start, stop)

    def _read_some(self, stream: ByteStream, view: memoryview, offset: int) -> int:
        got = stream.read_into(view)
        if not got:
            raise TransientStorageError(
                f"{self.info.name} in bucket {self._bucket} was cut short: {offset:,} of "
                f"{self.info.size_bytes:,} bytes came"
            )
        return got

    def _read_ranges(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer``, of more than ``range_bytes``, by several requests at once: the first
        range from the stream that is open, in this thread, the others each by its own."""
        count = -(-len(buffer) // self._range_bytes)
        step = -(-len(buffer) // count)
        views = [buffer[at : at + step] for at in range(0, len(buffer), step)]
        pool = self._pool()
        others = [
            pool.submit(self._read_range, view, offset + number * step)
            for number, view in enumerate(views)
            if number
        ]
        filled = 0
        failed: ReadCutShortError | None = None
        try:
            self._read_on(views[0], offset)
            filled = len(views[0])
        except ReadCutShortError as error:
            filled, failed = error.filled_bytes, error
        finally:
            ended = [_ended(each) for each in others]  # none may write here after we returned
        for got, reason in ended:
            if isinstance(reason, TransientStorageError):
                failed = failed or _cut_short(reason, filled + got)
            elif reason is not None:
                raise reason
            if failed is None:
                filled += got
        self.close()
        if failed is not None:
            self._position = offset + failed.filled_bytes
            raise failed
        self._position = offset + len(buffer)

    def _read_range(self, view: memoryview, offset: int) -> tuple[int, StorageError | None]:
        """Fill ``view`` by a request of its own: how far it got, and why no further."""
        filled = 0
        try:
            stream = self._fetch(offset, offset + len(view))
            try:
                while filled < len(view):
                    filled += self._read_some(stream, view[filled:], offset + filled)
            finally:
                stream.close()
        except TransientStorageError as error:
            return filled, error
        return filled, None


def _ended(read: Future[tuple[int, StorageError | None]]) -> tuple[int, BaseException | None]:
    error = read.exception()
    return (0, error) if error is not None else read.result()


def _cut_short(error: TransientStorageError, filled_bytes: int) -> ReadCutShortError:
    return ReadCutShortError(error.message, filled_bytes=filled_bytes, hint=error.hint)


_LISTED_MIN = 100
"""Fewer objects than this are asked for one by one, not by a listing."""

_HEADS_PER_PAGE = 10
"""A page of a listing (1,000 names) is taken to cost as much as this many ``head`` requests."""


class Fetched(NamedTuple):
    """A reply with bytes of an object: what the whole object is, and the bytes."""

    info: ObjectInfo
    stream: ByteStream


class ObjectClient(Protocol):
    """What a client library does for :class:`ObjectBucket`; names are those of the bucket. Errors
    as in :mod:`dsort.storage.objects`. Used by several threads at once."""

    def exists(self) -> bool: ...

    def create(self) -> None: ...

    def pages(self, prefix: str) -> Iterator[Sequence[ObjectInfo]]:
        """All objects whose names begin with ``prefix``, in any order, a page a request."""

    def head(self, name: str) -> ObjectInfo: ...

    def fetch(self, name: str, start: int, stop: int | None, pinned: ObjectInfo | None) -> Fetched:
        """Bytes ``start:stop``. ``PreconditionError`` if the object is not ``pinned`` any more (as
        far as the store can tell)."""

    def put(self, name: str, data: bytes) -> None: ...

    def put_new(self, name: str, data: bytes) -> bool:
        """False if there is one already."""

    def put_over(self, name: str, data: bytes, etag: str) -> bool:
        """False unless what is there has ``etag``."""

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects; none need be there."""


class KeyPrefix:
    """A bucket's names as keys of the store: below ``prefix`` ("" or ``some/prefix``)."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}/" if prefix else ""

    def key(self, name: str) -> str:
        """The key of an object, or the prefix of keys of a prefix of names."""
        return self._prefix + name

    def name(self, key: str) -> str:
        """The name of the object with that key."""
        return key[len(self._prefix) :]


class ObjectBucket:
    """Objects of a store (see :class:`~dsort.storage.bucket.Bucket`), but for staging.

    For several threads at once; in another process, open it anew.
    """

    seals_on_finish = True

    def __init__(self, uri: str, client: ObjectClient, limits: StoreLimits) -> None:
        self.uri: str = uri
        self._objects = client
        self._limits = limits
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri})"

    def exists(self) -> bool:
        """Whether there is a bucket of that name that we may look into."""
        return self._objects.exists()

    def create(self) -> None:
        """Make the bucket if there is none."""
        self._objects.create()

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All pages are read and sorted before the first is given: stores differ in their order.

        What only marks a folder (empty, its name ends in ``/``) is left out.
        """
        encoded_prefix(prefix)
        is_internal = prefix.startswith(INTERNAL_PREFIX)
        found = [
            info
            for page in self._objects.pages(prefix)
            for info in page
            if (is_internal or not info.name.startswith(INTERNAL_PREFIX))
            and (info.size_bytes or (info.name and not info.name.endswith("/")))
        ]
        found.sort(key=lambda info: info.name)  # by code point is by UTF-8 byte
        yield from found

    def stat(self, name: str) -> ObjectInfo:
        """Size, time and etag of an object; ``ObjectNotFoundError`` if there is none."""
        return self._objects.head(checked(name))

    def stat_many(self, names: Collection[str]) -> dict[str, ObjectInfo]:
        """Many objects are looked for in a listing, as long as that is cheaper than to ask for
        each; what it has not shown by then is asked for, several at once. So are a few names that
        a whole listing does not have: to be wrong would be to take them for lost.

        ``SomeUnansweredError`` tells what was found out by then."""
        wanted = {checked(name) for name in names}
        found: dict[str, ObjectInfo] = {}
        is_complete = False
        if len(wanted) >= _LISTED_MIN:
            try:
                is_complete = self._look_in_listing(wanted, found)
            except TransientStorageError as error:
                raise SomeUnansweredError(
                    error.message, found=found, unanswered=wanted - found.keys()
                ) from error
        missing = sorted(wanted - found.keys())
        if is_complete and len(missing) >= _LISTED_MIN:
            return found
        unanswered: dict[str, TransientStorageError] = {}
        for name, info in zip(missing, self.pool().map(self._head_or_none, missing), strict=True):
            if isinstance(info, TransientStorageError):
                unanswered[name] = info
            elif info is not None:
                found[name] = info
        for failed in unanswered.values():
            raise SomeUnansweredError(failed.message, found=found, unanswered=[*unanswered])
        return found

    def _look_in_listing(self, wanted: set[str], found: dict[str, ObjectInfo]) -> bool:
        """Whether all of the listing was looked at."""
        pages = self._objects.pages(common_prefix(wanted))
        for _ in range(max(1, len(wanted) // _HEADS_PER_PAGE)):
            page = next(pages, None)
            if page is None:
                return True
            found.update((info.name, info) for info in page if info.name in wanted)
            if len(found) == len(wanted):
                break
        return False

    def open(self, name: str) -> ObjectReader:
        """Ask for an object; ``ObjectNotFoundError`` if there is none."""
        info, stream = self._objects.fetch(checked(name), 0, None, None)
        return ObjectReader(
            info,
            stream,
            partial(self._fetch, info),
            bucket=self.uri,
            range_bytes=self._limits.range_bytes,
            pool=self.pool,
        )

    def pinned(self, info: ObjectInfo) -> PinnedObject:
        """For reads by range, each under ``If-Match``."""
        checked(info.name)
        return PinnedObject(info, partial(self._fetch, info), self.uri)

    def _fetch(self, info: ObjectInfo, start: int, stop: int | None) -> ByteStream:
        """Bytes ``start:stop`` of what ``info`` says."""
        try:
            return self._objects.fetch(info.name, start, stop, info).stream
        except PreconditionError:
            raise ChangedInputError(
                f"object {info.name} in bucket {self.uri} changed while it was read",
                hint="start the job again once nothing writes to its inputs",
            ) from None

    def read(self, name: str) -> bytes:
        """A small object whole."""
        with self.open(name) as opened:
            data = bytearray(opened.info.size_bytes)
            opened.read_into(memoryview(data), 0)
            return bytes(data)

    def write(self, name: str, data: bytes) -> None:
        """Store a small object by one request."""
        self._objects.put(checked(name), data)

    def write_new(self, name: str, data: bytes) -> bool:
        """Store a small object unless there is one: False. By a conditional request; where the
        store has none, by a look before."""
        return self._objects.put_new(checked(name), data)

    def write_over(self, name: str, data: bytes, etag: str) -> bool:
        """Store a small object in place of what has ``etag``, by a conditional request."""
        return self._objects.put_over(checked(name), data, etag)

    def delete(self, name: str) -> None:
        """Remove an object; no error if there is none."""
        self._objects.delete([checked(name)])

    def make_durable(self) -> None:
        """What a store has acknowledged is safe."""

    def free_bytes(self) -> int | None:
        """Stores do not say."""
        return None

    def local_path(self, name: str) -> Path | None:
        """Nothing of a store is a file."""
        checked(name)
        return None

    def pool(self) -> ThreadPoolExecutor:
        """Threads for requests at once, as many as may be in flight; made when first wanted."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(
                    self._limits.requests_in_flight_max, thread_name_prefix="dsort-store"
                )
            return self._threads

    def _delete_internal(self, token_prefixes: Sequence[str]) -> None:
        """Remove all objects under ``token_prefixes``, those of the first one first. They are
        listed together, for few are of others."""
        for prefix in token_prefixes:
            if not prefix.startswith(INTERNAL_PREFIX):
                raise InvariantError(f"discard of {prefix!r}, not under {INTERNAL_PREFIX}")
            encoded_prefix(prefix)
        pages = self._objects.pages(common_prefix(token_prefixes))
        names = [info.name for page in pages for info in page]
        for prefix in token_prefixes:
            self._objects.delete([name for name in names if name.startswith(prefix)])

    def _head_or_none(self, name: str) -> ObjectInfo | TransientStorageError | None:
        """What the object is, or that it is not there, or that nobody can tell just now."""
        try:
            return self._objects.head(name)
        except ObjectNotFoundError:
            return None
        except TransientStorageError as error:
            return error


def check_copy(copied: ObjectInfo, size_bytes: int, uri: str) -> None:
    """``StorageError`` unless a copy that a store has made is as long as what it was made of."""
    if copied.size_bytes != size_bytes:
        raise StorageError(
            f"{copied.name} in bucket {uri} has {copied.size_bytes:,} bytes, as the copy of "
            f"{size_bytes:,}",
            hint="the store lost some, or somebody else wrote to it",
        )


def common_prefix(names: Collection[str]) -> str:
    """What all ``names``, at least one, begin with."""
    first, last = min(names), max(names)
    for at, letter in enumerate(first):
        if at >= len(last) or last[at] != letter:
            return first[:at]
    return first


def checked(name: str, *, encode: Callable[[str], bytes] = encoded_name) -> str:
    """``name`` as it is, if an object of a store may be called so; ``StorageError`` else."""
    encode(name)
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise StorageError(
                f"{name!r} cannot be a name in an object store: it is not Unicode text"
            ) from None
    return name


def checked_token(token: str) -> str:
    """``token``; ``InvariantError`` unless it is one."""
    return checked(token, encode=encoded_token)
