"""Records with the same key: finds duplicates, and makes one record of the pieces of joined inputs.
Pure functions of columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.data.columns import (
    Bools,
    BytesColumn,
    Int32s,
    Int64s,
    UInt64s,
    equal_ranges,
    last_true,
    stable_argsort,
)
from dsort.data.hashes import hash_keys
from dsort.data.index import SortKeys
from dsort.data.records import STRAY_SALT
from dsort.data.row_bytes import distinct_rows
from dsort.order.base import Algorithm
from dsort.order.sort import order_rows

if TYPE_CHECKING:
    from dsort.data.record_table import RecordTable


class JoinedKind:
    """The kinds of findings of a join, as they are counted."""

    DUPLICATE = "duplicate_keys"  # another record of the same input has the key
    UNMATCHED = "unmatched"  # an input has no record with the key, which is an error
    LEFT_OUT = "left_out_by_join"  # an input has no record with the key: other pieces are left out
    CONFLICT = "conflict"  # two pieces have members with the same extension


class LeftOut(IntEnum):
    """Why a piece, or some of its members, are left out."""

    MEMBERS = 0  # members with extensions that another input's members have
    RECORD = 1  # the first piece of a record that some input lacks
    PIECE = 2  # the other pieces of such a record
    DUPLICATE = 3  # an earlier record of its input has the key


# The rows of a join are pieces: records as they were extracted, each from one input. In output
# order, the pieces of one key are side by side, in the order of the inputs: the sort key is a
# function of the record key alone, and ends with the key itself.
class Joined(Struct, frozen=True, eq=False):
    """The rows that stay, record by record, and where records begin in them (shape ``(n + 1,)``).
    ``found``: the findings, each as (kind, number of the input concerned or -1, rows)."""

    rows: Int64s
    record_offsets: Int64s
    found: tuple[tuple[str, int, Int64s], ...]


def join_order(keys: SortKeys, *, decreasing: bool) -> Int64s:
    """Like ``order_rows``, but faster if keys with equal hashes are equal, which is nearly always
    so."""
    if keys.words is None or keys.text is None:
        return order_rows(keys, decreasing=decreasing)
    order = order_rows(replace(keys, text=None), decreasing=decreasing)
    words = keys.words[order]
    tied = words[1:] == words[:-1]
    if bool((tied & ~_equal_to_next(keys.text, order)).any()):
        return order_rows(keys, decreasing=decreasing)
    return order


def join_rows(rule: JoinRule, order: Int64s, keys: BytesColumn, input_of: Int32s) -> Joined:
    """Join one partition. ``order``: its rows in output order. ``keys`` and ``input_of``: the
    identity of each row's record, and the number of the row's input."""
    starts = np.ones(len(order), np.bool_)
    starts[1:] = ~_equal_to_next(keys, order)
    record_of = np.cumsum(starts) - 1
    inputs = input_of[order]
    later = np.zeros(len(order), np.bool_)
    later[1:] = ~starts[1:] & (inputs[1:] == inputs[:-1])
    found = [(JoinedKind.DUPLICATE, -1, order[later])] if later.any() else []
    first = np.flatnonzero(starts)
    left_out, unmatched = _unmatched(rule, inputs, record_of, len(first))
    found += [(JoinedKind.UNMATCHED, at, order[first[lost]]) for at, lost in unmatched]
    if left_out.any():
        found.append((JoinedKind.LEFT_OUT, -1, order[first[left_out]]))
    kept = np.flatnonzero(~later & ~left_out[record_of])
    begins = np.flatnonzero(np.diff(record_of[kept], prepend=-1))
    return Joined(order[kept], np.append(begins, len(kept)).astype(np.int64), tuple(found))


def _unmatched(
    rule: JoinRule, inputs: Int32s, record_of: Int64s, records: int
) -> tuple[Bools, list[tuple[int, Bools]]]:
    """Return (whether each record is left out; (number, missing) of each input that must have all
    records and does not). ``missing``: which of the other records the input lacks."""
    left_out = np.zeros(records, np.bool_)
    errors: list[tuple[int, Bools]] = []
    for number, nonmatch in enumerate(rule.nonmatch):
        if nonmatch == "none":
            continue
        lacks = np.ones(records, np.bool_)
        lacks[record_of[inputs == number]] = False
        if nonmatch == "skip":
            left_out |= lacks
        else:
            errors.append((number, lacks))
    unmatched = [(number, lacks & ~left_out) for number, lacks in errors]
    return left_out, [(number, lacks) for number, lacks in unmatched if lacks.any()]


def conflicts_in(joined: Joined, extensions: BytesColumn) -> list[tuple[int, int, bytes]]:
    """(row, earlier row, extensions) of pieces of one record that have members with the same
    extensions. ``extensions``: the extensions of the members of each row, each followed by a zero
    byte. In the result, a zero byte separates them."""
    counts = np.diff(joined.record_offsets)
    if not len(counts) or int(counts.max()) < 2:
        return []
    rows, longest = joined.rows, int(counts.max())
    record_of = np.repeat(np.arange(len(counts)), counts)
    starts = extensions.offsets[:-1][rows]
    which, firsts = distinct_rows(extensions.blob, starts, extensions.lengths[rows])
    lists = [frozenset(extensions[row].split(b"\0")[:-1]) for row in rows[firsts].tolist()]
    return sorted(_conflicts(rows, record_of, which, lists, longest))


def left_out_in(
    joined: Joined,
    conflicts: Sequence[tuple[int, int, bytes]],
    order: Int64s,
    *,
    keeps_last: bool,
) -> tuple[Int64s, Int64s, BytesColumn]:
    """Return (rows, the reason why each is left out, the extensions of the members that are left
    out) of one partition; each row occurs once. ``order``: all rows."""
    gone = order[np.isin(order, joined.rows, invert=True)]
    found = {kind: rows for kind, number, rows in joined.found if number < 0}
    none = np.zeros(0, np.int64)
    why = np.full(len(gone), LeftOut.PIECE, np.int64)
    why[np.isin(gone, found.get(JoinedKind.LEFT_OUT, none))] = LeftOut.RECORD
    why[np.isin(gone, found.get(JoinedKind.DUPLICATE, none))] = LeftOut.DUPLICATE
    members: dict[int, set[bytes]] = {}
    for row, earlier, shared in conflicts:
        members.setdefault(earlier if keeps_last else row, set()).update(shared.split(b"\0"))
    rows = np.array([*members], np.int64)
    lists = [b"\0".join(sorted(each)) for each in members.values()]
    return (
        np.concatenate([gone, rows]),
        np.append(why, np.full(len(rows), LeftOut.MEMBERS, np.int64)),
        BytesColumn.concat([BytesColumn.empty(len(gone)), BytesColumn.of(lists)]),
    )


def _conflicts(
    rows: Int64s,
    record_of: Int64s,
    which: Int64s,
    lists: list[frozenset[bytes]],
    longest: int,
) -> Iterator[tuple[int, int, bytes]]:
    for lag in range(1, longest):
        near = np.flatnonzero(record_of[lag:] == record_of[:-lag])
        pairs = which[near] * len(lists) + which[near + lag]
        for pair in np.unique(pairs).tolist():
            shared = lists[pair // len(lists)] & lists[pair % len(lists)]
            for at in near[pairs == pair].tolist() if shared else ():
                yield int(rows[at + lag]), int(rows[at]), b"\0".join(sorted(shared))


def _equal_to_next(keys: BytesColumn, order: Int64s) -> Bools:
    """For each row of ``order``, whether its key equals the key of the next row, shape ``(n -
    1,)``."""
    if len(order) < 2:
        return np.zeros(0, np.bool_)
    starts, lengths = keys.offsets[:-1][order], keys.lengths[order]
    equal = lengths[1:] == lengths[:-1]
    equal[equal] = equal_ranges(
        keys.blob, starts[1:][equal], starts[:-1][equal], lengths[1:][equal]
    )
    found: Bools = equal
    return found


class JoinRule(Struct, frozen=True):
    """How records are joined; false if they are not. ``inputs``: the names of the inputs, in order;
    ``nonmatch``: for each input, the reaction to a record without a piece in it: ``error``,
    ``skip`` (the record is left out) or ``none`` (the record is joined without this piece).
    ``drops_later``: several records of one input may have the same key; the first of them is used.
    ``conflict``: if several inputs have a member with the same extension, the ``first`` or the
    ``last`` stays, or it is an ``error``. ``is_ordered_first``: an earlier pass finds the order,
    because only joined records have the values that decide it."""

    inputs: tuple[str, ...] = ()
    nonmatch: tuple[str, ...] = ()
    drops_later: bool = False
    conflict: str = "error"
    is_ordered_first: bool = False

    def __bool__(self) -> bool:
        return bool(self.inputs)

    @property
    def is_settled_first(self) -> bool:
        """Whether a pass before payload moves finds the records and members to leave out."""
        return self.conflict != "error" or self.is_ordered_first

    def settled(self) -> JoinRule:
        """The rule for the records that are left after that pass."""
        return JoinRule(self.inputs, ("none",) * len(self.inputs))


class JoinedPlaces(Algorithm, frozen=True, kw_only=False):
    """Orders records as ``inner`` does, by places that are computed before."""

    inner: Algorithm

    kind: ClassVar[str] = "places"
    summary: ClassVar[str] = ""
    words: ClassVar[str] = ""
    spreads_evenly: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    @property
    def has_texts(self) -> bool:
        """True: the record keys are texts."""
        return True

    def says(self, table: RecordTable) -> BytesColumn:
        """For each piece, the value that decides the order of its record, as bytes that compare in
        this order; empty if the piece lacks the member. ``ContentKeyError`` if it is invalid."""
        import numpy as np

        from dsort.data.columns import BytesColumn

        has = np.zeros(len(table), np.bool_)
        for extension in self.inner.extensions:
            has |= table.rows_with(extension) >= 0
        if not has.any():
            return BytesColumn.empty(len(table))
        said = self._values(table.keeping(has))
        which = np.zeros(len(table), np.int64)
        which[has] = np.arange(1, len(said) + 1)
        return BytesColumn.concat([BytesColumn.of([b""]), said]).take(which)

    def unsaid(self, table: RecordTable) -> bytes:
        """The value of a record if none of its pieces has one. ``ContentKeyError`` if this has to
        fail the job. ``table``: has the record, without members."""
        return self._values(table)[0] if self.inner.extensions else b""

    def _values(self, table: RecordTable) -> BytesColumn:
        """The sort keys of ``inner`` as bytes."""
        from dsort.order.sort import joined_keys

        return joined_keys(
            [self.inner.sort_keys(table)],
            decreasing=[self.inner.decreasing],
            has_texts=[self.inner.has_texts],
            count=len(table),
        ).texts


def spread_places(said: BytesColumn, shard: Int64s, ordinal: Int64s) -> UInt64s:
    """The place of each record. Records are ordered by the values ``said``, and then by the
    position of the first piece. Shapes ``(n,)``."""
    import numpy as np

    from dsort.data.index import SortKeys
    from dsort.order.sort import order_rows

    count = len(said)
    by_position = np.lexsort((ordinal, shard))
    keys = SortKeys(count, text=said).take(by_position)
    order = by_position[order_rows(keys, decreasing=False)]
    step = np.uint64((1 << 64) // max(count, 1) if count > 1 else 0)
    places = np.empty(count, np.uint64)
    places[order] = np.arange(count, dtype=np.uint64) * step
    return places


# Duplicates are found by the hash column of the record key alone, whatever the sort key is. Keys
# with equal hashes are compared, so that hash collisions do not count. The earliest record (by
# input position) keeps its key.
class Duplicates(Struct, frozen=True, eq=False):
    """The later records of each repeated key, in the order of ``rows``.

    ``rows``: row numbers of the searched columns; ``nth``: 1 for the second record of a key, 2 for
    the third, …
    """

    rows: Int64s
    nth: Int64s

    def __len__(self) -> int:
        return len(self.rows)

    def with_known(
        self, keys: BytesColumn, key_hash: UInt64s, known: BytesColumn, known_hash: UInt64s
    ) -> Duplicates:
        """These duplicates, and all records (columns ``keys`` and ``key_hash``) with a ``known``
        key. Known keys count as those of earlier records."""
        if not len(known):
            return self
        there = {*zip(known_hash.tolist(), known.tolist(), strict=True)}
        rows = np.flatnonzero(np.isin(key_hash, known_hash)).tolist()
        of_known = [row for row in rows if (int(key_hash[row]), keys[row]) in there]
        nth = dict(zip(self.rows.tolist(), self.nth.tolist(), strict=True))
        for row in of_known:
            nth[row] = nth.get(row, 0) + 1
        return _in_row_order(np.array([*nth], np.int64), np.array([*nth.values()], np.int64))


def repeated_hashes(key_hash: UInt64s) -> UInt64s:
    """The hashes that occur more than once, sorted, shape ``(k,)``."""
    ordered = np.sort(key_hash)
    twice: UInt64s = ordered[1:][ordered[1:] == ordered[:-1]]
    # np.unique loads numpy.ma: 50 million instructions, for each worker of each job.
    found: UInt64s = twice[np.append(True, twice[1:] != twice[:-1])] if len(twice) else twice
    return found


def words_as_bytes(words: UInt64s) -> BytesColumn:
    """Each word as its 8 bytes, for ``find_duplicates``."""
    ends = np.arange(0, 8 * len(words) + 1, 8, dtype=np.int64)
    return BytesColumn(ends, np.ascontiguousarray(words).view(np.uint8))


def find_duplicates(keys: BytesColumn, key_hash: UInt64s, *, keep_last: bool = False) -> Duplicates:
    """The records, in input order, that have the key of an earlier record (``keep_last``: of a
    later one). Exact: records with equal hashes are compared by their keys."""
    if keep_last:
        back = np.arange(len(key_hash))[::-1]
        found = find_duplicates(keys.take(back), key_hash[back])
        return Duplicates((len(key_hash) - 1 - found.rows)[::-1], found.nth[::-1])
    order = stable_argsort(key_hash)
    hashes = key_hash[order]
    same_hash = np.flatnonzero(hashes[1:] == hashes[:-1])
    if len(same_hash) == 0:
        return Duplicates(np.zeros(0, np.int64), np.zeros(0, np.int64))
    a, b = order[same_hash], order[same_hash + 1]
    if not keys.are_equal(a, b).all():
        return _by_identity(keys, key_hash, order)
    continues = np.zeros(len(order), np.bool_)
    continues[same_hash + 1] = True
    run_start = last_true(~continues)
    later = np.flatnonzero(continues)
    return _in_row_order(order[later], later - run_start[later])


def _by_identity(keys: BytesColumn, key_hash: UInt64s, order: Int64s) -> Duplicates:
    """The slow, plain way, for the case that two keys have the same 64-bit hash. A stray is not
    equal to a record with the same key, because the hash of the stray differs."""
    seen: dict[tuple[int, bytes], int] = {}
    rows, nth = [], []
    for row in order.tolist():
        identity = int(key_hash[row]), keys[row]
        times = seen.get(identity, 0)
        seen[identity] = times + 1
        if times:
            rows.append(row)
            nth.append(times)
    return _in_row_order(np.array(rows, np.int64), np.array(nth, np.int64))


def _in_row_order(rows: Int64s, nth: Int64s) -> Duplicates:
    by_row = np.argsort(rows, kind="stable")
    return Duplicates(rows[by_row], nth[by_row])


def new_keys(keys: list[bytes], nth: Int64s, taken: UInt64s) -> list[bytes]:
    """A free key ``key-1``, ``key-2``, … for each duplicate, in the order given.

    ``taken``: the hashes of all keys of the job, sorted, salted for strays as in the index. A
    number is skipped if its key already belongs to a record or a stray.
    """
    given: set[bytes] = set()
    fresh = []
    first = [key + b"-%d" % number for key, number in zip(keys, nth.tolist(), strict=True)]
    clashes = _among(hash_keys(first, len(first)), taken).tolist()
    for key, candidate, number, clash in zip(keys, first, nth.tolist(), clashes, strict=True):
        while clash or candidate in given:
            number += 1
            candidate = key + b"-%d" % number
            clash = bool(_among(hash_keys([candidate], 1), taken)[0])
        given.add(candidate)
        fresh.append(candidate)
    return fresh


def _among(hashes: UInt64s, taken: UInt64s) -> Bools:
    found = np.zeros(len(hashes), np.bool_)
    if len(taken):
        for identities in (hashes, hashes ^ STRAY_SALT):
            at = np.searchsorted(taken, identities)
            found |= taken[np.minimum(at, len(taken) - 1)] == identities
    return found
