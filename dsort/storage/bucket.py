"""The one seam between dsort and where bytes live: a :class:`Bucket`.

An implementation is a directory, an object store, or memory (for tests). It knows names and bytes,
never shards or records. All of its errors are ``StorageError`` and its children, translated at this
border; ``InvariantError`` for misuse.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from dsort.errors import InvariantError, StorageError
from dsort.naming.names import INTERNAL_PART

__all__ = [
    "COPY",
    "INTERNAL_PREFIX",
    "Bucket",
    "Buffer",
    "ObjectInfo",
    "RandomReads",
    "ReadObject",
    "StagedObject",
    "encoded_name",
    "encoded_prefix",
    "encoded_token",
]


INTERNAL_PREFIX = f"{INTERNAL_PART}/"
"""Names under this prefix are dsort's own (manifests, staged outputs); ``list`` leaves them out
unless asked for a prefix that begins with it."""

COPY = "copy"
"""The receipt of ``keep_aside`` for what is kept as the object that was asked for."""

_FILE_ETAG = re.compile(r"([0-9a-f]+-[0-9a-f]+-[0-9a-f]+)(-c[0-9a-f]+)?")

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object. ``etag`` changes whenever the content does (files: mtime, size, inode and
    ctime, so that a file that was written to and given its old mtime is another one; and one whose
    mode, owner or hard links changed, for nobody can tell these apart)."""

    name: str
    size_bytes: int
    mtime_ns: int
    etag: str

    def is_still(self, size_bytes: int, etag: str, *, any_ctime: bool = False) -> bool:
        """Whether it is what had this size and etag. That of a file may be without its ctime, as in
        journals and manifests of older versions; ``any_ctime``: it does not count anyway."""
        if size_bytes != self.size_bytes:
            return False
        ours, theirs = _FILE_ETAG.fullmatch(self.etag), _FILE_ETAG.fullmatch(etag)
        if ours is None or theirs is None:
            return self.etag == etag
        is_older = ours[2] is None or theirs[2] is None
        return ours[1] == theirs[1] and (any_ctime or is_older or ours[2] == theirs[2])


class RandomReads(Protocol):
    """Reads of ranges of one object in any order, by several threads at once."""

    @property
    def direct_fd(self) -> int:
        """A file that is open for direct reads of the same; -1 if there is none."""

    def read(self, buffer: memoryview, offset: int, least_bytes: int) -> None:
        """Fill ``buffer`` from byte ``offset``, as far as the object goes, and keep no copy of it.
        ``StorageError`` unless it goes on for ``least_bytes``. ``offset``, the place of ``buffer``
        in memory and its length are multiples of 4,096."""

    def peek(self, buffer: memoryview, offset: int) -> int:
        """Read a few bytes, which the page cache keeps, and nothing around them; how many came."""

    def announce(self, offset: int, size_bytes: int) -> None:
        """A hint that so many bytes are going to be peeked at: they may be read meanwhile."""

    def close(self) -> None:
        """Release it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class ReadObject(Protocol):
    """An object opened for reading. Its size and etag are those of the moment it was opened."""

    info: ObjectInfo
    rereads_cheaply: bool
    """False where reading a byte again means to fetch it again: read once, in order."""

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``; ``StorageError`` if the object ends too soon."""

    def forget(self) -> None:
        """A hint that what was read will not be read again soon: no cache need keep it."""

    def mapping(self) -> memoryview | None:
        """The whole object as a read-only view, or None where it cannot be mapped.

        An empty object gives an empty view. Valid until ``close``.
        """

    def random_reads(self) -> RandomReads | None:
        """The same object for reads in any order; None where each would be a request. Valid beyond
        ``close``."""

    def close(self) -> None:
        """Release it. A mapping that still has views in use is released with the last of them."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class StagedObject(Protocol):
    """An output that nobody can see yet, open for writing."""

    def write_at(self, offset: int, slices: Sequence[Buffer]) -> None:
        """Write ``slices`` one after the other from byte ``offset`` on, whole. When it returns, the
        slices may be used for something else.

        On file systems several processes may write different ranges of one token, and writing the
        same bytes again is harmless. On object stores ``offset`` is where the last write ended
        (``InvariantError`` else)."""

    def start_sync(self, offset: int, size_bytes: int) -> None:
        """Begin to make a written range durable, and return at once: a hint, so that ``sync`` finds
        less to do."""

    def sync(self) -> None:
        """Return once what was written survives a power cut."""

    def finish(self) -> str:
        """Nothing more will be written: the *receipt*, which ``publish`` needs besides the token.

        On object stores all bytes are stored, and acknowledged, when it returns, and the receipt
        says where. On file systems it is the file's etag without ctime, and nothing is
        synced."""

    def size_bytes(self) -> int:
        """How long the staged object is now."""

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset`` of what has been written. ``InvariantError`` where
        the bucket ``seals_on_finish``."""

    def close(self) -> None:
        """Release it. What was staged stays until it is published or discarded, and can be opened
        again by its token on file systems only."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Bucket(Protocol):
    """Objects by name. Names are ``/``-separated, relative, without ``.`` and ``..`` parts."""

    uri: str
    seals_on_finish: bool
    """True on object stores: what is staged is stored for good once ``finish`` returns, and cannot
    be read before it is published."""

    def exists(self) -> bool: ...

    def create(self) -> None:
        """Make the bucket if there is none."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The objects whose names begin with ``prefix``, in byte order of their UTF-8 names."""

    def stat(self, name: str) -> ObjectInfo:
        """``ObjectNotFoundError`` if there is none."""

    def stat_many(self, names: Collection[str]) -> dict[str, ObjectInfo]:
        """``stat`` of many objects, as few requests as the store allows; missing ones are left
        out."""

    def open(self, name: str) -> ReadObject:
        """``ObjectNotFoundError`` if there is none."""

    def pinned(self, info: ObjectInfo) -> ReadObject | None:
        """The object, as long as it is what ``info`` says, for reads of ranges by several threads
        at once, each of which is a request; ``ChangedInputError`` by a read, if it is another one.
        Nothing is asked before. None where an open object has ``random_reads``."""

    def read(self, name: str) -> bytes:
        """A small object whole."""

    def write(self, name: str, data: bytes) -> None:
        """Store a small object: it appears whole or not at all, and survives a power cut."""

    def write_new(self, name: str, data: bytes) -> bool:
        """``write``, unless there is an object ``name``: then False, and nothing is changed. Of
        several writers at once exactly one gets True."""

    def write_over(self, name: str, data: bytes, etag: str) -> bool:
        """``write``, if ``name`` is still what has ``etag``, as was seen just now: else False, and
        nothing is changed. Of several writers at once at most one gets True where a store heeds
        ``If-Match``; in directories it is looked at right before; elsewhere it is a ``write``."""

    def delete(self, name: str) -> None:
        """Remove an object; removing one that is not there is no error."""

    def stage(self, token: str, *, name: str = "", size_bytes: int | None = None) -> StagedObject:
        """Open the staged object ``token`` (a relative name under INTERNAL_PREFIX), making it if
        need be. ``name``: what it will be published as; object stores need to know. ``size_bytes``
        is its final length, if known, so that room can be reserved and parts can be sized."""

    def publish(self, token: str, name: str, *, overwrite: bool, receipt: str = "") -> None:
        """Give a staged object its name, atomically. ``receipt``: what ``finish`` returned. Without
        ``overwrite`` an existing ``name`` is a ``StorageError`` and stays as it is. Publishing
        again what was published by a call that did not return is no error. The name survives a
        power cut after ``make_durable``."""

    def still_staged(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        """Which staged objects are whole and can still be published (or were, under their names):
        ``tokens`` are (name, receipt) by token."""

    def published(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        """Which staged objects have their names by now: ``tokens`` as in ``still_staged``."""

    def keep_aside(self, name: str, token: str) -> str:
        """Have what is stored as ``name`` kept as ``token``, whatever is published over it. The
        receipt that ``put_back`` needs; "" if there is no such object. ``name`` stays where a store
        or a file system can do so. Doing it again keeps what is there now."""

    def put_back(self, token: str, name: str, *, receipt: str) -> None:
        """Give ``name`` what was kept as ``token``, in place of whatever has it. Doing it again
        while ``token`` is there is no error; without it ``name`` stays as it is."""

    def make_durable(self) -> None:
        """Return once all published names survive a power cut (directories synced)."""

    def discard(self, *token_prefixes: str, names: Collection[str] = ()) -> None:
        """Remove all staged objects and other internal objects under ``token_prefixes``, one after
        the other, and the directories that this leaves empty. They begin with INTERNAL_PREFIX.
        ``names``: what staged objects were to be published as; unfinished uploads to them are
        aborted."""

    def free_bytes(self) -> int | None:
        """Room left, or None where there is no such limit."""

    def local_path(self, name: str) -> Path | None:
        """Where the object is as a file of this machine, or None."""


def encoded_name(name: str) -> bytes:
    """The bytes of ``name`` on a file system.

    A name is relative, its parts are separated by ``/``, and no part is empty, ``.`` or ``..``.
    Bytes that are not UTF-8 are carried as lone surrogates, as Python does for file names.
    ``StorageError`` for anything else.
    """
    parts = name.split("/")
    if "" in parts:
        raise _refused(name, "it is empty, or has an empty part (a / at an end or two in a row)")
    return _encoded(name, parts)


def encoded_prefix(prefix: str) -> bytes:
    """The bytes of a prefix of names; its last part may be incomplete or empty."""
    *directories, _ = prefix.split("/")
    if "" in directories:
        raise _refused(prefix, "it begins with / or has an empty part")
    return _encoded(prefix, directories)


def encoded_token(token: str) -> bytes:
    """The bytes of the name of a staged object; ``InvariantError`` outside ``INTERNAL_PREFIX``."""
    if not token.startswith(INTERNAL_PREFIX):
        raise InvariantError(f"staged object {token!r} is not under {INTERNAL_PREFIX}")
    return encoded_name(token)


def _encoded(name: str, parts: list[str]) -> bytes:
    if "." in parts or ".." in parts:
        raise _refused(name, "it has a part that is . or ..")
    if "\0" in name:
        raise _refused(name, "it has a zero byte in it")
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _refused(name, "it is not Unicode text") from None


def _refused(name: str, reason: str) -> StorageError:
    return StorageError(
        f"{name!r} cannot be a name in a bucket: {reason}",
        hint="names are relative to the bucket, such as train/shard-000001.tar",
    )
