"""Whether a job's process is dead, and how it died, in words."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from dsort.service.hosting.machine import Host, oom_kills
from dsort.service.hosting.process import LEFT_ALONE, JobProcess
from dsort.service.jobs.rows import JobRow

__all__ = ["BEGIN_S_MAX", "SILENT_S_MAX", "Death", "Watch", "how_it_died"]

SILENT_S_MAX = 30.0
"""A process on another machine that has not been heard of for so long is dead."""
BEGIN_S_MAX = 120.0
"""An attempt that no process has been heard of for so long has none. Twenty of them that begin at
once on two busy cores take half a minute to say anything."""
NEIGHBOUR_S = 5.0
"""What another replica on this machine has to see, we see, too: it comes first, for it may know
more."""


@dataclass(frozen=True, slots=True)
class Death:
    """``died``: whether it counts against the job. ``ours``: it was this replica's to run."""

    reason: str
    died: bool = True
    ours: bool = True


class Watch:
    """Who is alive, as this replica sees it.

    Of other machines only heartbeats are known. How long one has not come is measured here, from
    when its predecessor was first seen: clocks of two machines are not compared.
    """

    def __init__(
        self, host: Host, replica: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host = host
        self._replica = replica
        self._clock = clock
        self._seen: dict[tuple[str, int], tuple[object, float]] = {}

    def forget(self) -> None:
        """Begin to measure anew: nobody could be heard for a while."""
        self._seen.clear()

    def keep_only(self, running: set[tuple[str, int]]) -> None:
        """Forget all attempts but these."""
        self._seen = {key: seen for key, seen in self._seen.items() if key in running}

    def death(self, row: JobRow) -> Death | None:
        """Of an attempt that this process has not begun itself; None while it may be alive."""
        if row.host != self._host.name:
            silent_s = self._unchanged_s(row, row.heartbeat_at)
            if silent_s < (BEGIN_S_MAX if row.pid is None else SILENT_S_MAX):
                return None
            machine = (row.host or "").partition("/")[0]
            reason = f"{machine} has not been heard of for {silent_s:.0f} s"
            # Where there was no process, the job cannot have killed it.
            return Death(reason, died=row.pid is not None, ours=False)
        ours = row.replica == self._replica
        if row.pid is None:
            if ours:  # from before this service was started: there may be none
                return Death("the service ended before its process was there", died=False)
            late = self._unchanged_s(row, row.heartbeat_at) >= BEGIN_S_MAX
            return Death("its process never began", died=False, ours=False) if late else None
        if self._host.is_alive(row.pid, row.pid_started):
            self._seen.pop((row.job_id, row.attempt), None)
            return None
        if not ours and self._unchanged_s(row, "gone") < NEIGHBOUR_S:
            return None
        return Death(f"its process {row.pid} is gone", ours=ours)

    def _unchanged_s(self, row: JobRow, sign: object) -> float:
        """For how long nothing but ``sign`` has been seen of an attempt."""
        key, now_s = (row.job_id, row.attempt), self._clock()
        known = self._seen.get(key)
        if known is None or known[0] != sign:
            self._seen[key] = known = (sign, now_s)
        return now_s - known[1]


def how_it_died(process: JobProcess, code: int) -> Death:
    """The end of a process that this service has begun, which left its job unfinished."""
    if code == LEFT_ALONE:
        return Death(f"its process {process.pid} was told to end", died=False)
    if code >= 0:
        return Death(f"its process {process.pid} ended with code {code}")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    reason = f"its process {process.pid} was killed by {name}"
    kills = oom_kills()
    if -code == signal.SIGKILL and kills is not None and kills > (process.oom_kills or 0):
        reason += ", probably because memory ran out"
    return Death(reason)
