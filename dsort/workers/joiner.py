"""Joins the records of one partition: finds the pieces of each record, and their errors."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from msgspec import Struct

from dsort.data.columns import BytesColumn, Int32s, Int64s
from dsort.data.hashes import hash_keys
from dsort.data.index import EXTENSIONS, ORDINAL, ROW, SAYS, SHARD, SortKeys
from dsort.data.members import MemberTable
from dsort.data.record_table import RecordTable
from dsort.data.records import FormedRecords
from dsort.data.table import Table
from dsort.data.tally import SAMPLES_MAX
from dsort.moves.input_shard import read_inputs
from dsort.naming.names import readable
from dsort.order.joined_places import JoinedPlaces
from dsort.order.joining import (
    Joined,
    JoinedKind,
    JoinRule,
    conflicts_in,
    join_order,
    join_rows,
    left_out_in,
)
from dsort.scratch.logs import LineWriter, lines_file, reaction_line
from dsort.scratch.nodes import ScratchNodes, ShardLocations
from dsort.scratch.positions import by_position, positions_of_records
from dsort.scratch.requests import KeysOf
from dsort.storage.routed import input_of
from dsort.workers.tasks import JoinDone, JoinFinding, OrderTask

NUL = b"\0"
_LOGGED = {
    JoinedKind.DUPLICATE: "duplicate_keys_dropped",
    JoinedKind.LEFT_OUT: JoinedKind.LEFT_OUT,
}
"""The kind of reaction to log for each kind of records that are left out."""


def keys_of(
    nodes: ScratchNodes, locations: ShardLocations, stage: str, shards: Int64s, rows: Int64s
) -> BytesColumn:
    """The keys of ``rows`` of the index files of ``shards``, shapes ``(n,)``, sorted by shard."""
    shards = locations.file_of[shards].astype(np.int64)
    node = locations.node_of[shards]
    columns, places = [], []
    for number in np.unique(node).tolist():
        mine = np.flatnonzero(node == number)
        bounds = [*np.flatnonzero(np.diff(shards[mine], prepend=-1)).tolist(), len(mine)]
        request = KeysOf(
            stage,
            tuple(shards[mine[a]] for a in bounds[:-1]),
            tuple(rows[mine[a:b]] for a, b in pairwise(bounds)),
        )
        columns.append(nodes.ask(locations.nodes[number], request))
        places.append(mine)
    if not columns:
        return BytesColumn.of([])
    return BytesColumn.concat(columns).take(np.argsort(np.concatenate(places)))


class Joiner:
    """Joins partitions for one job, in one worker."""

    def __init__(
        self,
        nodes: ScratchNodes,
        rule: JoinRule,
        *,
        decreasing: bool,
        places: JoinedPlaces | None = None,
    ) -> None:
        """``places``: the algorithm by places, if a pass has to find them."""
        self._places = places
        self._nodes = nodes
        self._rule = rule
        self._decreasing = decreasing
        self._shards: list[str] = []
        self._input_of = np.zeros(0, np.int32)

    def join(self, task: OrderTask, rows: Table, sort: SortKeys) -> tuple[Joined, JoinDone]:
        """Join the records of one partition. Return their rows, and the findings for the
        coordinator. ``sort``: of all ``rows``, one shard after the other."""
        rule = self._rule.settled() if self._rule.is_settled_first else self._rule
        found = self._found(task, rows, sort, rule)
        joined, names = found.joined, found.names
        told = [self._finding(kind, number, each, names) for kind, number, each in joined.found]
        if found.conflicts:
            told.append(self._conflict(found.conflicts, names))
        self._log(task, joined, names)
        left_out = len(found.order) - len(joined.rows)
        return joined, JoinDone(len(joined.rows), left_out, found=tuple(told))

    def search(self, task: OrderTask, rows: Table, sort: SortKeys) -> JoinDone:
        """Find and store what has to be left out before payload moves."""
        found = self._found(task, rows, sort, self._rule)
        told = [
            self._finding(kind, number, each, found.names)
            for kind, number, each in found.joined.found
            if kind == JoinedKind.UNMATCHED
            or (kind == JoinedKind.DUPLICATE and not self._rule.drops_later)
        ]
        keeps_last, conflicts = self._rule.conflict == "last", found.conflicts
        if conflicts and self._rule.conflict == "error":
            told.append(self._conflict(conflicts, found.names))
            conflicts = []
        gone, why, lists = left_out_in(found.joined, conflicts, found.order, keeps_last=keeps_last)
        shards, ordinals = found.names.shard[gone].astype(np.int64), found.ordinal[gone]
        if len(gone):
            table = by_position(positions_of_records(shards, ordinals, why, lists))
            self._nodes.store.write_table(f"left-out-{task.partition}.col", table)
        if self._places is not None and not told:
            self._store_said(task, rows, found, self._places, keeps_last=keeps_last)
        return JoinDone(len(found.joined.rows), 0, len(gone), tuple(told))

    def _store_said(
        self,
        task: OrderTask,
        rows: Table,
        found: _Found,
        places: JoinedPlaces,
        *,
        keeps_last: bool,
    ) -> None:
        """Store the pieces that stay. Each has the number of its record; the first piece of a
        record also has the value that the record is ordered by. ``keeps_last``: the last piece with
        a value decides it, else the first one."""
        pieces, offsets = found.joined.rows, found.joined.record_offsets
        said = (rows[SAYS] if SAYS in rows else BytesColumn.empty(len(rows))).take(pieces)
        record = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        there = np.flatnonzero(said.lengths > 0)
        decides = np.full(len(offsets) - 1, -1, np.int64)
        ordered = there if keeps_last else there[::-1]
        decides[record[ordered]] = ordered  # of repeated indexes, the last assignment stays
        unsaid = b""
        for silent in np.flatnonzero(decides < 0)[:1].tolist():
            first = pieces[offsets[silent] : offsets[silent] + 1]
            (shard, key), *_ = found.names.pairs(first)
            unsaid = places.unsaid(_record_without_members(shard, key.encode()))
        texts = BytesColumn.concat([BytesColumn.of([b"", unsaid]), said])
        which = np.zeros(len(pieces), np.int64)
        which[offsets[:-1]] = np.where(decides < 0, 1, decides + 2)
        own = found.names.shard[pieces].astype(np.int64), found.ordinal[pieces]
        table = positions_of_records(*own, record, texts.take(which))
        self._nodes.store.write_table(f"said-{task.partition}.col", table)

    def _found(self, task: OrderTask, rows: Table, sort: SortKeys, rule: JoinRule) -> _Found:
        keys = BytesColumn.empty(0) if sort.text is None else sort.text  # None without rows
        shard = rows[SHARD]
        order = join_order(sort, decreasing=self._decreasing)
        joined = join_rows(rule, order, keys, self._inputs()[shard])
        conflicts = conflicts_in(joined, rows[EXTENSIONS]) if EXTENSIONS in rows else []
        row_in_file = rows[ROW] if ROW in rows else np.zeros(0, np.int64)  # missing without rows
        names = _Names(self, task, shard, row_in_file)
        return _Found(order, joined, conflicts, rows[ORDINAL], names)

    def _inputs(self) -> Int32s:
        """The number of the input that each shard belongs to."""
        if not self._shards:
            self._shards = [each.name for each in read_inputs(self._nodes.store)]
            numbers = {name: number for number, name in enumerate(self._rule.inputs)}
            found = [numbers[input_of(name, self._rule.inputs)] for name in self._shards]
            self._input_of = np.array(found, np.int32)
        return self._input_of

    def _finding(self, kind: str, number: int, rows: Int64s, names: _Names) -> JoinFinding:
        input_name = self._rule.inputs[number] if number >= 0 else ""
        return JoinFinding(kind, len(rows), input_name, tuple(names.of(rows[:SAMPLES_MAX])))

    def _conflict(self, conflicts: list[tuple[int, int, bytes]], names: _Names) -> JoinFinding:
        rows, earlier, extensions = zip(*conflicts[:SAMPLES_MAX], strict=True)
        samples = (
            f"{readable(extension.partition(NUL)[0])} of {one} and {other}"
            for extension, one, other in zip(
                extensions,
                names.of(np.array(earlier, np.int64)),
                names.of(np.array(rows, np.int64)),
                strict=True,
            )
        )
        return JoinFinding(JoinedKind.CONFLICT, len(conflicts), "", tuple(samples))

    def _log(self, task: OrderTask, joined: Joined, names: _Names) -> None:
        """Log the names of all records that are left out."""
        writer = LineWriter(self._nodes.store.scratch, lines_file("join", task.partition))
        for kind, _, rows in joined.found:
            if kind in _LOGGED:
                writer.write(
                    reaction_line(_LOGGED[kind], shard=shard, name=key)
                    for shard, key in names.pairs(rows)
                )
        writer.close()


class _Found(Struct, frozen=True, eq=False):
    """One joined partition: its rows in order, the joined records, conflicts (pieces with members
    of the same extension), the ordinal of each row, and the names."""

    order: Int64s
    joined: Joined
    conflicts: list[tuple[int, int, bytes]]
    ordinal: Int64s
    names: _Names


class _Names:
    """The names of records, by row of a partition. They are read only where a message needs
    them."""

    def __init__(self, joiner: Joiner, task: OrderTask, shard: Int32s, row_in_file: Int64s) -> None:
        self._joiner = joiner
        self._task = task
        self.shard = shard
        self._row_in_file = row_in_file

    def pairs(self, rows: Int64s) -> list[tuple[str, str]]:
        """(shard, key) of each of ``rows``."""
        nodes, shards = self._joiner._nodes, self._joiner._shards
        by_shard = np.argsort(self.shard[rows], kind="stable")
        sorted_rows = rows[by_shard]
        own = self.shard[sorted_rows].astype(np.int64)
        keys = keys_of(
            nodes,
            nodes.locations(self._task.locations),
            self._task.stage,
            own,
            self._row_in_file[sorted_rows],
        )
        found: list[tuple[str, str]] = [("", "")] * len(rows)
        for place, shard, key in zip(by_shard.tolist(), own.tolist(), keys.tolist(), strict=True):
            found[place] = shards[shard], readable(key)
        return found

    def of(self, rows: Int64s) -> list[str]:
        """``shard: key`` of each of ``rows``."""
        return [f"{shard}: {key}" for shard, key in self.pairs(rows)]


def _record_without_members(shard: str, key: bytes) -> RecordTable:
    none = np.zeros(0, np.int64)
    members = MemberTable(BytesColumn.of([]), np.zeros(0, np.uint8), none, none, none, none)
    records = FormedRecords(
        keys=BytesColumn.of([key]),
        key_hash=hash_keys([key], 1),
        member_offsets=np.zeros(2, np.int64),
        member_rows=none,
        key_bytes=none,
        payload_bytes=np.zeros(1, np.int64),
        stored_bytes=np.zeros(1, np.int64),
    )
    return RecordTable(shard, members, records, lambda of, row: b"")
