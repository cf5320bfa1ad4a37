"""The extractor: reads one input shard once, and makes its record index (and its spill)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xxhash

from dsort.containers.base import Container, oddities_in, refusal
from dsort.containers.tar.container import TAR
from dsort.data.columns import BytesColumn, Int64s, UInt64s, row_numbers
from dsort.data.index import (
    CLASS,
    CONTENT_HASH,
    ENTRIES,
    EXTENSIONS,
    KEY_HASH,
    LOT,
    MEMBERS,
    ORDINAL,
    PAYLOAD_BYTES,
    RANGES,
    SAME_HASH,
    SAME_MORE,
    SAYS,
    STORED_BYTES,
    record_index,
    sort_keys_of,
)
from dsort.data.members import MemberTable
from dsort.data.numbered import NumberedColumn, are_positions
from dsort.data.records import LAST_IS_KEPT, FormedRecords, form_records
from dsort.data.segments import Segments
from dsort.data.table import Column, Table
from dsort.data.tally import Tally
from dsort.errors import (
    CorruptShardError,
    InvariantError,
    ShardEndError,
    UnsafeNameError,
)
from dsort.moves.bare import BARE
from dsort.moves.gathering import small_argsort
from dsort.moves.map import MappedInputs
from dsort.moves.payload_files import PayloadBuffer
from dsort.moves.payload_spill import PayloadSpill
from dsort.moves.source import ShardBytes, hash_records, slices_of
from dsort.order.joined_places import JoinedPlaces
from dsort.order.partitions import Partitioning
from dsort.order.table import RecordTable
from dsort.scratch.logs import LineWriter, ReactionLog, lines_file
from dsort.scratch.nodes import ScratchNodes
from dsort.storage.bucket import Bucket
from dsort.storage.several import input_of
from dsort.workers.conversion import (
    bare_members,
    bared_records,
    packed_records,
    with_member_defaults,
    without_final_newlines,
)
from dsort.workers.copies import copied
from dsort.workers.headers import with_names_written, with_new_names
from dsort.workers.join_columns import (
    SEARCHED,
    extension_lists,
    join_sort_keys,
    place_sort_keys,
    place_words,
)
from dsort.workers.late_schemas import reported_extensions
from dsort.workers.left_out import leave_out
from dsort.workers.lineage import origins_of
from dsort.workers.placing import Placed, Placer
from dsort.workers.read_ahead import ReadAhead
from dsort.workers.record_flow import count_copies, count_flow
from dsort.workers.record_reactions import react, shown_names
from dsort.workers.renamed_keys import rename_records
from dsort.workers.same_content import digests_of
from dsort.workers.sort_keys import ShardSortKeys
from dsort.workers.tasks import ExtractTask, ShardExtracted, WorkerSetup
from dsort.workers.transformer import Transformed, Transformer
from dsort.workers.unsafe_members import find_unsafe, shown_changes, with_safe_names


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
        """``mapped``: takes the mappings of shards, for who creates."""
        self._setup = setup
        self._pipeline = setup.pipeline
        self._worker = worker
        self._inputs, self._buffer = inputs, buffer
        self.mapped = mapped
        self._node = nodes.node
        self._store = nodes.store
        self.spill = PayloadSpill(setup.movement, worker, nodes.store.scratch)
        self._placer = Placer(setup, nodes.store)
        self._transformer = Transformer(setup.pipeline.failures, setup.code, nodes.store.scratch)
        self._ahead = ReadAhead(setup, inputs, nodes.store, buffer)

    def _looks_at_names(self, task: ExtractTask) -> bool:
        """Whether nothing but names, sizes and places of members matters, this time."""
        pipeline = self._pipeline
        steps_do = all(step.needs == "index" for step in pipeline.steps)
        return (
            task.stage.name == "survey"
            and steps_do
            and not pipeline.converts(task.name)
            and not pipeline.algorithm.extensions
            and pipeline.algorithm.placement is None
            and pipeline.division is None
            and pipeline.compared is None
        )

    def extract(self, task: ExtractTask) -> ShardExtracted:
        """Do one task. ``InputError`` and its children name shard and record."""
        # A pass that moves no payload maps: a copy would cost more, and it is looked at again.
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
                # What reads by range may have no room in scratch.
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
        log = ReactionLog(task.name, names)
        if skipped:
            log.add("corrupt_shards", 1, [skipped])
        if changed:
            log.add("incomplete_shards", 1, [f"{shard.name} ({changed})"])
        return self._extract_members(task, shard, members, log)

    def _checked(self, shard: ShardBytes, members: MemberTable) -> MemberTable:
        """``members``, whose payloads are as the shard says. What is compressed, and moves as it is
        stored, is not looked into: its checksum moves with it."""
        opens = self._pipeline.converts(shard.name) or self._pipeline.makes_records
        if opens and members.compressed_bytes is not None:
            return shard.decompress(members)
        shard.check_payloads(members)
        return members

    def _changed_since(self, task: ExtractTask, shard: ShardBytes, state: xxhash.xxh3_64) -> str:
        """What is wrong with a shard that an earlier job wrote, by its checksum; "" if nothing.
        ``state``: has seen the file if it was decoded."""
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
        """End the processes of user code: what is asked next is no extraction."""
        self._transformer.close()
        self._ahead.settled()

    def close(self) -> None:
        """Close the spill files."""
        self.rest()
        self._ahead.close()
        self.spill.close()

    def _extract_members(
        self, task: ExtractTask, shard: ShardBytes, members: MemberTable, tally: ReactionLog
    ) -> ShardExtracted:
        reactions = self._pipeline.reading.policies
        refused = refusal(
            shard.container.oddities,
            members.notes,
            reactions.incomplete_shards,
            reactions.concatenated_shards,
        )
        if refused:
            raise ShardEndError(f"shard {shard.name} {refused[0]}", hint=refused[1])
        _note_oddities(shard.container, shard.name, members, tally)
        policy, read, is_tar = reactions.stray_members, members, shard.container == TAR
        if self._pipeline.converts(shard.name) or self._pipeline.makes_records:
            members = bare_members(shard, members, policy)
        if shard.container is BARE and not self._pipeline.makes_records:
            members = self._stripped(shard, members, tally)
        members = self._settle_unsafe_names(shard, members, tally)
        keep_last = reactions.duplicated_records in LAST_IS_KEPT
        records = form_records(members, policy, keep_last=keep_last)
        react(reactions, shard.name, members, records, tally)
        named, given, formed = members, 0, len(records)
        if self._pipeline.steps:
            stored = read if is_tar else None
            left = self._transformed(task, shard, members, records, tally, stored)
            if task.stage.name == "count":
                return self._counted(task, left.counts[-1])
            members, named, records, given = left.members, left.named, left.records, left.given
        if shard.container is BARE and self._pipeline.carrier.member_defaults:
            defaults = self._pipeline.carrier.member_defaults
            named, records, made = with_member_defaults(named, records, defaults)
            tally.add("members_defaulted", len(made), shown_names(shard.name, named, made))
        table = RecordTable(
            shard.name,
            named,
            records,
            shard.content,
            input=self._input_of(shard),
            read_many=shard.contents,
        )
        before = table
        if task.stage.left_out:
            table = leave_out(self._store, task, table, tally)
            records = table.records
        # Neither the key map nor outputs know new names.
        placed = self._placer.placed(task, table, tally)
        lineage = self._pipeline.keeps_lineage
        origins = origins_of(read, records, self._pipeline) if lineage else None
        if task.copies is not None:
            counts = task.copies.counts(records.key_hash)
            count_copies(shard.name, counts, tally)
            members, named, records = copied(shard, members, named, records, counts)
            placed = placed.repeated(counts)
            if origins is not None:
                origins = origins.take(np.repeat(np.arange(len(counts)), counts))
        if task.stage.renames:
            changes: list[str] = []
            named, records = rename_records(self._store, task, named, records, changes)
            tally.write_names("duplicate_keys_renamed", changes, len(changes))
        # The headers of copies are bytes of their record, which must not be written over.
        may_overwrite = task.copies is None
        members, records = self._written(shard, members, named, records, may_overwrite)
        placed = self._placer.settled(task, placed, np.arange(len(records), dtype=np.int64))
        if task.stage.places:
            positions = self._store.positions(task.stage.places)
            placed = replace(placed, words=place_words(positions, task.shard, before, table))
        count_flow(formed, len(records), placed, tally)
        done = self._store_records(task, shard, members, records, placed, tally, origins)
        return replace(done, transformed=given)

    def _store_records(
        self,
        task: ExtractTask,
        shard: ShardBytes,
        members: MemberTable,
        records: FormedRecords,
        placed: Placed,
        tally: ReactionLog,
        origins: Table | None = None,
    ) -> ShardExtracted:
        """Write the index, and move the payload, of what is settled."""
        table = RecordTable(shard.name, members, records, shard.content, report=tally.add)
        if shard.container is BARE:
            members, records = packed_records(
                shard,
                members,
                records,
                self._pipeline.carrier,
                are_sealed_later=self._setup.seals_later,
            )
        index = self._index(task, shard, members, records, table, placed)
        if origins is not None:
            index = index.beside(origins)
        kept = placed.kept()
        if kept is not None:
            index = index.take(kept)
        counted = tally.close()  # first: where there is an index, there are its names
        self._store_index(task, shard, index)
        return ShardExtracted(
            shard=task.shard,
            worker=self._worker,
            node=self._node,
            records=len(index),
            members=int(index[MEMBERS].sum()),
            payload_bytes=int(index[PAYLOAD_BYTES].sum()),
            stored_bytes=int(index[STORED_BYTES].sum()),
            tally=counted,
            schema=members.schema or reported_extensions(self._pipeline, table, placed),
        )

    def _settle_unsafe_names(
        self, shard: ShardBytes, members: MemberTable, tally: Tally
    ) -> MemberTable:
        found = find_unsafe(shard, members)
        if not len(found):
            return members
        reaction, settled = self._pipeline.reading.policies.unsafe_names, members
        if reaction == "rename":
            settled = with_safe_names(shard, members, found)
        names = [f"{shard.name}: {text}" for text in shown_changes(members, settled, found)]
        if reaction == "abort":
            first = names[0].removeprefix(f"{shard.name}: ")
            raise UnsafeNameError(
                f"shard {shard.name} has {len(found)} members that lead out of the directory they "
                f"are unpacked in, the first is {first}",
                hint="unsafe_names: rename makes their names safe, warn keeps them as they are",
            )
        kind = "unsafe_names_renamed" if reaction == "rename" else "unsafe_names"
        tally.add(kind, len(found), names)
        return settled

    def _stripped(self, shard: ShardBytes, members: MemberTable, tally: Tally) -> MemberTable:
        """A bare table as the outputs want payloads to end."""
        if not self._pipeline.carrier.strips_final_newline:
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
        """What the steps of the job leave. ``stored``: the members as rows of a tar."""
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

    def _written(
        self,
        shard: ShardBytes,
        members: MemberTable,
        named: MemberTable,
        records: FormedRecords,
        may_overwrite: bool,
    ) -> tuple[MemberTable, FormedRecords]:
        """``named``, which is ``members`` with other names, with headers that say so, and the
        records as they are stored then."""
        if named is members:
            return members, records
        is_mapped = shard.is_mapped
        must_be_read = self._pipeline.hashes_content if is_mapped else shard.whole is None
        # Records that are read by range are large: headers as literals are next to nothing.
        must_be_read |= self._setup.movement.way.reads_ranges
        if must_be_read or not may_overwrite:
            # The hash of a record is taken here; of a shard in windows, each is read anew.
            written = with_new_names(shard, members, named, records.member_rows)
            return written, records.stored_as(written)
        return with_names_written(shard, members, named, records, in_place=not is_mapped)

    def _input_of(self, shard: ShardBytes) -> str:
        return input_of(shard.name, self._pipeline.reading.names)

    def _index(
        self,
        task: ExtractTask,
        shard: ShardBytes,
        members: MemberTable,
        records: FormedRecords,
        table: RecordTable,
        placed: Placed,
    ) -> Table:
        """The index of the records as they are stored. ``table``: as they were read."""
        ranges, more = records.segments(members), dict[str, Column]()
        if self._pipeline.join is not None:
            extensions = more[EXTENSIONS.text] = extension_lists(table)
            algorithm = SEARCHED if task.stage.name == "join" else self._pipeline.algorithm
            if placed.words is not None:
                sort = place_sort_keys(placed.words, table, extensions)
            else:
                sort = join_sort_keys(algorithm, table, extensions)
            sort = replace(sort, group=placed.group)
        else:
            own = ShardSortKeys(self._pipeline.algorithm, task, self._store)
            sort = own.of(table, placed.group)
            own.finish()
        keys = records.keys
        is_numbered = isinstance(keys, NumberedColumn) and not keys.after
        ordinal = keys.numbers if are_positions(keys) else row_numbers(len(records))
        if len(records) and len(records.member_rows) == len(records):  # none has none
            member_counts = np.broadcast_to(np.int32(1), (len(records),))
        else:
            member_counts = np.diff(records.member_offsets).astype(np.int32)
        if not is_numbered:
            more[KEY_HASH.text] = records.key_hash
        if self._pipeline.hashes_content and task.stage.name != "join":  # which stores no record
            more[CONTENT_HASH.text] = _content_hash(shard, ranges)
        if (entries := records.entries(members)) is not None:
            more[ENTRIES.text] = entries
        if self._pipeline.compared is not None:
            digests = digests_of(shard, table, self._pipeline.compared)
            more |= {SAME_HASH.text: digests[:, 0], SAME_MORE.text: digests[:, 1]}
        if placed.lots is not None:
            more |= {CLASS.text: placed.lots[:, 0], LOT.text: placed.lots[:, 1]}
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
        return index.beside(Table(len(index), more))

    def _store_index(self, task: ExtractTask, shard: ShardBytes, index: Table) -> None:
        if task.stage.partitions == 1:
            partition_offsets = np.array([0, len(index)], np.int64)
            spill_starts = self.spill.move(shard, index) if task.stage.spill else None
            self._write(task, index, partition_offsets, spill_starts)
            return
        partition = self._partitioning(task).assign(sort_keys_of(index), task.shard, index[ORDINAL])
        by_partition = small_argsort(partition)
        counts = np.bincount(partition, minlength=task.stage.partitions)
        partition_offsets = np.append(0, np.cumsum(counts)).astype(np.int64)
        spill_starts = None
        if task.stage.spill and shard.whole is None:  # it is read once more, in its own order
            spill_starts = self.spill.move(shard, index, partition)
            index = index.without(RANGES)
        index = index.take(by_partition)
        if task.stage.spill and spill_starts is None:
            spill_starts = self.spill.move(shard, index, partition[by_partition])
        self._write(task, index, partition_offsets, spill_starts)

    def _partitioning(self, task: ExtractTask) -> Partitioning:
        """Which partition records of one shard belong to."""
        splitters = self._store.splitters(task.stage.splitters) if task.stage.splitters else None
        division = self._pipeline.division
        weights = division.weights if division is not None else ()
        decreasing = self._pipeline.algorithm.decreasing
        return Partitioning(task.stage.partitions, decreasing, splitters, weights)

    def _write(
        self,
        task: ExtractTask,
        index: Table,
        partition_offsets: Int64s,
        spill_starts: Int64s | None,
    ) -> None:
        if task.stage.spill and spill_starts is None:
            spill_starts = np.zeros(task.stage.partitions, np.int64)
        self._store.write_shard(
            task.stage.name,
            task.shard,
            index,
            partition_offsets,
            worker=self._worker,
            spill_starts=spill_starts,
        )


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


def _note_oddities(container: Container, shard: str, members: MemberTable, tally: Tally) -> None:
    notes = members.notes
    if notes.shortfall:
        tally.add("incomplete_shards", 1, [f"{shard} ({notes.shortfall})"])
    for oddity, count in oddities_in(container.oddities, notes):
        if oddity.kind:
            rows = getattr(notes, oddity.note)
            names = shown_names(shard, members, rows) if isinstance(rows, tuple) else [shard]
            tally.add(oddity.kind, 1 if oddity.by_shard else count, names)


def _no_members() -> MemberTable:
    none = np.zeros(0, np.int64)
    return MemberTable(BytesColumn.of([]), np.zeros(0, np.uint8), none, none, none, none)
