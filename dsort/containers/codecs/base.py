"""The contract of a codec: it decodes an encoded file to the bytes of a container, and encodes such
bytes.

To add a codec, write a module with a child of :class:`Codec`, and add a line to
``naming.extensions``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from msgspec import Struct


class MemberDecoder(Protocol):
    """Decodes one member (the interface of Python's ``BZ2Decompressor``)."""

    @property
    def eof(self) -> bool:
        """Whether the member has ended and the checks of its content have passed."""

    @property
    def needs_input(self) -> bool:
        """Whether the decoder has no more output until it gets the next bytes of the file."""

    @property
    def unused_data(self) -> bytes:
        """The bytes passed in beyond the member's end."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Decode ``data``; returns about ``max_length`` bytes at most."""


class EncodedPiece(Struct, frozen=True):
    """One piece. ``check``: the value that the end of the file needs from this piece."""

    data: bytes
    check: int = 0


class PieceEncoder(ABC):
    """Encodes one file."""

    piece_bytes: int
    """How many decoded bytes each piece has, except the last one. The number is fixed, so that the
    bytes of a file depend neither on the process that makes it nor on the number of threads."""

    def begin(self) -> bytes:
        """The bytes before the first piece."""
        return b""

    @abstractmethod
    def encode(self, piece: bytearray) -> EncodedPiece:
        """Encode one piece; several threads may each encode one at the same time."""

    @abstractmethod
    def add(self, piece: bytearray, encoded: EncodedPiece) -> None:
        """Add the next piece in order, and its encoded form."""

    @abstractmethod
    def end(self) -> bytes:
        """The bytes after the last added piece."""


class Codec(ABC):
    """One codec. Instances are immutable and can be pickled: workers receive one.

    A file is *members*, one after the other (gzip's word; zstd and lz4 call them frames), and each
    ends with a checksum. All members are read, because a reader that stops after the first loses
    the rest."""

    name: str
    suffixes: tuple[str, ...]
    magics: tuple[bytes, ...]
    """A member of a file begins with one of these byte strings."""

    levels: range = range(0)
    """The levels of compression to choose from; empty: dsort only reads this codec."""

    default_level: int = 0
    member_word: str = "member"

    errors: tuple[type[Exception], ...]
    """The exceptions that decoders raise for invalid bytes."""

    padding_max: int = 0
    """How many zeros may follow the last member."""

    padding_unit: int = 1
    """The number of zeros after the last member is a multiple of this."""

    # -- reading ---------------------------------------------------------------------------------

    @abstractmethod
    def decoder(self, window_bytes_max: int) -> MemberDecoder:
        """A decoder for the next member. ``window_bytes_max``: how much of the content the decoder
        may keep for references back."""

    def skipped_bytes(self, head: bytes) -> int:
        """The length of the section that begins with ``head``, if readers skip such sections; 0 if
        the section has to be decoded. ``head`` has 8 bytes, or fewer at the end of the file."""
        return 0

    # -- writing ---------------------------------------------------------------------------------

    @property
    def writes(self) -> bool:
        """Whether dsort can encode shards with this codec."""
        return len(self.levels) > 0

    def level_or_default(self, level: int | None) -> int:
        """``level`` itself, or the default for None; ``ValueError`` for an invalid level."""
        if level is None:
            return self.default_level
        if level not in self.levels:
            low, high = self.levels[0], self.levels[-1]
            raise ValueError(f"{level} is no level of {self.name}: it has {low} to {high}")
        return level

    def encoder(self, level: int) -> PieceEncoder:
        """An encoder for one file."""
        raise NotImplementedError(f"{self.name} is read, and not written")

    def library(self, level: int) -> tuple[str, str]:
        """(library, version) of the encoder; output bytes depend on both."""
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
