"""The transformer: runs the steps of a job on the records of one input shard.

Each payload step makes a new shard from a shard: a tar of the results, in a file without a name in
scratch. Later steps read it like any other tar.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import Buffer

from dsort.containers.tar.container import TAR
from dsort.containers.tar.scan import END_OF_ARCHIVE
from dsort.data.columns import Bools, BytesColumn, Int64s, UInt8s
from dsort.data.members import MemberTable, OwnRecords
from dsort.data.record_table import RecordTable
from dsort.data.records import FormedRecords, form_records
from dsort.data.tally import FLOW_ADDED, FLOW_DROPPED, Tally
from dsort.errors import InvariantError, TransformError
from dsort.moves.bare import BARE
from dsort.moves.input_shard import ShardBytes
from dsort.naming.names import readable
from dsort.pipeline.pipeline import StepFailures
from dsort.scratch.directory import Scratch
from dsort.scratch.logs import LineWriter
from dsort.transforms.base import Step, apply_steps, step_words
from dsort.transforms.payload import PayloadStep
from dsort.user_code.frames import FRAME, HANDED_BACK, MAY_NAME, NEW, SAME
from dsort.user_code.pool import CodePool, Done
from dsort.user_code.process import Memories
from dsort.workers.conversion import bared_records
from dsort.workers.gpus import GpuNeeds, GpuPlace
from dsort.workers.tasks import CodeShare

FRAME_RECORDS = 256
FRAME_BYTES = 1 << 20
NO_MEMBERS = MemberTable.empty()


class Transformer:
    """Runs the steps of a job in one worker."""

    def __init__(self, rules: StepFailures, share: CodeShare, scratch: Scratch) -> None:
        self._rules = rules
        self._share = share
        self._scratch = scratch
        self._pools: dict[int, CodePool] = {}
        self._gpus: GpuPlace | None = None
        self.cells: Mapping[str, str] | None = None  # for rows that stay rows: how to read values

    def close(self) -> None:
        """End all processes."""
        while self._pools:
            self._pools.popitem()[1].close()
        if self._gpus is not None:
            self._gpus.close()
        self._gpus = None

    def run(
        self,
        steps: Sequence[Step],
        shard: ShardBytes,
        members: MemberTable,
        records: FormedRecords,
        tally: Tally,
        rejects: LineWriter,
        *,
        stored: MemberTable = NO_MEMBERS,
        input_name: str = "",
        firsts: Sequence[int] = (),
    ) -> Transformed:
        """Apply ``steps`` to the records of ``shard``. A payload step makes ``shard`` bare, and
        replaces its content. ``stored``: see :class:`GivenRecords`.
        ``firsts``: see ``apply_steps``. ``rejects`` gets a line for each record that is lost.
        ``TransformError`` if a record fails and ``on_error`` is ``fail``, or if a step cannot be
        done."""
        named, given = members, 0
        counts: list[int] = []
        left_out: dict[str, int] = {}
        for number, step in enumerate(steps):
            table = RecordTable(
                shard.name,
                named,
                records,
                shard.content,
                input=input_name,
                read_many=shard.contents,
                report=tally.add,
                are_rows=shard.container.is_columnar,
            )
            if not isinstance(step, PayloadStep):
                applied = apply_steps([step], table, firsts[len(counts) :])
                counts += applied.counts
                if len(counts) > len(firsts):
                    break  # the stage ``count`` needs no more
                named, records = applied.records.members, applied.records.records
                for kind, count in applied.left_out.items():
                    left_out[kind] = left_out.get(kind, 0) + count
                    tally.add(f"{FLOW_DROPPED}{step_words(number, step)}", count)
                continue
            if shard.container is not BARE:
                stored = members
                named, records = bared_records(shard, named, records)
                table = RecordTable(shard.name, named, records, shard.content)
            given += len(table)
            pool = self._pool(number, steps)
            members, records = self._run_step(
                number, step, pool, stored, shard, table, tally, rejects
            )
            named = members
        for kind, count in left_out.items():
            tally.add("left_out_by_steps", count, [f"{kind} in {shard.name}"])
        return Transformed(members, named, records, given, tuple(counts))

    def _run_step(
        self,
        number: int,
        step: PayloadStep,
        pool: CodePool,
        stored: MemberTable,
        shard: ShardBytes,
        table: RecordTable,
        tally: Tally,
        rejects: LineWriter,
    ) -> tuple[MemberTable, FormedRecords]:
        """Apply the step ``number`` to the records of ``table``, which is bare. Return the members
        and records of ``shard``, which is then a tar of the results. ``TransformError`` if a record
        fails and ``on_error`` is ``fail``. ``rejects`` gets a line for each record that is
        lost."""
        kind = step.kind
        failures = _Failures(kind, number, table, self._rules, rejects)
        given = GivenRecords.of(shard, table, stored)
        results = ShardResults(given)
        try:
            frames = given.frames(step.batch_records, FRAME_RECORDS, FRAME_BYTES)
            with closing(pool.run(frames)) as found:
                for done in found:
                    assert isinstance(done.frame, RecordFrame)
                    results.add(done)
                    failures.add(done.frame.start + done.start, done.results.errors)
                    if failures.ends_shard:
                        break
            stays = failures.stays(len(table))
            dropped = results.counts == 0
            # Failed records have no results either, but are counted as failures.
            dropped[failures.rows] = False
            left_out = int((dropped & stays).sum())
            tally.add("left_out_by_steps", left_out, [f"{kind} in {shard.name}"] * bool(left_out))
            failures.tell(tally, stays)
            lost = int(((results.counts == 0) | ~stays).sum())  # includes failed records
            made = int(results.counts[stays].sum())
            tally.add(f"{FLOW_DROPPED}{step_words(number, step)}", lost)
            tally.add(f"{FLOW_ADDED}{step_words(number, step)}", made + lost - len(table))
        # Also after Ctrl-C: until it is closed, a file without a name takes room in scratch.
        except BaseException:
            results.close()
            raise
        return results.formed(stays)

    def _pool(self, number: int, steps: Sequence[Step]) -> CodePool:
        if number in self._pools:
            return self._pools[number]
        step = steps[number]
        assert isinstance(step, PayloadStep)
        environment, count = step.limits.environment(), 1
        if step.limits.gpus:
            if self._gpus is None:
                self._gpus = GpuPlace(GpuNeeds.of(steps), self._share.gpus, self._scratch)
            environment |= self._gpus.environment(number)
        else:
            count = max(1, step.limits.processes // self._share.workers)
        pool = self._pools[number] = CodePool(
            {**step.given_program(number), "cells": None if self.cells is None else {**self.cells}},
            what=step.kind,
            count=count,
            timeout_s=step.patience_s,
            keeps=self._rules.on_error == "keep",
            environment=environment,
        )
        return pool


class _Failures:
    """The records that failed, and the consequences for the other records of their shard."""

    def __init__(
        self,
        kind: str,
        number: int,
        table: RecordTable,
        rules: StepFailures,
        rejects: LineWriter,
    ) -> None:
        self._kind = kind
        self._number = number
        self._table = table
        self._rules = rules
        self._rejects = rejects
        self._reasons: dict[int, str] = {}

    @property
    def rows(self) -> list[int]:
        """The records that failed."""
        return list(self._reasons)

    @property
    def ends_shard(self) -> bool:
        """Whether no more results are taken from the shard."""
        return bool(self._reasons) and self._rules.on_error in ("stop", "skip_shard")

    def add(self, first: int, errors: Mapping[int, str]) -> None:
        """Add records that failed: record ``first + place`` for each ``place`` in ``errors``.
        ``TransformError`` if ``on_error`` is ``fail``."""
        for place, reason in sorted(errors.items()):
            if self.ends_shard:
                return
            row = first + place
            if self._rules.on_error == "fail":
                raise TransformError(
                    f"{self._kind}: record {self._name(row)} of shard {self._table.shard} failed: "
                    f"{reason}",
                    hint="on_error: skip or keep lets the job go on, and counts such records",
                )
            self._reasons[row] = reason

    def stays(self, records: int) -> Bools:
        """Whether the results of each record are kept: not if the record is lost together with a
        failed one."""
        stays = np.ones(records, np.bool_)
        if self.ends_shard:
            # Exactly one record failed: `add` ignores failures after the end of the shard.
            (row,) = self._reasons
            stays[0 if self._rules.on_error == "skip_shard" else row :] = False
        return stays

    def tell(self, tally: Tally, stays: Bools) -> None:
        """Count and name the records that failed, and the records that were lost with them."""
        shard = self._table.shard
        for row, reason in self._reasons.items():
            tally.add("failed_records", 1, [f"{shard}: {self._name(row)} ({self._kind}: {reason})"])
        lost = [row for row in np.flatnonzero(~stays).tolist() if row not in self._reasons]
        names = [f"{shard}: {self._name(row)}" for row in lost]
        tally.add("lost_with_failed", len(lost), names)
        self._rejects.write(self._line(row, reason) for row, reason in self._reasons.items())
        with_whom = ", ".join(map(self._name, self._reasons))
        self._rejects.write(self._line(row, f"left out with {with_whom}") for row in lost)

    def _name(self, row: int) -> str:
        return readable(self._table.keys[row])

    def _line(self, row: int, reason: str) -> bytes:
        table = self._table
        line: dict[str, object] = {
            "key": table.keys[row].decode("utf-8", "surrogateescape"),
            "shard": table.shard,
            "step": f"transform.steps[{self._number}].{self._kind}",
            "error": reason,
        }
        if self._rules.rejects == "payload":
            members = {}
            for member in table.records.rows_of(row):
                name = table.members.names[member][int(table.records.key_bytes[member]) + 1 :]
                data = base64.b64encode(table.content(member)).decode("ascii")
                members[name.decode("utf-8", "surrogateescape")] = data
            line["members"] = members
        # In ASCII, as names that are no UTF-8 have surrogates, which UTF-8 cannot encode.
        return json.dumps(line).encode() + b"\n"


class Transformed(Struct, frozen=True, eq=False):
    """The records that steps leave. ``named``: ``members`` with the names that steps gave them,
    which are not in the headers yet. ``given``: how many records payload steps received, added up
    over the steps. ``counts``: how many records reached each step that needs positions."""

    members: MemberTable
    named: MemberTable
    records: FormedRecords
    given: int
    counts: tuple[int, ...] = ()


GAPS_BYTES = 2048
"""Bytes between payloads are copied with them, up to this many for each payload, because one copy
of all payloads costs less than a copy of each payload."""


class GivenRecords(Struct, frozen=True, eq=False):
    """The records of a bare table of ``shard``, and their members in the order of the records.

    ``stored``: the same members as rows of a tar; empty if the shard is no tar. ``may_name``: for
    each record, whether ``stored`` still has the present names of its members."""

    shard: ShardBytes
    table: RecordTable
    stored: MemberTable
    may_name: Bools
    names: BytesColumn
    start: Int64s
    size: Int64s

    @classmethod
    def of(cls, shard: ShardBytes, table: RecordTable, stored: MemberTable) -> GivenRecords:
        """All records of ``table``."""
        members, records = table.members, table.records
        rows = records.member_rows
        names, same = members.names.take(rows), np.full(len(records), len(stored) > 0)
        if len(stored) and stored.names is not members.names:
            pairs = zip(names.tolist(), stored.names.take(rows).tolist(), strict=True)
            changed = np.fromiter((new != old for new, old in pairs), np.bool_, len(rows))
            same[table.record_of[changed]] = False
        start, size = members.payload_start[rows], members.payload_bytes[rows]
        return cls(shard, table, stored, same, names, start, size)

    def frames(self, batch: int, records_max: int, bytes_max: int) -> Iterator[RecordFrame]:
        """Yield all records in frames of bounded size; all but the last have whole batches."""
        at, ends, count = 0, np.cumsum(self.table.payload_bytes), len(self.table)
        while at < count:
            before = int(ends[at - 1]) if at else 0
            fit = int(np.searchsorted(ends, before + bytes_max, side="right")) - at
            # At least one batch, even if that exceeds the bounds.
            size = max(1, min(fit, records_max) // batch) * batch
            stop = min(at + size, count)
            yield RecordFrame(self, at, stop)
            at = stop

    def copy(self, begin: int, end: int, memories: Memories) -> tuple[int, int, Int64s]:
        """Copy the payload of members ``begin:end`` to a memory. Return the memory's number, its
        length, and where in it each payload begins."""
        start, size = self.start[begin:end], self.size[begin:end]
        low = int(start.min()) if len(start) else 0
        high, total = int((start + size).max(initial=low)), int(size.sum())
        is_dense = low >= 0 and high - low <= total + GAPS_BYTES * len(start)
        number, memory = memories.next(high - low if is_dense else total)
        if is_dense:
            with memoryview(memory) as whole, whole[: high - low] as view:
                if len(view):
                    self.shard.fill(view, low)
            return number, len(memory), start - low
        members, at = self.table.members, 0
        for row in self.table.records.member_rows[begin:end].tolist():
            data = self.shard.content(members, row)
            memory[at : at + len(data)] = data
            at += len(data)
        return number, len(memory), np.cumsum(size) - size


class RecordFrame:
    """Records ``start:stop`` of ``given``, as one or several messages."""

    def __init__(self, given: GivenRecords, start: int, stop: int) -> None:
        self.given = given
        self.start = start
        self._stop = stop

    def __len__(self) -> int:
        return self._stop - self.start

    def message(
        self, number: int, start: int, stop: int, memories: Memories, *, hands_back: bool = False
    ) -> Buffer:
        """See :class:`~dsort.user_code.pool.Frame`."""
        given, records = self.given, self.given.table.records
        first, last = self.start + start, self.start + stop
        offsets = records.member_offsets[first : last + 1]
        begin, end = int(offsets[0]), int(offsets[-1])
        memory, memory_bytes, places = given.copy(begin, end, memories)
        names = given.names.run(begin, end)
        name_offsets = names.offsets - names.offsets[0]
        blob = names.blob.tobytes()
        firsts, key_bytes = offsets - begin, np.diff(records.keys.offsets[first : last + 1])
        key_starts = name_offsets[firsts[:-1]]
        flags = given.may_name[first:last].astype(np.uint8) * MAY_NAME
        parts = (
            flags | HANDED_BACK if hands_back else flags,
            firsts.astype(np.uint32),
            key_starts.astype(np.uint32),
            (key_starts + key_bytes).astype(np.uint32),
            (name_offsets[:-1] + np.repeat(key_bytes, np.diff(offsets)) + 1).astype(np.uint32),
            name_offsets[1:].astype(np.uint32),
            places.astype(np.uint64),
            (places + given.size[begin:end]).astype(np.uint64),
        )
        head = FRAME.pack(number, memory_bytes, memory, stop - start, end - begin, len(blob))
        return b"".join((head, *(part.tobytes() for part in parts), blob))


class ShardResults:
    """The results for the records of one shard, in the order of the records."""

    def __init__(self, given: GivenRecords) -> None:
        self._given = given
        self._tail = given.shard.tail()
        self._new = 0
        self._done = 0  # records
        self._of_record: list[Int64s] = []
        self._members: list[Int64s] = []  # of each result
        self._key_bytes: list[Int64s] = []
        self._rows: list[Int64s] = []  # of each member of each result; below 0: new members

    def close(self) -> None:
        """Discard the results."""
        self._tail.close()

    def add(self, done: Done) -> None:
        """Add the results for the next records. ``InvariantError`` if they are inconsistent."""
        frame, found = done.frame, done.results
        assert isinstance(frame, RecordFrame)
        records = self._given.table.records
        counts = np.asarray(found.counts, np.int64)
        first = frame.start + done.start
        last = first + len(counts)
        same = counts == SAME
        of_record = np.repeat(np.arange(len(counts)), np.where(same, 1, counts))
        is_same = same[of_record]
        own_counts = np.diff(records.member_offsets[first : last + 1])
        own_keys = np.diff(records.keys.offsets[first : last + 1])
        members, key_bytes = own_counts[of_record], own_keys[of_record]
        members[~is_same] = np.asarray(found.members, np.int64)
        key_bytes[~is_same] = np.asarray(found.key_bytes, np.int64)
        of_same = np.repeat(is_same, members)
        rows = np.empty(len(of_same), np.int64)
        own_rows = records.member_rows
        here = own_rows[records.member_offsets[first] : records.member_offsets[last]]
        rows[of_same] = here[np.repeat(same, own_counts)]
        rows[~of_same] = self._named(np.asarray(found.named, np.int64), frame, done.sent_from)
        self._of_record.append(of_record + self._done)
        self._members.append(members)
        self._key_bytes.append(key_bytes)
        self._rows.append(rows)
        self._done += len(counts)
        if found.tar:
            self._tail.append(found.tar)

    def _named(self, named: Int64s, frame: RecordFrame, sent_from: int) -> Int64s:
        """The rows of members. A member of the shard is named by its number in a message; new
        members get rows below 0."""
        offsets = self._given.table.records.member_offsets
        sent = self._given.table.records.member_rows[int(offsets[frame.start + sent_from]) :]
        is_new = named == NEW
        # The process is not trusted. If all members are new, nothing need have been sent.
        if len(named) and int(np.where(is_new, 0, named).max()) >= len(sent) + bool(is_new.all()):
            raise InvariantError("a process of user code named a member that it was not given")
        rows = np.empty(len(named), np.int64)
        rows[~is_new] = sent[named[~is_new]]
        new = int(is_new.sum())
        rows[is_new] = -1 - np.arange(self._new, self._new + new)
        self._new += new
        return rows

    @property
    def counts(self) -> Int64s:
        """How many records each given record became; 0 for records without results."""
        of_record = _joined(self._of_record)
        return np.bincount(of_record, minlength=len(self._given.table)).astype(np.int64)

    def formed(self, stays: Bools) -> tuple[MemberTable, FormedRecords]:
        """The members and records of the shard, which is a tar from now on. Records that were made
        from a record for which ``stays`` is false are left out."""
        given, shard = self._given, self._given.shard
        self._tail.append(END_OF_ARCHIVE)
        members, counts = shard.grow(self._tail, TAR), _joined(self._members)
        if len(members) != self._new:
            raise InvariantError(
                f"{len(members)} members are in the results of {shard.name}, not {self._new}"
            )
        rows, stored = _joined(self._rows), given.stored
        if not (rows >= 0).any():
            stored = NO_MEMBERS
        before = len(stored)
        begin = shard.size_bytes - self._tail.size_bytes
        whole = stored.followed_by(members, begin)
        known = whole.taking(np.where(rows >= 0, rows, before - 1 - rows))
        known = replace(
            known,
            own=OwnRecords(
                key_bytes=np.repeat(_joined(self._key_bytes), counts),
                record_of=np.repeat(np.arange(len(counts)), counts),
            ),
        )
        records = form_records(known, "keep")
        kept = stays[_joined(self._of_record)]
        return known, records if kept.all() else records.keeping(kept)


def _joined(parts: list[Int64s]) -> Int64s:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


_NONE = np.zeros(0, np.int64)
_KINDS: UInt8s = np.zeros(0, np.uint8)
_NOTHING = (_KINDS, _NONE, _NONE, _NONE, _NONE)
