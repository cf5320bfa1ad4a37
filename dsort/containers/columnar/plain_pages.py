"""Finds the places of long values of Parquet, in their shard or in pages that are inflated whole.

Pages that are not entirely regular are left to pyarrow, which reads them or reports the error:
nothing is refused here.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.containers.columnar.arrow import pa
from dsort.containers.columnar.footers import Chunk
from dsort.containers.columnar.page_bounds import HEADER_BYTES_MAX, is_intact
from dsort.containers.columnar.thrift import ThriftStruct, read_struct
from dsort.containers.columnar.values import LONG_BYTES, Values
from dsort.containers.varints import varint
from dsort.data.columns import Int64s, UInt8s

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_2 = 0, 2, 3
_PLAIN, _RLE = 0, 3
_DICTIONARY_CODED = 2, 8
_STORED = 0
_CODECS = {1: "snappy", 6: "zstd"}
"""Codecs that detect a page whose length differs from that in its header, by their numbers in
footers."""
_WIDTH_MAX = 32
LENGTH = struct.Struct("<I")
HEAD_BYTES_MAX = 5
"""The maximum length of a number that comes before other bytes: of the head of a run of levels, or
of the length of snappy data."""


def is_long(chunk: Chunk, rows: int) -> bool:
    """Whether a chunk of ``rows`` rows has long values that may be read in place, according to the
    footer."""
    size_bytes = chunk.stored_bytes if chunk.is_stored else chunk.inflated_bytes
    return (chunk.is_stored or chunk.codec in _CODECS) and 0 < rows * LONG_BYTES <= size_bytes


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
    """The values of some rows, and their definition levels; these are None if no value is null."""

    values: Values
    levels: UInt8s | None

    def run(self, start: int, stop: int) -> _Opened:
        """Rows ``start:stop``."""
        levels = None if self.levels is None else self.levels[start:stop]
        return _Opened(self.values.run(start, stop), levels)


class LongColumn:
    """Reads one column of some row groups in order. A value that is not null has the definition
    level ``level_max``."""

    # pyarrow decodes such a page by copying it into fresh memory, which costs 0.3 to 3 s a GiB:
    # more than everything else in a shuffle of pictures. Here only headers and lengths are read.

    def __init__(self, shard: memoryview, level_max: int, page_bytes_max: float) -> None:
        """``page_bytes_max``: the maximum inflated size of a page."""
        self._shard = shard
        self.level_max = level_max
        self._page_bytes_max = page_bytes_max
        self._pages: list[_PageAt] = []
        self._next = self._used = 0
        self._open: _Opened | None = None
        self._dictionary: Values | None = None

    def add(self, chunk: Chunk, rows: int) -> None:
        """Add a chunk of ``rows`` rows; ``IrregularPageError`` if its pages are not entirely
        regular."""
        try:
            is_regular = self._scan(chunk, rows)
        except (ValueError, KeyError, TypeError):
            is_regular = False
        if not is_regular:
            raise IrregularPageError("a chunk of other pages")

    def _scan(self, chunk: Chunk, left: int) -> bool:
        at, stop, rows = chunk.start, chunk.stop, left
        if not 0 <= at < stop <= len(self._shard):
            return False
        while left:
            header, body = read_struct(self._shard[: min(stop, at + HEADER_BYTES_MAX)], at)
            at = body + number_of(header, 3)
            page = _page_at(header, chunk.codec, body, at, has_levels=self.level_max > 0)
            # A stored page takes no memory: it stays where it is.
            fits = page.codec == _STORED or 0 <= page.inflated_bytes <= self._page_bytes_max
            # The place of each word of a dictionary is kept, and takes 16 times what an empty word
            # takes.
            is_large = page.kind == _DICTIONARY_PAGE and number_of(header[7][1], 1) > rows
            if not body <= at <= stop or not fits or is_large or not 0 <= page.rows <= left:
                return False
            self._pages.append(page)
            left -= page.rows
        return at == stop

    def take(self, count: int) -> tuple[Values, UInt8s | None]:
        """The values of the next ``count`` rows, and their definition levels; these are None if no
        value is null. ``IrregularPageError`` if the values are too few, or not in the expected
        places."""
        found: list[_Opened] = []
        while count:
            if self._open is None:
                self._open, self._used = self._next_page(), 0
            page, start = self._open, self._used
            stop = min(start + count, len(page.values.starts))
            found.append(page.run(start, stop))
            count -= stop - start
            self._used = stop
            if stop == len(page.values.starts):
                self._open = None
        levels: UInt8s | None = None
        if any(each.levels is not None for each in found):
            levels = np.concatenate(
                [
                    np.full(len(each.values.starts), self.level_max, np.uint8)
                    if each.levels is None
                    else each.levels
                    for each in found
                ]
            )
        return Values.joined([each.values for each in found]), levels

    def _next_page(self) -> _Opened:
        try:
            while True:
                page = self._pages[self._next]
                self._next += 1
                if not is_intact(page.header, self._shard[page.start : page.stop]):
                    raise ValueError("a page does not match its CRC-32")
                if page.kind != _DICTIONARY_PAGE:
                    return self._opened(page)
                data, at, end = self._body(page, page.start)
                self._dictionary = value_places(data, at, end, number_of(page.header[7][1], 1))
        except (ValueError, KeyError, TypeError, IndexError, OSError) as error:
            raise IrregularPageError(str(error)) from None

    def _opened(self, page: _PageAt) -> _Opened:
        """The values of a data page."""
        body, coded_levels = page.start, memoryview(b"")
        if page.kind == _DATA_PAGE_2:
            body += number_of(page.header[8][1], 5)
            if not page.start <= body <= page.stop:
                raise ValueError("levels are longer than their page")
            coded_levels = self._shard[page.start : body]  # these are never compressed
        data, at, end = self._body(page, body)
        if page.kind == _DATA_PAGE and self.level_max:
            begin = at + LENGTH.size
            at = begin + int.from_bytes(data[at:begin], "little")
            if at > end:
                raise ValueError("levels are longer than their page")
            coded_levels = data[begin:at]
        levels = None
        if self.level_max:
            levels = levels_of(coded_levels, page.rows, self.level_max)
        there = None if levels is None else levels == self.level_max
        present = page.rows if there is None else int(there.sum())
        if page.is_coded:
            values = self._coded(data[at:end], present)
        else:
            values = value_places(data, at, end, present)
        if there is not None:
            starts, lengths = np.zeros((2, page.rows), np.int64)
            starts[there], lengths[there] = values.starts, values.lengths
            values = replace(values, starts=starts, lengths=lengths)
        is_in_shard = page.codec == _STORED
        return _Opened(replace(values, in_shard=is_in_shard), levels)

    def _coded(self, data: memoryview, count: int) -> Values:
        """Values that are numbers in a dictionary."""
        if self._dictionary is None or not len(data) or data[0] > _WIDTH_MAX:
            raise ValueError("numbers of no dictionary")
        words = self._dictionary
        numbers = hybrid_numbers(data[1:], count, data[0]) if count else np.zeros(0, np.int64)
        # A number beyond the end of the dictionary raises IndexError.
        return replace(words, starts=words.starts[numbers], lengths=words.lengths[numbers])

    def _body(self, page: _PageAt, start: int) -> tuple[memoryview, int, int]:
        """(data, start, end) of the bytes of a page from byte ``start`` of the shard on. The data
        are the shard if the page is stored there, or else the inflated bytes."""
        if page.codec == _STORED:
            return self._shard, start, page.stop
        data = self._shard[start : page.stop]
        size_bytes = page.inflated_bytes - (start - page.start)
        is_stored = page.kind == _DATA_PAGE_2 and page.header[8][1].get(7, (0, True))[1] is False
        if not is_stored and size_bytes:
            data = _inflate(_CODECS[page.codec], data, size_bytes)
        return data, 0, len(data)


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
    # A dictionary may repeat values, and no memory is counted for stored ones.
    if codec == _STORED and (is_coded or kind == _DICTIONARY_PAGE):
        raise ValueError("a dictionary of stored values")
    return _PageAt(kind, codec, start, stop, inflated_bytes, rows, is_coded, header)


def _inflate(codec: str, data: memoryview, size_bytes: int) -> memoryview:
    """``data`` inflated to ``size_bytes``. ``OSError`` or ``ValueError`` if the inflated length
    differs. The C library allocates the memory, and keeps it in the process
    (``dsort.workers.worker``); with Arrow's own allocator, each memory page would be cleared every
    time."""
    # The first bytes of snappy data are its inflated length.
    if codec == "snappy" and varint(data, 0, HEAD_BYTES_MAX)[0] != size_bytes:
        raise ValueError("a page has another length than in its header")
    pool = pa.system_memory_pool()
    found = _codec(codec).decompress(pa.py_buffer(data), size_bytes, memory_pool=pool)
    return memoryview(found).cast("B")


@cache
def _codec(name: str) -> Any:
    return pa.Codec(name)


def number_of(fields: ThriftStruct, number: int) -> int:
    """A field that is a number. ``KeyError`` or ``TypeError`` if the field is missing or not a
    number."""
    value = fields[number][1]
    if not isinstance(value, int):
        raise TypeError("not a number")
    return value


def levels_of(data: memoryview, count: int, level_max: int) -> UInt8s | None:
    """Definition levels, from runs and packed bits; None if all levels are ``level_max``.
    ``ValueError`` unless there are ``count`` levels, none of them higher."""
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
    """``count`` numbers of ``width`` bits, from runs and packed bits. ``ValueError`` if the numbers
    are cut off."""
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


def value_places(data: memoryview, at: int, end: int, count: int) -> Values:
    """The ``count`` values in bytes ``at:end``, where each follows its length. ``ValueError`` if
    these bytes are anything else."""
    unpack, page, starts = LENGTH.unpack_from, data[:end], list[int]()
    add = starts.append
    try:
        for _ in range(count):
            add(at)
            at += 4 + unpack(page, at)[0]
    except struct.error:
        raise ValueError("values are cut off") from None
    if at != end:
        raise ValueError("something else than values")
    found = np.array([*starts, end], np.int64)
    lengths = np.diff(found) - LENGTH.size
    return Values((data,), found[:-1] + LENGTH.size, lengths, prefixed=True)
