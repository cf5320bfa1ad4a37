"""Resumes a job that died: reads its journal, and finds out how much of it is still valid.

Every fact is either checked where it matters (is the index still on that node, is the shard still
staged) or fixed (inputs by their ETags, the plan by its digest).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import asdict

from dsort.data.json_values import Count, Rows, json_bytes
from dsort.data.tally import TallyRow, tally_of, tally_rows
from dsort.errors import InvariantError, JobConflictError, ObjectNotFoundError, damaged
from dsort.job.create import Created
from dsort.job.job import Job, Resolved, parse_kept, refuse_damage_in
from dsort.job.plan import Plan, with_ends
from dsort.job.sidecars import noted_sidecars
from dsort.log_lines import logger_of
from dsort.order.cut import OutputShard
from dsort.order.mixing_counts import mixing_of
from dsort.order.output_shards import OutputShards
from dsort.results.journal import NoJournalError, read_journal
from dsort.results.journal_entries import (
    InputRow,
    JobAccepted,
    JournalState,
    Planned,
    PlannedRow,
)
from dsort.results.layout import reactions_name, rejects_name, report_name, staged_prefix
from dsort.results.report import JobReport, Order, RecordFlow, Run, Totals
from dsort.scratch.logs import ShardCreated
from dsort.scratch.requests import CreatedLogs
from dsort.storage.bucket import Bucket
from dsort.storage.small_objects import read_small
from dsort.workers.tasks import ShardExtracted

PLANNED_FILE = "planned.json"
RESOLVED_FILE = "resolved.json"
KEPT_BYTES_MAX = 1 << 30

log = logger_of("job")


def state_of(bucket: Bucket, job_id: str, report: str) -> JournalState:
    """The state of a job that died, or of an aborted job, by its report ``report``.

    ``JobConflictError`` if too little of the job is left, or if a dsort with another format of
    journals wrote it.
    """
    try:
        known = read_journal(bucket, job_id)
        if known.accepted and known.has_inputs:
            known.check()
            return known
    except NoJournalError:
        known = JournalState()
    left = _read_resume(bucket, report)
    if not left:
        raise JobConflictError(
            f"too little of job {job_id} is left in {bucket.uri} to resume it",
            hint="start the job again",
        )
    log.debug("job %s has no journal: its inputs are taken from its report", job_id)
    known.accepted, known.has_inputs, known.inputs = left.accepted, True, left.inputs
    known.check()
    return known


class _Left(Struct):
    """The part of a report that is for resuming the job."""

    accepted: JobAccepted
    inputs: tuple[InputRow, ...]
    resolved: Resolved


class _Report(Struct):
    resume: _Left | None = None


def _read_resume(bucket: Bucket, report: str) -> _Left | None:
    """The part of a report with which the job can be resumed; None if it has none."""
    try:
        data = read_small(bucket, report, bytes_max=KEPT_BYTES_MAX)
    except ObjectNotFoundError:
        return None
    return parse_kept(data, f"{report} in {bucket.uri}", _Report).resume


def resolved_before(job: Job) -> Resolved:
    """The facts that an earlier attempt found besides the inputs, from its retained file or its
    report."""
    kept = job.attempt.retained(RESOLVED_FILE)
    what = f"{RESOLVED_FILE} of job {job.job_id}"
    if kept:
        return parse_kept(kept, what, Resolved)
    left = _read_resume(job.buckets.outputs, report_name(job.job_id))
    if not left:
        raise damaged(what, "it is missing")
    return left.resolved


def report_of(job: Job, plan: Plan | None, *, state: str, manifest: str | None) -> JobReport:
    """The report of a job in its last ``state``. ``plan``, ``manifest``: if there are any."""
    movement, algorithm, given = job.found.movement, job.spec.algorithm, job.pipeline.placed_by
    return JobReport(
        job_id=job.job_id,
        state=state,
        output_uri=job.buckets.outputs.uri,
        manifest_name=manifest,
        totals=plan.totals(len(job.inputs)) if plan else Totals(len(job.inputs), 0, 0, 0, 0, 0),
        run=Run(
            move=movement.way.name if movement.workers else "",
            workers=movement.workers,
            phase_seconds=job.reporter.state.seconds(),
            timeline=job.reporter.timeline.samples(),
        ),
        order=Order(
            seed=algorithm.seed,
            algorithm=f"as in {given.words}" if given.shards else algorithm.in_words,
            mixing=job.outcome.mixing,
            flow=job.outcome.flow if state == "finished" else None,
        ),
        reactions=job.reporter.reactions(),
        warnings=tuple(job.reporter.warnings),
        outputs=plan.by_output(job.pipeline.output_names) if plan else (),
    )


def report_bytes(job: Job, report: JobReport) -> bytes:
    """The report of an aborted job, with all that is needed to begin the job again."""
    document = report.to_dict()
    document["resume"] = {
        "accepted": {
            "job_id": job.job_id,
            "dsort_version": "",
            "spec": job.spec.canonical(),
            "created": "",
        },
        "inputs": Rows([s.name, s.size_bytes, s.mtime_ns, s.etag] for s in job.inputs),
        "resolved": to_builtins(job.found.resolved),
    }
    return json_bytes(document)


def known_shards(job: Job) -> Iterator[ShardExtracted]:
    """The shards that earlier attempts extracted, if these attempts had the movement and partitions
    of this attempt."""
    known = job.attempt.before
    if known.movement.division == (job.found.movement.way.name, job.found.movement.partitions):
        yield from known.extracted.values()


class _PlanFacts(Struct):
    """The facts of a plan besides its output shards. ``records``: by the ordinals of inputs."""

    tally: list[TallyRow]
    records: dict[Count, Count]
    mixing: dict[str, Any] | None
    flow: dict[str, dict[str, Count]]
    reactions_file: str | None
    rejects_file: str | None


def note_plan(job: Job, plan: Plan, created: Created) -> None:
    """Put the plan into the journal, or compare it with the plan that is there. Take over the
    output shards that earlier attempts have staged."""
    job.outcome.planned_names = plan.names
    sums = ("records", "members", "payload_bytes", "stored_bytes")
    columns = (plan.shards.column(name).tolist() for name in sums)
    rows = map(PlannedRow, plan.names, *columns)
    planned = Planned(plan.digest(), tuple(rows))
    known = job.attempt.before.planned
    if known and known.digest != planned.digest:
        raise InvariantError("the new plan of the job differs from the plan in its journal")
    facts = _PlanFacts(
        tally=tally_rows(job.reporter.state.tally),
        records=job.outcome.input_records,
        mixing=job.outcome.mixing.document() if job.outcome.mixing else None,
        flow=asdict(job.outcome.flow),
        reactions_file=job.outcome.reactions_file or None,
        rejects_file=job.outcome.rejects_file or None,
    )
    # The file is stored first, so that an attempt that finds the plan in the journal finds its
    # facts, too.
    job.attempt.retain(PLANNED_FILE, json.dumps(to_builtins(facts)).encode())
    job.attempt.journal.append(planned)
    job.attempt.journal.flush()
    if known:
        _take_over(job, created)


def learn_created(job: Job) -> None:
    """Add the shards that workers had staged when their coordinator died during their tasks."""
    before = job.attempt.before
    if not before.planned:
        return
    created: dict[int, ShardCreated] = {}
    for node in job.runtime.scratch_nodes():
        created.update({shard.ordinal: shard for shard in job.runtime.ask(node, CreatedLogs())})
    for ordinal, shard in sorted(created.items()):
        if ordinal not in before.created:
            before.created[ordinal] = shard
            job.attempt.journal.append(shard)


def finished_plan(job: Job, created: Created) -> Plan | None:
    """The plan of an earlier attempt, if only the commit is left to do, because all its output
    shards are staged; otherwise None."""
    known = job.attempt.before.planned
    if not known:
        return None
    data, names = job.attempt.retained(PLANNED_FILE), [row.name for row in known.shards]
    job.outcome.names = job.outcome.names.counted_in(names)
    places = _places(job, names)
    if not data or len(places) < len(known.shards) or job.pipeline.result.checks_content:
        return None
    carrier = job.pipeline.carrier
    if carrier.entries or carrier.head or job.pipeline.has_late_outputs:
        return None  # the journal has no sizes of ends and no content of heads
    plan = Plan(
        shards=with_ends(
            carrier,
            OutputShards.of(
                [
                    OutputShard(
                        ordinal=ordinal,
                        group=group,
                        number=number,
                        records=row.records,
                        members=row.members,
                        payload_bytes=row.payload_bytes,
                        stored_bytes=row.stored_bytes,
                        pieces=(),
                    )
                    for ordinal, (row, (group, number)) in enumerate(
                        zip(known.shards, places, strict=True)
                    )
                ]
            ),
        ),
        names=names,
        records=sum(row.records for row in known.shards),
        members=sum(row.members for row in known.shards),
        payload_bytes=sum(row.payload_bytes for row in known.shards),
        stored_bytes=sum(row.stored_bytes for row in known.shards),
    )
    _take_over(job, created)
    if len(created.shards) < len(plan.shards):
        created.shards.clear()  # `note_plan` takes them over, once the plan is made again
        return None
    what = f"{PLANNED_FILE} of job {job.job_id}"
    facts = parse_kept(data, what, _PlanFacts)
    job.reporter.state.tally = tally_of(facts.tally)
    job.outcome.input_records = facts.records
    if facts.reactions_file:  # the name follows from the job id, whatever the file contains
        job.outcome.reactions_file = reactions_name(job.job_id)
    if facts.rejects_file:
        job.outcome.rejects_file = rejects_name(job.job_id)
    with refuse_damage_in(what):
        flow = facts.flow
        job.outcome.flow = RecordFlow(flow["read"], flow["dropped"], flow["added"])
        if facts.mixing:
            job.outcome.mixing = mixing_of(facts.mixing)
    return plan


def _places(job: Job, names: Sequence[str]) -> list[tuple[int, int]]:
    """(group, number) of the output shards with these names, in their order; none if the templates
    do not make these names. Each group counts from 0."""
    # Each template counts up, so only its next name is made: all names would take too much memory.
    templates, places = job.outcome.names.templates, list[tuple[int, int]]()
    due = {job.outcome.names.name(group, 0): (group, 0) for group in range(len(templates))}
    for name in names:
        if name not in due:
            return []
        group, number = due.pop(name)
        places.append((group, number))
        after, count = number + 1, templates[group].count
        if not count or after < count:
            due[job.outcome.names.name(group, after)] = (group, after)
    return places


def note_names(job: Job) -> None:
    """Note all names under which earlier attempts had begun to store objects: the job may remove
    these objects."""
    job.outcome.planned_names = [row.name for row in job.attempt.before.planned.shards]
    if job.attempt.was_committing:
        job.outcome.naming.update(_staged_before(job))
        for each in noted_sidecars(job.buckets.outputs, job.job_id):
            job.outcome.naming[each.token] = (each.name, each.receipt)


def _staged_before(job: Job) -> dict[str, tuple[str, str]]:
    """(name, receipt) by token of the output shards that earlier attempts staged."""
    before, prefix = job.attempt.before, staged_prefix(job.job_id)
    return {
        f"{prefix}{ordinal}": (before.planned.shards[ordinal].name, facts.receipt)
        for ordinal, facts in before.created.items()
        if ordinal < len(before.planned.shards)
    }


def _take_over(job: Job, created: Created) -> None:
    """Add to ``created`` the output shards that earlier attempts staged and that are still
    there."""
    prefix = staged_prefix(job.job_id)
    for token in job.buckets.outputs.still_staged(_staged_before(job)):
        ordinal = int(token.removeprefix(prefix))
        created.shards[ordinal] = job.attempt.before.created[ordinal]
    created.rechecked = frozenset(created.shards)
    log.debug("%d output shards of earlier attempts are still staged", len(created.shards))
