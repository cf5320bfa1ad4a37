"""The extractor: reads one input shard once, and makes its record index (and its spill)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import xxhash
from msgspec.structs import replace

from dsort.containers.tar.container import TAR
from dsort.data.columns import BytesColumn, UInt64s, row_numbers
from dsort.data.index import (
    CONTENT_HASH,
    ENTRIES,
    EXTENSIONS,
    GROUP,
    KEY_HASH,
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
    sort_keys_of,
)
from dsort.data.members import MemberTable
from dsort.data.numbered import NumberedColumn, are_positions
from dsort.data.record_table import RecordTable
from dsort.data.records import LAST_IS_KEPT, FormedRecords, form_records
from dsort.data.segments import Segments
from dsort.data.table import Column, Table
from dsort.data.tally import Tally
from dsort.errors import (
    CorruptShardError,
    InvariantError,
    ShardEndError,
)
from dsort.moves.bare import BARE
from dsort.moves.input_shard import ShardBytes
from dsort.moves.map import MappedInputs
from dsort.moves.payload_files import PayloadBuffer
from dsort.moves.payload_spill import HasWindows, PayloadSpill
from dsort.moves.short_records import small_argsort
from dsort.moves.slices import hash_records, slices_of
from dsort.order.joining import JoinedPlaces
from dsort.order.sort import Partitioning
from dsort.scratch.index import IndexStore
from dsort.scratch.logs import LineWriter, ReactionLog, lines_file
from dsort.scratch.nodes import ScratchNodes
from dsort.scratch.positions import PLACE
from dsort.storage.bucket import Bucket
from dsort.storage.routed import input_of
from dsort.workers.batch import FOUND, Batch, are_placed
from dsort.workers.conversion import (
    bare_members,
    bared_records,
    packed_records,
    reported_extensions,
    without_final_newlines,
)
from dsort.workers.header_reader import ReadAhead
from dsort.workers.joiner import (
    SEARCHED,
    extension_lists,
    join_sort_keys,
    place_sort_keys,
)
from dsort.workers.operators.all_operators import operators_of
from dsort.workers.operators.member_names import settle_unsafe_names
from dsort.workers.record_reactions import count_oddities, react, refuse_oddities, shown_names
from dsort.workers.record_values import ShardSortKeys, digests_of
from dsort.workers.tasks import ExtractTask, ShardExtracted, Stage, WorkerSetup

if TYPE_CHECKING:
    from dsort.workers.transformer import Transformed, Transformer


class Extractor:
    """Extracts input shards for one job, in one worker."""

    def __init__(
        self,
        setup: WorkerSetup,
        worker: int,
        inputs: Bucket,
        buffer: PayloadBuffer,
        nodes: ScratchNodes,
        mapped: MappedInputs | None = None,
    ) -> None:
        """``mapped``: receives the mappings of shards, for the creator."""
        self._setup = setup
        self._pipeline = setup.pipeline
        self._worker = worker
        self._inputs, self._buffer = inputs, buffer
        self.mapped = mapped
        self._node = nodes.node
        self._store = nodes.store
        self.writer = IndexWriter(setup, worker, nodes.store)
        self._operators = operators_of(setup, nodes.store)
        self._ahead = ReadAhead(setup, inputs, nodes.store, buffer)

    @cached_property
    def _transformer(self) -> Transformer:
        from dsort.workers.transformer import Transformer  # jobs without steps do not load it

        return Transformer(self._pipeline.failures, self._setup.code, self._store.scratch)

    def _looks_at_names(self, task: ExtractTask) -> bool:
        """Whether this task needs only the names, sizes and places of members."""
        pipeline = self._pipeline
        steps_do = all(step.needs == "index" for step in pipeline.steps)
        return (
            task.stage.name == "survey"
            and steps_do
            and not pipeline.converts(task.name)
            and not pipeline.algorithm.extensions
            and pipeline.algorithm.placement is None
            and not pipeline.division
            and pipeline.compared is None
        )

    def extract(self, task: ExtractTask) -> ShardExtracted:
        """Extract one shard. ``InputError`` and its subclasses name shard and record."""
        # A pass that moves no payload maps the shard: a copy would cost more, and the shard is read
        # again.
        way, hops = self._setup.movement.way, self._setup.movement.hops
        opened, buffer = self._ahead.opened(task)
        with opened as source:
            if self._pipeline.reading.makes_shards and self._looks_at_names(task):
                from dsort.loose_files.shard import FilesShard  # other jobs read shards

                assert isinstance(source, FilesShard)
                source.has_payload = False
            shard = ShardBytes(
                task.name,
                source,
                buffer,
                mapped=hops if way.reads_ranges else not task.stage.spill,
                # Scratch may have no room for inputs that are read by range.
                spool=None if way.reads_ranges else self._store.scratch,
                container=self._pipeline.reading.container_of(task.name),
                decoding=self._pipeline.reading.decoding,
                past_cache=self._ahead.past_cache(task),
            )
            try:
                done = self._extract(task, shard)
            finally:
                shard.close()  # before the source: it may be a view of its mapping
            if way.reads_ranges or task.stage.spill:
                source.forget()
            view = source.mapping() if way.keeps_mappings else None
            if view is not None and self.mapped is not None:
                self.mapped.keep(task.shard, view)
        return done

    def _extract(self, task: ExtractTask, shard: ShardBytes) -> ShardExtracted:
        skipped = ""
        state = xxhash.xxh3_64()
        if task.xxh3:
            shard.watch = state.update
        try:
            members = self._checked(shard, shard.members())
        except CorruptShardError as error:
            if self._pipeline.reading.policies.corrupt_shards != "skip":
                raise
            members, skipped = _no_members(), error.message
        changed = "" if skipped else self._changed_since(task, shard, state)
        names = None
        if task.stage.name == "index":
            names = LineWriter(self._store.scratch, lines_file(task.stage.name, task.shard))
        log = ReactionLog(shard=task.name, writer=names)
        if skipped:
            log.add("corrupt_shards", 1, [skipped])
        if changed:
            log.add("incomplete_shards", 1, [f"{shard.name} ({changed})"])
        return self._extract_members(task, shard, members, log)

    def _checked(self, shard: ShardBytes, members: MemberTable) -> MemberTable:
        """Check payloads, and return ``members``. Compressed payload that moves as it is stored is
        not decompressed: its checksum moves with it."""
        opens = self._pipeline.converts(shard.name) or self._pipeline.makes_records
        if opens and members.compressed_bytes is not None:
            return shard.decompress(members)
        shard.check_payloads(members)
        return members

    def _changed_since(self, task: ExtractTask, shard: ShardBytes, state: xxhash.xxh3_64) -> str:
        """Compare the checksum of a shard with the one that an earlier job wrote. Return the
        difference in words, "" if there is none. ``state``: of a decoded shard, has the whole file
        already."""
        if not task.xxh3:
            return ""
        for piece in shard.pieces() if shard.codec is None else ():
            state.update(piece)
        found = state.hexdigest()
        if found == task.xxh3:
            return ""
        text = f"its XXH3 is {found}, but job {task.written_by} wrote {task.xxh3}"
        if self._pipeline.reading.policies.incomplete_shards == "abort":
            raise ShardEndError(
                f"shard {shard.name} may not be whole: {text}",
                hint="fetch or make it again; incomplete_shards: warn takes what can be read of it",
            )
        return text

    def rest(self) -> None:
        """End the processes of user code: the next task is no extraction."""
        if self._pipeline.steps:
            self._transformer.close()
        self._ahead.settled()

    def close(self) -> None:
        """Close the spill files."""
        self.rest()
        self._ahead.close()
        self.writer.close()

    def _extract_members(
        self, task: ExtractTask, shard: ShardBytes, read: MemberTable, log: ReactionLog
    ) -> ShardExtracted:
        is_tar = shard.container == TAR  # read before ``_cleaned`` changes the container to BARE
        members = self._cleaned(shard, read, log)
        policies = self._pipeline.reading.policies
        keep_last = policies.duplicated_records in LAST_IS_KEPT
        records = form_records(members, policies.stray_members, keep_last=keep_last)
        react(policies, shard.name, members, records, log)
        named, given, formed = members, 0, len(records)
        if self._pipeline.steps:
            stored = read if is_tar else None
            left = self._transformed(task, shard, members, records, log, stored)
            if task.stage.name == "count":
                return self._counted(task, left.counts[-1])
            members, named, records, given = left.members, left.named, left.records, left.given
        own = self._input_of(shard)
        batch = Batch(
            task, shard, log, own, read, members, named, records, formed, Table(len(records))
        )
        for operator in self._operators:
            operator.apply(batch)
        return replace(self._store_records(batch), transformed=given)

    def _cleaned(self, shard: ShardBytes, members: MemberTable, log: ReactionLog) -> MemberTable:
        """The members from which records are formed: bare ones where records are converted, and
        with names that the job allows."""
        policies = self._pipeline.reading.policies
        refuse_oddities(policies, shard, members)
        count_oddities(shard, members, log)
        if self._pipeline.converts(shard.name) or self._pipeline.makes_records:
            members = bare_members(shard, members, policies.stray_members)
        if shard.container is BARE and not self._pipeline.makes_records:
            members = self._stripped(shard, members, log)
        return settle_unsafe_names(policies.unsafe_names, shard, members, log)

    def _store_records(self, batch: Batch) -> ShardExtracted:
        """Write the index of a batch after all operators, and move the payload."""
        task, shard = batch.task, batch.shard
        members, records = batch.members, batch.records
        table = replace(batch.table, members=members, report=batch.log.add)
        if shard.container is BARE:
            members, records = packed_records(
                shard,
                members,
                records,
                self._pipeline.carrier,
                are_sealed_later=self._setup.seals_later,
            )
        index = self._index(batch, members, records, table)
        stays = are_placed(batch.found)
        if not stays.all():
            index = index.take(np.flatnonzero(stays))
        counted = batch.log.close()  # before the index: an index must have its names
        in_memory = shard.whole is not None
        self.writer.write(task.stage, task.shard, index, shard, in_memory=in_memory)
        return ShardExtracted(
            shard=task.shard,
            worker=self._worker,
            node=self._node,
            records=len(index),
            members=int(index[MEMBERS].sum()),
            payload_bytes=int(index[PAYLOAD_BYTES].sum()),
            stored_bytes=int(index[STORED_BYTES].sum()),
            tally=counted,
            schema=members.schema or reported_extensions(self._pipeline, table, batch.found),
        )

    def _stripped(self, shard: ShardBytes, members: MemberTable, tally: Tally) -> MemberTable:
        """A bare table without final newlines, if the outputs want payloads without them."""
        packing = self._pipeline.carrier.packing
        if packing is None or not packing.strips_final_newline:
            return members
        members, rows = without_final_newlines(shard, members)
        tally.add("final_newlines_stripped", len(rows), shown_names(shard.name, members, rows))
        return members

    def _transformed(
        self,
        task: ExtractTask,
        shard: ShardBytes,
        members: MemberTable,
        records: FormedRecords,
        tally: Tally,
        stored: MemberTable | None,
    ) -> Transformed:
        """The records that the steps of the job leave. ``stored``: the members as rows of a tar."""
        rejects = None
        if self._pipeline.failures.rejects and task.stage.name == "index":
            rejects = LineWriter(self._store.scratch, lines_file("rejects", task.shard))
        left = self._transformer.run(
            self._pipeline.steps,
            shard,
            members,
            records,
            tally,
            rejects,
            stored=stored,
            input_name=self._input_of(shard),
            firsts=task.firsts,
        )
        if rejects is not None:
            rejects.close()
        if task.stage.name != "count":
            self._check_counts(task, left.counts)
        if self._pipeline.makes_records and self._pipeline.carrier != shard.container:
            members, records = bared_records(shard, left.named, left.records)
            members = self._stripped(shard, members, tally)
            records = records.stored_as(members)
            left = replace(left, members=members, named=members, records=records)
        return left

    def _check_counts(self, task: ExtractTask, counts: tuple[int, ...]) -> None:
        if counts != task.counts:
            raise InvariantError(
                f"{counts} records of {task.name} came to the steps that ask for their numbers, "
                f"{task.counts} were counted"
            )

    def _counted(self, task: ExtractTask, count: int) -> ShardExtracted:
        return ShardExtracted(
            shard=task.shard,
            worker=self._worker,
            node=self._node,
            records=count,
            members=0,
            payload_bytes=0,
            stored_bytes=0,
        )

    def _input_of(self, shard: ShardBytes) -> str:
        return input_of(shard.name, self._pipeline.reading.names)

    def _index(
        self,
        batch: Batch,
        members: MemberTable,
        records: FormedRecords,
        table: RecordTable,
    ) -> Table:
        """The index of the records as they are stored. ``table``: the records as they were read."""
        task, shard, found = batch.task, batch.shard, batch.found
        ranges, more = records.segments(members), dict[str, Column]()
        if self._pipeline.join:
            extensions = more[EXTENSIONS.text] = extension_lists(table)
            algorithm = SEARCHED if task.stage.name == "join" else self._pipeline.algorithm
            if PLACE in found:
                sort = place_sort_keys(found[PLACE], table, extensions)
            else:
                sort = join_sort_keys(algorithm, table, extensions)
            sort = replace(sort, group=found.get(GROUP))
        else:
            own = ShardSortKeys(self._pipeline.algorithm, task, self._store)
            sort = own.of(table, found.get(GROUP))
            own.finish()
        keys = records.keys
        is_numbered = isinstance(keys, NumberedColumn) and not keys.after
        ordinal = keys.numbers if are_positions(keys) else row_numbers(len(records))
        if len(records) and len(records.member_rows) == len(records):  # no record without members
            member_counts = np.broadcast_to(np.int32(1), (len(records),))
        else:
            member_counts = np.diff(records.member_offsets).astype(np.int32)
        if not is_numbered:
            more[KEY_HASH.text] = records.key_hash
        if self._pipeline.result.hashes_content and task.stage.name != "join":  # stores no records
            more[CONTENT_HASH.text] = _content_hash(shard, ranges)
        if (entries := records.entries(members)) is not None:
            more[ENTRIES.text] = entries
        if self._pipeline.compared is not None:
            digests = digests_of(shard, table, self._pipeline.compared)
            more |= {SAME_HASH.text: digests[:, 0], SAME_MORE.text: digests[:, 1]}
        if task.stage.name == "join" and isinstance(self._pipeline.algorithm, JoinedPlaces):
            more[SAYS.text] = self._pipeline.algorithm.says(table)
        index = record_index(
            ordinal=ordinal,
            keys=keys,
            sort=sort,
            members=member_counts,
            payload_bytes=records.payload_bytes,
            stored_bytes=records.stored_bytes,
            ranges=ranges,
        )
        return index.beside(found.only(FOUND)).beside(Table(len(index), more))


def _content_hash(shard: ShardBytes, segments: Segments) -> UInt64s:
    hashes = np.zeros(len(segments.offsets) - 1, np.uint64)
    for window in shard.windows(segments):
        if window.stop == window.row:
            state = xxhash.xxh3_64()
            for piece in shard.stream(segments, window.row):
                state.update(piece)
            hashes[window.row] = state.intdigest()
            continue
        part = segments.take(np.arange(window.row, window.stop))
        slices = slices_of(window.view, part, window.base)
        hashes[window.row : window.stop] = hash_records(slices, part.offsets.tolist())
    return hashes


def _no_members() -> MemberTable:
    none = np.zeros(0, np.int64)
    return MemberTable(BytesColumn.of([]), np.zeros(0, np.uint8), none, none, none, none)


class IndexWriter:
    """Writes index and spill of one worker."""

    def __init__(self, setup: WorkerSetup, worker: int, store: IndexStore) -> None:
        self._pipeline, self._worker, self._store = setup.pipeline, worker, store
        self.spill = PayloadSpill(setup.movement, worker, store.scratch)

    def partitioning(self, stage: Stage) -> Partitioning:
        """The rule that assigns records to partitions."""
        splitters = self._store.splitters(stage.splitters) if stage.splitters else None
        weights = self._pipeline.division.weights
        decreasing = self._pipeline.algorithm.decreasing
        return Partitioning(stage.partitions, decreasing, splitters, weights)

    def write(
        self, stage: Stage, shard: int, index: Table, source: HasWindows, *, in_memory: bool
    ) -> None:
        """Write the records of a shard, or of a run of shards that begins with ``shard``; then
        ``index`` has a column of shards. ``source``: the payload. ``in_memory``: the payload can be
        moved in the order of partitions; else it is read once more, in its own order."""
        if stage.partitions == 1:
            offsets = np.array([0, len(index)], np.int64)
            starts = self.spill.move(source, index) if stage.spill else None
        else:
            shards = index.get(SHARD)
            partition = self.partitioning(stage).assign(
                sort_keys_of(index), shard if shards is None else shards, index[ORDINAL]
            )
            by_partition = small_argsort(partition)
            counts = np.bincount(partition, minlength=stage.partitions)
            offsets = np.append(0, np.cumsum(counts)).astype(np.int64)
            starts = None
            if stage.spill and not in_memory:
                starts = self.spill.move(source, index, partition)
                index = index.without(RANGES)
            index = index.take(by_partition)
            if stage.spill and in_memory:
                starts = self.spill.move(source, index, partition[by_partition])
        self._store.write_shard(
            stage.name, shard, index, offsets, worker=self._worker, spill_starts=starts
        )

    def close(self) -> None:
        """Close the spill files."""
        self.spill.close()
