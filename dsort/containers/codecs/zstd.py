"""zstd (RFC 8878): frames of 2 MiB with a checksum each, followed by a seek table.

Any reader passes over the table, because it is a skippable frame. Readers that support the table
(zstd's own ``contrib/seekable_format``) look up which frame has a certain byte.
"""

from __future__ import annotations

import struct
import sys
from typing import Final

if sys.version_info >= (3, 14):
    from compression import zstd  # backports.zstd is the same module for older Pythons
else:
    from backports import zstd

from dsort.containers.codecs.base import Codec, EncodedPiece, MemberDecoder, PieceEncoder
from dsort.containers.codecs.decoding import WINDOW_BYTES_MAX
from dsort.naming.extensions import known_codec
from dsort.sizes import format_bytes

PIECE_BYTES = 2 << 20
SKIPPABLE_MAGIC = range(0x184D2A50, 0x184D2A60)
SEEK_TABLE_MAGIC: Final = 0x184D2A5E
SEEKABLE_MAGIC: Final = 0x8F92EAB1
_WINDOW_LOG_BOUNDS = zstd.DecompressionParameter.window_log_max.bounds()
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)


class _FrameError(ValueError):
    """The bytes are not a valid frame."""


class Zstd(Codec):
    """zstd files."""

    name, suffixes, magics, _ = known_codec("zstd")
    levels = range(-7, 23)
    default_level = 1
    member_word = "frame"
    errors = (zstd.ZstdError, _FrameError)

    def decoder(self, window_bytes_max: int) -> MemberDecoder:
        return _FrameDecoder(window_bytes_max)

    def skipped_bytes(self, head: bytes) -> int:
        return skippable_bytes(head)

    def encoder(self, level: int) -> PieceEncoder:
        return _FrameEncoder(level)

    def library(self, level: int) -> tuple[str, str]:
        return "libzstd", zstd.zstd_version


def skippable_bytes(head: bytes) -> int:
    """The length of the skippable frame that begins with the 8 bytes ``head``; 0 if they begin no
    such frame."""
    if len(head) < 8:
        return 0
    magic, size = struct.unpack("<II", head)
    return 8 + size if magic in SKIPPABLE_MAGIC else 0


class _FrameDecoder:
    """Decodes one frame (see ``MemberDecoder``). The library decodes within bounds; only the header
    is checked before the library gets it."""

    def __init__(self, window_bytes_max: int) -> None:
        self._window_bytes_max = window_bytes_max
        # The library rounds the largest window up to the next power of two. Windows between the
        # limit and that power are refused when the frame's header is read.
        least, most = _WINDOW_LOG_BOUNDS
        log = min(max((window_bytes_max - 1).bit_length(), least), most)
        self._stream = zstd.ZstdDecompressor(
            options={zstd.DecompressionParameter.window_log_max: log}
        )
        self._head, self._is_begun = b"", False

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def needs_input(self) -> bool:
        return self._stream.needs_input

    @property
    def unused_data(self) -> bytes:
        """The bytes passed in beyond the end of the frame."""
        return self._stream.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Decode up to ``max_length`` bytes."""
        if not self._is_begun:
            self._head += data
            if not self._check_header(self._head):
                return b""
            data, self._head, self._is_begun = self._head, b"", True
        return self._stream.decompress(data, max_length)

    def _check_header(self, head: bytes) -> bool:
        """Whether ``head`` has the whole header of the frame. ``_FrameError`` if the header is
        invalid."""
        if len(head) < 5:
            return False
        flags = head[4]
        is_single = flags >> 5 & 1
        if flags & 0x08:
            raise _FrameError("its header has a reserved bit")
        if flags & 3:
            raise _FrameError("it needs a dictionary")
        content_bytes = _CONTENT_SIZE_BYTES[flags >> 6] or is_single
        size = 5 + (not is_single) + _DICTIONARY_ID_BYTES[flags & 3] + content_bytes
        if len(head) < size:
            return False
        # RFC 8878, 3.1.1.1: a single segment has the length of its content as its window, and a
        # length of two bytes counts from 256; other frames have exponent and mantissa in a byte.
        if is_single:
            stated = int.from_bytes(head[size - content_bytes : size], "little")
            window = stated + (256 if content_bytes == 2 else 0)
        else:
            base = 1 << (10 + (head[5] >> 3))
            window = base + (base >> 3) * (head[5] & 7)
        if window > self._window_bytes_max:
            more = "set a larger --max-memory or memory_max_bytes, or "
            raise _FrameError(
                f"it needs a window of {format_bytes(window)}, and a window may take "
                f"{format_bytes(self._window_bytes_max)} of memory "
                f"({more if window <= WINDOW_BYTES_MAX else ''}encode it anew with a smaller "
                "window)"
            )
        return True


class _FrameEncoder(PieceEncoder):
    piece_bytes = PIECE_BYTES

    def __init__(self, level: int) -> None:
        self._level = level
        self._entries: list[bytes] = []

    def encode(self, piece: bytearray) -> EncodedPiece:
        parameter = zstd.CompressionParameter
        options: dict[int, int] = {
            parameter.compression_level: self._level,
            parameter.checksum_flag: 1,
            parameter.content_size_flag: 1,
        }
        compressor = zstd.ZstdCompressor(options=options)
        return EncodedPiece(compressor.compress(piece, zstd.ZstdCompressor.FLUSH_FRAME))

    def add(self, piece: bytearray, encoded: EncodedPiece) -> None:
        self._entries.append(struct.pack("<II", len(encoded.data), len(piece)))

    def end(self) -> bytes:
        footer = struct.pack("<IBI", len(self._entries), 0, SEEKABLE_MAGIC)
        content = b"".join(self._entries) + footer
        return struct.pack("<II", SEEK_TABLE_MAGIC, len(content)) + content
