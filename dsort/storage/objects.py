"""The common part of all buckets in object stores: :class:`ObjectBucket`, over the client of a
store."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import NamedTuple, Protocol, TypeVar

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
    Meaning,
    ObjectInfo,
    check_token_prefixes,
    encoded_name,
    encoded_prefix,
    encoded_token,
)
from dsort.storage.limit import StoreLimits
from dsort.storage.object_reader import ByteStream, ObjectReader, PinnedObject
from dsort.storage.request_counts import LISTED_MIN
from dsort.storage.transport import Transport

T = TypeVar("T")

CREDENTIALS_HINT = (
    "set the credentials of the store in the environment (S3: AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE), or use a machine whose role has them; workers need "
    "them, too"
)
ACCESS_HINT = (
    "check what these credentials may do with the bucket, and that they are the right ones"
)
_TEXT_CHARS_MAX = 200
_READS_MAX = 4


class PreconditionError(StorageError):
    """The condition of a request (``If-Match``, ``If-None-Match``, a range) does not hold. The
    buckets catch this error; it never leaves them."""


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

    ``meaning_of`` returns None for errors that are not the library's, which are not changed.
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
        """Bytes ``start:stop`` (``stop`` None: to the end). ``PreconditionError`` if the store
        finds another object than the ``pinned`` one."""

    def put(self, name: str, data: bytes) -> None: ...

    def put_new(self, name: str, data: bytes) -> bool:
        """Store a small object; False if it exists already."""

    def put_over(self, name: str, data: bytes, etag: str) -> bool:
        """Store a small object; False unless the present object has ``etag``."""

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

    def __init__(
        self,
        uri: str,
        client: ObjectClient,
        limits: StoreLimits,
        transport: Transport | None = None,
    ) -> None:
        """``transport``: if None, it is made from ``limits``."""
        self.uri: str = uri
        self.transport = transport or Transport(limits)
        self._objects = client
        self._limits = limits
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri})"

    def ask(self, action: str, request: Callable[[], T]) -> T:
        """The result of ``request()``, one request to the store with the purpose ``action``, such
        as ``read a.tar``."""
        return self.transport.call(f"{action} in bucket {self.uri}", request)

    def exists(self) -> bool:
        """Whether a bucket of that name exists and may be listed."""
        return self.transport.call(f"look for bucket {self.uri}", self._objects.exists)

    def create(self) -> None:
        """Make the bucket if it does not exist."""
        self.transport.call(f"create bucket {self.uri}", self._objects.create)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All pages are read and sorted before the first object is yielded, because stores differ
        in their order.

        Objects that only mark a folder (empty, with a name that ends in ``/``) are left out.
        """
        encoded_prefix(prefix)
        is_internal = prefix.startswith(INTERNAL_PREFIX)
        found = [
            info
            for info in self._listed(prefix)
            if (is_internal or not info.name.startswith(INTERNAL_PREFIX))
            and (info.size_bytes or (info.name and not info.name.endswith("/")))
        ]
        found.sort(key=lambda info: info.name)  # the order of code points is that of UTF-8 bytes
        yield from found

    def _listed(self, prefix: str) -> Sequence[ObjectInfo]:
        """All objects whose names begin with ``prefix``. A listing that breaks begins again."""
        pages = self._objects.pages
        return self.ask(
            f"list {prefix}*", lambda: [info for page in pages(prefix) for info in page]
        )

    def stat(self, name: str) -> ObjectInfo:
        """Size, time and etag of an object; ``ObjectNotFoundError`` if it does not exist."""
        return self.ask(f"find {name}", partial(self._objects.head, checked(name)))

    def stat_many(self, names: Collection[str]) -> dict[str, ObjectInfo]:
        """Many names are looked up in a listing, as long as a listing is cheaper than a request for
        each name. The other names are requested one by one, several at once. If the listing lacks
        only a few names at its end, these are requested, too: a store may have left them out, and
        their objects would count as lost."""
        wanted = {checked(name) for name in names}
        found: dict[str, ObjectInfo] = {}
        is_complete = False
        if len(wanted) >= LISTED_MIN:
            look = partial(self._look_in_listing, wanted, found)
            is_complete = self.ask(f"find {len(wanted):,} objects", look)
        missing = sorted(wanted - found.keys())
        if is_complete and len(missing) >= LISTED_MIN:
            return found
        for name, info in zip(missing, self.pool().map(self._stat_or_none, missing), strict=True):
            if info is not None:
                found[name] = info
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

    def _stat_or_none(self, name: str) -> ObjectInfo | None:
        try:
            return self.stat(name)
        except ObjectNotFoundError:
            return None

    def open(self, name: str) -> ObjectReader:
        """Request an object. ``ObjectNotFoundError`` if it does not exist."""
        fetch = partial(self._objects.fetch, checked(name), 0, None, None)
        info, stream = self.ask(f"read {name}", fetch)
        return ObjectReader(
            info,
            stream,
            partial(self._fetch, info),
            bucket=self.uri,
            transport=self.transport,
            range_bytes=self._limits.range_bytes,
            pool=self.pool,
        )

    def pinned(self, info: ObjectInfo) -> PinnedObject:
        """The object for reads by range, each with ``If-Match``."""
        checked(info.name)
        return PinnedObject(
            info, partial(self._fetch, info), bucket=self.uri, transport=self.transport
        )

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
        """The content of a small object. An object that is replaced meanwhile is read anew."""
        for _ in range(_READS_MAX):
            with self.open(name) as opened, contextlib.suppress(ChangedInputError):
                data = bytearray(opened.info.size_bytes)
                opened.read_into(memoryview(data), 0)
                return bytes(data)
        raise StorageError(
            f"object {name} in bucket {self.uri} was replaced {_READS_MAX} times while it was read"
        )

    def write(self, name: str, data: bytes) -> None:
        """Store a small object by one request."""
        put = partial(self._objects.put, checked(name), data)
        self.transport.limiter.take(len(data))
        self.ask(f"write {name}", put)

    def write_new(self, name: str, data: bytes) -> bool:
        """Store a small object; False if it exists already. Uses a conditional request; if the
        store does not support conditions, a request before the write finds out whether the object
        exists."""
        return self._write_certainly(name, data, partial(self._objects.put_new, name, data))

    def write_over(self, name: str, data: bytes, etag: str) -> bool:
        """Store a small object in place of the one with ``etag``, by a conditional request."""
        return self._write_certainly(name, data, partial(self._objects.put_over, name, data, etag))

    def _write_certainly(self, name: str, data: bytes, put: Callable[[], bool]) -> bool:
        """If the reply to an earlier try was lost, that try may have stored the object. So the
        object is read back, and the result is True if it equals ``data``. Therefore ``data`` has to
        identify its writer."""
        checked(name)
        self.transport.limiter.take(len(data))
        may_be_ours = False

        def tried() -> bool:
            nonlocal may_be_ours
            try:
                return put()
            except TransientStorageError:
                may_be_ours = True
                raise

        is_put = self.ask(f"write {name}", tried)
        if is_put or not may_be_ours:
            return is_put
        try:
            return self.read(name) == data
        except ObjectNotFoundError:  # it existed, and was removed since
            return False

    def delete(self, name: str) -> None:
        """Remove an object. A missing object is no error."""
        self.ask(f"remove {name}", partial(self._objects.delete, [checked(name)]))

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
        """Remove all objects under ``token_prefixes``, one prefix after the other. One listing
        covers all of them, because few other objects are in it."""
        check_token_prefixes(token_prefixes)
        names = [info.name for info in self._listed(common_prefix(token_prefixes))]
        for prefix in token_prefixes:
            own = [name for name in names if name.startswith(prefix)]
            self.ask(f"remove {prefix}*", partial(self._objects.delete, own))


class StagedInStore(ClosesOnExit):
    """The common part of objects on their way to a store (see
    :class:`~dsort.storage.bucket.StagedObject`): they are written in order, and ``finish`` stores
    all bytes."""

    def __init__(self, what: str) -> None:
        """``what``: the name of the object in messages."""
        self._what = what
        self._size_bytes = 0
        self._receipt = ""

    def _check_order(self, offset: int, *, is_over: bool = False) -> None:
        """``InvariantError`` if ``offset`` is not where the last write ended, after ``finish``, or
        if ``is_over``."""
        if offset != self._size_bytes or self._receipt or is_over:
            raise InvariantError(
                f"{self._what} is written at byte {offset}; {self._size_bytes} bytes are there"
            )

    def start_sync(self, offset: int, size_bytes: int) -> None:
        """Do nothing: parts are sent as they get full."""

    def sync(self) -> None:
        """Do nothing: parts that were acknowledged are durable; ``finish`` sends the rest."""

    def size_bytes(self) -> int:
        """The number of bytes written so far."""
        return self._size_bytes

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Not available: the object can be read only after it is published."""
        raise InvariantError(f"{self._what} is read before it is published")


def check_stored(stored: ObjectInfo, size_bytes: int, uri: str) -> None:
    """``StorageError`` unless an object has all of the ``size_bytes`` bytes that were stored, or
    that the store was to copy."""
    if stored.size_bytes != size_bytes:
        raise StorageError(
            f"{stored.name} in bucket {uri} has {stored.size_bytes:,} bytes after {size_bytes:,} "
            "were stored",
            hint="the store lost some, or another program wrote to it; remove it",
        )


def common_prefix(names: Collection[str]) -> str:
    """The longest common prefix of one or more ``names``."""
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
