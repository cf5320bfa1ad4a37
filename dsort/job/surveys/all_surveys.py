"""All surveys of a job, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsort.job.extraction import is_even
from dsort.job.job import Facts, Job
from dsort.job.surveys.survey import EqualRecords, Positions, Survey


def surveys_of(job: Job) -> Iterator[Survey[Any]]:
    """The surveys that a job needs; others are not loaded. Each survey sees the records that the
    surveys before it leave: ``positions`` counts the records that come to a step; a join and equal
    records drop some before a mix weighs inputs; exact outputs count the copies of a mix;
    partitions are chosen for the records that are output."""
    pipeline = job.pipeline
    if any(step.needs_positions for step in pipeline.steps):
        yield Positions(job)
    if pipeline.join.is_settled_first:
        from dsort.job.surveys.joins import JoinedFirst

        yield JoinedFirst(job)
    if pipeline.deduplicates_first:
        yield EqualRecords(job)
    if pipeline.mix:
        from dsort.job.surveys.mix import InputCopies

        yield InputCopies(job, pipeline.mix)
    if pipeline.division.is_counted:
        from dsort.job.surveys.exact_outputs import ExactOutputs

        yield ExactOutputs(job)
    renames = pipeline.reading.policies.duplicate_keys == "rename"
    if (
        renames
        or pipeline.algorithm.placement
        or (job.found.movement.way.spills and not is_even(job))
    ):
        from dsort.job.surveys.partitions import Partitions

        yield Partitions(job)


def run_surveys(job: Job) -> Facts:
    """The facts that the surveys of a job find, or that an earlier attempt has found."""
    surveys, facts = [*surveys_of(job)], Facts()
    for at, survey in enumerate(surveys):
        _expect(job, passes=1 + sum(each.readings for each in surveys[at:]))
        facts = survey.find(facts)
    _expect(job, passes=1)
    return facts


def _expect(job: Job, *, passes: int) -> None:
    """Expect ``passes`` passes more than were read already."""
    total = sum(shard.size_bytes for shard in job.inputs)
    before = job.reporter.state.phases["extract"]
    job.reporter.expect(shards=len(job.inputs), bytes_total=before.bytes + passes * total)
