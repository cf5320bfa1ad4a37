"""How many records steps may fail at before the job ends."""

from __future__ import annotations

from collections.abc import Iterable

from dsort.data.tally import Tally
from dsort.errors import TransformError
from dsort.job.job import Job
from dsort.workers.tasks import ShardExtracted


def refuse_too_many_errors(job: Job, extracted: Iterable[ShardExtracted], tally: Tally) -> None:
    """``TransformError`` if steps failed at more records than ``max_errors`` allows."""
    failed, transform = tally.counts.get("failed_records", 0), job.spec.transform
    if not failed or transform is None:
        return
    given = sum(facts.transformed for facts in extracted)
    allowed = transform.errors_max(given)
    if allowed is not None and failed > allowed:
        first = ", ".join(tally.samples["failed_records"][:3])
        raise TransformError(
            f"steps failed at {failed:,} of {given:,} records, and max_errors is "
            f"{transform.max_errors}; the first are {first}",
            hint="mend the step, or set a larger max_errors",
        )
