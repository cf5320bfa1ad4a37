"""Processes of jobs: begun so that they live on without the service, watched, and how they died."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
    "how_it_died",
    "left_path",
    "offer_to_oom_killer",
    "oom_kills",
]

OOM_SCORE = 500
"""Above all that was not offered itself, whose score is 0: the service among them."""

_VMSTAT = Path("/proc/vmstat")


class Host:
    """This machine, as the rows of jobs name it.

    ``name``: the same for all who see the same processes under the same numbers, and different
    after the machine was started again (host name, boot, namespace of process numbers).
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
        """Whether that process is there. One that has ended and that nobody has waited for is not;
        neither is another one that has its number now. ``started``: None where it is not known."""
        if started is None:
            return Path(f"/proc/{pid}").exists()
        holder = Holder(self._hostname, self._boot_id, pid, int(started))
        return not self._machine.is_gone(holder)

    def start_of(self, pid: int) -> float | None:
        """When a process of this machine began; None if it is not there."""
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            return float(text.rpartition(")")[2].split()[19])
        return None


def offer_to_oom_killer() -> None:
    """Have the kernel take this process and its children, when memory runs out, before others."""
    with contextlib.suppress(OSError):  # a container may not allow it: then nobody is preferred
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")


def oom_kills() -> int | None:
    """How many processes the kernel has killed on this machine because memory, its own or a
    control group's, ran out; None if it does not tell."""
    with contextlib.suppress(OSError):
        found = re.search(r"(?m)^oom_kill (\d+)$", _VMSTAT.read_text(encoding="ascii"))
        return int(found[1]) if found else None
    return None


MODULE = "dsort.service.hosting.job_start"
LEFT_ALONE = 128 + signal.SIGTERM
"""How a job process ends that was asked by a signal, not by its job's owner, to end: it leaves the
job as it is, for another process to go on with."""


def left_path(state_dir: Path, job_id: str, attempt: int) -> Path:
    """The file that a process makes when it leaves its attempt: it says so to a service that did
    not begin the process, and so cannot know its exit code."""
    return log_path(state_dir, job_id, attempt).with_suffix(".left")


@dataclass(slots=True)
class JobProcess:
    """The process of an attempt, begun by this service. ``oom_kills``: of the machine, by then."""

    job_id: str
    attempt: int
    pid: int
    started: float
    oom_kills: int | None
    popen: subprocess.Popen[bytes]

    @classmethod
    def begin(cls, row: JobRow, job_environment: JobEnvironment, host: Host) -> JobProcess:
        """Have a process of its own do the attempt that ``row`` is in. ``OSError``."""
        path = log_path(job_environment.state_dir, row.job_id, row.attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        kills = oom_kills()
        with open(path, "ab", opener=_for_us_only) as log:
            popen = subprocess.Popen(
                [*interpreter(), MODULE, row.job_id, str(row.attempt)],
                env=job_environment.to_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # what ends the service's session does not end its jobs
            )
        started = host.start_of(popen.pid) or 0.0
        return cls(row.job_id, row.attempt, popen.pid, started, kills, popen)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the number of the signal that ended it. No zombie is left."""
        return self.popen.poll()

    def let_go(self) -> None:
        """Have nothing to do with it any more, and let it run."""
        if self.popen.poll() is None:
            self.popen.returncode = 0  # else Popen complains when it is forgotten


def _for_us_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


SILENT_S_MAX = 30.0
"""A process on another machine that has not been heard of for so long is dead."""
BEGIN_S_MAX = 120.0
"""An attempt that no process has been heard of for so long has none. Twenty of them that begin at
once on two busy cores take half a minute to say anything."""
NEIGHBOUR_S = 5.0
"""What another replica on this machine has to see, we see, too: it comes first, for it may know
more."""


@dataclass(frozen=True, slots=True)
class ExitReason:
    """``died``: whether it counts against the job. ``ours``: it was this replica's to run.
    ``out_of_memory``: the kernel has probably killed the process because memory ran out."""

    reason: str
    died: bool = True
    ours: bool = True
    out_of_memory: bool = False


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

    def death(self, row: JobRow) -> ExitReason | None:
        """Of an attempt that this process has not begun itself; None while it may be alive."""
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
            if ours:  # from before this service was started: there may be none
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
        """For how long nothing but ``sign`` has been seen of an attempt."""
        key, now_s = (row.job_id, row.attempt), self._clock()
        known = self._seen.get(key)
        if known is None or known[0] != sign:
            self._seen[key] = known = (sign, now_s)
        return now_s - known[1]


def how_it_died(process: JobProcess, code: int) -> ExitReason:
    """The end of a process that this service has begun, which left its job unfinished."""
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
