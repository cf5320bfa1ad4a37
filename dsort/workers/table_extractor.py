"""Extraction where records are rows of tables: makes the record index and spills rows by partition.

A shard is read once, some rows at a time. Rows of one partition go to its spill as a *block*: one
record batch of Arrow IPC without its schema, which all workers have. The index has the places of
blocks; the place of a row is its number among the rows of the partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.containers.codecs.decoding import EXPANSION_FLOOR_BYTES
from dsort.containers.columnar.blocks import deal_out
from dsort.containers.columnar.cells import row_hashes, row_keys
from dsort.containers.columnar.columns import batch_of_records, cell_decoders, row_contents
from dsort.containers.columnar.container import Columnar
from dsort.containers.columnar.reader import ROWS_A_BATCH_MAX, light_batches, open_table
from dsort.containers.columnar.schema import (
    check_same,
    plain_schema,
    schema_of,
)
from dsort.containers.columnar.values import LightRows
from dsort.data.columns import Bools, BytesColumn, Int32s
from dsort.data.index import (
    CONTENT_HASH,
    GROUP,
    KEY_HASH,
    KEYS,
    ORDINAL,
    ORIGIN_START,
    PAYLOAD_BYTES,
    SAME_HASH,
    SAME_MORE,
    STORED_BYTES,
    sort_columns,
)
from dsort.data.members import MemberTable
from dsort.data.record_table import RecordTable
from dsort.data.records import FormedRecords
from dsort.data.table import Column, Table
from dsort.data.tally import FLOW_DROPPED, FLOW_READ
from dsort.errors import CorruptShardError
from dsort.moves.input_shard import ShardBytes, open_input
from dsort.moves.payload_files import PayloadBuffer
from dsort.naming.names import KEY_COLUMN
from dsort.order.sort import Partitioning
from dsort.scratch.logs import LineWriter, ReactionLog, lines_file
from dsort.scratch.nodes import ScratchNodes
from dsort.storage.bucket import Bucket, ReadObject
from dsort.storage.routed import input_of
from dsort.transforms.base import Step, apply_steps
from dsort.workers.batch import FOUND, Batch, are_placed
from dsort.workers.extractor import Extractor
from dsort.workers.lineage import origins_table
from dsort.workers.operators.exact_outputs import ExactPlaces
from dsort.workers.operators.placing import Placer
from dsort.workers.record_values import ShardSortKeys, digests_of_field
from dsort.workers.table_rows import (
    CLASSES,
    PARTITION,
    SAME,
    RowChange,
    ShardSource,
    SpilledBlocks,
    TableRows,
    asked_columns,
    bounded,
    changes_rows,
    gathered_up,
    record_table,
)
from dsort.workers.tasks import (
    READ_SCHEMA_FILE,
    SCHEMA_FILE,
    ExtractTask,
    ShardExtracted,
    WorkerSetup,
)

BATCH_SHARE = 8
BATCH_BYTES_MAX = 64 << 20


class _Taken(Struct, frozen=True):
    """The rows of some batches after all steps: their keys, and a mask of the rows that stay."""

    batches: Sequence[LightRows]
    keys: BytesColumn
    stays: Bools


class TableExtractor(Extractor):
    """Extracts input shards whose records become rows of the outputs."""

    def __init__(
        self,
        setup: WorkerSetup,
        worker: int,
        inputs: Bucket,
        buffer: PayloadBuffer,
        nodes: ScratchNodes,
    ) -> None:
        super().__init__(setup, worker, inputs, buffer, nodes)
        self._placer = Placer(setup, nodes.store)
        self._exact = ExactPlaces(setup, nodes.store)

    @property
    def _key_field(self) -> str:
        container = self._pipeline.reading.container
        return container.options.key_field if isinstance(container, Columnar) else KEY_COLUMN

    def extract(self, task: ExtractTask) -> ShardExtracted:
        """Extract one shard. ``InputError`` and its subclasses name shard, column and row."""
        if not self._pipeline.reading.container.is_columnar:
            return super().extract(task)  # calls ``_store_records`` with the records
        if self._pipeline.makes_records:  # likewise: for steps, cells are members
            schema = schema_of(self._store.file_bytes(READ_SCHEMA_FILE))
            self._transformer.cells = cell_decoders(plain_schema(task.name, schema))
            return super().extract(task)
        names = None
        if task.stage.name == "index":
            names = LineWriter(self._store.scratch, lines_file(task.stage.name, task.shard))
        log = ReactionLog(shard=task.name, writer=names)
        with open_input(self._inputs, task.name, task.size_bytes, task.etag) as source:
            try:
                rows, blocks = self._read(task, source, log)
            except CorruptShardError as error:
                if self._pipeline.reading.policies.corrupt_shards != "skip":
                    raise
                rows, blocks = self._no_rows(task), SpilledBlocks()
                log.add("corrupt_shards", 1, [error.message])
                rows.counts = (0,) * max(len(task.counts), task.stage.name == "count")
            if task.stage.spill and not self._setup.movement.values_stay:
                source.forget()  # else memory suffices for all inputs
        if task.stage.name == "count":
            return self._counted(task, rows.counts[-1])
        self._check_counts(task, rows.counts)
        for kind, count in rows.left_out.items():
            log.add("left_out_by_steps", count, [f"{kind} in {task.name}"])
        for what, count in rows.dropped.items():
            log.add(f"{FLOW_DROPPED}{what}", count)
        if rows.read != sum(map(len, rows.parts)):
            log.add(FLOW_READ, rows.read)
        return self._put_down(task, rows, blocks, log)

    def _read(
        self, task: ExtractTask, source: ReadObject, log: ReactionLog
    ) -> tuple[TableRows, SpilledBlocks]:
        """Read all rows, and spill them if the task requires it."""
        expansion = self._pipeline.reading.decoding.max_expansion
        limit = expansion * task.size_bytes + EXPANSION_FLOOR_BYTES
        opened = ShardSource.of(source, self._buffer)
        table = open_table(task.name, opened, inflated_max=limit)
        wanted = schema_of(self._store.file_bytes(READ_SCHEMA_FILE))
        if not check_same(task.name, table.schema, wanted):
            log.add("other_metadata", 1, [task.name])
        plain = left = plain_schema(task.name, wanted)
        change = None
        if changes_rows(self._pipeline.steps):
            left = plain_schema(task.name, schema_of(self._store.file_bytes(SCHEMA_FILE)))
            steps, key_field = self._pipeline.steps, self._key_field
            change = RowChange.of(task.name, plain, left, steps, key_field)
        partitioning = self.writer.partitioning(task.stage)
        rows, blocks, first = self._no_rows(task, len(left)), SpilledBlocks(), 0
        asking = sum(step.needs_positions for step in self._pipeline.steps)
        rows.counts = (0,) * min(len(task.firsts) + (task.stage.name == "count"), asking)
        found = light_batches(
            task.name, table, plain, self._batch_bytes, kept=self._looked_into(plain)
        )
        found = bounded(task, found, expansion)
        for batches in gathered_up(found, self._batch_bytes):
            end_in_shard = max(batch.end_in_shard for batch in batches)
            taken = self._taken(task, batches, first, rows, log, change)
            partition = self._index_rows(task, taken, first, rows, partitioning, log)
            if task.stage.spill:
                self._spill_rows(taken.batches, partition, left, blocks)
                if not self._setup.movement.values_stay:
                    opened.forget(end_in_shard)
            first += len(partition)
        rows.read = first
        return rows, blocks

    def _store_records(self, batch: Batch) -> ShardExtracted:
        """Convert records of another container to rows, and store these."""
        task, records = batch.task, batch.records
        schema = schema_of(self._store.file_bytes(SCHEMA_FILE))
        key_column: str | None = None
        if self._pipeline.reading.container.is_columnar:
            schema, key_column = plain_schema(task.name, schema), self._key_field
        partitioning = self.writer.partitioning(task.stage)
        rows, blocks = self._no_rows(task, len(schema)), SpilledBlocks()
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
            made = batch_of_records(task.name, schema, keys[first:stop], contents)
            batches = [LightRows(made)]
            made_keys = _keys_of(task.name, [made], self._key_field, first)
            own = _Taken(batches, made_keys, np.ones(len(made_keys), np.bool_))
            some = batch.found.run(first, stop)
            partition = self._index_rows(task, own, first, rows, partitioning, batch.log, some)
            if task.stage.spill:
                self._spill_rows(batches, partition, made.schema, blocks)
            first = stop
        return self._put_down(task, rows, blocks, batch.log)

    def _no_rows(self, task: ExtractTask, columns: int = 0) -> TableRows:
        return TableRows(ShardSortKeys(self._pipeline.algorithm, task, self._store), columns)

    def _looked_into(self, plain: Any) -> Collection[str]:
        """The columns whose values are read, and not only moved."""
        if self._pipeline.result.checks_content:
            return tuple(plain.names)
        sorted_by = (name.removeprefix(".") for name in self._pipeline.algorithm.extensions)
        asked = asked_columns(self._pipeline.steps, plain.names)
        asked.update(name for step in self._pipeline.steps for name in step.members_used)
        return (
            self._key_field,
            KEY_COLUMN,
            *sorted_by,
            self._placer.column,
            *self._placer.asked,
            *self._compared_by,
            *asked,
        )

    @property
    def _compared_by(self) -> tuple[str, ...]:
        """The columns by which records are compared."""
        compared = self._pipeline.compared
        return () if compared is None or compared.value is None else compared.value.extensions

    def _cells_to_place(self, schema: Any) -> list[str]:
        """The columns, as extensions, that decide where rows go. A column of classes is included
        even if it is missing, because that is an error."""
        asked = [name for name in self._placer.asked if schema.get_field_index(name) >= 0]
        column = [self._placer.column] if self._placer.column else []
        return [f".{name}" for name in dict.fromkeys([*column, *asked])]

    @property
    def _batch_bytes(self) -> int:
        return min(self._buffer.size_bytes // BATCH_SHARE, BATCH_BYTES_MAX)

    def _taken(
        self,
        task: ExtractTask,
        batches: Sequence[LightRows],
        first: int,
        rows: TableRows,
        log: ReactionLog,
        change: RowChange | None,
    ) -> _Taken:
        """Apply the steps of the job to some batches. ``first``: the number of their first row."""
        light, steps = [batch.light for batch in batches], self._pipeline.steps
        keys = _keys_of(task.name, light, self._key_field, first)
        if not steps:
            return _Taken(batches, keys, np.ones(len(keys), np.bool_))
        payload = np.concatenate([batch.row_bytes() for batch in batches])
        names = light[0].schema.names
        asked, unread = _asked_by(steps, names, self._key_field if change else None)
        table = record_table(
            task.name,
            light,
            keys,
            payload,
            asked,
            has_cells=True,
            unread=unread,
            is_whole=change is not None,
        )
        named = input_of(task.name, self._pipeline.reading.names)
        left, stays = _left_rows(task, steps, replace(table, input=named), rows, log)
        if change is None:
            return _Taken(batches, keys, stays)
        which = np.arange(len(keys))  # rows that are left out keep their old keys
        which[stays] = len(keys) + np.arange(len(left))
        keys = BytesColumn.concat([keys, left]).take(which)
        changed, at = [], 0
        for batch in batches:
            own = np.arange(at, at + batch.num_rows)
            changed.append(change.applied(batch, keys.take(own)))
            at += batch.num_rows
        return _Taken(changed, keys, stays)

    def _index_rows(
        self,
        task: ExtractTask,
        taken: _Taken,
        first: int,
        rows: TableRows,
        partitioning: Partitioning,
        log: ReactionLog,
        placed: Table | None = None,
    ) -> Int32s:
        """Add the rows of some batches to ``rows``. Return the partition of each row; -1: dropped.
        ``placed``: the facts of ``Batch.found``, if they are already known."""
        light, keys = [batch.light for batch in taken.batches], taken.keys
        payload = np.concatenate([batch.row_bytes() for batch in taken.batches])
        sorted_by = self._pipeline.algorithm.extensions
        are_made = placed is not None and not self._pipeline.reads_rows
        whole = record_table(
            task.name, light, keys, payload, sorted_by, has_cells=True, are_made=are_made
        )
        stays = taken.stays
        table = whole if stays.all() else whole.keeping(stays)
        named = input_of(task.name, self._pipeline.reading.names)
        left = np.flatnonzero(stays)
        if placed is None:
            read = replace(table, input=named)
            wanted = self._cells_to_place(light[0].schema)
            if wanted:
                cells = record_table(
                    task.name, light, keys, payload, wanted, CLASSES, has_cells=True
                )
                read = replace(cells.keeping(stays), input=named)
            placed = self._placer.placed(task, read, log)
            placed = self._exact.settled(task, placed, first + left)
        has_place = are_placed(placed)
        if not has_place.all():
            rows.dropped["no place in an output"] += int((~has_place).sum())
            left, table = left[has_place], table.keeping(has_place)
            placed = placed.take(np.flatnonzero(has_place))
        if self._key_field or KEY_COLUMN in light[0].schema.names:  # else keys are distinct numbers
            table = replace(table, earlier=rows.hashes_seen.earlier(table.key_hash))
        sort = rows.sort_keys.of(table, placed.get(GROUP))
        ordinal = first + left
        partition = np.full(len(keys), -1, np.int32)
        partition[left] = partitioning.assign(sort, task.shard, ordinal)
        part: dict[str, Column] = {
            ORDINAL.text: ordinal,
            KEYS.text: table.keys,
            KEY_HASH.text: table.key_hash,
            PAYLOAD_BYTES.text: payload[left],
            PARTITION.text: partition[left],
            **sort_columns(sort),
        }
        if self._pipeline.result.hashes_content:
            hashes = np.concatenate([row_hashes(batch) for batch in light])
            part[CONTENT_HASH.text] = hashes[left]
        compared = self._pipeline.compared
        if compared is not None and compared.value is not None:
            names = [f".{name}" for name in self._compared_by]
            cells = record_table(
                task.name, light, keys, payload, names, SAME, has_cells=True, are_made=are_made
            )
            own = replace(cells.keeping(np.isin(np.arange(len(keys)), left)), input=named)
            digests = digests_of_field(own, compared.value)
            part |= {SAME_HASH.text: digests[:, 0], SAME_MORE.text: digests[:, 1]}
        rows.parts.append(placed.only(FOUND).beside(Table(len(ordinal), part)))
        return partition

    def _spill_rows(
        self, batches: Sequence[LightRows], partition: Int32s, plain: Any, blocks: SpilledBlocks
    ) -> None:
        """Append the rows to the spill of their partitions, in input order."""
        spill = self.writer.spill.writer
        by_place = self._setup.movement.values_stay
        with spill.appending() as starts:
            for block in deal_out(batches, partition, plain, by_place=by_place):
                start = int(starts[block.partition])
                blocks.add(block.partition, start, block.size_bytes, block.rows)
                spill.append(block.partition, block.pieces, block.size_bytes)

    def _put_down(
        self,
        task: ExtractTask,
        rows: TableRows,
        blocks: SpilledBlocks,
        log: ReactionLog,
    ) -> ShardExtracted:
        """Write the index, and return the facts."""
        index, partition = rows.index()
        rows.sort_keys.finish()
        if self._pipeline.result.keeps_lineage and ORIGIN_START not in index:
            # A row has no single place: its values are in several columns.
            nowhere = np.full(len(index), -1, np.int64)
            index = index.beside(origins_table(nowhere, index[PAYLOAD_BYTES]))
        counted = log.close()  # before the index: an index must have its names
        by_partition = np.argsort(partition, kind="stable")
        every = np.arange(task.stage.partitions + 1)
        offsets = np.searchsorted(partition[by_partition], every).astype(np.int64)
        found, block_offsets = blocks.by_partition(task.stage.partitions)
        self._store.write_shard(
            task.stage.name,
            task.shard,
            index.take(by_partition),
            offsets,
            worker=self._worker,
            spill_starts=np.zeros(task.stage.partitions, np.int64) if task.stage.spill else None,
            blocks=found if task.stage.spill else None,
            block_offsets=block_offsets if task.stage.spill else None,
        )
        return ShardExtracted(
            shard=task.shard,
            worker=self._worker,
            node=self._node,
            records=len(index),
            members=len(index),
            payload_bytes=int(index[PAYLOAD_BYTES].sum()),
            stored_bytes=int(index[STORED_BYTES].sum()),
            tally=counted,
        )


def _asked_by(
    steps: Sequence[Step], names: Sequence[str], key_field: str | None
) -> tuple[list[str], list[str]]:
    """Return (the columns that become members for ``steps``, those among them whose content no step
    reads), as extensions. ``key_field``: given if steps change columns; then all columns except
    ``KEY_COLUMN`` become members."""
    read = asked_columns(steps, names)
    if key_field is not None:
        there = [name for name in names if name != KEY_COLUMN]
    else:
        asked = dict.fromkeys(name for step in steps for name in step.members_used)
        there = [name for name in asked if name in names]
    return [f".{name}" for name in there], [f".{name}" for name in there if name not in read]


def _left_rows(
    task: ExtractTask, steps: Sequence[Step], table: RecordTable, rows: TableRows, log: ReactionLog
) -> tuple[BytesColumn, Bools]:
    """Return the keys of the rows of ``table`` that ``steps`` leave, and a mask of these rows.
    ``rows``: the counts of earlier rows, which are updated."""
    # No step reads the stored sizes of rows, so that column holds the number of each row here.
    numbered = replace(table.records, stored_bytes=np.arange(len(table), dtype=np.int64))
    pairs = zip(task.firsts, rows.counts, strict=False)
    applied = apply_steps(
        steps,
        replace(table, records=numbered, report=log.add),
        [first + count for first, count in pairs],
    )
    rows.counts = tuple(map(sum, zip(rows.counts, applied.counts, strict=True)))
    rows.left_out.update(applied.left_out)
    rows.dropped.update(applied.dropped)
    stays, left = np.zeros(len(table), np.bool_), applied.records.records
    rows_left = left.stored_bytes
    if changes_rows(steps):  # such steps compute new sizes; members keep the numbers of their rows
        row_of = np.repeat(np.arange(len(table)), np.diff(table.records.member_offsets))
        rows_left = row_of[left.member_rows[left.member_offsets[:-1]]]
    stays[rows_left] = True
    return applied.records.keys, stays


def _keys_of(shard: str, batches: Sequence[Any], key_field: str, first: int) -> BytesColumn:
    """The record keys of some batches. ``first``: the number of their first row in the shard."""
    found = []
    for batch in batches:
        found.append(row_keys(shard, batch, key_field, first))
        first += batch.num_rows
    return BytesColumn.concat(found)


def _members_of(
    shard: ShardBytes, members: MemberTable, records: FormedRecords, record: int
) -> Iterator[tuple[bytes, bytes]]:
    """Yield (extension with its dot, content) of each member of a record."""
    first, stop = records.member_offsets[record : record + 2].tolist()
    for row in records.member_rows[first:stop].tolist():
        name = members.names[row]
        yield name[int(records.key_bytes[row]) :], shard.content(members, row)
