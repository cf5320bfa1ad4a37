"""gzip (RFC 1952): all members are read, and one is written.

ISA-L does levels 1 to 3, at several times the speed of zlib; zlib does the rest.
"""

from __future__ import annotations

import zlib

from isal import __version__ as isal_version
from isal import igzip_lib, isal_zlib

from dsort.containers.codecs.base import Codec, EncodedPiece, MemberDecoder, PieceEncoder
from dsort.naming.extensions import known_codec

PIECE_BYTES = 1 << 20
HEADER = bytes.fromhex("1f8b 08 00 00000000 00 ff")
"""Deflate; no flags, so no name; no time; no hint about speed; unknown system. The header does not
depend on the process or the time of writing."""
FINAL_BLOCK = b"\x03\x00"
ISAL_LEVEL_MAX = 3
FIRST_BYTES = 8
"""Levels 1 and 2 of ISA-L (2.32) hash the third byte of a stream with a register that holds the
address of the stream, so one piece in about 3,000 had other bytes in another process. ISA-L's loop
for the last bytes of its input does not have this fault, and it handles the first bytes if only so
many are passed in and flushed."""
PADDING_MAX = 1 << 16
"""Tapes and block devices leave zeros after a file, and gzip passes over them; more zeros than this
are the hole of a file that was not written to its end."""


class Gzip(Codec):
    """gzip files."""

    name, suffixes, magics, _ = known_codec("gzip")
    levels = range(1, 10)
    default_level = 1
    errors = (igzip_lib.IsalError,)  # type: ignore[assignment]
    padding_max = PADDING_MAX

    def decoder(self, window_bytes_max: int) -> MemberDecoder:
        decoder: MemberDecoder = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
        return decoder

    def encoder(self, level: int) -> PieceEncoder:
        return _GzipEncoder(level)

    def library(self, level: int) -> tuple[str, str]:
        if level <= ISAL_LEVEL_MAX:
            return "isal", isal_version
        return "zlib", zlib.ZLIB_RUNTIME_VERSION


class _GzipEncoder(PieceEncoder):
    """Writes one member, because webdataset and ``tarfile``'s streaming modes stop after the first
    one, without an error. The member still consists of independent pieces: each ends at a byte,
    with a full flush, and the CRC-32 of the whole is combined from the pieces' checksums."""

    piece_bytes = PIECE_BYTES

    def __init__(self, level: int) -> None:
        self._level = level
        self._crc = 0
        self._size_bytes = 0

    def begin(self) -> bytes:
        return HEADER

    def encode(self, piece: bytearray) -> EncodedPiece:
        if self._level <= ISAL_LEVEL_MAX:
            fast = isal_zlib.compressobj(self._level, isal_zlib.DEFLATED, -zlib.MAX_WBITS)
            view = memoryview(piece)
            # The first bytes are passed in alone: see FIRST_BYTES.
            data = fast.compress(view[:FIRST_BYTES]) + fast.flush(isal_zlib.Z_SYNC_FLUSH)
            data += fast.compress(view[FIRST_BYTES:]) + fast.flush(isal_zlib.Z_FULL_FLUSH)
        else:
            slow = zlib.compressobj(self._level, zlib.DEFLATED, -zlib.MAX_WBITS)
            data = slow.compress(piece) + slow.flush(zlib.Z_FULL_FLUSH)
        return EncodedPiece(data, isal_zlib.crc32(piece))

    def add(self, piece: bytearray, encoded: EncodedPiece) -> None:
        self._crc = isal_zlib.crc32_combine(self._crc, encoded.check, len(piece))
        self._size_bytes += len(piece)

    def end(self) -> bytes:
        # RFC 1952: the length modulo 2**32.
        size = self._size_bytes & 0xFFFFFFFF
        return FINAL_BLOCK + self._crc.to_bytes(4, "little") + size.to_bytes(4, "little")
