"""Sets of texts in columns: keys that are looked up for a whole shard at once, and names of members
that may be repeated."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dsort.data.columns import (
    Bools,
    BytesColumn,
    Int64s,
    UInt64s,
    are_all_rows,
    cut_rows,
    equal_ranges,
    equal_rows,
    last_true,
)
from dsort.data.numbered import hash_column

_WORD = 8


def marks_stand_alike(texts: BytesColumn, width: int, marks: bytes) -> bool:
    """Whether each byte of ``marks`` is at the same places in all ``texts``, which have ``width``
    bytes each."""
    for mark in marks:
        stands = texts.blob == mark
        if bool((stands[width:] != stands[:-width]).any()):
            return False
    return True


def rows_equal_earlier(
    texts: BytesColumn, width: int, start: int, stop: int, lag: int
) -> Bools | None:
    """Whether rows ``i`` and ``i + lag`` of ``texts`` are equal in bytes ``start:stop``; shape ``(n
    - lag,)``. Each text has ``width`` bytes. None for texts shorter than a word."""
    if width < _WORD:
        return None
    count = len(texts)
    differing = np.zeros(count - lag, np.uint64)
    blob = np.ascontiguousarray(texts.blob)
    for first in range(start, stop, _WORD):
        at = min(first, width - _WORD)
        last = min(stop, first + _WORD)
        rows: UInt64s = np.ndarray((count,), "<u8", blob.data, at, (width,)).astype(np.uint64)
        wanted = (1 << 8 * (last - at)) - (1 << 8 * (first - at))
        differing |= (rows[lag:] ^ rows[:-lag]) & np.uint64(wanted)
    equal: Bools = differing == 0
    return equal


class NameTable(Struct, frozen=True):
    """Names of ``width`` bytes; their first ``key_bytes`` are the key."""

    width: int
    key_bytes: int


def as_table(names: BytesColumn, rows: Int64s, key_bytes: Int64s) -> NameTable | None:
    """The length of all names and the length of all keys, if names have one length, keys have one
    length, and ``rows`` are all rows; otherwise None."""
    width = names.width
    if width is None or not len(rows) or not are_all_rows(rows, len(names)):
        return None
    key = int(key_bytes[0])
    are_alike = key_bytes.strides == (0,) or bool((key_bytes == key).all())
    return NameTable(width, key) if are_alike else None


def first_equals(values: BytesColumn, hashes: UInt64s) -> Int64s:
    """For each row, the first row that equals it. The result is exact, because rows with equal
    hashes are compared."""
    count = len(values)
    order = np.argsort(hashes, kind="stable")
    same = np.zeros(count, np.bool_)
    same[1:] = hashes[order[1:]] == hashes[order[:-1]]
    pairs = np.flatnonzero(same)
    here, before = order[pairs], order[pairs - 1]
    if not values.are_equal(here, before).all():  # two different values have the same hash
        seen: dict[tuple[int, bytes], int] = {}
        each = enumerate(zip(hashes.tolist(), values.tolist(), strict=True))
        return np.array([seen.setdefault(identity, row) for row, identity in each], np.int64)
    first = np.empty(count, np.int64)
    first[order] = order[last_true(~same)]
    return first


def repeated_names(
    names: BytesColumn, rows: Int64s, record_of: Int64s, key_bytes: Int64s
) -> Int64s:
    """Positions in ``rows`` whose extension is repeated later in the same record."""
    ext_length = names.lengths[rows] - key_bytes[rows]
    ext_start = names.offsets[:-1][rows] + key_bytes[rows]
    table = as_table(names, rows, key_bytes)
    repeated: list[NDArray[np.intp]] = []
    for lag in range(1, len(rows)):
        together = record_of[lag:] == record_of[:-lag]
        if not together.any():
            break
        if lag > 16:  # a record with very many members: a set is faster than pairs
            repeated.append(_repeated_in_large(names, rows, record_of))
            break
        if table is not None:
            same = rows_equal_earlier(names, table.width, table.key_bytes, table.width, lag)
            together &= True if same is None else same
        near = np.flatnonzero(together)
        near = near[ext_length[near] == ext_length[near + lag]]
        same = equal_ranges(names.blob, ext_start[near], ext_start[near + lag], ext_length[near])
        near = near[same]
        repeated.append(near)
    found = np.concatenate([np.zeros(0, np.intp), *repeated])
    return np.unique(found) if len(found) else found


def _repeated_in_large(names: BytesColumn, rows: Int64s, record_of: Int64s) -> NDArray[np.intp]:
    later: set[tuple[int, bytes]] = set()
    repeated = []
    for position in range(len(rows) - 1, -1, -1):
        identity = (int(record_of[position]), names[int(rows[position])])
        if identity in later:
            repeated.append(position)
        later.add(identity)
    return np.array(repeated, np.intp)


def names_come_again(
    names: BytesColumn, rows: Int64s, record_of: Int64s, repeated: Int64s
) -> Int64s:
    """Positions in ``rows`` with a name that has already occurred in their record; each such
    position begins a new record. ``repeated``: the result of :func:`repeated_names`."""
    asked = np.flatnonzero(np.isin(record_of, record_of[repeated]))
    own = names.take(rows[asked])
    same_name = first_equals(own, hash_column(own))
    order = np.argsort(same_name, kind="stable")
    again = np.zeros(len(asked), np.bool_)
    again[1:] = (same_name[order[1:]] == same_name[order[:-1]]) & (
        record_of[asked[order[1:]]] == record_of[asked[order[:-1]]]
    )
    pairs = np.flatnonzero(again)
    here, before = asked[order[pairs]], asked[order[pairs - 1]]
    by_place = np.argsort(here)
    cuts, begin = [], 0
    for at, last in zip(here[by_place].tolist(), before[by_place].tolist(), strict=True):
        if last >= begin:
            begin = at
            cuts.append(at)
    return np.array(cuts, np.int64)


class HashesSeen:
    """The key hashes of the records of one shard so far. After the first call, a record takes about
    0.2 µs."""

    def __init__(self) -> None:
        self._sorted = np.zeros(0, np.uint64)
        self._last = np.zeros(0, np.uint64)

    def earlier(self, key_hash: UInt64s) -> Int64s | None:
        """For each key, how many records of earlier calls have it, shape ``(n,)``; None: no key
        occurred before. The keys of this call then count as earlier ones."""
        if len(self._last):
            # A stable sort merges sorted runs.
            self._sorted = np.sort(np.concatenate([self._sorted, self._last]), kind="stable")
        self._last = key_hash
        if not len(self._sorted):
            return None
        wanted = np.sort(key_hash)
        low = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        if not (self._sorted[low] == wanted).any():
            return None
        first = np.searchsorted(self._sorted, key_hash)
        found: Int64s = np.searchsorted(self._sorted, key_hash, side="right") - first
        return found


class KeySet(Struct, frozen=True, eq=False):
    """Keys in the order of their hashes (XXH3, 64 bits). ``twins``: the keys that share their hash
    with another key of the set."""

    hashes: UInt64s
    keys: BytesColumn
    twins: frozenset[bytes]

    @classmethod
    def of(cls, keys: BytesColumn) -> KeySet:
        """The set of ``keys``, in which a key may be repeated."""
        hashes = hash_column(keys)
        order = np.argsort(hashes, kind="stable")
        hashes, keys = hashes[order], keys.take(order)
        again = np.flatnonzero(hashes[1:] == hashes[:-1])
        differ = again[~keys.are_equal(again, again + 1)]
        twins = {keys[row] for row in [*differ.tolist(), *(differ + 1).tolist()]}
        return cls(hashes, keys, frozenset(twins))

    def __len__(self) -> int:
        return len(self.hashes)

    def has(self, keys: BytesColumn) -> Bools:
        """Whether each of ``keys`` is in the set; shape ``(n,)``. 0.8 µs a key in a set of a
        million."""
        found = np.zeros(len(keys), np.bool_)
        if not len(self):
            return found
        hashes = hash_column(keys)
        at: Int64s = np.minimum(np.searchsorted(self.hashes, hashes), len(self) - 1)
        rows = np.flatnonzero(self.hashes[at] == hashes)
        found[rows] = equal_rows(keys.take(rows), self.keys.take(at[rows]))
        if self.twins:
            for row in rows[~found[rows]].tolist():
                found[row] = keys[row] in self.twins
        return found


def lines_of(text: bytes) -> BytesColumn:
    """The lines of a text that are not empty, without their ends (LF or CR LF). A byte order mark
    before the first line is skipped."""
    blob = np.frombuffer(text.removeprefix(b"\xef\xbb\xbf"), np.uint8)
    ends = np.flatnonzero(blob == 0x0A)
    if len(blob) and (not len(ends) or ends[-1] != len(blob) - 1):
        ends = np.append(ends, len(blob))
    starts = np.append(0, ends + 1)[: len(ends)]
    with_cr = (ends > starts) & (blob[ends - 1] == 0x0D)
    stops = ends - with_cr
    some = np.flatnonzero(stops > starts)
    starts, lengths = starts[some], (stops - starts)[some]
    return cut_rows(blob, starts, lengths)
