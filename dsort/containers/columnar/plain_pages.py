"""Long values of Parquet in place: pages of texts or binaries, stored or inflated.

Pages that are not entirely regular are left to pyarrow, which reads them or reports the error:
nothing is refused here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from dsort.containers.columnar.arrow import pa
from dsort.containers.columnar.footers import Chunk
from dsort.containers.columnar.page_bounds import HEADER_BYTES_MAX, is_intact
from dsort.containers.columnar.thrift import ThriftStruct, read_struct
from dsort.containers.varints import varint
from dsort.data.columns import Int64s, UInt8s

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
        """Add a chunk of ``rows`` rows that is bytes ``start:stop`` of the shard. Return False,
        without values, if it is not entirely as described above."""
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
    """(rows, values, levels, start of the values) of the page with the body ``at:end``; levels are
    None if no value is null. None for a page of another kind."""
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
    unless there are ``count`` levels, none of them higher."""
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
    """Append to ``bounds`` the start and the length of each of ``count`` values; return the end of
    the last one. ``ValueError`` beyond ``end``."""
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
    """(start, length) of each of ``count`` values in bytes ``at:end``, where each follows its
    length. ``ValueError`` if these bytes are anything else."""
    bounds: list[int] = []
    if _walk(data, at, end, count, bounds) != end:
        raise ValueError("something follows the values")
    found = np.array([*bounds, end], np.int64)
    return found[:-1] + LENGTH.size, np.diff(found) - LENGTH.size


# --------------------------------------------------------------------------------------------------
# Long values of Parquet that are compressed: pages are inflated with the codec only, and the
# values stay in the inflated pages.
#
# pyarrow copies each value out of the inflated page into fresh memory, which costs more than the
# codec does. Pages that are not entirely regular are left to pyarrow.


INFLATED_CODECS = {1: "snappy", 6: "zstd"}
"""Codecs that detect a page whose length differs from its header, by their numbers in footers."""
_DICTIONARY_PAGE = 2
_DICTIONARY_CODED = 2, 8
_WIDTH_MAX = 32


class IrregularPageError(ValueError):
    """Values of a page are not in the places in which this module expects them."""


class _PageAt(Struct, frozen=True):
    """A page whose body is bytes ``start:stop`` of the shard. ``rows``: 0 for a dictionary."""

    kind: int
    codec: int
    start: int
    stop: int
    inflated_bytes: int
    rows: int
    is_coded: bool
    header: ThriftStruct


class _Opened(Struct, frozen=True):
    """Values of some rows, as in :class:`PlacedValues`, but all in ``data``."""

    data: memoryview
    starts: Int64s
    lengths: Int64s
    levels: UInt8s | None


class InflatedColumn:
    """Reads one column of some row groups in order. A value that is not null has the definition
    level ``level_max``."""

    # pyarrow decodes such a page by copying it into fresh memory, which costs 0.3 to 3 s a GiB:
    # more than everything else in a shuffle of pictures. Here only headers and lengths are read.

    def __init__(self, shard: memoryview, level_max: int, page_bytes_max: float) -> None:
        """``page_bytes_max``: the maximum inflated size of a page."""
        self._shard = shard
        self._level_max = level_max
        self._page_bytes_max = page_bytes_max
        self._pages: list[_PageAt] = []
        self._next = self._used = 0
        self._open: _Opened | None = None
        self._dictionary: tuple[memoryview, Int64s, Int64s] | None = None

    def add(self, chunk: Chunk, rows: int) -> bool:
        """Add a chunk of ``rows`` rows; return False if it is not entirely as described above."""
        try:
            return self._scan(chunk, rows)
        except (ValueError, KeyError, TypeError):
            return False

    def _scan(self, chunk: Chunk, left: int) -> bool:
        at, stop, rows = chunk.start, chunk.stop, left
        if not 0 <= at < stop <= len(self._shard):
            return False
        while left:
            header, body = read_struct(self._shard[: min(stop, at + HEADER_BYTES_MAX)], at)
            at = body + number_of(header, 3)
            page = _page_at(header, chunk.codec, body, at, has_levels=self._level_max > 0)
            is_whole = body <= at <= stop and 0 <= page.inflated_bytes <= self._page_bytes_max
            # The place of a word takes 16 times what an empty word takes.
            is_large = page.kind == _DICTIONARY_PAGE and number_of(header[7][1], 1) > rows
            if not is_whole or is_large or not 0 <= page.rows <= left:
                return False
            self._pages.append(page)
            left -= page.rows
        return at == stop

    def take(self, count: int) -> PlacedValues:
        """The values of the next ``count`` rows. ``IrregularPageError`` if they are elsewhere than
        expected, or too few."""
        found: list[_Opened] = []
        while count:
            if self._open is None:
                self._open, self._used = self._next_page(), 0
            page, start = self._open, self._used
            stop = min(start + count, len(page.starts))
            levels = None if page.levels is None else page.levels[start:stop]
            found.append(
                _Opened(page.data, page.starts[start:stop], page.lengths[start:stop], levels)
            )
            count -= stop - start
            self._used = stop
            if stop == len(page.starts):
                self._open = None
        return _together(found, self._level_max)

    def _next_page(self) -> _Opened:
        try:
            while True:
                page = self._pages[self._next]
                self._next += 1
                if not is_intact(page.header, self._shard[page.start : page.stop]):
                    raise ValueError("a page has not its CRC-32")
                if page.kind != _DICTIONARY_PAGE:
                    return self._opened(page)
                data = self._inflated(page, page.start)
                starts, lengths = value_bounds(data, 0, len(data), number_of(page.header[7][1], 1))
                self._dictionary = data, starts, lengths
        except (ValueError, KeyError, TypeError, IndexError, OSError) as error:
            raise IrregularPageError(str(error)) from None

    def _opened(self, page: _PageAt) -> _Opened:
        """The values of a data page."""
        levels, at = None, 0
        if page.kind == _DATA_PAGE_2:
            values = page.start + number_of(page.header[8][1], 5)
            if not page.start <= values <= page.stop:
                raise ValueError("levels are longer than their page")
            if self._level_max:
                levels = levels_of(self._shard[page.start : values], page.rows, self._level_max)
            data = self._inflated(page, values)
        else:
            data = self._inflated(page, page.start)
            if self._level_max:
                at = LENGTH.size + int.from_bytes(data[: LENGTH.size], "little")
                if at > len(data):
                    raise ValueError("levels are longer than their page")
                levels = levels_of(data[LENGTH.size : at], page.rows, self._level_max)
        there = None if levels is None else levels == self._level_max
        present = page.rows if there is None else int(there.sum())
        if page.is_coded:
            data, starts, lengths = self._coded(data[at:], present)
        else:
            starts, lengths = value_bounds(data, at, len(data), present)
        if there is not None:
            own = starts, lengths
            starts, lengths = np.zeros((2, page.rows), np.int64)
            starts[there], lengths[there] = own
        return _Opened(data, starts, lengths, levels)

    def _coded(self, data: memoryview, count: int) -> tuple[memoryview, Int64s, Int64s]:
        """Values that are numbers in a dictionary: (bytes of the dictionary, starts of the values
        in it, lengths)."""
        if self._dictionary is None or not len(data) or data[0] > _WIDTH_MAX:
            raise ValueError("numbers of no dictionary")
        words, starts, lengths = self._dictionary
        numbers = hybrid_numbers(data[1:], count, data[0]) if count else np.zeros(0, np.int64)
        return words, starts[numbers], lengths[numbers]  # IndexError beyond its end

    def _inflated(self, page: _PageAt, start: int) -> memoryview:
        """The bytes of a page from byte ``start`` of the shard on, inflated."""
        data = self._shard[start : page.stop]
        size_bytes = page.inflated_bytes - (start - page.start)
        is_stored = page.kind == _DATA_PAGE_2 and page.header[8][1].get(7, (0, True))[1] is False
        if is_stored or not size_bytes:
            return data
        return _inflate(INFLATED_CODECS[page.codec], data, size_bytes)


def _page_at(
    header: ThriftStruct, codec: int, start: int, stop: int, *, has_levels: bool
) -> _PageAt:
    """The page with this header. ``KeyError`` or ``ValueError`` for a page of another kind."""
    kind, inflated_bytes = number_of(header, 1), number_of(header, 2)
    rows, encoding = 0, _PLAIN
    if kind == _DATA_PAGE:
        data = header[5][1]
        rows, encoding = number_of(data, 1), number_of(data, 2)
        if has_levels and number_of(data, 3) != _RLE:
            raise ValueError("levels of another kind")
    elif kind == _DATA_PAGE_2:
        data = header[8][1]
        rows, encoding = number_of(data, 1), number_of(data, 4)
        if number_of(data, 6) or number_of(data, 3) != rows:
            raise ValueError("rows of several values")
    elif kind != _DICTIONARY_PAGE or number_of(header[7][1], 2) not in (_PLAIN, 2):
        raise ValueError("a page of another kind")
    if encoding != _PLAIN and encoding not in _DICTIONARY_CODED:
        raise ValueError("values of another encoding")
    if rows <= 0 and kind != _DICTIONARY_PAGE:
        raise ValueError("a page without rows")
    is_coded = encoding != _PLAIN
    return _PageAt(kind, codec, start, stop, inflated_bytes, rows, is_coded, header)


def _inflate(codec: str, data: memoryview, size_bytes: int) -> memoryview:
    """``data`` inflated to ``size_bytes``. ``OSError`` or ``ValueError`` if its inflated length
    differs. The C library's memory stays in the process (``dsort.workers.worker``); with Arrow's
    own, each memory page would be cleared every time."""
    # The first bytes of snappy data say how long it is inflated.
    if codec == "snappy" and varint(data, 0, HEAD_BYTES_MAX)[0] != size_bytes:
        raise ValueError("a page is not as long as its header says")
    pool = pa.system_memory_pool()
    found = _codec(codec).decompress(pa.py_buffer(data), size_bytes, memory_pool=pool)
    return memoryview(found).cast("B")


_CODECS: dict[str, Any] = {}


def _codec(name: str) -> Any:
    if name not in _CODECS:
        _CODECS[name] = pa.Codec(name)
    return _CODECS[name]


def _together(found: Sequence[_Opened], level_max: int) -> PlacedValues:
    """Rows of several pages, one after the other."""
    levels: UInt8s | None = None
    if any(each.levels is not None for each in found):
        levels = np.concatenate(
            [
                np.full(len(each.starts), level_max, np.uint8)
                if each.levels is None
                else each.levels
                for each in found
            ]
        )
    counts = [len(each.starts) for each in found]
    none = np.zeros(0, np.int64)
    return PlacedValues(
        np.concatenate([none, *(each.starts for each in found)]),
        np.concatenate([none, *(each.lengths for each in found)]),
        levels,
        tuple(each.data for each in found),
        np.repeat(np.arange(len(found)), counts),
    )
