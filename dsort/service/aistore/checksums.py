"""Checksums that AIStore's clients send with an object, and checksums that they request.

A stored object is compared with the checksum that was sent. Checksums are not stored: if a client
requests the checksum of an object, the object is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final, Protocol

import xxhash
from awscrt.checksums import crc32c

from dsort.errors import SpecError, SpecProblem
from dsort.storage.bucket import ReadObject

CONTENT_KIND: Final = "xxhash2"
"""The kind of checksum that AIStore's buckets have by default."""
READ_BYTES_MAX: Final = 1 << 30  # AIStore's clients wait for about ten seconds
PIECE_BYTES: Final = 1 << 20
_XXHASH_SEED: Final = 1103515245


class _Hash(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


class _Crc32c:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes | memoryview, /) -> None:
        self._value = crc32c(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


# AIStore's names mislead: ``xxhash`` is XXH64 with a seed of its own, ``sha256`` is SHA-512/256.
_KINDS: Final[dict[str, Callable[[], _Hash]]] = {
    "crc32c": _Crc32c,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "sha256": lambda: hashlib.new("sha512_256"),
    "sha512": hashlib.sha512,
    "xxhash": lambda: xxhash.xxh64(seed=_XXHASH_SEED),
    "xxhash2": xxhash.xxh64,
}


class Checksum:
    """Computes the checksum of the bytes given to ``update``, and compares it with the expected
    one."""

    def __init__(self, kind: str, value: str) -> None:
        self._kind = kind
        self._value = value.lower()
        self._hash = _KINDS[kind]()

    def update(self, data: bytes) -> None:
        """Add the next bytes."""
        self._hash.update(data)

    def check(self) -> None:
        """``SpecError`` if the checksum differs from the expected one."""
        found = self._hash.hexdigest()
        if found != self._value:
            raise SpecError(f"the body's {self._kind} is {found} and not {self._value[:128]}")


def content_checksum(opened: ReadObject) -> str | None:
    """The checksum of an object, for which the object is read; None if the object is too large, or
    would be fetched twice. ``StorageError``."""
    size_bytes = opened.info.size_bytes
    if size_bytes > READ_BYTES_MAX or not opened.rereads_cheaply:
        return None
    found = _KINDS[CONTENT_KIND]()
    piece = memoryview(bytearray(min(PIECE_BYTES, size_bytes)))
    for offset in range(0, size_bytes, PIECE_BYTES):
        part = piece[: size_bytes - offset]
        opened.read_into(part, offset)
        found.update(part)
    return found.hexdigest()


def checksum_of(kind: str, value: str) -> Checksum | None:
    """The checksum in a request's headers; None if there is none. ``SpecError`` for an unknown
    kind."""
    if kind in ("", "none") or not value:
        return None
    if kind not in _KINDS:
        hint = f"one of {', '.join(_KINDS)}, or none"
        raise SpecError([SpecProblem("ais-checksum-type", f"{kind[:40]!r} is not known", hint)])
    return Checksum(kind, value)
