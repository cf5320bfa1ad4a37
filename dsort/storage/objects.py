"""The common part of all buckets in object stores: :class:`ObjectBucket`, over the client of a
store."""

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
    hold. Backends catch this error; it never leaves them."""


class Meaning(NamedTuple):
    """The meaning of a client library's error: the class of dsort's error, the reason, a hint."""

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
    """The meaning of a reply with HTTP status ``status``, if nothing else is known about it."""
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
    """``text`` of a server as a part of a message: one line, shortened, without queries of URLs."""
    without_queries = re.sub(r"\?[^\s\"'<>)]*", "", text)
    return " ".join(without_queries.split())[:_TEXT_CHARS_MAX]


class ObjectErrors:
    """A context that translates errors of a client library into ``StorageError``.

    ``meaning_of`` returns None for errors that are not the library's; these are not changed.
    ``action`` as in :func:`error_of`.
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
        """Read the next bytes into ``view``, which is not empty. Returns their number, 0 at the
        end.

        ``TransientStorageError`` if the connection breaks."""

    def close(self) -> None:
        """Release it, without waiting for bytes that were not read yet."""


class ObjectReader(ClosesOnExit):
    """See :class:`~dsort.storage.bucket.ReadObject`. For one thread at a time.

    ``stream``: the object from its first byte on. ``fetch(start, stop)`` returns bytes
    ``start:stop`` of the same content (``stop`` None: to the end), or raises ``ChangedInputError``.
    ``pool`` returns threads for large reads.

    A read that fails in the middle raises ``ReadCutShortError``; the next read continues there.
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
        self._position = 0  # the offset of the next byte of the stream
        self._stop = info.size_bytes  # where the stream ends
        self._fetch = fetch
        self._bucket = bucket
        self._range_bytes = range_bytes
        self._pool = pool

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``. ``StorageError`` if the object ends before that."""
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
        """Do nothing: no bytes are kept."""

    def mapping(self) -> memoryview | None:
        """None: an object in a store cannot be mapped."""
        return None

    def random_reads(self) -> RandomReads | None:
        """None: each read would be a request."""
        return None

    def close(self) -> None:
        """Release the connection. Closing again has no effect."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            stream.close()

    def _read_on(self, buffer: memoryview, offset: int) -> None:
        if offset != self._position:  # out of order: request only these bytes
            self._begin(offset, offset + len(buffer))
        filled = 0
        try:
            while filled < len(buffer):
                if self._stream is None or self._position == self._stop:
                    self._begin(self._position, None)  # in order: the rest will be read, too
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
            ended = [_ended(each) for each in others]  # waits: none may write here afterwards
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
        """Fill ``view`` by a request of its own. Returns (bytes filled, error or None)."""
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
"""Fewer objects than this are requested one by one, not by a listing."""

_HEADS_PER_PAGE = 10
"""A page of a listing (1,000 names) is assumed to cost as much as this many ``head`` requests."""


class Fetched(NamedTuple):
    """A reply with bytes of an object: the facts of the whole object, and the bytes."""

    info: ObjectInfo
    stream: ByteStream


class ObjectClient(Protocol):
    """The operations of a client library that :class:`ObjectBucket` needs. Names are those of the
    bucket. Errors as in :mod:`dsort.storage.objects`. Used by several threads at once."""

    def exists(self) -> bool: ...

    def create(self) -> None: ...

    def pages(self, prefix: str) -> Iterator[Sequence[ObjectInfo]]:
        """All objects whose names begin with ``prefix``, in any order. A page is one request."""

    def head(self, name: str) -> ObjectInfo: ...

    def fetch(self, name: str, start: int, stop: int | None, pinned: ObjectInfo | None) -> Fetched:
        """Bytes ``start:stop`` (``stop`` None: to the end). ``PreconditionError`` if the object is
        not the ``pinned`` one any more, as far as the store can detect it."""

    def put(self, name: str, data: bytes) -> None: ...

    def put_new(self, name: str, data: bytes) -> bool:
        """Store a small object; False if it exists already."""

    def put_over(self, name: str, data: bytes, etag: str) -> bool:
        """Store a small object; False unless the present one has ``etag``."""

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects. Missing objects are no error."""


class KeyPrefix:
    """Turns names into keys of the store, which are below ``prefix`` ("" or ``some/prefix``)."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}/" if prefix else ""

    def key(self, name: str) -> str:
        """The key of the object ``name``; or, for a prefix of names, the prefix of their keys."""
        return self._prefix + name

    def name(self, key: str) -> str:
        """The name of the object with that key."""
        return key[len(self._prefix) :]


class ObjectBucket:
    """Objects of a store (see :class:`~dsort.storage.bucket.Bucket`), without staging.

    Several threads may use it at once; another process has to open it again.
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
        """Whether there is a bucket of that name that may be listed."""
        return self._objects.exists()

    def create(self) -> None:
        """Make the bucket if it does not exist."""
        self._objects.create()

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All pages are read and sorted before the first object is yielded, because stores differ
        in their order.

        Objects that only mark a folder (empty, with a name that ends in ``/``) are left out.
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
        found.sort(key=lambda info: info.name)  # the order of code points is that of UTF-8 bytes
        yield from found

    def stat(self, name: str) -> ObjectInfo:
        """Size, time and etag of an object; ``ObjectNotFoundError`` if there is none."""
        return self._objects.head(checked(name))

    def stat_many(self, names: Collection[str]) -> dict[str, ObjectInfo]:
        """Many objects are searched in a listing, as long as that is cheaper than one request for
        each; the rest is requested one by one, several at once. If a complete listing lacks only a
        few names, these are requested, too: otherwise an incomplete listing would make them count
        as lost.

        ``SomeUnansweredError`` holds the results so far."""
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
        """Add objects from the listing to ``found``. Returns whether the listing was read to its
        end."""
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
        """Request an object. ``ObjectNotFoundError`` if there is none."""
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
        """The object for reads by range, each with ``If-Match``."""
        checked(info.name)
        return PinnedObject(info, partial(self._fetch, info), self.uri)

    def _fetch(self, info: ObjectInfo, start: int, stop: int | None) -> ByteStream:
        """Bytes ``start:stop`` of the object that ``info`` describes."""
        try:
            return self._objects.fetch(info.name, start, stop, info).stream
        except PreconditionError:
            raise ChangedInputError(
                f"object {info.name} in bucket {self.uri} changed while it was read",
                hint="start the job again once nothing writes to its inputs",
            ) from None

    def read(self, name: str) -> bytes:
        """The content of a small object."""
        with self.open(name) as opened:
            data = bytearray(opened.info.size_bytes)
            opened.read_into(memoryview(data), 0)
            return bytes(data)

    def write(self, name: str, data: bytes) -> None:
        """Store a small object by one request."""
        self._objects.put(checked(name), data)

    def write_new(self, name: str, data: bytes) -> bool:
        """Store a small object; False if it exists already. Uses a conditional request; if the
        store has none, a request before the write."""
        return self._objects.put_new(checked(name), data)

    def write_over(self, name: str, data: bytes, etag: str) -> bool:
        """Store a small object in place of the one with ``etag``, by a conditional request."""
        return self._objects.put_over(checked(name), data, etag)

    def delete(self, name: str) -> None:
        """Remove an object. A missing object is no error."""
        self._objects.delete([checked(name)])

    def make_durable(self) -> None:
        """Do nothing: objects that a store has acknowledged are durable."""

    def free_bytes(self) -> int | None:
        """None: stores do not report it."""
        return None

    def local_path(self, name: str) -> Path | None:
        """None: objects in a store are not local files."""
        checked(name)
        return None

    def pool(self) -> ThreadPoolExecutor:
        """Threads for parallel requests, as many as may be in flight. Made when first needed."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(
                    self._limits.requests_in_flight_max, thread_name_prefix="dsort-store"
                )
            return self._threads

    def _delete_internal(self, token_prefixes: Sequence[str]) -> None:
        """Remove all objects under ``token_prefixes``, those of the first one first. One listing
        covers all of them, because few other objects are in it."""
        for prefix in token_prefixes:
            if not prefix.startswith(INTERNAL_PREFIX):
                raise InvariantError(f"discard of {prefix!r}, not under {INTERNAL_PREFIX}")
            encoded_prefix(prefix)
        pages = self._objects.pages(common_prefix(token_prefixes))
        names = [info.name for page in pages for info in page]
        for prefix in token_prefixes:
            self._objects.delete([name for name in names if name.startswith(prefix)])

    def _head_or_none(self, name: str) -> ObjectInfo | TransientStorageError | None:
        """The facts of the object; None if it does not exist; the error if that is unknown at the
        moment."""
        try:
            return self._objects.head(name)
        except ObjectNotFoundError:
            return None
        except TransientStorageError as error:
            return error


def check_copy(copied: ObjectInfo, size_bytes: int, uri: str) -> None:
    """``StorageError`` unless a copy that a store has made is as long as the original."""
    if copied.size_bytes != size_bytes:
        raise StorageError(
            f"{copied.name} in bucket {uri} has {copied.size_bytes:,} bytes, as the copy of "
            f"{size_bytes:,}",
            hint="the store lost some, or another program wrote to it",
        )


def common_prefix(names: Collection[str]) -> str:
    """The longest common prefix of ``names``, of which there is at least one."""
    first, last = min(names), max(names)
    for at, letter in enumerate(first):
        if at >= len(last) or last[at] != letter:
            return first[:at]
    return first


def checked(name: str, *, encode: Callable[[str], bytes] = encoded_name) -> str:
    """``name`` unchanged, if it is valid for an object in a store; else ``StorageError``."""
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
    """``token`` unchanged. ``InvariantError`` unless it is a valid token."""
    return checked(token, encode=encoded_token)
