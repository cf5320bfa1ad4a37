"""The contract of a codec: an encoded file to the bytes of a container, and back.

To add a codec, write a module with a child of :class:`Codec` and add it to ``containers.registry``.

A file is *members*, one after the other (gzip's word; zstd and lz4 say frames), and each ends with
a checksum. All of them are read: a reader that stops after the first loses what follows it.

Output is made of pieces of a fixed number of decoded bytes, so that it is the same whoever makes
it, and on how many threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Codec", "EncodedPiece", "MemberDecoder", "PieceEncoder"]


class MemberDecoder(Protocol):
    """Decodes one member (the interface of Python's ``BZ2Decompressor``)."""

    @property
    def eof(self) -> bool:
        """Whether the member has ended, and what it says of its content has been checked."""

    @property
    def needs_input(self) -> bool:
        """Whether nothing more comes before the next bytes of the file do."""

    @property
    def unused_data(self) -> bytes:
        """What was given beyond the member's end."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Decode ``data``; about ``max_length`` bytes at most come out at once."""


@dataclass(frozen=True, slots=True)
class EncodedPiece:
    """One piece. ``check``: what the end of the file needs of it."""

    data: bytes
    check: int = 0


class PieceEncoder(ABC):
    """Encodes one file."""

    piece_bytes: int
    """How many decoded bytes each piece has, but for the last one."""

    def begin(self) -> bytes:
        """What comes before the first piece."""
        return b""

    @abstractmethod
    def encode(self, piece: bytearray) -> EncodedPiece:
        """One piece; several threads may each encode one."""

    @abstractmethod
    def add(self, piece: bytearray, encoded: EncodedPiece) -> None:
        """The next piece in order, and what it was encoded to."""

    @abstractmethod
    def end(self) -> bytes:
        """What follows the last piece that was added."""


class Codec(ABC):
    """One codec. Instances are immutable and can be pickled: workers get one."""

    name: str
    suffixes: tuple[str, ...]
    magics: tuple[bytes, ...]
    """What the members of a file begin with, one or another of them."""

    levels: range = range(0)
    """The levels of compression to choose from; empty: it is read, and not written."""

    default_level: int = 0
    member_word: str = "member"

    # -- reading ---------------------------------------------------------------------------------

    @abstractmethod
    def decoder(self, window_bytes_max: int) -> MemberDecoder:
        """What decodes the next member. ``window_bytes_max``: what it may hold of the content to
        refer back to."""

    @property
    @abstractmethod
    def errors(self) -> tuple[type[Exception], ...]:
        """What decoders raise for bytes that are no member."""

    def skipped_bytes(self, head: bytes) -> int:
        """How long what begins with ``head`` (8 bytes, or what there is) is, if readers pass over
        it; 0 if it is to be decoded."""
        return 0

    def padding_max(self) -> int:
        """How many zeros may follow the last member."""
        return 0

    def padding_unit(self) -> int:
        """They are so many, or a multiple of it."""
        return 1

    # -- writing ---------------------------------------------------------------------------------

    @property
    def writes(self) -> bool:
        """Whether shards can be encoded with it."""
        return len(self.levels) > 0

    def level_or_default(self, level: int | None) -> int:
        """``level`` if it is one, the default for None; ``ValueError`` for another."""
        if level is None:
            return self.default_level
        if level not in self.levels:
            low, high = self.levels[0], self.levels[-1]
            raise ValueError(f"{level} is no level of {self.name}: it has {low} to {high}")
        return level

    def encoder(self, level: int) -> PieceEncoder:
        """What encodes one file."""
        raise NotImplementedError(f"{self.name} is read, and not written")

    def library(self, level: int) -> tuple[str, str]:
        """(the library that encodes, its version): output bytes depend on both."""
        raise NotImplementedError(f"{self.name} is read, and not written")

    def description(self, level: int) -> dict[str, Any]:
        """Codec, library, version and level, as manifests have them."""
        library, version = self.library(level)
        return {"name": self.name, "library": library, "version": version, "level": level}

    # Codecs are compared: two shards with one codec and one container need no conversion.
    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))
