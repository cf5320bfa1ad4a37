"""The one seam between dsort and where bytes live: a :class:`Bucket`.

An implementation is a directory, an object store, or memory (for tests). It knows names and bytes,
never shards or records. All of its errors are ``StorageError`` and its children, translated at this
border; ``InvariantError`` for misuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

__all__ = ["INTERNAL_PREFIX", "Bucket", "Buffer", "ObjectInfo", "ReadObject", "StagedObject"]

INTERNAL_PREFIX = ".dsort/"
"""Names under this prefix are dsort's own (manifests, staged outputs); ``list`` leaves them out
unless asked for a prefix that begins with it."""

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object. ``etag`` changes whenever the content does (files: mtime, size, inode)."""

    name: str
    size_bytes: int
    mtime_ns: int
    etag: str


class ReadObject(Protocol):
    """An object opened for reading. Its size and etag are those of the moment it was opened."""

    info: ObjectInfo

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``; ``StorageError`` if the object ends too soon."""

    def forget(self) -> None:
        """A hint that what was read will not be read again soon: no cache need keep it."""

    def mapping(self) -> memoryview | None:
        """The whole object as a read-only view, or None where it cannot be mapped.

        An empty object gives an empty view. Valid until ``close``.
        """

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
    """An output that nobody can see yet, open for writing. Several processes may hold one token
    open and write different ranges of it."""

    def write_at(self, offset: int, slices: Sequence[Buffer]) -> None:
        """Write ``slices`` one after the other from byte ``offset`` on, whole. Writing the same
        bytes again is harmless."""

    def start_sync(self, offset: int, size_bytes: int) -> None:
        """Begin to make a written range durable, and return at once: a hint, so that ``sync`` finds
        less to do."""

    def sync(self) -> None:
        """Return once what was written survives a power cut."""

    def size_bytes(self) -> int:
        """How long the staged object is now."""

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset`` of what has been written."""

    def close(self) -> None: ...

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

    def exists(self) -> bool: ...

    def create(self) -> None:
        """Make the bucket if there is none."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The objects whose names begin with ``prefix``, in byte order of their UTF-8 names."""

    def stat(self, name: str) -> ObjectInfo:
        """``ObjectNotFoundError`` if there is none."""

    def open(self, name: str) -> ReadObject:
        """``ObjectNotFoundError`` if there is none."""

    def read(self, name: str) -> bytes:
        """A small object whole."""

    def write(self, name: str, data: bytes) -> None:
        """Store a small object: it appears whole or not at all, and survives a power cut."""

    def delete(self, name: str) -> None:
        """Remove an object; removing one that is not there is no error."""

    def stage(self, token: str, *, size_bytes: int | None = None) -> StagedObject:
        """Open the staged object ``token`` (a relative name under INTERNAL_PREFIX), making it if
        need be. ``size_bytes`` is its final length, if known, so that room can be reserved."""

    def publish(self, token: str, name: str, *, overwrite: bool) -> None:
        """Give a staged object its name, atomically. Without ``overwrite`` an existing ``name`` is
        a ``StorageError`` and stays as it is. The name survives a power cut after ``settle``."""

    def settle(self) -> None:
        """Return once all published names survive a power cut (directories synced)."""

    def discard(self, token_prefix: str) -> None:
        """Remove all staged objects and other internal objects under ``token_prefix``, and the
        directories that this leaves empty. Must begin with INTERNAL_PREFIX."""

    def free_bytes(self) -> int | None:
        """Room left, or None where there is no such limit."""

    def local_path(self, name: str) -> Path | None:
        """Where the object is as a file of this machine, or None."""
