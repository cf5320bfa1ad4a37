"""Makes batches of input shards: of a single shard with any oddities, or of a run of small plain
shards, each of which is scanned by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import xxhash
from msgspec import Struct
from msgspec.structs import replace

from dsort.containers.base import oddities_in, refusal
from dsort.containers.tar.container import TAR
from dsort.data.columns import BytesColumn
from dsort.data.hashes import any_twice
from dsort.data.index import SHARD
from dsort.data.members import MemberKind, MemberTable
from dsort.data.records import LAST_IS_KEPT, FormedRecords, form_records, form_run
from dsort.data.table import Table
from dsort.data.tally import Tally
from dsort.errors import CorruptShardError, DuplicateError, ShardEndError, StrayMemberError
from dsort.moves.bare import BARE
from dsort.moves.base import WorkerParts
from dsort.moves.input_shard import ShardBytes, open_input
from dsort.naming.names import readable
from dsort.naming.safe_names import unsafe_rows
from dsort.pipeline.pipeline import Policies
from dsort.scratch.directory import Scratch
from dsort.scratch.logs import NO_LINES, LineWriter, ReactionLog, lines_file
from dsort.sizes import format_count
from dsort.storage.bucket import ObjectInfo
from dsort.storage.routed import input_of
from dsort.workers.batch import Batch, StepsDone
from dsort.workers.conversion import (
    bare_members,
    bared_records,
    shown_names,
    without_final_newlines,
)
from dsort.workers.header_reader import FetchedShard
from dsort.workers.operators.member_names import settle_unsafe_names
from dsort.workers.tasks import ExtractRunTask, ExtractTask, WorkerSetup

if TYPE_CHECKING:
    from dsort.workers.transformer import Transformed, Transformer


class ShardBatches:
    """Makes batches of shards for one job, in one worker."""

    def __init__(self, setup: WorkerSetup, scratch: Scratch) -> None:
        self._setup, self._pipeline, self._scratch = setup, setup.pipeline, scratch

    @cached_property
    def transformer(self) -> Transformer:
        """Runs the steps of the job."""
        from dsort.workers.transformer import Transformer  # jobs without steps do not load it

        return Transformer(self._pipeline.failures, self._setup.code, self._scratch)

    def rest(self) -> None:
        """End the processes of user code."""
        if self._pipeline.steps:
            self.transformer.close()

    def looks_at_names(self, task: ExtractTask) -> bool:
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
            and not pipeline.compared
        )

    def of(
        self, task: ExtractTask, shard: ShardBytes, log: ReactionLog, steps: StepsDone
    ) -> Iterator[Batch]:
        """Yield the batch of a shard; none if the stage only counts records."""
        read = self._read(task, shard, log)
        is_tar = shard.container == TAR  # read before ``_cleaned`` changes the container to BARE
        members = self._cleaned(shard, read, log)
        policies = self._pipeline.reading.policies
        keep_last = policies.duplicated_records in LAST_IS_KEPT
        records = form_records(members, policies.stray_members, keep_last=keep_last)
        react(policies, shard.name, members, records, log)
        named, formed = members, len(records)
        own = input_of(shard.name, self._pipeline.reading.names)
        if self._pipeline.steps:
            stored = read if is_tar else MemberTable.empty()
            left = self._transformed(task, shard, own, members, records, log, stored)
            steps.counts, steps.given = left.counts, left.given
            members, named, records = left.members, left.named, left.records
        if task.stage.name != "count":
            found = Table(len(records))
            yield Batch((task,), shard, log, own, read, members, named, records, formed, found)

    def _read(self, task: ExtractTask, shard: ShardBytes, log: ReactionLog) -> MemberTable:
        """The members of a shard; none if the shard is corrupt and left out."""
        state = xxhash.xxh3_64()
        if task.xxh3:
            shard.watch = state.update
        try:
            members = self._checked(shard, shard.members())
        except CorruptShardError as error:
            if self._pipeline.reading.policies.corrupt_shards != "skip":
                raise
            log.add("corrupt_shards", 1, [error.message])
            return MemberTable.empty()
        if changed := self._changed_since(task, shard, state):
            log.add("incomplete_shards", 1, [f"{shard.name} ({changed})"])
        return members

    def _checked(self, shard: ShardBytes, members: MemberTable) -> MemberTable:
        """Check payloads, and return ``members``. Payload that moves in its compressed form is not
        decompressed for a check, because its checksum moves with it."""
        opens = self._pipeline.converts(shard.name) or self._pipeline.makes_records
        if opens and members.has_compressed:
            return shard.decompress(members)
        shard.check_payloads(members)
        return members

    def _changed_since(self, task: ExtractTask, shard: ShardBytes, state: xxhash.xxh3_64) -> str:
        """Compare the checksum of a shard with the one that an earlier job wrote. Return the
        difference in words, "" if there is none. ``state``: the checksum so far; for a decoded
        shard, it already covers the whole file."""
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

    def _cleaned(self, shard: ShardBytes, members: MemberTable, log: ReactionLog) -> MemberTable:
        """The members from which records are formed: with names that the job allows, and bare where
        records are converted."""
        policies = self._pipeline.reading.policies
        refuse_oddities(policies, shard, members)
        count_oddities(shard, members, log)
        if self._pipeline.converts(shard.name) or self._pipeline.makes_records:
            members = bare_members(shard, members, policies.stray_members)
        if shard.container is BARE and not self._pipeline.makes_records:
            members = self._stripped(shard, members, log)
        return settle_unsafe_names(policies.unsafe_names, shard, members, log)

    def _stripped(self, shard: ShardBytes, members: MemberTable, log: ReactionLog) -> MemberTable:
        """A bare table without final newlines, if the container of the outputs has payloads without
        them."""
        if not self._pipeline.carrier.strips_final_newline:
            return members
        members, rows = without_final_newlines(shard, members)
        log.add("final_newlines_stripped", len(rows), shown_names(shard.name, members, rows))
        return members

    def _transformed(
        self,
        task: ExtractTask,
        shard: ShardBytes,
        input_name: str,
        members: MemberTable,
        records: FormedRecords,
        log: ReactionLog,
        stored: MemberTable,
    ) -> Transformed:
        """The records that the steps of the job leave. ``stored``: see ``Transformer.run``."""
        rejects: LineWriter = NO_LINES
        if self._pipeline.failures.rejects and task.stage.name == "index":
            rejects = LineWriter(self._scratch, lines_file("rejects", task.shard))
        left = self.transformer.run(
            self._pipeline.steps,
            shard,
            members,
            records,
            log,
            rejects,
            stored=stored,
            input_name=input_name,
            firsts=task.firsts,
        )
        rejects.close()
        if self._pipeline.makes_records and self._pipeline.carrier != shard.container:
            members, records = bared_records(shard, left.named, left.records)
            members = self._stripped(shard, members, log)
            records = records.stored_as(members)
            left = replace(left, members=members, named=members, records=records)
        return left


class _Scanned(Struct, frozen=True):
    """A plain shard, and where its bytes end in the buffer. Members have their places in the
    buffer if payload moves to the spill, else in their shard."""

    task: ExtractTask
    members: MemberTable
    end: int


# Forming, hashing, partitioning and writing the records of a shard takes some hundred calls of
# NumPy, and a file. For a shard of ten records, that costs more than reading it. A run has one
# index file, and one piece in the spill of each partition, so that neither number grows as shards
# times partitions. A shard that is not plain (see `_is_plain`) is left to be extracted alone, so
# that its oddities are reported for that shard.
class RunBatches:
    """Makes batches of runs for one job, in one worker."""

    def __init__(self, setup: WorkerSetup, parts: WorkerParts) -> None:
        self._reading, self._way = setup.pipeline.reading, setup.movement.way
        self._inputs, self._buffer, self._mapped = parts.inputs, parts.buffer, parts.mapped
        self._scratch = parts.nodes.store.scratch
        self._is_worth_it = True

    def of(self, run: ExtractRunTask) -> Iterator[Batch]:
        """Yield batches of neighbours in a run. Shards that are in no batch have to be extracted
        alone, and later, because their extraction overwrites the buffer."""
        if not self._is_worth_it:
            return
        taken = 0
        for is_plain, group in groupby(self._scanned(run.shards), lambda each: each is not None):
            stretch = [each for each in group if each is not None]
            for batch in self._batches(stretch) if is_plain else ():
                taken += len(batch.tasks)
                yield batch
        # If most shards are not plain, for example because each has a directory, later runs will
        # be alike.
        self._is_worth_it = 2 * taken >= len(run.shards)

    def _scanned(self, tasks: Sequence[ExtractTask]) -> list[_Scanned | None]:
        """Scan the shards one by one; None for a shard that is not plain. If payload moves to the
        spill, the shards are in the buffer afterwards, one behind the other."""
        found: list[_Scanned | None] = []
        begin = 0
        for task in tasks:
            found.append(self._scan(task, begin))
            begin += task.size_bytes if task.stage.spill else 0
        return found

    def _scan(self, task: ExtractTask, begin: int) -> _Scanned | None:
        """One plain shard; None if it is corrupt or has a codec."""
        spills = task.stage.spill
        source = open_input(self._inputs, task.name, task.size_bytes, task.etag)
        with source:
            shard = ShardBytes(
                task.name,
                source,
                self._buffer.part(begin, task.size_bytes) if spills else self._buffer,
                mapped=not spills,
                container=self._reading.container_of(task.name),
                decoding=self._reading.decoding,
            )
            # A run needs the bytes of the shard as stored: in the buffer if payload moves, else
            # mapped.
            if shard.codec is not None or shard.is_mapped is spills:
                return None
            try:
                members = shard.members()
            except CorruptShardError:
                return None  # the extraction of the single shard reports the error
            finally:
                shard.close()
            view = source.mapping() if self._way.keeps_mappings else None
            if view is not None:
                self._mapped.keep(task.shard, view)
        if not _is_plain(members):
            return None
        if begin:
            starts = members.payload_start + begin, members.range_start + begin
            members = replace(members, payload_start=starts[0], range_start=starts[1])
        return _Scanned(task, members, begin + task.size_bytes if spills else 0)

    def _batches(self, run: Sequence[_Scanned]) -> Iterator[Batch]:
        """Yield the batch of a run, or the batches of its two halves if its records cannot be
        formed together. Yield none for a single shard, which gains nothing from this."""
        if len(run) < 2:
            return
        members = _joined([each.members for each in run])
        begins = np.cumsum([0, *(len(each.members) for each in run)])
        records = None if unsafe_rows(members.names) else form_run(members, begins[:-1])
        if records is None:
            half = len(run) // 2
            yield from self._batches(run[:half])
            yield from self._batches(run[half:])
            return
        tasks = tuple(each.task for each in run)
        for task in tasks:  # the index must not have the log of an earlier attempt
            self._scratch.unlink(lines_file(task.stage.name, task.shard))
        counts = np.diff(np.searchsorted(records.member_offsets[:-1], begins))
        shards = np.repeat(np.array([task.shard for task in tasks], np.int32), counts)
        found = Table(len(records), {SHARD.text: shards})
        name = tasks[0].name
        log = ReactionLog(shard=name)
        shard, own = self._bytes(name, run[-1].end), input_of(name, self._reading.names)
        yield Batch(tasks, shard, log, own, members, members, members, records, len(records), found)

    def _bytes(self, name: str, end: int) -> ShardBytes:
        """The bytes of a run, which are in the buffer up to ``end``."""
        source = FetchedShard(ObjectInfo(name, end, 0, ""), self._buffer.view(end))
        container = self._reading.container_of(name)
        return ShardBytes(name, source, self._buffer, mapped=False, container=container)


def _is_plain(members: MemberTable) -> bool:
    """Whether members have only names and ranges, and the shard has no oddities."""
    return (
        members.notes == type(members.notes)()
        and len(members) > 0
        and bool((members.kind == MemberKind.FILE).all())
        and not (members.literals or members.tails or members.own or members.has_compressed)
        and members.entries is None
    )


def _joined(tables: Sequence[MemberTable]) -> MemberTable:
    """The members of a run."""
    return MemberTable(
        names=BytesColumn.concat(table.names for table in tables),
        kind=np.concatenate([table.kind for table in tables]),
        payload_start=np.concatenate([table.payload_start for table in tables]),
        payload_bytes=np.concatenate([table.payload_bytes for table in tables]),
        range_start=np.concatenate([table.range_start for table in tables]),
        range_length=np.concatenate([table.range_length for table in tables]),
    )


def refuse_oddities(policies: Policies, shard: ShardBytes, members: MemberTable) -> None:
    """``ShardEndError`` if a shard ends in a way that the policies do not allow."""
    refused = refusal(
        shard.container.oddities,
        members.notes,
        policies.incomplete_shards,
        policies.concatenated_shards,
    )
    if refused:
        raise ShardEndError(f"shard {shard.name} {refused[0]}", hint=refused[1])


def count_oddities(shard: ShardBytes, members: MemberTable, tally: Tally) -> None:
    """Count the oddities that a scan has noted of a shard."""
    notes = members.notes
    if notes.shortfall:
        tally.add("incomplete_shards", 1, [f"{shard.name} ({notes.shortfall})"])
    for oddity, count in oddities_in(shard.container.oddities, notes):
        if oddity.kind:
            rows = getattr(notes, oddity.note)
            is_by_row = isinstance(rows, tuple)
            names = shown_names(shard.name, members, rows) if is_by_row else [shard.name]
            tally.add(oddity.kind, 1 if oddity.by_shard else count, names)


def react(
    policies: Policies,
    shard: str,
    members: MemberTable,
    records: FormedRecords,
    tally: Tally,
) -> None:
    """Count the members that records leave out, and stop the job where the policies require it."""
    if policies.stray_members == "abort" or policies.records_only:
        _refuse_strays(policies, shard, members, records)
    kept = sorted({*records.strays} - {*records.dropped})
    tally.add("stray_members_kept", len(kept), shown_names(shard, members, kept))
    tally.add(
        "stray_members_dropped",
        len(records.dropped),
        shown_names(shard, members, records.dropped),
    )
    tally.add("non_adjacent_records", records.non_adjacent, [shard])
    if policies.duplicated_records == "abort":
        _refuse_repeated(shard, members, records)
    elif records.repeated and policies.duplicated_records is not None:
        names = shown_names(shard, members, records.repeated)
        tally.add("duplicated_records", len(records.repeated), names)


def _refuse_strays(
    policies: Policies, shard: str, members: MemberTable, records: FormedRecords
) -> None:
    links = np.flatnonzero(members.kind == MemberKind.SYMLINK).tolist()
    strays = sorted({*records.strays, *links} - {*records.dropped})
    if strays and policies.records_only:
        raise StrayMemberError(
            f"shard {shard} has {len(strays)} members that wids and webdataset do not "
            "count as a sample, so that an index would be wrong; the first is "
            f"{readable(members.names[strays[0]])}",
            hint="stray_members: drop leaves them out; or leave out index: wids",
        )
    if strays:
        raise StrayMemberError(
            f"shard {shard} has {format_count(len(strays), 'stray member')}, the first is "
            f"{readable(members.names[strays[0]])}",
            hint="stray_members: keep or drop lets the job go on",
        )


def _refuse_repeated(shard: str, members: MemberTable, records: FormedRecords) -> None:
    """``DuplicateError`` if two members anywhere in the shard have the same name."""
    if members.own.record_of is not None or not any_twice(records.key_hash):
        return  # members with the same name would be in records with the same key
    seen = set[bytes]()
    for row in np.sort(records.member_rows).tolist():
        name = members.names[row]
        if name in seen:
            raise DuplicateError(
                f"{shard}: {readable(name)} occurs more than once in the shard",
                hint="without duplicated_records: abort, each begins another record, and "
                "duplicate_keys: rename gives these records different keys",
            )
        seen.add(name)
