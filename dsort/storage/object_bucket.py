"""What all buckets in object stores share: :class:`ObjectBucket`, over what a client can do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

from dsort.errors import (
    ChangedInputError,
    InvariantError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
)
from dsort.storage.bucket import (
    INTERNAL_PREFIX,
    ObjectInfo,
    encoded_name,
    encoded_prefix,
    encoded_token,
)
from dsort.storage.limits import StoreLimits
from dsort.storage.object_errors import PreconditionError
from dsort.storage.object_reader import ByteStream, ObjectReader
from dsort.storage.retry import SomeUnansweredError

__all__ = [
    "Fetched",
    "KeyPrefix",
    "ObjectBucket",
    "ObjectClient",
    "check_copy",
    "checked",
    "checked_token",
    "common_prefix",
]

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
    as in :mod:`dsort.storage.object_errors`. Used by several threads at once."""

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

        def fetch_more(start: int, stop: int | None) -> ByteStream:
            try:
                return self._objects.fetch(name, start, stop, info).stream
            except PreconditionError:
                raise ChangedInputError(
                    f"object {name} in bucket {self.uri} changed while it was read",
                    hint="start the job again once nothing writes to its inputs",
                ) from None

        return ObjectReader(
            info,
            stream,
            fetch_more,
            bucket=self.uri,
            range_bytes=self._limits.range_bytes,
            pool=self.pool,
        )

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

    def delete(self, name: str) -> None:
        """Remove an object; no error if there is none."""
        self._objects.delete([checked(name)])

    def settle(self) -> None:
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

    def _delete_internal(self, token_prefix: str) -> None:
        """Remove all objects under ``token_prefix``."""
        if not token_prefix.startswith(INTERNAL_PREFIX):
            raise InvariantError(f"discard of {token_prefix!r}, not under {INTERNAL_PREFIX}")
        encoded_prefix(token_prefix)
        names = [info.name for page in self._objects.pages(token_prefix) for info in page]
        self._objects.delete(names)

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
