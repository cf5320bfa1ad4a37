"""Planned output shards in columns: a million of them take 170 MB. As objects they would take 700
MB.

Pieces come partition by partition, are stored as numbers, and are merged into shards. Iterating
over shards yields objects, one after the other.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import overload

import numpy as np
from numpy.typing import NDArray

from dsort.data.columns import Int64s, rows_of_runs
from dsort.order.cut import CutRule, OutputShard, Piece

AT_ONCE = 4096
"""The number of rows that are objects at a time."""
_PIECE = list(Piece._fields)
_SUMS = ("records", "members", "payload_bytes", "stored_bytes", "entries_bytes", "measured_bytes")
_OWN = ("group", "number", *_SUMS, "head_bytes", "end_bytes")
_SHARD = OutputShard._fields
_BEFORE_PIECES = _SHARD[1 : _SHARD.index("pieces")]  # behind the ordinal
_BEHIND_PIECES = _SHARD[_SHARD.index("pieces") + 1 :]


class Pieces:
    """Pieces in cut order."""

    def __init__(self, pieces: Iterable[Piece] = ()) -> None:
        self._numbers = array("q")
        self.extend(pieces)

    def __len__(self) -> int:
        return len(self._numbers) // len(_PIECE)

    def extend(self, pieces: Iterable[Piece]) -> None:
        """Add pieces behind the others."""
        for piece in pieces:
            self._numbers.extend(piece)

    def __iter__(self) -> Iterator[Piece]:
        table = self.table()
        for begin in range(0, len(table), AT_ONCE):
            for numbers in table[begin : begin + AT_ONCE].tolist():
                yield Piece(*numbers)

    def table(self) -> NDArray[np.int64]:
        """All pieces, shape ``(n, fields of a piece)``, not copied: while the table is in use, no
        piece can be added."""
        numbers = np.frombuffer(self._numbers, np.int64) if self._numbers else np.zeros(0, np.int64)
        return numbers.reshape(-1, len(_PIECE))


class OutputShards(Sequence[OutputShard]):
    """The output shards of a plan, in their order."""

    def __init__(
        self,
        columns: dict[str, Int64s],
        pieces: NDArray[np.int64],
        first: Int64s,
        stop: Int64s,
    ) -> None:
        """``columns``: by field of :class:`OutputShard`, shape ``(n,)`` each. Shard ``i`` has
        ``pieces[first[i]:stop[i]]``."""
        self._columns = columns
        self._pieces = pieces
        self._first = first
        self._stop = stop

    @classmethod
    def of(cls, shards: Sequence[OutputShard]) -> OutputShards:
        """The columns of ``shards``, whose ordinals count from 0."""
        columns = {
            name: np.fromiter((getattr(each, name) for each in shards), np.int64, len(shards))
            for name in _OWN
        }
        counts = np.fromiter((len(each.pieces) for each in shards), np.int64, len(shards))
        stop = np.cumsum(counts)
        pieces = Pieces(
            piece._replace(offset=piece.offset - each.head_bytes)
            for each in shards
            for piece in each.pieces
        )
        return cls(columns, pieces.table(), stop - counts, stop)

    def __len__(self) -> int:
        return len(self._first)

    @overload
    def __getitem__(self, at: int) -> OutputShard: ...
    @overload
    def __getitem__(self, at: slice) -> list[OutputShard]: ...
    def __getitem__(self, at: int | slice) -> OutputShard | list[OutputShard]:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        return next(self.at(np.array([range(len(self))[at]])))

    def __iter__(self) -> Iterator[OutputShard]:
        return self.at(np.arange(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def column(self, name: str) -> Int64s:
        """A field of all shards, shape ``(n,)``. Callers must not change it."""
        return self._columns[name]

    def total(self, name: str) -> int:
        """The sum of a field over all shards."""
        return int(self._columns[name].sum())

    @property
    def container_bytes(self) -> Int64s:
        """The size of each shard without a codec around it, shape ``(n,)``."""
        own = self._columns
        size: Int64s = own["head_bytes"] + own["stored_bytes"] + own["end_bytes"]
        return size

    @property
    def file_bytes(self) -> Int64s:
        """The known or estimated size of each shard, shape ``(n,)``."""
        measured = self._columns["measured_bytes"]
        size: Int64s = np.where(measured >= 0, measured, self.container_bytes)
        return size

    def partitions(self) -> tuple[Int64s, Int64s]:
        """(shard, partition) of each piece, in the order of the shards; shape ``(pieces,)``
        each."""
        counts = self._stop - self._first
        shard = np.repeat(np.arange(len(self)), counts)
        piece, _ = rows_of_runs(self._first, counts)
        return shard, self._pieces[piece, _PIECE.index("partition")]

    def with_columns(self, **columns: Int64s) -> OutputShards:
        """The same shards with other ``columns``."""
        return OutputShards(self._columns | columns, self._pieces, self._first, self._stop)

    def at(self, ordinals: Int64s) -> Iterator[OutputShard]:
        """Yield the shards ``ordinals``, in that order; shape ``(k,)``."""
        offset = _PIECE.index("offset")
        for begin in range(0, len(ordinals), AT_ONCE):
            some = ordinals[begin : begin + AT_ONCE]
            before, behind = (
                [self._columns[name][some].tolist() for name in names]
                for names in (_BEFORE_PIECES, _BEHIND_PIECES)
            )
            first, counts = self._first[some], self._stop[some] - self._first[some]
            rows, _ = rows_of_runs(first, counts)
            table = self._pieces[rows]
            table[:, offset] += np.repeat(self._columns["head_bytes"][some], counts)
            pieces = map(Piece._make, table.tolist())
            of_shard = (tuple(islice(pieces, count)) for count in counts.tolist())
            yield from map(OutputShard, some.tolist(), *before, of_shard, *behind)


def rows_of(*columns: Int64s) -> Iterator[tuple[int, ...]]:
    """Yield the rows of columns of shape ``(n,)``; only ``AT_ONCE`` rows are objects at a time."""
    for begin in range(0, len(columns[0]), AT_ONCE):
        some = (column[begin : begin + AT_ONCE].tolist() for column in columns)
        yield from zip(*some, strict=True)


def merge_pieces(pieces: Pieces | Iterable[Piece], *, rule: CutRule = CutRule()) -> OutputShards:
    """The output shards that the pieces (in cut order) form. Shards without records have no pieces.
    They are added if ``rule`` fixes the number of shards, and may be anywhere in their group."""
    table = (pieces if isinstance(pieces, Pieces) else Pieces(pieces)).table()
    group, number = table[:, _PIECE.index("group")], table[:, _PIECE.index("number")]
    begins = np.ones(len(table), bool)
    begins[1:] = (np.diff(group) != 0) | (np.diff(number) != 0)
    first = np.flatnonzero(begins)
    stop = np.append(first[1:], len(table)) if len(table) else first
    columns = {"group": group[first], "number": number[first]}
    table_of = {name: table[:, _PIECE.index(name)] for name in _PIECE}
    table_of["records"] = table_of["row_stop"] - table_of["row_start"]
    for name in _SUMS:
        columns[name] = (
            np.add.reduceat(table_of[name], first) if len(first) else np.zeros(0, np.int64)
        )
    unmeasured = table_of["measured_bytes"][first] < 0
    columns["measured_bytes"] = np.where(unmeasured, -1, columns["measured_bytes"])
    columns["head_bytes"] = columns["end_bytes"] = np.zeros(len(first), np.int64)
    return _with_empty_ones(OutputShards(columns, table, first, stop), rule)


def _with_empty_ones(shards: OutputShards, rule: CutRule) -> OutputShards:
    groups, numbers = shards.column("group"), shards.column("number")
    empty: list[tuple[int, int]] = []
    for group, each in enumerate(rule.of_outputs or (rule,)):
        there = numbers[groups == group]
        # np.setdiff1d loads numpy.ma: 50 million instructions of each job.
        is_missing = np.ones(each.inputs or each.count or len(each.counts), np.bool_)
        is_missing[there[there < len(is_missing)]] = False
        empty += [(group, number) for number in np.flatnonzero(is_missing).tolist()]
    if not empty:
        return shards
    added = np.array(empty, np.int64).reshape(-1, 2)
    columns = {name: shards.column(name) for name in _OWN}
    kept = {"group": added[:, 0], "number": added[:, 1]}
    usual = {"measured_bytes": -1}
    columns = {
        name: np.append(column, kept.get(name, np.full(len(added), usual.get(name, 0), np.int64)))
        for name, column in columns.items()
    }
    nothing = np.zeros(len(added), np.int64)
    first, stop = np.append(shards._first, nothing), np.append(shards._stop, nothing)
    order = np.lexsort((columns["number"], columns["group"]))
    return OutputShards(
        {name: column[order] for name, column in columns.items()},
        shards._pieces,
        first[order],
        stop[order],
    )
