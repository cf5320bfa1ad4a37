"""Checksums that AIStore's clients send with an object: what is stored is compared with them.

Facts of AIStore: they are in hexadecimal; ``xxhash`` is XXH64 with a seed of its own, ``sha256`` is
SHA-512/256."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final, Protocol

import xxhash
from awscrt.checksums import crc32c

from dsort.errors import SpecError, SpecProblem

__all__ = ["Checksum", "checksum_of"]

_XXHASH_SEED: Final = 1103515245


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


class _Crc32c:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = crc32c(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


_KINDS: Final[dict[str, Callable[[], _Hash]]] = {
    "crc32c": _Crc32c,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "sha256": lambda: hashlib.new("sha512_256"),
    "sha512": hashlib.sha512,
    "xxhash": lambda: xxhash.xxh64(seed=_XXHASH_SEED),
    "xxhash2": xxhash.xxh64,
}


class Checksum:
    """The checksum of what goes through ``update``, and what it should be."""

    def __init__(self, kind: str, value: str) -> None:
        self._kind = kind
        self._value = value.lower()
        self._hash = _KINDS[kind]()

    def update(self, data: bytes) -> None:
        """The next bytes."""
        self._hash.update(data)

    def check(self) -> None:
        """``SpecError`` if it is another one."""
        found = self._hash.hexdigest()
        if found != self._value:
            raise SpecError(f"the body's {self._kind} is {found} and not {self._value[:128]}")


def checksum_of(kind: str, value: str) -> Checksum | None:
    """What a request's headers say; None if they say nothing. ``SpecError`` for a kind that nobody
    knows."""
    if kind in ("", "none") or not value:
        return None
    if kind not in _KINDS:
        hint = f"one of {', '.join(_KINDS)}, or none"
        raise SpecError([SpecProblem("ais-checksum-type", f"{kind[:40]!r} is not known", hint)])
    return Checksum(kind, value)
