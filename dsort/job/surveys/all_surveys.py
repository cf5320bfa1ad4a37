"""All surveys of a job, in their order."""

from __future__ import annotations

from typing import Final, Protocol

from dsort.job.facts import Facts
from dsort.job.job import Job
from dsort.job.surveys import exact_outputs, joins, mix, partitions, positions


class Survey(Protocol):
    """A module that finds a fact about all records, if the job needs it."""

    def readings(self, job: Job) -> int:
        """How many passes over all inputs it needs that no earlier attempt has made."""

    def find(self, job: Job, facts: Facts) -> Facts:
        """``facts`` with what the survey finds, or an earlier attempt has found."""


SURVEYS: Final[tuple[Survey, ...]] = (positions, joins, mix, exact_outputs, partitions)
"""Each survey reads the records as the surveys before it leave them: ``positions`` counts all that
come to a step, a join drops records before a mix weighs inputs, exact outputs count the copies of a
mix, and partitions are chosen for the records that are output."""


def run_surveys(job: Job) -> Facts:
    """The facts that the surveys of a job find, or that an earlier attempt has found."""
    left = [survey.readings(job) for survey in SURVEYS]
    facts = Facts()
    for at, survey in enumerate(SURVEYS):
        _expect(job, passes=1 + sum(left[at:]))
        facts = survey.find(job, facts)
    _expect(job, passes=1)
    return facts


def _expect(job: Job, *, passes: int) -> None:
    """Set the totals of the phase to ``passes`` more passes, besides what was read already."""
    total = sum(shard.size_bytes for shard in job.inputs)
    before = job.reporter.state.phases["extract"]
    job.reporter.expect(
        shards=before.shards + passes * len(job.inputs), bytes_total=before.bytes + passes * total
    )
