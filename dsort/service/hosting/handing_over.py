"""Handing over: what a service that ends does with its running jobs in a container, where no
process outlives it.

Their processes are ordered to leave, which keeps the journals, and the jobs go back into the queue
for another replica. None of this counts as a death. The leases are released, because another
machine cannot see that their holders are gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dsort.errors import DsortError
from dsort.log_lines import logger_of
from dsort.results.lease import release_for_dead
from dsort.service.database.engine import Database
from dsort.service.hosting.environment import JobEnvironment
from dsort.service.hosting.process import Host, JobProcess
from dsort.service.hosting.reporter import DATABASE_AWAY
from dsort.service.jobs.outputs import open_output
from dsort.service.jobs.queue import hand_over
from dsort.service.jobs.rows import JobRow
from dsort.service.jobs.store import JobStore

__all__ = ["HAND_OVER_S_MAX", "hand_jobs_over"]

LEAVE_S_MAX: Final = 4.0
"""Processes that are ordered to leave do so at once; after this time the others are killed."""
KILL_S_MAX: Final = 1.0
RELEASE_S_MAX: Final = 5.0
"""If a store does not respond for so long, its leases are not released: they lapse in a minute."""
HAND_OVER_S_MAX: Final = LEAVE_S_MAX + KILL_S_MAX + RELEASE_S_MAX
LOOK_S: Final = 0.02

log = logger_of("service")


def hand_jobs_over(
    database: Database,
    host: Host,
    job_environment: JobEnvironment,
    processes: Sequence[JobProcess],
    *,
    replica: str,
) -> int:
    """Put the running jobs of this replica back into the queue, without a process; returns their
    number. ``processes``: those that this replica has started itself."""
    there: dict[int, float | None] = {each.pid: each.started for each in processes}
    store = JobStore(database)
    try:
        small = [row for row in store.running() if (row.host, row.replica) == (host.name, replica)]
        rows = [whole for row in small if (whole := store.get(row.job_id)) is not None]
        there |= {row.pid: row.pid_started for row in rows if row.pid is not None}
        _end(host, there)
        handed = [row for row in rows if _hand_over(database, row)]
    except DATABASE_AWAY as error:
        log.warning("jobs could not be handed over, and will be missed in 30 s: %s", error)
        _end(host, there)
        return 0
    _release_leases(handed, job_environment)
    return len(handed)


def _hand_over(database: Database, row: JobRow) -> bool:
    reason = "the service that ran it has ended"
    return hand_over(database, row.job_id, row.attempt, now_s=time.time(), reason=reason)


def _end(host: Host, processes: Mapping[int, float | None]) -> None:
    """End these processes with the signal on which they leave their jobs unchanged."""
    for number, seconds_max in ((signal.SIGTERM, LEAVE_S_MAX), (signal.SIGKILL, KILL_S_MAX)):
        for pid in _living(host, processes):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        until_s = time.monotonic() + seconds_max
        while _living(host, processes) and time.monotonic() < until_s:
            time.sleep(LOOK_S)


def _living(host: Host, processes: Mapping[int, float | None]) -> list[int]:
    return [pid for pid, started in processes.items() if host.is_alive(pid, started)]


def _release_leases(rows: Iterable[JobRow], job_environment: JobEnvironment) -> None:
    threads = [
        threading.Thread(target=_release_lease, args=(row, job_environment), daemon=True)
        for row in rows
        if row.kind == "run"
    ]
    for thread in threads:
        thread.start()
    until_s = time.monotonic() + RELEASE_S_MAX
    for thread in threads:
        thread.join(max(until_s - time.monotonic(), 0))


def _release_lease(row: JobRow, job_environment: JobEnvironment) -> None:
    try:
        options = job_environment.options()
        assert options.fetch is not None, "the service decides what its jobs may touch"
        release_for_dead(open_output(row, options, options.fetch), row.job_id)
    except (DsortError, OSError) as error:  # then the next process waits for a minute
        log.warning("job %s: its lease was not released: %s", row.job_id, error)
