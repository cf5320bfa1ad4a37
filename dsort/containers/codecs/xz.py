"""bzip2 and xz: dsort reads them and does not write them. Both codecs take a second of processor
time for some ten megabytes, which is too slow for shards that are read repeatedly."""

from __future__ import annotations

import bz2
import lzma

from dsort.containers.codecs.base import Codec, MemberDecoder
from dsort.naming.extensions import known_codec


class Bzip2(Codec):
    """bzip2 files."""

    name, suffixes, magics, _ = known_codec("bzip2")
    member_word = "stream"
    errors = (OSError, ValueError)

    def decoder(self, window_bytes_max: int) -> MemberDecoder:
        return bz2.BZ2Decompressor()


class Xz(Codec):
    """xz files. Groups of four zeros may follow each stream."""

    name, suffixes, magics, _ = known_codec("xz")
    member_word = "stream"
    errors = (lzma.LZMAError,)
    padding_max = 1 << 16
    padding_unit = 4

    def decoder(self, window_bytes_max: int) -> MemberDecoder:
        # A dictionary takes no more memory than the limit, whatever the header claims.
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=window_bytes_max + (1 << 20))
