"""What a schedule's job does once its result is there: the ``latest`` pointer, then retention.

The result is safe by then: whatever goes wrong here is a warning of the job. Doing it again does no
harm, so that an attempt that died in between is gone on with by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dsort.errors import DsortError
from dsort.job.events import JobWarning
from dsort.service.database.engine import Database
from dsort.service.schedules.pointer import move_pointer
from dsort.service.schedules.results import Opener, ScheduleResults
from dsort.service.schedules.retention import apply_retention

__all__ = ["run_after_commit"]


def run_after_commit(
    database: Database,
    job_id: str,
    open_bucket: Opener,
    *,
    clock: Callable[[], float] = time.time,
) -> list[JobWarning]:
    """Do for the finished job ``job_id`` what its schedule wants; nothing for a job of none.

    ``open_bucket``: as the job itself opens buckets. Database errors are raised.
    """
    results = ScheduleResults(database)
    result = results.one(job_id)
    if result is None:
        return []
    warnings = []
    if result.after_commit["pointer"] is not None:
        try:
            problem = move_pointer(result, results, open_bucket)
        except DsortError as error:
            # What the pointer names now may be what retention would remove: that waits.
            text = f"the pointer to the latest result stays as it was: {error}"
            return [JobWarning(job_id, "latest", text)]
        if problem:
            warnings.append(JobWarning(job_id, "latest", problem))
    if result.after_commit["retain"] is not None:
        texts = apply_retention(result, results, open_bucket, now_s=clock())
        warnings += [JobWarning(job_id, "retain", text) for text in texts]
    return warnings
