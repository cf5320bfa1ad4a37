"""Columns: arrays in place of Python objects. A million rows take tens of MB; as objects, they take
231 MB. ``PackedTexts`` hold names that are rarely read: a string takes 50 to 100 bytes more.
"""

from __future__ import annotations

import functools
import weakref
from array import array
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
UInt64s = NDArray[np.uint64]
UInt8s = NDArray[np.uint8]
UInt32s = NDArray[np.uint32]
Bools = NDArray[np.bool_]

_LONG_BYTES = 48
"""If rows are longer than this on average, they are copied row by row, which is faster than byte by
byte."""
_SPARE_SHARE = 4
"""All rows are first cut to the length of the longest row, and then shortened, if this copies at
most this many times the bytes of the rows."""
_ADDED_MAX = 8
"""Runs of one length up to this are added column by column: 1 ns a value instead of 6."""
_TIED_SHARE: Final = 64
_NARROWED_MIN: Final = 1 << 15
"""With fewer rows, all of a column is in the processor's cache even if it is not narrowed."""


def numbers_at(column: Int64s, rows: NDArray[np.integer]) -> Int64s:
    """``column[rows]``. If there are many rows, the column is first converted to the narrowest
    type. Of a million numbers, each then takes 3 to 5 ns instead of 10."""
    found: Int64s
    if len(rows) >= _NARROWED_MIN and len(column) and column.strides != (0,):
        low, high = int(column.min()), int(column.max())
        if low >= 0 and high < 1 << 32:
            narrow = column.astype(np.uint16 if high < 1 << 16 else np.uint32)
            found = narrow[rows].astype(np.int64)
            return found
    found = column[rows]
    return found


_kept_numbers: weakref.ref[Int64s] = weakref.ref(np.zeros(0, np.int64))  # freed at once


def row_numbers(count: int) -> Int64s:
    """0 to ``count - 1``, read-only. Calls share the same memory as long as a result is in use,
    because a table of records has five such columns."""
    global _kept_numbers
    kept = _kept_numbers()
    if kept is None or len(kept) < count:
        kept = np.arange(count, dtype=np.int64)
        kept.flags.writeable = False
        _kept_numbers = weakref.ref(kept)
    return kept[:count]


def are_all_rows(rows: NDArray[np.integer], count: int) -> bool:
    """Whether ``rows`` are all numbers below ``count``, in order: then a look-up can be skipped.
    Views of ``row_numbers`` are recognised without a comparison."""
    if len(rows) != count:
        return False
    return are_row_numbers(rows) or bool((rows == np.arange(count)).all())


def are_row_numbers(column: NDArray[np.integer]) -> bool:
    """Whether ``column`` is a view of ``row_numbers``. Other columns with equal numbers are not."""
    kept = _kept_numbers()
    if kept is None or column.base is not kept or column.itemsize != column.strides[0]:
        return False
    return not len(column) or int(column[0]) == 0


def run_sums(values: NDArray[Any], offsets: NDArray[np.integer]) -> Int64s:
    """The sum of ``values[offsets[i]:offsets[i + 1]]`` for each ``i``. No run is empty."""
    count = len(offsets) - 1
    if count < 1:
        return np.zeros(0, np.int64)
    each = len(values) // count
    are_even = 1 <= each <= _ADDED_MAX and count * each == len(values)
    if are_even and bool((offsets == np.arange(0, len(values) + 1, each)).all()):
        total = values[::each].astype(np.int64)
        for place in range(1, each):
            total += values[place::each]
        return total
    return np.add.reduceat(values, offsets[:-1], dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class BytesColumn:
    """A column of byte strings of any length.

    Row ``i`` is ``blob[offsets[i]:offsets[i + 1]]``. ``offsets`` has shape ``(n + 1,)`` and dtype
    int64 and starts at 0; ``blob`` is a ``uint8`` array of ``offsets[-1]`` bytes.
    """

    offsets: Int64s
    blob: UInt8s

    @classmethod
    def of(cls, values: Sequence[bytes]) -> BytesColumn:
        """The column of ``values``."""
        offsets = offsets_of(np.fromiter(map(len, values), np.int64, len(values)))
        return cls(offsets, np.frombuffer(b"".join(values), np.uint8))

    @classmethod
    def of_table(cls, table: NDArray[np.uint8]) -> BytesColumn:
        """The rows of a ``table`` of shape ``(n, width)``."""
        count, width = table.shape
        return cls(
            np.arange(count + 1, dtype=np.int64) * width, np.ascontiguousarray(table).reshape(-1)
        )

    @classmethod
    def empty(cls, count: int) -> BytesColumn:
        """A column of ``count`` empty strings."""
        return cls(np.zeros(count + 1, np.int64), np.zeros(0, np.uint8))

    @classmethod
    def concat(cls, parts: Iterable[BytesColumn]) -> BytesColumn:
        """The rows of all ``parts``, one after the other."""
        parts = list(parts)
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.empty(0)
        offsets = offsets_of(np.concatenate([part.lengths for part in parts]))
        return cls(offsets, np.concatenate([part.blob for part in parts]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.blob[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def tolist(self) -> list[bytes]:
        """All rows as Python ``bytes`` (about 0.1 µs a row)."""
        data = self.blob.tobytes()
        bounds = self.offsets.tolist()
        return [data[a:b] for a, b in pairwise(bounds)]

    @property
    def lengths(self) -> Int64s:
        """The length of each row in bytes, shape ``(n,)``."""
        return np.diff(self.offsets)

    @property
    def width(self) -> int | None:
        """The length of each row in bytes, if all rows have the same one (as most numbered names
        have); None if lengths differ, or if rows are empty. Taking rows from a column with a width
        needs a tenth of the time, because its bytes are a table."""
        count = len(self)
        width = int(self.offsets[1]) if count else 0
        if not width or int(self.offsets[-1]) != count * width:
            return None
        return width if bool((self.lengths == width).all()) else None

    def rows_with(self, found: Bools) -> Bools:
        """Whether ``found``, a mask of ``blob``, is true for a byte of each row; shape ``(n,)``."""
        rows: Bools = np.zeros(len(self), np.bool_)
        rows[np.searchsorted(self.offsets, np.flatnonzero(found), side="right") - 1] = True
        return rows

    def are_equal(self, rows: NDArray[np.integer], others: NDArray[np.integer]) -> Bools:
        """Whether each of ``rows`` equals the row beside it in ``others``."""
        lengths, starts = self.lengths, self.offsets[:-1]
        equal: Bools = lengths[rows] == lengths[others]
        pairs = np.flatnonzero(equal)
        one, other = rows[pairs], others[pairs]
        equal[pairs] = equal_ranges(self.blob, starts[one], starts[other], lengths[one])
        return equal

    def replaced(self, rows: NDArray[Any], by: BytesColumn) -> BytesColumn:
        """The column with the rows of ``by`` in place of its own ``rows`` (row numbers or a
        mask)."""
        source = np.arange(len(self))
        source[rows] = np.arange(len(by)) + len(self)
        return BytesColumn.concat([self, by]).take(source)

    def run(self, start: int, stop: int) -> BytesColumn:
        """Rows ``start:stop``; a view."""
        offsets = self.offsets[start : stop + 1]
        return BytesColumn(offsets - offsets[0], self.blob[offsets[0] : offsets[-1]])

    def suffixes(self, skipped_bytes: Int64s) -> BytesColumn:
        """Each row without its first ``skipped_bytes`` bytes, shape ``(n,)``. No row is shorter
        than its ``skipped_bytes``."""
        starts = self.offsets[:-1] + skipped_bytes
        return cut_rows(self.blob, starts, self.lengths - skipped_bytes)

    def take(self, rows: NDArray[np.integer]) -> BytesColumn:
        """The rows ``rows`` in that order."""
        width = self.width
        if width is not None:
            texts: NDArray[np.void] = np.ascontiguousarray(self.blob).view(f"V{width}")
            table = texts[rows].view(np.uint8)
            ends = np.arange(0, len(table) + width, width, dtype=np.int64)
            return BytesColumn(ends, table)
        return cut_rows(self.blob, self.offsets[:-1][rows], self.lengths[rows])


def offsets_of(lengths: NDArray[Any]) -> Int64s:
    """Where runs of these lengths begin if they follow one another, and where the last one ends;
    shape ``(n + 1,)``."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:], dtype=np.int64)
    return offsets


def rows_of_runs(first: Int64s, counts: NDArray[Any]) -> tuple[Int64s, Int64s]:
    """Return (the row numbers of all runs, joined; where the runs begin in them, see
    ``offsets_of``). Run ``i`` has ``counts[i]`` rows from row ``first[i]`` on."""
    offsets = offsets_of(counts)
    return np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], counts), offsets


def last_true(begins: Bools) -> Int64s:
    """For each position, the last one up to it where ``begins`` is true; ``begins[0]`` is."""
    return np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))


def places_in(order: NDArray[np.integer]) -> Int64s:
    """The place of each number in ``order``, which has all numbers from 0 on."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def equal_rows(one: BytesColumn, other: BytesColumn) -> Bools:
    """Whether each row equals the row of the other column, which has the same number of rows."""
    rows = row_numbers(len(one))
    return BytesColumn.concat([one, other]).are_equal(rows, rows + len(one))


def cut_rows(blob: UInt8s, starts: Int64s, lengths: Int64s) -> BytesColumn:
    """The column of the rows ``blob[starts[i] : starts[i] + lengths[i]]``."""
    offsets = offsets_of(lengths)
    total = int(offsets[-1])
    if not total:
        return BytesColumn(offsets, np.zeros(0, np.uint8))
    if bool((starts[1:] == starts[:-1] + lengths[:-1]).all()):
        return BytesColumn(offsets, blob[starts[0] : starts[0] + total])
    width = int(lengths.max())
    if bool(((lengths == width) | (lengths == 0)).all()):
        table = rows_at_each(blob, width)[starts[lengths > 0]]
        return BytesColumn(offsets, table.view(np.uint8))
    if total > _LONG_BYTES * len(starts):
        data = np.ascontiguousarray(blob).data
        bounds = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        joined = b"".join([data[a:b] for a, b in bounds])
        return BytesColumn(offsets, np.frombuffer(joined, np.uint8))
    if width * len(starts) <= _SPARE_SHARE * total:
        padded = blob  # maybe a whole shard: copied only if a row reaches behind its end
        if int(starts.max()) + width > len(blob):
            padded = np.zeros(len(blob) + width, np.uint8)
            padded[: len(blob)] = blob
        inside = np.arange(width, dtype=np.int64) < lengths[:, np.newaxis]
        rows = rows_at_each(padded, width)[starts].view(np.uint8).reshape(-1, width)
        return BytesColumn(offsets, rows[inside])
    # Byte k of output row i is at its start + k: one arange, shifted by row.
    shift = np.repeat(starts - offsets[:-1], lengths)
    return BytesColumn(offsets, blob[np.arange(total) + shift])


def rows_at_each(blob: UInt8s, width: int) -> NDArray[np.void]:
    """``blob`` as a table of overlapping rows: row ``i`` is the ``width`` bytes from byte ``i`` on.
    All rows are inside ``blob``. The table is a view if the bytes of ``blob`` are contiguous.
    Copying whole rows takes a tenth of the time of copying their bytes one by one."""
    count = max(len(blob) - width + 1, 0)
    return np.ndarray((count,), _row_of(width), np.ascontiguousarray(blob), 0, (1,))


@functools.lru_cache(1024)
def _row_of(width: int) -> np.dtype[np.void]:
    return np.dtype((np.void, width))


def equal_ranges(blob: UInt8s, first: Int64s, second: Int64s, lengths: Int64s) -> Bools:
    """Whether the ``lengths[i]`` bytes of ``blob`` from ``first[i]`` on equal those from
    ``second[i]`` on, for each ``i``.

    Each round compares the next eight bytes of all pairs that have been equal so far. Short ranges
    take about 20 ns a pair.
    """
    equal = np.ones(len(lengths), np.bool_)
    live = np.flatnonzero(lengths > 0)
    if len(live) == 0:
        return equal
    padded = np.zeros(len(blob) + 8, np.uint8)
    padded[: len(blob)] = blob
    words: UInt64s = np.ndarray((len(blob) + 1,), np.uint64, padded, strides=(1,))
    done = 0
    while len(live):
        rest = lengths[live] - done
        differing = words[first[live] + done] ^ words[second[live] + done]
        short = rest < 8
        if short.any():  # keep only the bytes that belong to the range (little-endian words)
            spare_bits = ((8 - np.minimum(rest, 8)) * 8).astype(np.uint64)
            differing = differing << spare_bits
        equal[live[differing != 0]] = False
        done += 8
        live = live[(differing == 0) & (rest > 8)]
    return equal


def runs_that_fit(sizes: Int64s, size_bytes: int) -> Int64s:
    """Divide rows into runs whose ``sizes`` add up to at most ``size_bytes``; a larger row is a run
    by itself. Return where each run begins, and where the last one ends."""
    ends = np.cumsum(sizes)
    bounds, before = [0], 0
    while bounds[-1] < len(ends):
        until = int(np.searchsorted(ends, before + size_bytes, side="right"))
        bounds.append(max(until, bounds[-1] + 1))
        before = int(ends[bounds[-1] - 1])
    return np.array(bounds, np.int64)


def stable_argsort(words: UInt64s) -> Int64s:
    """A stable argsort of unsigned words.

    Widely spread words are sorted by the 32 bits below the highest one that differs, in two passes
    of NumPy's 16-bit radix sort. The few rows that are equal in these bits are sorted afterwards.
    With 500,000 rows, this takes 25 ns a row. Sorting the words themselves takes 50 ns a row on a
    processor with slow AVX-512, and 14 on others; an argsort takes 130. If too many rows are equal
    in the 32 bits, NumPy sorts 64-bit numbers that consist of the high bits of a word and its row
    number. If that does not separate the words either, an unstable argsort comes first, and rows
    that tie are sorted afterwards. If all words lie within a range of 65,536, one pass of the radix
    sort is enough.
    """
    if len(words) < 2:
        return np.arange(len(words), dtype=np.int64)
    low, high = int(words.min()), int(words.max())
    if low == high:
        return np.arange(len(words), dtype=np.int64)
    if high - low < 1 << 16:
        small = (words - np.uint64(low)).astype(np.uint16)
        return np.argsort(small, kind="stable").astype(np.int64, copy=False)
    for quick in (_order_by_digits, _order_by_high_bits):
        order = quick(words, low, high)
        if len(order):
            return order
    order = np.argsort(words, kind="quicksort").astype(np.int64, copy=False)
    ordered = words[order]
    tied = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(tied) == 0:
        return order
    if len(tied) > len(words) // 8:
        return np.argsort(words, kind="stable").astype(np.int64, copy=False)
    return _tied_rows_in_order(order, tied, words)


def _order_by_digits(words: UInt64s, low: int, high: int) -> Int64s:
    """A stable argsort of words from ``low`` to ``high``; empty if too many words share their high
    bits."""
    dropped_bits = max((high - low).bit_length() - 32, 0)
    digits = words - np.uint64(low)
    digits >>= np.uint64(dropped_bits)
    shown = digits.astype(np.uint32)
    order = np.argsort(shown.astype(np.uint16), kind="stable")
    order = order[np.argsort((shown >> np.uint32(16)).astype(np.uint16)[order], kind="stable")]
    if not dropped_bits:
        return order
    ordered = shown[order]
    tied = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(tied) > len(words) // _TIED_SHARE:
        return order[:0]
    return _tied_rows_in_order(order, tied, words) if len(tied) else order


def _order_by_high_bits(words: UInt64s, low: int, high: int) -> Int64s:
    """A stable argsort of words from ``low`` to ``high``; empty if words differ in low bits for
    which the row numbers leave no room."""
    row_bits = (len(words) - 1).bit_length()
    dropped_bits = max((high - low).bit_length() + row_bits - 64, 0)
    numbered = words - np.uint64(low)
    numbered >>= np.uint64(dropped_bits)
    numbered <<= np.uint64(row_bits)
    numbered |= np.arange(len(words), dtype=np.uint64)
    numbered.sort()
    numbered &= np.uint64((1 << row_bits) - 1)
    order = numbered.view(np.int64)
    if dropped_bits:
        ordered = words[order]
        if bool((ordered[1:] < ordered[:-1]).any()):
            return order[:0]
    return order


def _tied_rows_in_order(order: Int64s, tied: NDArray[np.intp], words: UInt64s) -> Int64s:
    """Sort each run of rows that tie by ``words`` and by row number. ``tied``: the positions in
    ``order`` at which a row ties with the next one."""
    run_starts = np.flatnonzero(np.diff(tied, prepend=-2) > 1)
    touched = np.unique(np.concatenate([tied, tied + 1]))
    run_of = np.searchsorted(tied[run_starts], touched, side="right")
    rows = order[touched]
    order[touched] = rows[np.lexsort((rows, words[rows], run_of))]
    return order


CHUNK_BYTES = 4 << 20
AT_ONCE = 4096
_ERRORS = "surrogateescape"  # names need not be UTF-8


class PackedTexts(Sequence[str]):
    """A sequence of strings, stored as one bytes object."""

    def __init__(self, texts: Iterable[str]) -> None:
        blob, ends = bytearray(), array("q", [0])
        for text in texts:
            blob += text.encode("utf-8", _ERRORS)
            ends.append(len(blob))
        self._blob = bytes(blob)
        self._ends = np.frombuffer(ends, np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        place = range(len(self))[at]
        return self._text(int(self._ends[place]), int(self._ends[place + 1]))

    def __iter__(self) -> Iterator[str]:
        for begin in range(0, len(self), AT_ONCE):
            for start, stop in pairwise(self._ends[begin : begin + AT_ONCE + 1].tolist()):
                yield self._text(start, stop)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def _text(self, start: int, stop: int) -> str:
        return self._blob[start:stop].decode("utf-8", _ERRORS)


class TextsByNumber(MutableMapping[int, str]):
    """Texts by numbers from 0 on; most of the numbers get a text in the end. Replaced and removed
    texts still take memory."""

    def __init__(self) -> None:
        self._chunks: list[bytearray] = []
        self._places = array("q")  # chunk and place in it, as one number; -1: no text
        self._lengths = array("i")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return (number for number, place in enumerate(self._places) if place >= 0)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self._place(number) >= 0

    def __getitem__(self, number: int) -> str:
        place = self._place(number)
        if place < 0:
            raise KeyError(number)
        chunk, start = divmod(place, CHUNK_BYTES)
        data = self._chunks[chunk][start : start + self._lengths[number]]
        return data.decode("utf-8", _ERRORS)

    def __setitem__(self, number: int, text: str) -> None:
        data = text.encode("utf-8", _ERRORS)
        if number >= len(self._places):
            more = number + 1 - len(self._places)
            self._places.extend([-1] * more)
            self._lengths.extend([0] * more)
        if not self._chunks or len(self._chunks[-1]) + len(data) > CHUNK_BYTES:
            self._chunks.append(bytearray())
        self._count += self._places[number] < 0
        self._places[number] = (len(self._chunks) - 1) * CHUNK_BYTES + len(self._chunks[-1])
        self._lengths[number] = len(data)
        self._chunks[-1] += data

    def __delitem__(self, number: int) -> None:
        if self._place(number) < 0:
            raise KeyError(number)
        self._places[number] = -1
        self._count -= 1

    def _place(self, number: int) -> int:
        return self._places[number] if 0 <= number < len(self._places) else -1
