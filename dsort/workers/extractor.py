"""The extractor: reads input shards once, and makes their record index (and their spill).

There are three sources of batches: a shard, a run of small shards (``shard_batches.py``) and the
rows of a table (``row_batches.py``). Operators and the index are the same for all three.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from dsort.data.columns import offsets_of
from dsort.data.index import (
    CONTENT_HASH,
    ENTRIES,
    EXTENSIONS,
    GROUP,
    KEY_HASH,
    KEYS,
    MEMBERS,
    ORDINAL,
    PAYLOAD_BYTES,
    RANGES,
    SAME_HASH,
    SAME_MORE,
    SAYS,
    SHARD,
    STORED_BYTES,
    record_index,
)
from dsort.data.numbered import NumberedColumn
from dsort.data.table import Column, Table
from dsort.data.tally import FLOW_DROPPED, FLOW_READ
from dsort.errors import CorruptShardError, InvariantError
from dsort.moves.bare import BARE
from dsort.moves.base import WorkerParts
from dsort.moves.input_shard import ShardBytes
from dsort.order.equal_keys import JoinedPlaces
from dsort.scratch.logs import LineWriter, ReactionLog, lines_file
from dsort.scratch.tables import PLACE
from dsort.workers.batch import (
    FOUND,
    SAME,
    SORT_KEYS,
    Batch,
    ShardSortKeys,
    StepsDone,
    are_placed,
    digests_of,
)
from dsort.workers.conversion import packed_records, reported_extensions
from dsort.workers.header_reader import ReadAhead
from dsort.workers.index_writer import IndexWriter
from dsort.workers.operators.all_operators import operators_of
from dsort.workers.shard_batches import RunBatches, ShardBatches
from dsort.workers.tasks import (
    ExtractRunTask,
    ExtractTask,
    RunExtracted,
    ShardExtracted,
    WorkerSetup,
)

if TYPE_CHECKING:
    from dsort.workers.row_batches import RowBatches

ALWAYS = (ORDINAL, KEYS, KEY_HASH, MEMBERS, PAYLOAD_BYTES, STORED_BYTES, RANGES)
"""The columns of an index without rows."""


class Extractor:
    """Extracts input shards for one job, in one worker."""

    def __init__(self, setup: WorkerSetup, worker: int, parts: WorkerParts) -> None:
        self._setup, self._pipeline = setup, setup.pipeline
        self._worker, self._node = worker, parts.nodes.node
        self._mapped = parts.mapped  # the creator takes over the mappings of extracted shards
        store = self._store = parts.nodes.store
        self._writer = IndexWriter(setup, worker, store)
        self._operators = operators_of(setup, store)
        self._ahead = ReadAhead(setup, parts.inputs, store, parts.buffer)
        self._shards = ShardBatches(setup, store.scratch)
        self._runs = RunBatches(setup, parts)
        self._rows: RowBatches | None = None
        self._reads_rows = self._pipeline.moves_rows and not self._pipeline.makes_records
        if self._pipeline.carrier.is_columnar:
            # Imported only where rows are moved, so that other jobs start faster.
            from dsort.workers.row_batches import RowBatches

            self._rows = RowBatches(setup, store, parts.buffer, self._writer)

    def extract(self, task: ExtractTask) -> ShardExtracted:
        """Extract one shard. ``InputError`` and its subclasses name shard and record."""
        movement, spills = self._setup.movement, task.stage.spill
        way, hops, values_stay = movement.way, movement.hops, movement.values_stay
        opened, buffer = self._ahead.opened(task)
        with opened as source:
            if self._pipeline.reading.makes_shards and self._shards.looks_at_names(task):
                from dsort.loose_files.listing import FilesShard  # other jobs read shards

                assert isinstance(source, FilesShard)
                source.has_payload = False
            # A pass that moves no payload maps the shard: a copy would cost more, and the shard is
            # read again. Tables are mapped in all passes, because their long values stay where they
            # are.
            mapped = hops if way.reads_ranges else self._reads_rows or not spills
            # Scratch may have no room for inputs that are read by range.
            can_spool = not (way.reads_ranges or self._reads_rows)
            shard = ShardBytes(
                task.name,
                source,
                buffer,
                mapped=mapped,
                spool=self._store.scratch if can_spool else None,
                container=self._pipeline.reading.container_of(task.name),
                decoding=self._pipeline.reading.decoding,
                past_cache=self._ahead.past_cache(task),
            )
            try:
                done = self._one_extracted(task, shard)
            finally:
                shard.close()  # before the source, of whose mapping the shard may be a view
            # The creator reads ranges past the page cache, or it reads the spill, so cached pages
            # of the input would only take room.
            if way.reads_ranges or (spills and not (self._reads_rows and values_stay)):
                source.forget()
            view = source.mapping() if way.keeps_mappings else None
            if view is not None:
                self._mapped.keep(task.shard, view)
        return done

    def extract_run(self, run: ExtractRunTask) -> RunExtracted:
        """Extract some small shards: the plain ones in common batches, the others one by one.
        ``InputError`` and its subclasses name shard and record."""
        done: dict[int, ShardExtracted] = {}
        for batch in self._runs.of(run):
            found = self._extracted(batch.tasks, batch.shard, batch.log, [batch], StepsDone())
            done |= {facts.shard: facts for facts in found}
        # Last, because single extractions overwrite the buffer.
        alone = (task for task in run.shards if task.shard not in done)
        done |= {task.shard: self.extract(task) for task in alone}
        return RunExtracted(tuple(done[task.shard] for task in run.shards))

    def rest(self) -> None:
        """End the processes of user code, because the next task is no extraction."""
        self._shards.rest()
        self._ahead.settled()

    def close(self) -> None:
        """Close the spill files."""
        self.rest()
        self._ahead.close()
        self._writer.close()

    def _one_extracted(self, task: ExtractTask, shard: ShardBytes) -> ShardExtracted:
        log, steps = ReactionLog(shard=task.name), StepsDone()
        if task.stage.name == "index":
            # Surveys find the same oddities: only the last pass lists their names.
            log.writer = LineWriter(self._store.scratch, lines_file(task.stage.name, task.shard))
        batches: Iterable[Batch]
        if self._rows is not None and self._reads_rows:
            batches = self._rows.of(task, shard, log, steps)
        else:
            if self._rows is not None and self._pipeline.reads_rows:
                self._shards.transformer.cells = self._rows.cell_decoders(task)
            batches = self._shards.of(task, shard, log, steps)
        (done,) = self._extracted((task,), shard, log, batches, steps)
        return done

    def _extracted(
        self,
        tasks: Sequence[ExtractTask],
        shard: ShardBytes,
        log: ReactionLog,
        batches: Iterable[Batch],
        steps: StepsDone,
    ) -> list[ShardExtracted]:
        """Store the index and the payload of all records of ``tasks``, which come in batches.
        Return the facts about each of their shards. ``steps``: complete once the last batch is
        read."""
        task, parts, read, unplaced, schema = tasks[0], list[Table](), 0, 0, ""
        sort_keys = ShardSortKeys(self._pipeline.algorithm, tasks, self._store)
        try:
            for batch in batches:
                for operator in self._operators:
                    operator.apply(batch)
                unplaced += int((~are_placed(batch.found)).sum())
                read += batch.formed
                parts += self._indexed(batch, sort_keys)
                schema = self._schema_of(batch)
        except CorruptShardError as error:
            policies = self._pipeline.reading.policies
            # Rows are decoded batch by batch, so damage may show after some rows were indexed;
            # those rows are discarded. Other shards are scanned whole, and skipped, before their
            # first batch.
            if not self._reads_rows or policies.corrupt_shards != "skip":
                raise
            log.add("corrupt_shards", 1, [error.message])
            parts, read, unplaced = [], 0, 0
            sort_keys = ShardSortKeys(self._pipeline.algorithm, tasks, self._store)
            # No record reaches any step. A task of the stage "count" needs at least one number.
            steps.counts = (0,) * max(len(task.counts), task.stage.name == "count")
        if task.stage.name == "count":
            return [ShardExtracted(task.shard, self._worker, self._node, steps.counts[-1], 0, 0, 0)]
        # Positions were computed from the counts of an earlier pass, also for other shards.
        if steps.counts != task.counts:
            raise InvariantError(
                f"{steps.counts} records of {task.name} reached the steps that need positions, "
                f"but {task.counts} were counted before"
            )
        sort_keys.finish()
        log.add(f"{FLOW_DROPPED}no place in an output", unplaced)
        index = Table.concat(parts, ALWAYS)
        done = self._facts(tasks, index)
        # The facts of the first shard have the difference of all shards of a run.
        if read != len(index):
            log.add(FLOW_READ, read - len(index) + done[0].records)
        tally = log.close()  # before the index, which must not exist without these names
        if self._rows is not None:
            self._rows.write(task, index)
        else:
            in_memory = shard.is_whole
            self._writer.write(task.stage, task.shard, index, shard, in_memory=in_memory)
        done[0] = replace(done[0], tally=tally, schema=schema, transformed=steps.given)
        return done

    def _facts(self, tasks: Sequence[ExtractTask], index: Table) -> list[ShardExtracted]:
        bounds, run = np.array([0, len(index)]), (0, 0)
        if len(tasks) > 1:
            begins = np.searchsorted(index[SHARD], [task.shard for task in tasks])
            bounds, run = np.append(begins, len(index)), (tasks[0].shard, len(tasks))
        columns = (index[MEMBERS], index[PAYLOAD_BYTES], index[STORED_BYTES])
        totals = [offsets_of(each)[bounds] for each in columns]
        sums = np.diff([bounds, *totals], axis=1).T.tolist()
        return [
            ShardExtracted(
                shard=task.shard,
                worker=self._worker,
                node=self._node,
                records=records,
                members=members,
                payload_bytes=payload_bytes,
                stored_bytes=stored_bytes,
                run_begin=run[0],
                run_shards=run[1],
            )
            for task, (records, members, payload_bytes, stored_bytes) in zip(
                tasks, sums, strict=True
            )
        ]

    def _schema_of(self, batch: Batch) -> str:
        """The properties that all records share; "" for rows, because their schema is known."""
        if self._rows is not None:
            return ""
        known = batch.members.own.schema
        return known or reported_extensions(self._pipeline, batch.table, batch.found)

    def _indexed(self, batch: Batch, sort_keys: ShardSortKeys) -> Iterator[Table]:
        """The index rows of a batch after all operators, as they are stored."""
        if self._rows is not None:
            for rows in self._rows.stored(batch):
                yield self._rows.spilled(rows, self._index(rows, sort_keys))
            return
        if batch.shard.container is BARE:
            batch.members, batch.records = packed_records(
                batch.shard,
                batch.members,
                batch.records,
                self._pipeline.carrier,
                are_sealed_later=self._setup.seals_later,
            )
        index, stays = self._index(batch, sort_keys), are_placed(batch.found)
        # The columns are not copied in the usual case.
        yield index if stays.all() else index.take(np.flatnonzero(stays))

    def _index(self, batch: Batch, sort_keys: ShardSortKeys) -> Table:
        """The index of the records as they are stored."""
        pipeline, found, records = self._pipeline, batch.found, batch.records
        is_join, more = batch.task.stage.name == "join", dict[str, Column]()
        table = replace(batch.cells(pipeline.algorithm.extensions, SORT_KEYS), report=batch.log.add)
        if pipeline.join:
            from dsort.workers.joiner import (  # few jobs join
                SEARCHED,
                extension_lists,
                join_sort_keys,
                place_sort_keys,
            )

            extensions = more[EXTENSIONS.text] = extension_lists(table)
            algorithm = SEARCHED if is_join else pipeline.algorithm
            if PLACE in found:
                sort = place_sort_keys(found[PLACE], table, extensions)
            else:
                sort = join_sort_keys(algorithm, table, extensions)
            sort = replace(sort, group=found.get(GROUP))
        else:
            table = replace(table, earlier=batch.count_earlier())
            sort = sort_keys.of(table, found)
        # One number, repeated by a view: it takes no memory.
        if len(records) and len(records.member_rows) == len(records):  # no record without members
            member_counts = np.broadcast_to(np.int32(1), (len(records),))
        else:
            member_counts = np.diff(records.member_offsets).astype(np.int32)
        ranges = batch.ranges
        if not (isinstance(records.keys, NumberedColumn) and not records.keys.after):
            more[KEY_HASH.text] = records.key_hash
        if pipeline.result.hashes_content and not is_join:  # that pass stores no records
            more[CONTENT_HASH.text] = batch.content_hashes(ranges)
        if (entries := records.entries(batch.members)) is not None:
            more[ENTRIES.text] = entries
        if pipeline.compared:
            own = replace(batch.cells(pipeline.compared.columns, SAME), report=batch.log.add)
            digests = digests_of(batch.shard, own, pipeline.compared)
            more |= {SAME_HASH.text: digests[:, 0], SAME_MORE.text: digests[:, 1]}
        if is_join and isinstance(pipeline.algorithm, JoinedPlaces):
            more[SAYS.text] = pipeline.algorithm.says(table)
        index = record_index(
            ordinal=batch.ordinals,
            keys=records.keys,
            sort=sort,
            members=member_counts,
            payload_bytes=records.payload_bytes,
            stored_bytes=records.stored_bytes,
            ranges=ranges,
        )
        return index.beside(found.only(FOUND)).beside(Table(len(index), more))
