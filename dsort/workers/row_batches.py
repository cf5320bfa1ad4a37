"""Batches of rows where records are rows of tables, and the spill of rows by partition.

A shard is read once, some rows at a time. Rows of one partition go to its spill as a *block*: one
record batch of Arrow IPC without its schema, which all workers have. The index has the places of
blocks; the place of a row is its number among the rows of the partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from msgspec.structs import replace

from dsort.containers.codecs.decoding import EXPANSION_FLOOR_BYTES
from dsort.containers.columnar.blocks import deal_out
from dsort.containers.columnar.cells import row_keys
from dsort.containers.columnar.columns import batch_of_records, cell_decoders, row_contents
from dsort.containers.columnar.container import Columnar
from dsort.containers.columnar.reader import light_batches, open_table
from dsort.containers.columnar.schema import check_same, plain_schema, schema_of
from dsort.containers.columnar.values import ROWS_A_BATCH_MAX, LightRows
from dsort.data.columns import Bools, BytesColumn, row_numbers
from dsort.data.index import ORDINAL, RANGES, sort_keys_of
from dsort.data.members import MemberTable
from dsort.data.record_table import RecordTable
from dsort.data.records import FormedRecords
from dsort.data.table import Table
from dsort.data.tally import FLOW_DROPPED
from dsort.moves.input_shard import ShardBytes
from dsort.moves.payload_files import PayloadBuffer
from dsort.naming.names import KEY_COLUMN
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.index import IndexStore
from dsort.scratch.logs import ReactionLog
from dsort.storage.routed import input_of
from dsort.transforms.base import Step, apply_steps
from dsort.workers.batch import Batch, StepsDone, are_placed
from dsort.workers.index_writer import IndexWriter
from dsort.workers.operators.outputs import columns_to_place
from dsort.workers.table_rows import (
    PARTITION,
    RowBatch,
    RowChange,
    ShardRows,
    ShardSource,
    asked_columns,
    blocks_by_partition,
    bounded,
    changes_rows,
    gathered_up,
    members_named,
    record_table,
    rows_as_records,
)
from dsort.workers.tasks import READ_SCHEMA_FILE, SCHEMA_FILE, ExtractTask, WorkerSetup

BATCH_SHARE = 8
BATCH_BYTES_MAX = 64 << 20


class RowBatches:
    """Makes batches of rows for one job, in one worker, and stores their rows."""

    def __init__(
        self, setup: WorkerSetup, store: IndexStore, buffer: PayloadBuffer, writer: IndexWriter
    ) -> None:
        self._pipeline, self._values_stay = setup.pipeline, setup.movement.values_stay
        self._store, self._buffer, self._writer = store, buffer, writer
        self._batch_bytes = min(buffer.size_bytes // BATCH_SHARE, BATCH_BYTES_MAX)
        container = self._pipeline.reading.container
        own = container.options.key_field if isinstance(container, Columnar) else KEY_COLUMN
        self._key_field = own
        self._own = ShardRows()

    def cell_decoders(self, task: ExtractTask) -> Any:
        """The decoders of the cells of a table, for jobs in which rows become members."""
        return cell_decoders(self._schema(task, READ_SCHEMA_FILE))

    def of(
        self, task: ExtractTask, shard: ShardBytes, log: ReactionLog, steps: StepsDone
    ) -> Iterator[RowBatch]:
        """Yield the rows of a shard, after all steps; none if the stage only counts records."""
        expansion = self._pipeline.reading.decoding.max_expansion
        limit = expansion * task.size_bytes + EXPANSION_FLOOR_BYTES
        opened = ShardSource(shard, self._buffer)
        table = open_table(task.name, opened, inflated_max=limit)
        wanted = schema_of(self._store.file_bytes(READ_SCHEMA_FILE))
        if not check_same(task.name, table.schema, wanted):
            log.add("other_metadata", 1, [task.name])
        plain = left = plain_schema(task.name, wanted)
        change, key_field = None, self._key_field
        if changes_rows(self._pipeline.steps):
            left = self._schema(task, SCHEMA_FILE)
            change = RowChange.of(task.name, plain, left, self._pipeline.steps, key_field)
        asking = sum(step.needs_positions for step in self._pipeline.steps)
        counted = len(task.firsts) + (task.stage.name == "count")
        steps.counts = (0,) * min(counted, asking)
        done = _RowSteps(self._pipeline, task, log, steps, change)
        self._begin(task, left)
        first = 0
        found = light_batches(
            task.name, table, plain, self._batch_bytes, kept=self._looked_into(plain)
        )
        for read in gathered_up(bounded(task, found, expansion), self._batch_bytes):
            # Read before the steps, because they make other batches, which have no place in the
            # shard.
            end_in_shard = max(rows.end_in_shard for rows in read)
            keys = _keys_of(task.name, read, key_field, first)
            rows, keys, stays = done.apply(read, keys, key_field)
            if task.stage.name != "count":
                batch = self._batch(task, shard, log, rows, keys, first)
                if not stays.all():
                    batch.keep(stays)
                yield batch
            # Values that stay are read from the shard once more.
            if task.stage.spill and not self._values_stay:
                opened.forget(end_in_shard)
            first += len(keys)
        done.report()

    def stored(self, batch: Batch) -> Iterator[RowBatch]:
        """Yield the records of a batch that go to an output, as rows of the outputs."""
        for rows in [batch] if isinstance(batch, RowBatch) else self._made_of(batch):
            stays = are_placed(rows.found)
            if not stays.all():
                rows.keep(stays)
            yield rows

    def _made_of(self, batch: Batch) -> Iterator[RowBatch]:
        """Make rows of the records of a batch."""
        task, records = batch.task, batch.records
        schema = schema_of(self._store.file_bytes(SCHEMA_FILE))
        key_column: str | None = None
        if self._pipeline.reads_rows:
            schema, key_column = plain_schema(task.name, schema), self._key_field
        self._begin(task, schema)
        keys, first, count = records.keys.tolist(), 0, len(records)
        reached = np.cumsum(records.payload_bytes)
        while first < count:
            limit = reached[first] + self._batch_bytes
            stop = max(int(np.searchsorted(reached, limit, side="right")), first + 1)
            stop = min(stop, first + ROWS_A_BATCH_MAX)
            contents = [
                row_contents(
                    keys[at], _members_of(batch.shard, batch.members, records, at), key_column
                )
                for at in range(first, stop)
            ]
            rows = [LightRows(batch_of_records(task.name, schema, keys[first:stop], contents))]
            own = _keys_of(task.name, rows, self._key_field, first)
            made = self._batch(task, batch.shard, batch.log, rows, own, first)
            made.found, made.are_made = batch.found.run(first, stop), not self._pipeline.reads_rows
            if made.are_made:
                made.made_of_bytes = records.payload_bytes[first:stop]
            yield made
            first = stop

    def spilled(self, batch: RowBatch, index: Table) -> Table:
        """Append the rows of a batch to the spill of their partitions, in input order, if the task
        requires it. Return ``index``, the index of these rows, with their partitions."""
        task, rows = batch.task, batch.shard_rows
        found = rows.partitioning.assign(sort_keys_of(index), task.shard, index[ORDINAL])
        if task.stage.spill:
            # Rows without a record stay at -1, and are dealt out to no partition.
            partition = np.full(len(batch.every), -1, np.int32)
            partition[batch.at] = found
            spill, by_place = self._writer.spill, self._values_stay
            with spill.appending() as starts:
                for block in deal_out(batch.rows, partition, rows.plain, by_place=by_place):
                    start = int(starts[block.partition])
                    rows.blocks.append((block.partition, start, block.size_bytes, block.rows))
                    spill.append(block.partition, block.pieces, block.size_bytes)
            index = index.without(RANGES)  # the spill has other places
        return index.with_(PARTITION, found)

    def write(self, task: ExtractTask, index: Table) -> None:
        """Write the index of all rows of a shard, in input order. If ``index`` has no rows, blocks
        of the shard that are already in the spill are not listed."""
        stage = task.stage
        partition = index[PARTITION] if PARTITION in index else np.zeros(0, np.int32)
        # Stable: rows of a partition keep the order in which its blocks have them.
        by_partition = np.argsort(partition, kind="stable")
        every = np.arange(stage.partitions + 1)
        offsets = np.searchsorted(partition[by_partition], every).astype(np.int64)
        blocks = blocks_by_partition(self._own.blocks if len(index) else [], stage.partitions)
        self._store.write_shard(
            stage.name,
            task.shard,
            index.without(PARTITION).take(by_partition),
            offsets,
            worker=self._writer.worker,
            spill=blocks if stage.spill else {},
        )

    def _begin(self, task: ExtractTask, plain: Any) -> None:
        """Begin another shard. ``plain``: the schema of its rows, once all steps are done."""
        self._own = ShardRows(plain, self._writer.partitioning(task.stage))

    def _schema(self, task: ExtractTask, name: str) -> Any:
        return plain_schema(task.name, schema_of(self._store.file_bytes(name)))

    def _batch(
        self,
        task: ExtractTask,
        shard: ShardBytes,
        log: ReactionLog,
        rows: Sequence[LightRows],
        keys: BytesColumn,
        first: int,
    ) -> RowBatch:
        payload = np.concatenate([each.row_bytes() for each in rows])
        every = rows_as_records(keys, payload, columns=len(self._own.plain))
        members = members_named(keys, payload)
        return RowBatch(
            (task,),
            shard,
            log,
            input_of(task.name, self._pipeline.reading.names),
            members,
            members,
            members,
            every,
            len(every),
            Table(len(every)),
            rows=rows,
            every=every,
            at=row_numbers(len(every)),
            first=first,
            shard_rows=self._own,
            has_keys=bool(self._key_field or KEY_COLUMN in rows[0].light.schema.names),
        )

    def _looked_into(self, plain: Any) -> Collection[str]:
        """The columns whose values are read, and not only moved."""
        pipeline = self._pipeline
        if pipeline.result.checks_content:
            return tuple(plain.names)
        asked = asked_columns(pipeline.steps, plain.names)
        asked.update(name for step in pipeline.steps for name in step.members_used)
        read = [*pipeline.algorithm.extensions, *chain(*columns_to_place(pipeline))]
        if pipeline.compared:
            read += pipeline.compared.columns
        return self._key_field, KEY_COLUMN, *(name.removeprefix(".") for name in read), *asked


class _RowSteps:
    """Applies the steps of a job to the rows of one shard, some at a time. ``done`` receives the
    counts. ``change``: None if steps only remove rows, and change none."""

    def __init__(
        self,
        pipeline: Pipeline,
        task: ExtractTask,
        log: ReactionLog,
        done: StepsDone,
        change: RowChange | None,
    ) -> None:
        self._steps, self._task, self._log, self._done = pipeline.steps, task, log, done
        self._input = input_of(task.name, pipeline.reading.names)
        self._change = change
        self._left_out, self._dropped = Counter[str](), Counter[str]()

    def apply(
        self, rows: Sequence[LightRows], keys: BytesColumn, key_field: str
    ) -> tuple[Sequence[LightRows], BytesColumn, Bools]:
        """Return (the rows with all changes, their keys, a mask of the rows that stay)."""
        steps, change = self._steps, self._change
        if not steps:
            return rows, keys, np.ones(len(keys), np.bool_)
        light = [batch.light for batch in rows]
        asked, unread = _asked_by(steps, light[0].schema.names, key_field if change else None)
        payload = np.concatenate([batch.row_bytes() for batch in rows])
        table = record_table(
            self._task.name,
            light,
            rows_as_records(keys, payload),
            asked,
            unread=unread,
            is_whole=change is not None,
        )
        left, stays = self._left(replace(table, input=self._input))
        if change is None:
            return rows, keys, stays
        keys = keys.replaced(stays, left)  # rows that are left out keep their old keys
        changed, at = [], 0
        for batch in rows:
            changed.append(change.applied(batch, keys.run(at, at + batch.num_rows)))
            at += batch.num_rows
        return changed, keys, stays

    def report(self) -> None:
        """Log how many rows of the shard were left out."""
        for kind, count in self._left_out.items():
            self._log.add("left_out_by_steps", count, [f"{kind} in {self._task.name}"])
        for what, count in self._dropped.items():
            self._log.add(f"{FLOW_DROPPED}{what}", count)

    def _left(self, table: RecordTable) -> tuple[BytesColumn, Bools]:
        """Return the keys of the rows of ``table`` that stay after the steps, and a mask of these
        rows."""
        # No step reads the stored sizes of rows, so that column holds the number of each row here.
        numbered = replace(table.records, stored_bytes=np.arange(len(table), dtype=np.int64))
        pairs = zip(self._task.firsts, self._done.counts, strict=False)
        applied = apply_steps(
            self._steps,
            replace(table, records=numbered, report=self._log.add),
            [begin + count for begin, count in pairs],
        )
        counts = zip(self._done.counts, applied.counts, strict=True)
        self._done.counts = tuple(map(sum, counts))
        self._left_out.update(applied.left_out)
        self._dropped.update(applied.dropped)
        stays, left = np.zeros(len(table), np.bool_), applied.records.records
        rows_left = left.stored_bytes
        if changes_rows(self._steps):  # these compute new sizes; members keep the numbers of rows
            row_of = np.repeat(np.arange(len(table)), np.diff(table.records.member_offsets))
            rows_left = row_of[left.member_rows[left.member_offsets[:-1]]]
        stays[rows_left] = True
        return applied.records.keys, stays


def _asked_by(
    steps: Sequence[Step], names: Sequence[str], key_field: str | None
) -> tuple[list[str], list[str]]:
    """Return, as extensions, (the columns that become members for ``steps``, the columns among them
    that no step reads). ``key_field``: None if steps do not change columns; otherwise all columns
    except ``KEY_COLUMN`` become members."""
    read = asked_columns(steps, names)
    if key_field is not None:
        there = [name for name in names if name != KEY_COLUMN]
    else:
        asked = dict.fromkeys(name for step in steps for name in step.members_used)
        there = [name for name in asked if name in names]
    return [f".{name}" for name in there], [f".{name}" for name in there if name not in read]


def _keys_of(shard: str, rows: Sequence[LightRows], key_field: str, first: int) -> BytesColumn:
    """The record keys of some batches. ``first``: the number of their first row in the shard."""
    found = []
    for batch in rows:
        found.append(row_keys(shard, batch.light, key_field, first))
        first += batch.num_rows
    return BytesColumn.concat(found)


def _members_of(
    shard: ShardBytes, members: MemberTable, records: FormedRecords, record: int
) -> Iterator[tuple[bytes, bytes]]:
    """Yield (extension with its dot, content) of each member of a record."""
    for row in records.rows_of(record):
        name = members.names[row]
        yield name[int(records.key_bytes[row]) :], shard.content(members, row)
