"""Which column chunks of Parquet are stored as they are, and not compressed.

pyarrow ends the process where it is asked for a codec that it does not know, so the footer is read
here. To decode all of it takes 50 µs a chunk, the most of what small row groups cost. But what it
says of a chunk that is not compressed is known down to the byte, once its place and sizes are.
"""

from __future__ import annotations

from typing import Any

from dsort.containers.columnar.thrift import BINARY, I32, I64, LIST, read_struct, written

__all__ = ["StoredChunks"]

_GROUPS, _GROUP_COLUMNS, _CHUNK_METADATA, _CODEC = 4, 1, 3, 4  # fields of a footer
_UNCOMPRESSED = 0


class StoredChunks:
    """The chunks of one shard."""

    def __init__(self, shard: memoryview) -> None:
        """``ValueError`` for a footer that is none."""
        size = int.from_bytes(shard[-8:-4], "little")
        if size + 8 > len(shard):
            raise ValueError("the footer is longer than its shard")
        self._footer = bytes(shard[len(shard) - 8 - size : len(shard) - 8])
        self._at = 0
        self._codecs: list[list[int]] | None = None

    def has(self, group: int, column: int, chunk: Any) -> bool:
        """Whether column ``column`` of row group ``group`` is one, whose metadata is ``chunk``.
        ``ValueError`` for a footer that says no codecs."""
        if self._codecs is None:
            at = self._footer.find(_said_of(chunk), self._at)
            if at >= 0:  # chunks are asked for in the order of the footer
                self._at = at
                return True
            self._codecs = self._all_codecs()
        codecs = self._codecs[group] if group < len(self._codecs) else []
        return codecs[column : column + 1] == [_UNCOMPRESSED]

    def _all_codecs(self) -> list[list[int]]:
        """The codec of each column of each row group, as the footer numbers it."""
        footer, _ = read_struct(memoryview(self._footer), 0)
        try:
            return [
                [chunk[_CHUNK_METADATA][1][_CODEC][1] for chunk in group[_GROUP_COLUMNS][1][1]]
                for group in footer[_GROUPS][1][1]
            ]
        except (KeyError, TypeError, IndexError):
            raise ValueError("the footer says no codecs") from None


def _said_of(chunk: Any) -> bytes:
    """What writers of Parquet say of a chunk, from its path to its place, if no codec is used."""
    path = [name.encode() for name in chunk.path_in_schema.split(".")]
    said = written(
        {
            3: (LIST, (BINARY, path)),
            _CODEC: (I32, _UNCOMPRESSED),
            5: (I64, chunk.num_values),
            6: (I64, chunk.total_uncompressed_size),
            7: (I64, chunk.total_compressed_size),
            9: (I64, chunk.data_page_offset),
        }
    )
    return said[1:-1]  # what stands before the first field depends on the one before it
