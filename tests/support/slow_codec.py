"""A codec from outside the package (``.bzx``): bzip2 under another suffix, also written."""

from __future__ import annotations

import bz2

from dsort.containers.codecs.base import Codec, EncodedPiece, MemberDecoder, PieceEncoder


class SlowCodec(Codec):
    """bzip2 with one stream for each piece."""

    name = "bzx"
    suffixes = (".bzx",)
    magics = (b"BZh",)
    member_word = "stream"
    levels = range(1, 10)
    default_level = 1
    errors = (OSError, ValueError)

    def decoder(self, window_bytes_max: int) -> MemberDecoder:
        return bz2.BZ2Decompressor()

    def encoder(self, level: int) -> PieceEncoder:
        return _Encoder(level)

    def library(self, level: int) -> tuple[str, str]:
        return "bz2", "1"


class _Encoder(PieceEncoder):
    piece_bytes = 1 << 20

    def __init__(self, level: int) -> None:
        self._level = level

    def encode(self, piece: bytearray) -> EncodedPiece:
        return EncodedPiece(bz2.compress(piece, self._level))

    def add(self, piece: bytearray, encoded: EncodedPiece) -> None:
        """Do nothing: each piece is a stream of its own."""

    def end(self) -> bytes:
        return b""


SLOW = SlowCodec()
