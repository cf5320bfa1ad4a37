"""lz4 (the frame format): all frames are read, and one is written, of blocks of 256 KiB.

AIStore writes one frame, too: readers in some languages stop after the first frame. Blocks are
independent, so that each can be made by itself; a checksum of the content ends the frame.
"""

from __future__ import annotations

import struct

import xxhash

from dsort.containers.codecs.base import Codec, EncodedPiece, MemberDecoder, PieceEncoder
from dsort.containers.codecs.zstd import skippable_bytes
from dsort.installation import needing
from dsort.naming.extensions import known_codec

with needing("lz4", "the library for lz4"):
    import lz4.block
    import lz4.frame
    import lz4.version

BLOCK_BYTES = 256 << 10
PIECE_BYTES = 4 * BLOCK_BYTES
FAST_LEVEL = 1
_STORED = 1 << 31
_DESCRIPTOR = bytes((0b01_1_0_0_1_0_0, 0b0_101_0000))
"""Version 1, independent blocks, a checksum of the content; blocks of 256 KiB."""
HEADER = (
    b"\x04\x22\x4d\x18" + _DESCRIPTOR + bytes((xxhash.xxh32_intdigest(_DESCRIPTOR) >> 8 & 0xFF,))
)


class Lz4(Codec):
    """lz4 files."""

    name, suffixes, magics, _ = known_codec("lz4")
    levels = range(1, 13)
    default_level = FAST_LEVEL
    member_word = "frame"
    errors = (RuntimeError,)

    def decoder(self, window_bytes_max: int) -> MemberDecoder:
        decoder: MemberDecoder = lz4.frame.LZ4FrameDecompressor()
        return decoder

    def skipped_bytes(self, head: bytes) -> int:
        return skippable_bytes(head)

    def encoder(self, level: int) -> PieceEncoder:
        return _Lz4Encoder(level)

    def library(self, level: int) -> tuple[str, str]:
        return "lz4", f"{lz4.version.version} (liblz4 {lz4.library_version_string()})"


class _Lz4Encoder(PieceEncoder):
    piece_bytes = PIECE_BYTES

    def __init__(self, level: int) -> None:
        self._mode: dict[str, str | int] = {"mode": "default"}
        if level > FAST_LEVEL:
            self._mode = {"mode": "high_compression", "compression": level}
        self._content = xxhash.xxh32()

    def begin(self) -> bytes:
        return HEADER

    def encode(self, piece: bytearray) -> EncodedPiece:
        out, view = [], memoryview(piece)
        for at in range(0, len(piece), BLOCK_BYTES):
            raw = view[at : at + BLOCK_BYTES]
            block = lz4.block.compress(raw, store_size=False, **self._mode)
            # A block that does not get shorter is stored, as the format asks.
            if len(block) < len(raw):
                out += [struct.pack("<I", len(block)), block]
            else:
                out += [struct.pack("<I", len(raw) | _STORED), raw]
        return EncodedPiece(b"".join(out))

    def add(self, piece: bytearray, encoded: EncodedPiece) -> None:
        self._content.update(piece)

    def end(self) -> bytes:
        return bytes(4) + struct.pack("<I", self._content.intdigest())
