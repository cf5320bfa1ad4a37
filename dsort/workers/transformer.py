"""The transformer: runs the steps of a job on the records of one input shard.

Each payload step makes a new shard from a shard: a tar of the results, in a file without a name in
scratch. Later steps read it like any other tar.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import closing

import numpy as np
from msgspec import Struct

from dsort.data.columns import Bools
from dsort.data.members import MemberTable
from dsort.data.record_table import RecordTable
from dsort.data.records import FormedRecords
from dsort.data.tally import FLOW_ADDED, FLOW_DROPPED, Tally
from dsort.errors import TransformError
from dsort.moves.bare import BARE
from dsort.moves.input_shard import ShardBytes
from dsort.naming.names import readable
from dsort.pipeline.pipeline import StepFailures
from dsort.scratch.directory import Scratch
from dsort.scratch.logs import LineWriter
from dsort.transforms.base import Step, apply_steps, step_words
from dsort.transforms.payload import PayloadStep
from dsort.user_code.pool import CodePool
from dsort.workers.code_frames import GivenRecords, RecordFrame, ShardResults
from dsort.workers.conversion import bared_records
from dsort.workers.gpus import GpuNeeds, GpuPlace
from dsort.workers.tasks import CodeShare

FRAME_RECORDS = 256
FRAME_BYTES = 1 << 20


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
        rejects: LineWriter | None,
        *,
        stored: MemberTable | None = None,
        input_name: str = "",
        firsts: Sequence[int] = (),
    ) -> Transformed:
        """Apply ``steps`` to the records of ``shard``. A payload step makes ``shard`` bare, and
        replaces its content. ``stored``: its members as rows of a tar, if it is one. ``firsts``:
        see ``apply_steps``. ``rejects`` gets a line for each record that is lost.
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
        stored: MemberTable | None,
        shard: ShardBytes,
        table: RecordTable,
        tally: Tally,
        rejects: LineWriter | None,
    ) -> tuple[MemberTable, FormedRecords]:
        """Apply the step ``number`` to the records of ``table``, which is bare. Return the members
        and records of ``shard``, which is then a tar of the results. ``stored``: its members as
        rows of a tar, if it was one. ``TransformError`` if a record fails and ``on_error`` is
        ``fail``. ``rejects`` gets a line for each record that is lost."""
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
            dropped[failures.rows] = False
            left_out = int((dropped & stays).sum())
            tally.add("left_out_by_steps", left_out, [f"{kind} in {shard.name}"] * bool(left_out))
            failures.tell(tally, stays)
            lost = int(((results.counts == 0) | ~stays).sum())  # includes failed records
            made = int(results.counts[stays].sum())
            tally.add(f"{FLOW_DROPPED}{step_words(number, step)}", lost)
            tally.add(f"{FLOW_ADDED}{step_words(number, step)}", made + lost - len(table))
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
        rejects: LineWriter | None,
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
        """Add records that failed, by their place behind record ``first``. ``TransformError`` if
        ``on_error`` is ``fail``."""
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
        """Whether each record may leave results: it is not lost together with a failed one."""
        stays = np.ones(records, np.bool_)
        if self.ends_shard:
            (row,) = self._reasons
            stays[0 if self._rules.on_error == "skip_shard" else row :] = False
        return stays

    def tell(self, tally: Tally, stays: Bools) -> None:
        """Count and name the records that failed, and those that were lost with them."""
        shard = self._table.shard
        for row, reason in self._reasons.items():
            tally.add("failed_records", 1, [f"{shard}: {self._name(row)} ({self._kind}: {reason})"])
        lost = [row for row in np.flatnonzero(~stays).tolist() if row not in self._reasons]
        names = [f"{shard}: {self._name(row)}" for row in lost]
        tally.add("lost_with_failed", len(lost), names)
        if self._rejects is None:
            return
        for row, reason in self._reasons.items():
            self._rejects.write([self._line(row, reason)])
        with_whom = ", ".join(map(self._name, self._reasons))
        for row in lost:
            self._rejects.write([self._line(row, f"left out with {with_whom}")])

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
            start, stop = table.records.member_offsets[row : row + 2].tolist()
            members = {}
            for member in table.records.member_rows[start:stop].tolist():
                name = table.members.names[member][int(table.records.key_bytes[member]) + 1 :]
                data = base64.b64encode(table.content(member)).decode("ascii")
                members[name.decode("utf-8", "surrogateescape")] = data
            line["members"] = members
        return json.dumps(line).encode() + b"\n"


class Transformed(Struct, frozen=True, eq=False):
    """The records that steps leave. ``named``: ``members`` with the names that steps gave them,
    which are not in the headers yet. ``given``: how many records payload steps received, summed
    over the steps. ``counts``: how many records reached each step that needs positions."""

    members: MemberTable
    named: MemberTable
    records: FormedRecords
    given: int
    counts: tuple[int, ...] = ()
