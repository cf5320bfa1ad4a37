"""bzip2 and xz: dsort reads them and does not write them. Both take a second of processor time for
some ten megabytes, which is too slow for shards that are read repeatedly."""

from __future__ import annotations

import bz2
import lzma

from dsort.containers.codecs.base import Codec, MemberDecoder
from dsort.naming.extensions import known_codec

PADDING_MAX = 1 << 16


class Bzip2(Codec):
    """bzip2 files."""

    name, suffixes, magics, _ = known_codec("bzip2")
    member_word = "stream"

    def decoder(self, window_bytes_max: int) -> MemberDecoder:
        return bz2.BZ2Decompressor()

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (OSError, ValueError)


class Xz(Codec):
    """xz files. Groups of four zeros may follow each stream."""

    name, suffixes, magics, _ = known_codec("xz")
    member_word = "stream"

    def decoder(self, window_bytes_max: int) -> MemberDecoder:
        # A dictionary takes no more memory than the limit, whatever the header claims.
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=window_bytes_max + (1 << 20))

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return (lzma.LZMAError,)

    def padding_max(self) -> int:
        return PADDING_MAX

    def padding_unit(self) -> int:
        return 4
