"""Records of several inputs that are to be joined, during extraction: removes the records and
members that the join leaves out, and computes the additional columns of the index."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from dsort.data.columns import Bools, BytesColumn, UInt64s, cut_rows
from dsort.data.index import KEYS, ORDINAL, SortKeys
from dsort.data.record_table import RecordTable
from dsort.data.row_bytes import side_by_side
from dsort.data.table import Table
from dsort.data.tally import FLOW_DROPPED
from dsort.naming.names import readable
from dsort.order.base import Algorithm
from dsort.order.joining import LeftOut
from dsort.order.shuffle import Shuffle
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.index import IndexStore
from dsort.scratch.logs import ReactionLog
from dsort.scratch.positions import NTH, PLACE, Positions
from dsort.workers.batch import Batch, Operator
from dsort.workers.tasks import ExtractTask

_STRAY = b"\0"
"""The mark for the one member of a stray, which has no extension."""


class LeaveOutByJoin(Operator):
    """Removes what a join leaves out, and notes the places of the pieces that stay."""

    @staticmethod
    def is_needed(pipeline: Pipeline) -> bool:
        """Whether inputs are joined."""
        return bool(pipeline.join)

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
    """Clear ``kept`` for the members of a record whose extensions are in ``wanted``. Return their
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
    """The extensions of the members of each record, a zero byte behind each."""
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
    """The sort keys of pieces, as ``join_sort_keys``, where places are known."""
    return SortKeys(len(table), words=words, text=_identity(table, extensions))


def place_words(
    positions: Positions, shard: int, before: RecordTable, left: RecordTable
) -> UInt64s:
    """The place of the record of each piece in ``left``. ``before``: all pieces of the shard."""
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
    keys = algorithm.sort_keys(replace(table, shard=""))
    different, which = np.unique(table.key_hash, return_inverse=True)
    if len(different) < len(table):  # a shuffle would separate equal keys in one shard
        words = algorithm.hashes("", different)
        keys = keys if words is None else replace(keys, words=words[which])
    text = identity = _identity(table, extensions)
    if keys.text is not None and keys.text is not table.keys:
        text = side_by_side([keys.text, b"\0", identity], len(table))
    return replace(keys, text=text)


def _identity(table: RecordTable, extensions: BytesColumn) -> BytesColumn:
    """The key of each record, marked for strays: a stray ``a`` is not the record ``a``."""
    stray = extensions.lengths == len(_STRAY)
    if not stray.any():
        return table.keys
    marks = BytesColumn.of([b"", _STRAY]).take(stray.astype(np.int64))
    return side_by_side([table.keys, marks], len(table))
