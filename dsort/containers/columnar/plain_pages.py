"""Long values of Parquet in place: pages of texts or binaries that are stored uncompressed.

pyarrow decodes such a page by copying it into fresh memory, which costs 0.3 to 3 s a GiB; that is
more than everything else in a shuffle of pictures. On the data path our own code is welcome if a
measurement justifies it: this code reads only headers and lengths. Pages that are not entirely
regular are left to pyarrow, which reads them or reports the error: nothing is refused here.
"""

from __future__ import annotations

import struct

import numpy as np
from msgspec import Struct

from dsort.containers.columnar.page_bounds import HEADER_BYTES_MAX, is_intact
from dsort.containers.columnar.thrift import ThriftStruct, read_struct, varint
from dsort.data.columns import Int64s, UInt8s

__all__ = [
    "HEAD_BYTES_MAX",
    "LENGTH",
    "PlacedPages",
    "PlacedValues",
    "hybrid_numbers",
    "levels_of",
    "number_of",
    "value_bounds",
]

_DATA_PAGE, _DATA_PAGE_2 = 0, 3
_PLAIN, _RLE = 0, 3
LENGTH = struct.Struct("<I")
HEAD_BYTES_MAX = 5
"""The longest number before bytes: the head of a run of levels, or the length of snappy data."""


class PlacedValues(Struct, frozen=True):
    """The values of some rows: row ``i`` is ``lengths[i]`` bytes from byte ``starts[i]`` of
    ``data[part[i]]``, no bytes for a null. If ``part`` is None, ``data`` is the whole shard.
    ``levels``: the definition level of each row; None if no value is null."""

    starts: Int64s
    lengths: Int64s
    levels: UInt8s | None
    data: tuple[memoryview, ...]
    part: Int64s | None = None

    def run(self, start: int, stop: int) -> PlacedValues:
        """Rows ``start:stop``."""
        levels = None if self.levels is None else self.levels[start:stop]
        part = None if self.part is None else self.part[start:stop]
        starts, lengths = self.starts[start:stop], self.lengths[start:stop]
        return PlacedValues(starts, lengths, levels, self.data, part)


class PlacedPages:
    """Gathers the values of column chunks that are not compressed, without repetition. A value that
    is not null has the definition level ``level_max``."""

    def __init__(self, shard: memoryview, level_max: int) -> None:
        self._shard = shard
        self._level_max = level_max
        self._bounds: list[int] = []  # of each page: where each value begins, where the last ends
        self._ends: list[int] = []  # which of these bounds are ends of pages
        self._levels: list[tuple[int, UInt8s | None]] = []

    def add(self, start: int, stop: int, rows: int) -> bool:
        """Add a chunk of ``rows`` rows that is bytes ``start:stop`` of the shard. False if it is
        not entirely as described above; there are no values then."""
        if not 0 <= start < stop <= len(self._shard) or rows > stop - start:
            return False
        try:
            return self._read(start, stop, rows)
        except (ValueError, KeyError, TypeError):
            return False

    def _read(self, at: int, stop: int, left: int) -> bool:
        shard, bounds = self._shard, self._bounds
        while left:
            header, body = read_struct(shard[: min(stop, at + HEADER_BYTES_MAX)], at)
            end = body + number_of(header, 3)
            if not body <= end <= stop or not is_intact(header, shard[body:end]):
                return False
            page = _page(header, shard, body, end, left, self._level_max)
            if page is None:
                return False
            count, present, found, at = page
            at = _walk(shard, at, end, present, bounds)
            if at != end:
                return False
            self._ends.append(len(bounds))
            bounds.append(at)
            self._levels.append((count, found))
            left -= count
        return at == stop

    def values(self) -> PlacedValues:
        """The values of all chunks."""
        bounds = np.array(self._bounds, np.int64)
        starts = np.delete(bounds, self._ends) + LENGTH.size
        lengths = np.diff(bounds, append=0)
        lengths = np.delete(lengths, self._ends) - LENGTH.size
        if all(levels is None for _, levels in self._levels):
            return PlacedValues(starts, lengths, None, (self._shard,))
        joined = np.concatenate(
            [
                np.full(count, self._level_max, np.uint8) if levels is None else levels
                for count, levels in self._levels
            ]
        )
        there = joined == self._level_max
        all_starts, all_lengths = np.zeros((2, len(joined)), np.int64)
        all_starts[there], all_lengths[there] = starts, lengths
        return PlacedValues(all_starts, all_lengths, joined, (self._shard,))


def _page(
    header: ThriftStruct, shard: memoryview, at: int, end: int, left: int, level_max: int
) -> tuple[int, int, UInt8s | None, int] | None:
    """(rows, values, their levels or None if no value is null, where the values begin) of a page
    whose body is bytes ``at:end``; None for a page of another kind."""
    kind = number_of(header, 1)
    if kind == _DATA_PAGE:
        data = header[5][1]
        count, levels_bytes = number_of(data, 1), 0
        if number_of(data, 2) != _PLAIN or (level_max and number_of(data, 3) != _RLE):
            return None
        if level_max:
            if end - at < LENGTH.size:
                return None
            (levels_bytes,) = LENGTH.unpack_from(shard, at)
            at += LENGTH.size
    elif kind == _DATA_PAGE_2:
        data = header[8][1]
        count, levels_bytes = number_of(data, 1), number_of(data, 5)
        if number_of(data, 4) != _PLAIN or number_of(data, 6) or number_of(data, 3) != count:
            return None
    else:
        return None
    if not 0 < count <= left or not 0 <= levels_bytes <= end - at:
        return None
    levels = None
    if level_max:
        levels = levels_of(shard[at : at + levels_bytes], count, level_max)
    present = count if levels is None else int((levels == level_max).sum())
    return count, present, levels, at + levels_bytes


def number_of(fields: ThriftStruct, number: int) -> int:
    """A field that is a number. ``KeyError`` or ``TypeError`` if it is missing or not a number."""
    value = fields[number][1]
    if not isinstance(value, int):
        raise TypeError("not a number")
    return value


def levels_of(data: memoryview, count: int, level_max: int) -> UInt8s | None:
    """Definition levels, from runs and packed bits; None if all are ``level_max``. ``ValueError``
    unless there are ``count`` levels, of which none is higher."""
    try:
        head, at = varint(data, 0, HEAD_BYTES_MAX)
        if not head & 1 and head >> 1 >= count and data[at] == level_max:
            return None
    except IndexError:
        raise ValueError("levels are cut off") from None
    levels = hybrid_numbers(data, count, level_max.bit_length())
    if int(levels.max()) > level_max:
        raise ValueError("a level that is too high")
    return levels.astype(np.uint8)


def hybrid_numbers(data: memoryview, count: int, width: int) -> Int64s:
    """``count`` numbers of ``width`` bits, from runs and packed bits. ``ValueError`` if they are
    cut off."""
    if not width:
        return np.zeros(count, np.int64)
    parts, done, at, run_bytes = list[Int64s](), 0, 0, -(-width // 8)
    try:
        while done < count:
            head, at = varint(data, at, HEAD_BYTES_MAX)
            if head & 1:
                size = min(head >> 1, -(-(count - done) // 8)) * width
                if size > len(data) - at:
                    raise ValueError("packed numbers are cut off")
                bits = np.unpackbits(np.frombuffer(data, np.uint8, size, at), bitorder="little")
                found = bits.reshape(-1, width) @ (1 << np.arange(width, dtype=np.int64))
                found = found[: count - done]
                at += (head >> 1) * width
            else:
                if at + run_bytes > len(data):
                    raise ValueError("a run is cut off")
                value = int.from_bytes(data[at : at + run_bytes], "little")
                found = np.full(min(head >> 1, count - done), value, np.int64)
                at += run_bytes
            if not len(found):
                raise ValueError("an empty run of numbers")
            parts.append(found)
            done += len(found)
    except IndexError:
        raise ValueError("numbers are cut off") from None
    return np.concatenate(parts)


def _walk(shard: memoryview, at: int, end: int, count: int, bounds: list[int]) -> int:
    """Append to ``bounds`` where each of ``count`` values begins, with its length; return where the
    last one ends. ``ValueError`` beyond ``end``."""
    unpack, page, add = LENGTH.unpack_from, shard[:end], bounds.append
    try:
        for _ in range(count):
            add(at)
            at += 4 + unpack(page, at)[0]
    except struct.error:
        at = end + 1
    if at > end:
        raise ValueError("values are cut off")
    return at


def value_bounds(data: memoryview, at: int, end: int, count: int) -> tuple[Int64s, Int64s]:
    """(where it begins, its length) of each of ``count`` values in bytes ``at:end``, each after its
    length. ``ValueError`` if these bytes are anything else."""
    bounds: list[int] = []
    if _walk(data, at, end, count, bounds) != end:
        raise ValueError("something follows the values")
    found = np.array([*bounds, end], np.int64)
    return found[:-1] + LENGTH.size, np.diff(found) - LENGTH.size
