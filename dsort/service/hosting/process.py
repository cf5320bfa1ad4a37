"""Beginning a job's process, so that it lives on without the service; and how one ended."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass

from dsort.service.hosting.environment import Surroundings, interpreter
from dsort.service.hosting.logs import log_path
from dsort.service.hosting.machine import Host, oom_kills
from dsort.service.jobs.rows import JobRow

__all__ = ["LEFT_ALONE", "LEFT_WORDS", "JobProcess"]

MODULE = "dsort.service.hosting.job_main"
LEFT_ALONE = 128 + signal.SIGTERM
"""How a job process ends that was asked by a signal, not by its job's owner, to end: it leaves the
job as it is, for another process to go on with."""
LEFT_WORDS = "told to end: the job is left for another process to go on with"
"""The last line of its log then."""


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
    def begin(cls, row: JobRow, surroundings: Surroundings, host: Host) -> JobProcess:
        """Have a process of its own do the attempt that ``row`` is in. ``OSError``."""
        path = log_path(surroundings.state_dir, row.job_id, row.attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        kills = oom_kills()
        with open(path, "ab", opener=_for_us_only) as log:
            popen = subprocess.Popen(
                [*interpreter(), MODULE, row.job_id, str(row.attempt)],
                env=surroundings.to_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # what ends the service's session does not end its jobs
                umask=0o022,
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
