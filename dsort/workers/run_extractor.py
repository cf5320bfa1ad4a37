"""Extracts small shards in runs: scans each shard separately, then processes the members of all
shards at once.

Forming, hashing, partitioning and writing the records of a shard takes some hundred calls of NumPy,
and a file. For a shard of ten records, that costs more than reading it. A run has one index file,
and one piece in the spill of each partition, so that neither number grows as shards times
partitions. A shard that is not plain (see ``_is_plain``) is extracted alone, like any other shard,
so that its oddities are reported for that shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.data.columns import BytesColumn, Int64s
from dsort.data.index import (
    KEY_HASH,
    MEMBERS,
    PAYLOAD_BYTES,
    RANGES,
    SHARD,
    STORED_BYTES,
    SortKeys,
    record_index,
)
from dsort.data.members import MemberKind, MemberTable, ScanNotes
from dsort.data.record_table import RecordTable
from dsort.data.records import FormedRecords, form_run
from dsort.data.segments import Segments
from dsort.data.table import Table
from dsort.errors import CorruptShardError, InvariantError
from dsort.moves.input_shard import ShardBytes, Window, open_input
from dsort.moves.payload_files import PayloadBuffer
from dsort.naming.safe_names import unsafe_rows
from dsort.scratch.logs import lines_file
from dsort.scratch.nodes import ScratchNodes
from dsort.storage.bucket import Bucket
from dsort.workers.extractor import Extractor
from dsort.workers.tasks import (
    ExtractRunTask,
    ExtractTask,
    RunExtracted,
    ShardExtracted,
    WorkerSetup,
)


class _Scanned(Struct, frozen=True):
    """A plain shard. ``begin``: where its bytes begin among the bytes of the run."""

    task: ExtractTask
    members: MemberTable
    begin: int


class _RunBytes(Struct, frozen=True):
    """The bytes of a run, which is in the buffer. ``whole``: the bytes of all its shards."""

    whole: memoryview

    def windows(self, segments: Segments) -> Iterator[Window]:
        """Yield all bytes as one window."""
        yield Window(0, len(segments.offsets) - 1, self.whole, 0)

    def stream(self, segments: Segments, row: int) -> Iterator[memoryview]:
        """Raise ``InvariantError``: every record of a run fits in the buffer."""
        raise InvariantError("a run of shards is in the buffer")


class RunExtractor:
    """Extracts runs of small shards for one job, in one worker. ``one``: extracts single shards."""

    def __init__(
        self,
        setup: WorkerSetup,
        worker: int,
        inputs: Bucket,
        buffer: PayloadBuffer,
        nodes: ScratchNodes,
        one: Extractor,
    ) -> None:
        self._setup = setup
        self._pipeline = setup.pipeline
        self._worker = worker
        self._inputs, self._buffer = inputs, buffer
        self._node, self._store = nodes.node, nodes.store
        self._one = one
        self._is_worth_it = True

    def extract(self, run: ExtractRunTask) -> RunExtracted:
        """Extract one run. ``InputError`` and its subclasses name shard and record."""
        done: dict[int, ShardExtracted] = {}
        for stretch in self._stretches(run.shards) if self._is_worth_it else ():
            done |= {facts.shard: facts for facts in self._stored(stretch)}
        # If most shards are not plain, for example because each has a directory, later runs will
        # be alike.
        self._is_worth_it = 2 * len(done) >= len(run.shards)
        # Last, because single extractions overwrite the buffer.
        alone = (task for task in run.shards if task.shard not in done)
        done |= {task.shard: self._one.extract(task) for task in alone}
        return RunExtracted(tuple(done[task.shard] for task in run.shards))

    def _stretches(self, tasks: Sequence[ExtractTask]) -> list[list[_Scanned]]:
        """The shards in runs of neighbours, without those that have to be extracted alone."""
        found = groupby(self._scanned(tasks), lambda each: each is not None)
        return [[each for each in group if each] for is_plain, group in found if is_plain]

    def _scanned(self, tasks: Sequence[ExtractTask]) -> list[_Scanned | None]:
        """Scan the shards one by one; None for a shard that is not plain. If payload moves to the
        spill, the shards are in the buffer afterwards, one behind the other."""
        found: list[_Scanned | None] = []
        begin = 0
        for task in tasks:
            members = self._members(task, begin)
            if members is not None and _is_plain(members):
                found.append(_Scanned(task, members, begin))
            else:
                found.append(None)
            begin += task.size_bytes
        return found

    def _members(self, task: ExtractTask, begin: int) -> MemberTable | None:
        """The members of one shard; None if it is corrupt, or cannot be read as it is stored."""
        source = open_input(self._inputs, task.name, task.size_bytes, task.etag)
        with source:
            shard = ShardBytes(
                task.name,
                source,
                self._buffer.part(begin, task.size_bytes) if task.stage.spill else self._buffer,
                mapped=not task.stage.spill,
                container=self._pipeline.reading.container_of(task.name),
                decoding=self._pipeline.reading.decoding,
            )
            if shard.codec is not None or shard.is_mapped is task.stage.spill:
                return None
            try:
                members = shard.members()
            except CorruptShardError:
                return None  # the extractor of single shards reports the error
            finally:
                shard.close()
            view = source.mapping() if self._setup.movement.way.keeps_mappings else None
            if view is not None and self._one.mapped is not None:
                self._one.mapped.keep(task.shard, view)
        return members

    def _stored(self, run: Sequence[_Scanned]) -> list[ShardExtracted]:
        """Store the index and payload of a run, and return the facts about its shards. A run whose
        records cannot be formed together is stored as two halves. A single shard is left out, as it
        gains nothing from this."""
        if len(run) < 2:
            return []
        members = _joined(run)
        begins = np.cumsum([0, *(len(each.members) for each in run)])
        records = None if unsafe_rows(members.names) else form_run(members, begins[:-1])
        if records is None:
            half = len(run) // 2
            return self._stored(run[:half]) + self._stored(run[half:])
        task, stage = run[0].task, run[0].task.stage
        bounds = np.searchsorted(records.member_offsets[:-1], begins)
        index = self._index(run, members, records, bounds)
        last = run[-1]
        payload = _RunBytes(memoryview(b""))
        if stage.spill:
            payload = _RunBytes(self._buffer.view(last.begin + last.task.size_bytes))
        else:
            index = index.with_(RANGES, _in_shards(index[RANGES], run, bounds))
        for each in run:  # before the index: it must not have the log of an earlier attempt
            self._store.scratch.unlink(lines_file(stage.name, each.task.shard))
        self._one.writer.write(stage, task.shard, index, payload, in_memory=False)
        return self._facts(run, index, bounds)

    def _index(
        self,
        run: Sequence[_Scanned],
        members: MemberTable,
        records: FormedRecords,
        bounds: Int64s,
    ) -> Table:
        """The index, in input order, with places in the bytes of the run. ``bounds``: where the
        records of each shard begin, and the end."""
        counts = np.diff(bounds)
        shards = np.array([each.task.shard for each in run], np.int32)
        index = record_index(
            ordinal=np.arange(len(records), dtype=np.int64) - np.repeat(bounds[:-1], counts),
            keys=records.keys,
            sort=self._sort_keys(run, members, records, bounds),
            members=np.diff(records.member_offsets).astype(np.int32),
            payload_bytes=records.payload_bytes,
            stored_bytes=records.stored_bytes,
            ranges=records.segments(members),
        )
        return index.with_(KEY_HASH, records.key_hash).with_(SHARD, np.repeat(shards, counts))

    def _sort_keys(
        self,
        run: Sequence[_Scanned],
        members: MemberTable,
        records: FormedRecords,
        bounds: Int64s,
    ) -> SortKeys:
        algorithm = self._pipeline.algorithm
        words = [np.zeros(0, np.uint64)]
        for each, start, stop in zip(run, bounds[:-1], bounds[1:], strict=True):
            hashes = algorithm.hashes(each.task.name, records.key_hash[start:stop])
            if hashes is None:  # the keys do not depend on the names of shards
                return algorithm.sort_keys(RecordTable("", members, records, _reads_nothing))
            words.append(hashes)
        return SortKeys(len(records), words=np.concatenate(words))

    def _facts(self, run: Sequence[_Scanned], index: Table, bounds: Int64s) -> list[ShardExtracted]:
        columns = (index[MEMBERS], index[PAYLOAD_BYTES], index[STORED_BYTES])
        totals = [np.append(0, np.cumsum(each, dtype=np.int64))[bounds] for each in columns]
        sums = np.diff([bounds, *totals], axis=1).T.tolist()
        return [
            ShardExtracted(
                shard=each.task.shard,
                worker=self._worker,
                node=self._node,
                records=records,
                members=members,
                payload_bytes=payload_bytes,
                stored_bytes=stored_bytes,
                run_begin=run[0].task.shard,
                run_shards=len(run),
            )
            for each, (records, members, payload_bytes, stored_bytes) in zip(run, sums, strict=True)
        ]


def _is_plain(members: MemberTable) -> bool:
    """Whether a shard has only names and ranges, and nothing odd."""
    extras = (members.entries, members.record_of, members.compressed_bytes, members.record_bytes)
    return (
        replace(members.notes, shortfall="") == ScanNotes()
        and len(members) > 0
        and bool((members.kind == MemberKind.FILE).all())
        and not (members.notes.shortfall or members.literals or members.tails or members.schema)
        and all(each is None for each in (*extras, members.key_bytes))
    )


def _joined(run: Sequence[_Scanned]) -> MemberTable:
    """The members of a run, with places in the run's bytes."""
    tables = [each.members for each in run]
    base = np.repeat([each.begin for each in run], [len(table) for table in tables])
    return MemberTable(
        names=BytesColumn.concat(table.names for table in tables),
        kind=np.concatenate([table.kind for table in tables]),
        payload_start=np.concatenate([table.payload_start for table in tables]) + base,
        payload_bytes=np.concatenate([table.payload_bytes for table in tables]),
        range_start=np.concatenate([table.range_start for table in tables]) + base,
        range_length=np.concatenate([table.range_length for table in tables]),
    )


def _in_shards(ranges: Segments, run: Sequence[_Scanned], bounds: Int64s) -> Segments:
    """``ranges`` of a run, changed to places in the shards."""
    base = np.repeat([each.begin for each in run], np.diff(ranges.offsets[bounds]))
    return replace(ranges, start=ranges.start - base)


def _reads_nothing(members: MemberTable, row: int) -> bytes:
    raise InvariantError("records of a run are ordered by what is in no member")
