"""The one interface between dsort and storage: a :class:`Bucket`.

An implementation is a directory, an object store, or memory (for tests). It handles names and
bytes, never shards or records. All its errors are ``StorageError`` and subclasses: it translates
the errors of libraries. Misuse is an ``InvariantError``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, NoReturn, Protocol, Self

from msgspec import Struct

from dsort.errors import InvariantError, ObjectNotFoundError, StorageError
from dsort.naming.names import INTERNAL_PART

INTERNAL_PREFIX = f"{INTERNAL_PART}/"
"""Names under this prefix are dsort's own (manifests, staged outputs); ``list`` leaves them out
unless its argument begins with ``INTERNAL_PREFIX``."""

COPY = "copy"
"""The receipt of ``keep_aside`` if the bucket keeps the object under the token as its name."""

_FILE_ETAG = re.compile(r"([0-9a-f]+-[0-9a-f]+-[0-9a-f]+)(-c[0-9a-f]+)?")

Buffer = bytes | bytearray | memoryview


class ObjectInfo(Struct, frozen=True):
    """One stored object. ``etag`` changes whenever the content does. For files it consists of
    mtime, size, inode and ctime. So the etag of a written file changes even if the file gets its
    old mtime back. The etag also changes with modes, owners and hard links, because these change
    ctime just as writes do."""

    name: str
    size_bytes: int
    mtime_ns: int
    etag: str

    def is_still(self, size_bytes: int, etag: str, *, any_ctime: bool = False) -> bool:
        """Whether the object still has this size and etag. The etag of a file may lack the ctime,
        as in journals and manifests of older versions. ``any_ctime``: ignore the ctime."""
        if size_bytes != self.size_bytes:
            return False
        ours, theirs = _FILE_ETAG.fullmatch(self.etag), _FILE_ETAG.fullmatch(etag)
        if ours is None or theirs is None:
            return self.etag == etag
        is_older = ours[2] is None or theirs[2] is None
        return ours[1] == theirs[1] and (any_ctime or is_older or ours[2] == theirs[2])


class Meaning(NamedTuple):
    """The meaning of an error of a library or of the system: class of the error to raise, reason,
    hint."""

    kind: type[StorageError]
    reason: str
    hint: str = ""


class Closes(Protocol):
    """The common part of all open objects: a ``with`` closes them."""

    def close(self) -> None:
        """Release it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class RandomReads(Closes, Protocol):
    """Reads of ranges of one object in any order, by several threads at once."""

    @property
    def direct_fd(self) -> int:
        """A descriptor of the same file for direct reads; -1 if there is none."""

    def read(self, buffer: memoryview, offset: int, least_bytes: int) -> None:
        """Fill ``buffer`` from byte ``offset``, up to the end of the object, and keep no copy of
        the bytes. ``StorageError`` unless there are ``least_bytes`` bytes. ``offset``, the address
        of ``buffer`` in memory and its length have to be multiples of 4,096."""

    def peek(self, buffer: memoryview, offset: int) -> int:
        """Read a few bytes, which the page cache keeps, without reading ahead. Returns the number
        of bytes read."""

    def announce(self, offset: int, size_bytes: int) -> None:
        """A hint that ``peek`` will read these bytes soon, so that they may be read in advance."""


class ReadObject(Closes, Protocol):
    """An object opened for reading. Its size and etag are those of the moment it was opened. By
    default, an object has no caches, no mapping and no random reads."""

    info: ObjectInfo
    rereads_cheaply: bool
    """False where reading a byte again means to fetch it again: read such objects once, in
    order."""

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``. ``StorageError`` if the object ends before the
        buffer is full."""

    def forget(self) -> None:
        """A hint that the bytes read so far are not read again soon: caches may drop them."""
        return

    def mapping(self) -> memoryview | None:
        """The whole object as a read-only view, or None if it cannot be mapped.

        The view is valid until ``close``. The view of an empty object is empty.
        """
        return None

    def random_reads(self) -> RandomReads | None:
        """The same object for reads in any order, which stays valid after ``close``; None where
        each read would be a request."""
        return None

    def close(self) -> None:
        """Release it. A mapping whose views are still in use is released with the last of them."""


class StagedObject(Closes, Protocol):
    """An output that is not visible yet, open for writing."""

    def write_at(self, offset: int, slices: Sequence[Buffer]) -> None:
        """Write all of ``slices``, one after the other, from byte ``offset`` on. The memory of the
        slices may be reused after the call.

        On file systems, several processes may write different ranges of one staged object, and
        writing the same bytes again has no effect. On object stores, ``offset`` has to be where the
        last write ended (else ``InvariantError``)."""

    def start_sync(self, offset: int, size_bytes: int) -> None:
        """Begin to make a written range durable, and return at once: a hint that leaves less work
        to ``sync``."""

    def sync(self) -> None:
        """Return once all written bytes survive a power cut."""

    def finish(self) -> str:
        """End writing. Returns the *receipt*, which ``publish`` needs besides the token.

        On object stores, all bytes are stored and acknowledged when this call returns, and the
        receipt names the place of these bytes. On file systems, the receipt is the file's etag
        without ctime, and nothing is synced."""

    def size_bytes(self) -> int:
        """The current length of the staged object."""

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset`` of the written bytes. ``InvariantError`` where the
        bucket ``seals_on_finish``."""

    def close(self) -> None:
        """Release it. The staged object stays until it is published or discarded. On file systems,
        it can be opened again by its token; on object stores, it cannot."""


class Bucket(Protocol):
    """Objects by name. Names are ``/``-separated, relative, without ``.`` and ``..`` parts."""

    uri: str
    seals_on_finish: bool
    """True on object stores: a staged object is stored durably once ``finish`` returns, and cannot
    be read before it is published."""

    def exists(self) -> bool: ...

    def create(self) -> None:
        """Make the bucket if it does not exist."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The objects whose names begin with ``prefix``, in byte order of their UTF-8 names."""

    def stat(self, name: str) -> ObjectInfo:
        """``ObjectNotFoundError`` if there is no such object."""

    def stat_many(self, names: Collection[str]) -> dict[str, ObjectInfo]:
        """``stat`` of many objects, by as few requests as the store allows. Missing objects are
        left out."""

    def open(self, name: str) -> ReadObject:
        """``ObjectNotFoundError`` if there is no such object."""

    def pinned(self, info: ObjectInfo) -> ReadObject | None:
        """The object, for reads of ranges by several threads at once. Each read is one request. A
        read raises ``ChangedInputError`` if the object differs from ``info`` by then. Opening makes
        no request. None where an open object has ``random_reads``."""

    def read(self, name: str) -> bytes:
        """The content of a small object."""

    def write(self, name: str, data: bytes) -> None:
        """Store a small object: it appears whole or not at all, and survives a power cut."""

    def write_new(self, name: str, data: bytes) -> bool:
        """``write``, unless the object ``name`` exists: then return False and change nothing. Of
        several writers at the same time, exactly one gets True."""

    def write_over(self, name: str, data: bytes, etag: str) -> bool:
        """``write``, if the object ``name`` still has ``etag``: else return False and change
        nothing. Of several writers at the same time, at most one gets True if the store supports
        ``If-Match``. Directories compare the etag directly before writing; other stores only
        ``write``."""

    def delete(self, name: str) -> None:
        """Remove an object. A missing object is no error."""

    def stage(self, token: str, *, name: str = "", size_bytes: int | None = None) -> StagedObject:
        """Open the staged object ``token`` (a relative name under INTERNAL_PREFIX), and make it if
        it does not exist. ``name``: the name under which it will be published; object stores need
        it. ``size_bytes``: its final length, if known, to reserve room and to choose the size of
        parts."""

    def publish(self, token: str, name: str, *, overwrite: bool, receipt: str = "") -> None:
        """Give a staged object its name, atomically. ``receipt``: the result of ``finish``. Without
        ``overwrite``, an existing ``name`` is a ``StorageError`` and stays as it is. It is no error
        to publish again after a call that published but did not return. After ``make_durable``, the
        name survives a power cut."""

    def still_staged(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        """The tokens of staged objects that are whole, whether they still wait to be published or
        already have their names. ``tokens``: (name, receipt) by token."""

    def published(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        """The tokens of staged objects that have their names by now. ``tokens`` as in
        ``still_staged``."""

    def keep_aside(self, name: str, token: str) -> str:
        """Keep the object ``name`` as ``token``, even if another object gets that name later.
        Returns the receipt that ``put_back`` needs; "" if there is no such object. The object also
        keeps ``name``, if the store or the file system supports that. A repeated call keeps the
        object that has ``name`` at the time of that call."""

    def put_back(self, token: str, name: str, *, receipt: str) -> None:
        """Put the object that was kept as ``token`` in the place of the present object ``name``. A
        repeated call is no error while ``token`` exists; without it, ``name`` stays as it is."""

    def make_durable(self) -> None:
        """Return once all published names survive a power cut (directories synced)."""

    def discard(self, *token_prefixes: str, names: Collection[str] = ()) -> None:
        """Remove all staged objects and other internal objects under ``token_prefixes``, one prefix
        after the other, and directories that become empty. The prefixes have to begin with
        INTERNAL_PREFIX. ``names``: the names for which staged objects were meant; unfinished
        uploads to them are aborted."""

    def free_bytes(self) -> int | None:
        """The number of bytes that may still be stored, or None if there is no limit."""

    def local_path(self, name: str) -> Path | None:
        """The path of the object as a file on this machine, or None if it is no local file."""


def encoded_name(name: str) -> bytes:
    """The bytes of ``name`` on a file system.

    A name is relative, its parts are separated by ``/``, and no part is empty, ``.`` or ``..``.
    Lone surrogates stand for bytes that are not UTF-8, as in Python's file names. ``StorageError``
    for any other text.
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


def check_token_prefixes(prefixes: Collection[str]) -> None:
    """``InvariantError`` for a prefix of staged objects outside ``INTERNAL_PREFIX``."""
    for prefix in prefixes:
        if not prefix.startswith(INTERNAL_PREFIX):
            raise InvariantError(f"discard of {prefix!r}, not under {INTERNAL_PREFIX}")
        encoded_prefix(prefix)


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


class MadeBucket:
    """A bucket that is only read, and that makes its objects from other objects while they are
    read. See :class:`Bucket`."""

    uri: str
    seals_on_finish = True

    @property
    def are_files(self) -> bool:
        """Whether the bytes of its objects are in local files."""
        return False

    def exists(self) -> bool:
        return True

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        raise NotImplementedError

    def stat(self, name: str) -> ObjectInfo:
        raise NotImplementedError

    def open(self, name: str) -> ReadObject:
        raise NotImplementedError

    def stat_many(self, names: Collection[str]) -> dict[str, ObjectInfo]:
        found = {}
        for name in names:
            try:
                found[name] = self.stat(name)
            except ObjectNotFoundError:
                continue
        return found

    def read(self, name: str) -> bytes:
        with self.open(name) as opened:
            data = bytearray(opened.info.size_bytes)
            opened.read_into(memoryview(data), 0)
            return bytes(data)

    def local_path(self, name: str) -> Path | None:
        """None: no object is a file."""
        return None

    def pinned(self, info: ObjectInfo) -> ReadObject | None:
        return None

    def still_staged(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        return set()

    def published(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        return set()

    def free_bytes(self) -> int | None:
        return None

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise InvariantError(f"{self.uri} is written, and can only be read")

    create = write = write_new = write_over = delete = stage = publish = _refuse
    keep_aside = put_back = make_durable = discard = _refuse
