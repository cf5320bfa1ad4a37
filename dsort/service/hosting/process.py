"""Processes of jobs: started so that they outlive the service, watched, and the reasons of their
deaths."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from dsort.runtime.machine import Holder, Machine
from dsort.service.hosting.environment import JobEnvironment, interpreter
from dsort.service.hosting.logs import log_path
from dsort.service.jobs.rows import JobRow

__all__ = [
    "BEGIN_S_MAX",
    "LEFT_ALONE",
    "SILENT_S_MAX",
    "ExitReason",
    "Host",
    "JobProcess",
    "Watch",
    "for_us_only",
    "how_it_died",
    "left_path",
    "offer_to_oom_killer",
    "oom_kills",
]

OOM_SCORE = 500
"""Higher than the score of all processes that have not set theirs, which is 0: the service among
them."""

_VMSTAT = Path("/proc/vmstat")


class Host:
    """This machine, as the rows of jobs name it.

    ``name``: equal for all processes that see the same process numbers, and different after the
    machine was restarted (host name, boot, namespace of process numbers).
    """

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or Machine()
        here = self._machine.holder()
        self._hostname, self._boot_id = here.host, here.boot_id
        self.name: str = f"{here.host}/{here.boot_id}"

    def this_process(self) -> tuple[int, float]:
        """Number and start (ticks since boot) of this process."""
        here = self._machine.holder()
        return here.pid, float(here.pid_start)

    def is_alive(self, pid: int, started: float | None) -> bool:
        """Whether that process is running. False for a process that has ended and was not waited
        for, and for another process that has its number now. ``started``: None if it is unknown."""
        if started is None:
            return Path(f"/proc/{pid}").exists()
        holder = Holder(self._hostname, self._boot_id, pid, int(started))
        return not self._machine.is_gone(holder)

    def start_of(self, pid: int) -> float | None:
        """When a process of this machine began, in ticks since boot; None if it does not exist."""
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            return float(text.rpartition(")")[2].split()[19])
        return None


def offer_to_oom_killer() -> None:
    """Make the kernel kill this process and its children before others, when memory runs out."""
    with contextlib.suppress(OSError):  # a container may not allow it: then no process is preferred
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")


def oom_kills() -> int | None:
    """The number of processes that the kernel has killed on this machine because memory, the
    machine's or a control group's, ran out; None if the kernel does not report it."""
    with contextlib.suppress(OSError):
        found = re.search(r"(?m)^oom_kill (\d+)$", _VMSTAT.read_text(encoding="ascii"))
        return int(found[1]) if found else None
    return None


MODULE = "dsort.service.hosting.job_start"
LEFT_ALONE = 128 + signal.SIGTERM
"""The exit code of a job process that was ended by a signal, not by its job's owner: it leaves the
job unchanged, for another process to resume."""


def left_path(state_dir: Path, job_id: str, attempt: int) -> Path:
    """The file that a process creates when it leaves its attempt: a service that did not start the
    process cannot read its exit code, and checks for this file instead."""
    return log_path(state_dir, job_id, attempt).with_suffix(".left")


class JobProcess(Struct):
    """The process of an attempt, started by this service. ``oom_kills``: of the machine, at the
    start of the process."""

    job_id: str
    attempt: int
    pid: int
    started: float
    oom_kills: int | None
    popen: subprocess.Popen[bytes]

    @classmethod
    def begin(cls, row: JobRow, job_environment: JobEnvironment, host: Host) -> JobProcess:
        """Start a process for the attempt that ``row`` is in. ``OSError``."""
        path = log_path(job_environment.state_dir, row.job_id, row.attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        kills = oom_kills()
        with open(path, "ab", opener=for_us_only) as log:
            popen = subprocess.Popen(
                [*interpreter(), MODULE, row.job_id, str(row.attempt)],
                env=job_environment.to_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # So that a signal that ends the service's session does not end its jobs.
                start_new_session=True,
            )
        started = host.start_of(popen.pid) or 0.0
        return cls(row.job_id, row.attempt, popen.pid, started, kills, popen)

    @property
    def exit_code(self) -> int | None:
        """None while the process runs; minus the number of the signal that ended it. Leaves no
        zombie."""
        return self.popen.poll()

    def let_go(self) -> None:
        """Stop managing the process, and leave it running."""
        if self.popen.poll() is None:
            self.popen.returncode = 0  # else Popen warns when it is garbage collected


def for_us_only(path: str, flags: int) -> int:
    """An opener of files that only this user can read."""
    return os.open(path, flags, 0o600)


SILENT_S_MAX = 30.0
"""A process on another machine that has sent no heartbeat for so many seconds is dead."""
BEGIN_S_MAX = 120.0
"""An attempt without any heartbeat for so many seconds has no process. Twenty that begin at once on
two busy cores need half a minute for their first report."""
NEIGHBOUR_S = 5.0
"""The death of a process that another replica on this machine started is visible here, too. That
replica handles it first, within this time, because it may have more information."""


class ExitReason(Struct, frozen=True):
    """``died``: whether the death counts against the job. ``ours``: the process belonged to this
    replica. ``out_of_memory``: the kernel has probably killed the process because memory ran
    out."""

    reason: str
    died: bool = True
    ours: bool = True
    out_of_memory: bool = False


class Watch:
    """The processes that are alive, as far as this replica can see.

    Of processes on other machines only heartbeats are visible. The time without a heartbeat is
    measured here, from when the previous one was first seen: clocks of two machines are not
    compared.
    """

    def __init__(
        self, host: Host, replica: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host = host
        self._replica = replica
        self._clock = clock
        self._seen: dict[tuple[str, int], tuple[object, float]] = {}

    def forget(self) -> None:
        """Restart all measurements: for a while no heartbeat could be read."""
        self._seen.clear()

    def keep_only(self, running: set[tuple[str, int]]) -> None:
        """Drop the measurements of all attempts but these."""
        self._seen = {key: seen for key, seen in self._seen.items() if key in running}

    def death(self, row: JobRow) -> ExitReason | None:
        """Why an attempt that this process has not started is dead; None while it may be alive."""
        if row.host != self._host.name:
            silent_s = self._unchanged_s(row, row.heartbeat_at)
            if silent_s < (BEGIN_S_MAX if row.pid is None else SILENT_S_MAX):
                return None
            machine = (row.host or "").partition("/")[0]
            reason = f"{machine} has not been heard of for {silent_s:.0f} s"
            # Where there was no process, the job cannot have killed it.
            return ExitReason(reason, died=row.pid is not None, ours=False)
        ours = row.replica == self._replica
        if row.pid is None:
            if ours:  # begun before this service was started: there may be no process
                return ExitReason("the service ended before its process was there", died=False)
            late = self._unchanged_s(row, row.heartbeat_at) >= BEGIN_S_MAX
            return ExitReason("its process never began", died=False, ours=False) if late else None
        if self._host.is_alive(row.pid, row.pid_started):
            self._seen.pop((row.job_id, row.attempt), None)
            return None
        if not ours and self._unchanged_s(row, "gone") < NEIGHBOUR_S:
            return None
        return ExitReason(f"its process {row.pid} is gone", ours=ours)

    def _unchanged_s(self, row: JobRow, sign: object) -> float:
        """The seconds for which ``sign`` of an attempt has not changed."""
        key, now_s = (row.job_id, row.attempt), self._clock()
        known = self._seen.get(key)
        if known is None or known[0] != sign:
            self._seen[key] = known = (sign, now_s)
        return now_s - known[1]


def how_it_died(process: JobProcess, code: int) -> ExitReason:
    """The exit reason of a process that this service started and that left its job unfinished."""
    if code == LEFT_ALONE:
        return ExitReason(f"its process {process.pid} was told to end", died=False)
    if code >= 0:
        return ExitReason(f"its process {process.pid} ended with code {code}")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    reason = f"its process {process.pid} was killed by {name}"
    kills = oom_kills()
    if -code == signal.SIGKILL and kills is not None and kills > (process.oom_kills or 0):
        return ExitReason(f"{reason}, probably because memory ran out", out_of_memory=True)
    return ExitReason(reason)
