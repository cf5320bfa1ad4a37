"""Joins the records of one partition: finds the pieces of each record, and their errors.

An extractor marks the pieces of its shard; the orderer finds the pieces of one record."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.data.columns import Bools, BytesColumn, Int32s, Int64s, UInt64s, cut_rows
from dsort.data.hashes import hash_keys
from dsort.data.index import EXTENSIONS, KEYS, ORDINAL, ROW, SAYS, SHARD, SortKeys
from dsort.data.members import MemberTable
from dsort.data.record_table import RecordTable
from dsort.data.records import FormedRecords
from dsort.data.row_bytes import side_by_side
from dsort.data.table import Table
from dsort.data.tally import FLOW_DROPPED, SAMPLES_MAX
from dsort.moves.input_shard import read_inputs
from dsort.naming.names import readable
from dsort.order.algorithms import Shuffle
from dsort.order.base import Algorithm
from dsort.order.equal_keys import (
    Joined,
    JoinedKind,
    JoinedPlaces,
    JoinRule,
    LeftOut,
    conflicts_in,
    join_order,
    join_rows,
    left_out_in,
)
from dsort.scratch.index import IndexStore
from dsort.scratch.logs import LineWriter, ReactionLog, lines_file, reaction_line
from dsort.scratch.nodes import ScratchNodes, ShardLocations
from dsort.scratch.requests import KeysOf
from dsort.scratch.tables import NTH, PLACE, Positions, by_position, positions_of_records
from dsort.storage.routed import input_of
from dsort.workers.batch import Batch, Operator
from dsort.workers.tasks import ExtractTask, JoinDone, JoinFinding, OrderTask

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
        """``places``: the algorithm that orders by places, if a pass has to find the places."""
        self._places = places
        self._nodes = nodes
        self._rule = rule
        self._decreasing = decreasing
        self._shards: list[str] = []
        self._input_of = np.zeros(0, np.int32)

    def join(self, task: OrderTask, rows: Table, sort: SortKeys) -> tuple[Joined, JoinDone]:
        """Join the records of one partition. Return their rows, and the findings for the
        coordinator. ``sort``: the sort keys of all ``rows``, one shard after the other."""
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
        """Find and store the pieces and members that have to be left out before payload moves."""
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
        """Store the pieces that stay. Each piece has the number of its record; the first piece of a
        record also has the value that orders the record. ``keeps_last``: the last piece with a
        value decides; without ``keeps_last``, the first piece with a value does."""
        pieces, offsets = found.joined.rows, found.joined.record_offsets
        said = rows.filled(SAYS).take(pieces)
        record = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        there = np.flatnonzero(said.lengths > 0)
        decides = np.full(len(offsets) - 1, -1, np.int64)
        # Reversed, the first value is assigned last.
        ordered = there if keeps_last else there[::-1]
        decides[record[ordered]] = ordered  # of repeated indexes, the last assignment stays
        # The algorithm has one value for all records without a value, and gets one of them as an
        # example.
        unsaid = b""
        for silent in np.flatnonzero(decides < 0)[:1].tolist():
            first = pieces[offsets[silent] : offsets[silent] + 1]
            (shard, key), *_ = found.names.pairs(first)
            unsaid = places.unsaid(_record_without_members(shard, key.encode()))
        # Row 0 is for later pieces, row 1 for first pieces of records without a value.
        texts = BytesColumn.concat([BytesColumn.of([b"", unsaid]), said])
        which = np.zeros(len(pieces), np.int64)
        which[offsets[:-1]] = np.where(decides < 0, 1, decides + 2)
        own = found.names.shard[pieces].astype(np.int64), found.ordinal[pieces]
        table = positions_of_records(*own, record, texts.take(which))
        self._nodes.store.write_table(f"said-{task.partition}.col", table)

    def _found(self, task: OrderTask, rows: Table, sort: SortKeys, rule: JoinRule) -> _Found:
        keys = sort.texts
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
    """One joined partition: its rows in order, the joined records, conflicts (pieces of a record
    with the same extension), the ordinal of each row, and the names."""

    order: Int64s
    joined: Joined
    conflicts: list[tuple[int, int, bytes]]
    ordinal: Int64s
    names: _Names


class _Names:
    """The names of records, by row of a partition. Keys are read only where a message needs
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
    records = FormedRecords(
        keys=BytesColumn.of([key]),
        key_hash=hash_keys([key], 1),
        member_offsets=np.zeros(2, np.int64),
        member_rows=none,
        key_bytes=none,
        payload_bytes=np.zeros(1, np.int64),
        stored_bytes=np.zeros(1, np.int64),
    )
    return RecordTable(shard, MemberTable.empty(), records, lambda of, row: b"")


_STRAY = b"\0"
"""The mark for the one member of a stray, which has no extension."""


class LeaveOutByJoin(Operator):
    """Removes records and members that a join leaves out, and notes the places of the pieces that
    stay."""

    def apply(self, batch: Batch) -> None:
        """Change ``batch``; count what is removed, and log its names."""
        stage, before = batch.task.stage, batch.table
        if stage.left_out:
            batch.records = _left(self.store, batch.task, before, batch.log).records
            batch.found = Table(len(batch.records))
        if stage.places:
            positions = self.store.positions(stage.places)
            places = place_words(positions, batch.task.shard, before, batch.table)
            batch.found = batch.found.with_(PLACE, places)


def _left(
    store: IndexStore, task: ExtractTask, table: RecordTable, log: ReactionLog
) -> RecordTable:
    positions = store.positions(task.stage.left_out)
    found = positions.of_shard(task.shard, [NTH, KEYS], records=len(table))
    if not len(found):
        return table
    ordinals, why = found[ORDINAL], found[NTH]
    records = table.records
    kept = np.ones(len(records.member_rows), np.bool_)
    of_whole = np.isin(table.record_of, ordinals[why != LeftOut.MEMBERS])
    kept[of_whole] = False
    for kind, reasons in (
        ("left_out_by_join", (LeftOut.RECORD,)),
        ("duplicate_keys_dropped", (LeftOut.DUPLICATE,)),
    ):
        rows = ordinals[np.isin(why, reasons)].tolist()
        log.add(kind, len(rows), [f"{task.name}: {readable(table.keys[row])}" for row in rows])
    lists = found[KEYS]
    names = []
    for at in np.flatnonzero(why == LeftOut.MEMBERS).tolist():
        wanted = {*lists[at].split(b"\0")}
        names += _without(table, int(ordinals[at]), wanted, kept)
    log.add("conflicts_left_out", len(names), [f"{task.name}: {name}" for name in names])
    left = table.keeping_members(kept)
    log.add(f"{FLOW_DROPPED}join", len(table) - len(left))
    return left


def _without(table: RecordTable, record: int, wanted: set[bytes], kept: Bools) -> list[str]:
    """Clear ``kept`` for members of a record with an extension in ``wanted``. Return their
    names."""
    records, names, found = table.records, table.members.names, []
    first, last = records.member_offsets[record : record + 2].tolist()
    for at in range(first, last):
        row = int(records.member_rows[at])
        name = names[row]
        if name[int(records.key_bytes[row]) :] in wanted:
            kept[at] = False
            found.append(readable(name))
    return found


def extension_lists(table: RecordTable) -> BytesColumn:
    """The extensions of the members of each record, each followed by a zero byte."""
    names, records = table.members.names, table.records
    rows = records.member_rows
    key_bytes = records.key_bytes[rows]
    own = cut_rows(
        names.blob, names.offsets[:-1][rows] + key_bytes, names.lengths[rows] - key_bytes
    )
    ended = side_by_side([own, b"\0"], len(own))
    return BytesColumn(ended.offsets[records.member_offsets], ended.blob)


SEARCHED = Shuffle(seed="")
"""The order of records in the pass that only finds what a join leaves out: by hashes, which split
evenly whatever the order of the job is."""


def place_sort_keys(words: UInt64s, table: RecordTable, extensions: BytesColumn) -> SortKeys:
    """The sort keys of pieces whose places are known, in the form of ``join_sort_keys``."""
    return SortKeys(len(table), words=words, text=_identity(table, extensions))


def place_words(
    positions: Positions, shard: int, before: RecordTable, left: RecordTable
) -> UInt64s:
    """For each piece in ``left``, the place of its record. ``before``: all pieces of the shard."""
    found = positions.of_shard(shard, [PLACE], records=len(before))
    words = np.zeros(len(before), np.uint64)
    words[found[ORDINAL]] = found[PLACE]
    record_of = np.zeros(len(before.members), np.int64)
    record_of[before.records.member_rows] = before.record_of
    records = left.records
    return words[record_of[records.member_rows[records.member_offsets[:-1]]]]


def join_sort_keys(algorithm: Algorithm, table: RecordTable, extensions: BytesColumn) -> SortKeys:
    """The sort key of each record: the algorithm's key for the record key alone, followed by the
    record key. A stray ``a`` is not the record ``a``. ``extensions``: see ``extension_lists``."""
    # Pieces of one record come from shards with different names, and must get equal sort keys.
    keys = algorithm.sort_keys(replace(table, shard=""))
    different, which = np.unique(table.key_hash, return_inverse=True)
    if len(different) < len(table) and algorithm.has_hashes:
        # A shuffle gives repeated keys of one shard different sort keys; pieces need equal ones.
        keys = replace(keys, words=algorithm.hashes("", different)[which])
    text = identity = _identity(table, extensions)
    if keys.text is not None and keys.text is not table.keys:
        # With the record key at its end, a sort key is equal for all pieces of one record, and only
        # for them.
        text = side_by_side([keys.text, b"\0", identity], len(table))
    return replace(keys, text=text)


def _identity(table: RecordTable, extensions: BytesColumn) -> BytesColumn:
    """The key of each record, marked for strays: a stray ``a`` is not the record ``a``."""
    stray = extensions.lengths == len(_STRAY)
    if not stray.any():
        return table.keys
    marks = BytesColumn.of([b"", _STRAY]).take(stray.astype(np.int64))
    return side_by_side([table.keys, marks], len(table))
