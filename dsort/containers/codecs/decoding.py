"""Decodes a file, member after member, within bounds; errors have the offset in the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from msgspec import Struct

from dsort.containers.codecs.base import Codec, MemberDecoder
from dsort.errors import CorruptShardError
from dsort.naming.extensions import CODECS
from dsort.sizes import format_bytes

STEP_BYTES = 1 << 20
INPUT_BYTES = 256 << 10
FIRST_INPUT_BYTES = 1 << 10
"""The first input for each member; each further one is four times as long, up to ``INPUT_BYTES``. A
short first input saves time for short members: bytes after the end of a member are copied, and
passed in again."""
PADDING_BYTES = 4 << 10
PARTS_MIN = 1 << 14
PART_BYTES_MIN = 32
"""The parts of a file beyond the first ``PARTS_MIN`` must have so many bytes each on average,
counting both the bytes of the file and the bytes that they decode to."""
EXPANSION_MAX_DEFAULT = 200
EXPANSION_FLOOR_BYTES = 16 << 20
"""A file may decode to so many bytes, however small it is."""
WINDOW_BYTES_MIN = 9 << 20
"""The window that a decoder may always use: zstd writes windows of 8 MiB up to its level 19, xz of
8 MiB at its default level."""
WINDOW_BYTES_MAX = 128 << 20
_HEAD_BYTES = 8
_FORMATS = (
    *((magic, each.name, each.suffixes[0]) for each in CODECS for magic in each.magics),
    (b"\x5e\x2a\x4d\x18", "zstd", ".zst"),  # a seek table that comes first
    (b"PK\x03\x04", "zip", ".zip"),
    (b"PK\x05\x06", "zip", ".zip"),
    (b"PAR1", "Parquet", ".parquet"),
)
_TAR_MAGIC = slice(257, 262)


class DecodingRules(Struct, frozen=True):
    """The settings of a job for decoding inputs. ``max_expansion``: how many times its length a
    shard may decode to. ``codec``: the codec of shards without a codec suffix in their names.
    ``window_bytes``: how much decoded content a decoder may keep for references back; if the buffer
    is larger, its size is the limit."""

    max_expansion: float = EXPANSION_MAX_DEFAULT
    codec: Codec | None = None
    window_bytes: int = 0


def format_of(head: bytes) -> tuple[str, str]:
    """(format, its suffix) of a file that begins with ``head``; two empty texts if the format is
    unknown. ``head``: 262 bytes, because only the last of these bytes identify a tar."""
    for magic, name, suffix in _FORMATS:
        if head.startswith(magic):
            return name, suffix
    return ("tar", ".tar") if head[_TAR_MAGIC] == b"ustar" else ("", "")


class _Input(Struct):
    """The bytes of the file received so far. ``at``: the offset in the file of the next byte, which
    is ``data[first]``."""

    pieces: Iterator[bytes]
    data: bytes = b""
    first: int = 0
    at: int = 0

    def fill(self, size: int) -> bool:
        """Read until ``size`` bytes are buffered; return False if the file ends first."""
        while len(self.data) - self.first < size:
            piece = next(self.pieces, b"")
            if not piece:
                return False
            self.data, self.first = self.data[self.first :] + piece, 0
        return True

    def head(self, size: int) -> bytes:
        """The next ``size`` bytes without consuming them; fewer at the end of the file."""
        self.fill(size)
        return self.data[self.first : self.first + size]

    def take(self, size: int) -> bytes:
        """Consume some of the next bytes, up to ``size``; b"" at the end of the file."""
        if not self.fill(1):
            return b""
        data = self.data[self.first : self.first + size]
        self.first += len(data)
        self.at += len(data)
        return data

    def put_back(self, size: int) -> None:
        """Put back the last ``size`` bytes of the last result of ``take``."""
        self.first -= size
        self.at -= size


def small_pieces(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """``pieces``, split into small ones. Decoders keep input that they do not need yet, and would
    copy large pieces each time."""
    for piece in pieces:
        for at in range(0, len(piece), INPUT_BYTES):
            yield bytes(piece[at : at + INPUT_BYTES])


class Decoding:
    """The decoded bytes of the file ``shard``, in pieces of about ``STEP_BYTES``, as an iterator.

    ``pieces``: the file, in order. ``file_bytes``: its length. ``CorruptShardError`` if the file
    does not consist of members from its first byte to its last, or decodes to more than
    ``max_expansion`` times its length plus ``EXPANSION_FLOOR_BYTES``. ``MemoryError`` if a decoder
    gets no memory. ``is_followed``: other bytes were found after the last member.
    """

    def __init__(
        self,
        shard: str,
        codec: Codec,
        pieces: Iterable[bytes | memoryview],
        file_bytes: int,
        *,
        max_expansion: float = EXPANSION_MAX_DEFAULT,
        window_bytes_max: int = WINDOW_BYTES_MIN,
    ) -> None:
        self._shard = shard
        self._codec = codec
        self._input = _Input(small_pieces(pieces))
        self._max_expansion = max_expansion
        self._decoded_max = file_bytes * max_expansion + EXPANSION_FLOOR_BYTES
        self._window = min(max(window_bytes_max, WINDOW_BYTES_MIN), WINDOW_BYTES_MAX)
        self.decoded_bytes = 0
        self.is_followed = False

    def __iter__(self) -> Iterator[bytes]:
        source, members = self._input, 0
        for parts in count(1):
            if not source.fill(1):
                break
            self._check_parts(parts)
            if self._skip():
                continue
            begin = source.at
            if members and source.head(1) == b"\0" and self._codec.padding_max:
                self._pass_padding()
                continue
            if not self._begins_member():
                raise self._no_member(is_first=members == 0)
            yield from self._member(begin)
            members += 1
        if not members:
            raise self._corrupt(source.at, f"the file holds no {self._what}")

    @property
    def _what(self) -> str:
        return f"{self._codec.name} {self._codec.member_word}"

    def _begins_member(self) -> bool:
        longest = max(map(len, self._codec.magics))
        head = self._input.head(longest)
        # A head that is cut off belongs to a member that is cut off, which its decoder reports.
        return any(magic.startswith(head) or head.startswith(magic) for magic in self._codec.magics)

    def _skip(self) -> bool:
        """Pass over bytes that are no content; return whether there were any."""
        source = self._input
        length, begin = self._codec.skipped_bytes(source.head(_HEAD_BYTES)), source.at
        left = length
        while left:
            data = source.take(left)
            if not data:
                reason = f"the file ends in a skippable frame that begins at byte {begin:,}"
                raise self._corrupt(source.at, reason)
            left -= len(data)
        return length > 0

    def _check_parts(self, parts: int) -> None:
        """Refuse a file of very many tiny parts (members, skippable frames, padding): it would take
        a hundred times as long as other files of its length."""
        size_bytes = self._input.at + self.decoded_bytes
        if parts > PARTS_MIN and size_bytes < PART_BYTES_MIN * (parts - PARTS_MIN):
            raise self._corrupt(
                self._input.at,
                f"it has more than {PARTS_MIN:,} {self._codec.member_word}s, most of them empty "
                "or of a few bytes",
                hint="decode and encode the file anew, which joins them",
            )

    def _pass_padding(self) -> None:
        source, begin = self._input, self._input.at
        while data := source.take(PADDING_BYTES):
            rest = data.lstrip(b"\0")
            source.put_back(len(rest))
            if source.at - begin > self._codec.padding_max:
                raise self._corrupt(
                    begin,
                    f"more than {self._codec.padding_max:,} bytes of zeros follow its last "
                    f"{self._what}: the file was not written to its end",
                )
            if rest:
                break
        zeros, unit = source.at - begin, self._codec.padding_unit
        if zeros % unit:
            reason = f"{zeros:,} zeros follow its {self._what}: padding is a multiple of {unit}"
            raise self._corrupt(begin, reason)

    def _member(self, begin: int) -> Iterator[bytes]:
        source = self._input
        try:
            decoder = self._codec.decoder(self._window)
        except self._codec.errors as error:  # no byte has been passed in yet
            raise MemoryError(str(error)) from None
        size = FIRST_INPUT_BYTES
        while True:
            data = b""
            if decoder.needs_input:
                data = source.take(size)
                size = min(4 * size, INPUT_BYTES)
                if not data:
                    reason = f"the file ends in the {self._what} that begins at byte {begin:,}"
                    raise self._corrupt(source.at, reason)
            decoded = self._decoded(decoder, data, begin)
            self._count(len(decoded))
            if decoded:
                yield decoded
            if decoder.eof:
                source.put_back(len(decoder.unused_data or b""))
                return

    def _decoded(self, decoder: MemberDecoder, data: bytes, begin: int) -> bytes:
        try:
            return decoder.decompress(data, STEP_BYTES)
        except self._codec.errors as error:
            if "allocation" in str(error).lower():  # zstd and lz4 have no class for it
                raise MemoryError(str(error)) from None
            raise self._corrupt(
                self._input.at - len(data),
                f"the {self._what} that begins at byte {begin:,} cannot be decoded: {error}",
            ) from None

    def _count(self, decoded_bytes: int) -> None:
        self.decoded_bytes += decoded_bytes
        if self.decoded_bytes > self._decoded_max:
            raise self._corrupt(
                self._input.at,
                f"it decodes to more than {format_bytes(int(self._decoded_max))}: "
                f"{self._max_expansion:g} times its length, plus "
                f"{format_bytes(EXPANSION_FLOOR_BYTES)}",
                hint="it may be a decompression bomb; if it is data, set a larger max_expansion",
            )

    def _no_member(self, *, is_first: bool) -> CorruptShardError:
        source = self._input
        if not is_first:
            return self._garbage(source.at)
        found, suffix = format_of(source.head(_TAR_MAGIC.stop))
        if not found:
            return self._corrupt(source.at, f"the file does not begin with a {self._what}")
        return self._corrupt(
            source.at,
            f"the file is {found}, but its name is that of a {self._codec.name} file",
            hint=f"rename it, with the suffix {suffix}",
        )

    def _garbage(self, offset: int) -> CorruptShardError:
        self.is_followed = True
        return self._corrupt(offset, f"the bytes after its last {self._what} are no {self._what}")

    def _corrupt(self, offset: int, reason: str, *, hint: str = "") -> CorruptShardError:
        return CorruptShardError(self._shard, offset, reason, hint=hint)
