"""How a command is stopped by a signal, and what it says then."""

from __future__ import annotations

import os
import shlex
import signal
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from dsort.cli import output
from dsort.cli.find import FoundJob
from dsort.cli.progress import Reporter
from dsort.errors import JobStoppedError
from dsort.options import RunOptions
from dsort.stop_flag import StopFlag

if TYPE_CHECKING:
    from dsort.spec.model import JobSpec

__all__ = ["options_to_resume", "options_to_resume_found", "stoppable"]

STOPPING = b"stopping: ending the workers and removing what is partial\n"
STOPPING_ALREADY = b"stopping, please wait\n"


@contextmanager
def stoppable(reporter: Reporter, *, resume: Sequence[str] | None = None) -> Iterator[StopFlag]:
    """A flag that Ctrl-C, SIGTERM and SIGHUP set (not SIGHUP under ``nohup``).

    The first signal says what happens now, and nothing is drawn from then on. Later signals change
    nothing, because files are being removed. ``resume``: the options with which ``dsort resume``
    finds the job, for the hint of ``JobStoppedError``; None if it cannot be resumed.
    """
    with StopFlag() as flag:

        def stop(signal_number: int, frame: FrameType | None) -> None:
            if signal_number == signal.SIGHUP:
                _leave_terminal()
            first = flag.request(signal_number)
            reporter.break_off(STOPPING if first else STOPPING_ALREADY)

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        previous = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield flag
        except JobStoppedError as stopped:
            # Only a job that has begun has left anything from which it can be begun again.
            job_id = stopped.resumable_job or reporter.job_id
            if resume is not None and job_id and not stopped.hint:
                command = shlex.join(["dsort", "resume", job_id, *resume])
                stopped.hint = f"`{command}` begins it again, with its seed and its inputs"
            raise
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def options_to_resume(spec: JobSpec, how: RunOptions) -> list[str] | None:
    """The options with which ``dsort resume`` finds the job of ``spec`` and runs it as it was; None
    for a job that reads or writes a stream, which is there once."""
    where = spec.output_bck
    if where.is_stream or spec.reads_streams:
        return None
    runs_code = spec.on_shard is not None
    runs_code |= not all(each.is_safe_from_network for each in spec.steps)
    if where.scheme == "" and "/" not in where.path:  # found without being named
        return _options(how, runs_code=runs_code)
    return ["--bucket", output.place(where.uri), *_options(how, runs_code=runs_code)]


def options_to_resume_found(found: FoundJob, how: RunOptions) -> list[str]:
    """The same of a job in the bucket of another one."""
    bucket = output.place(found.bucket.uri)
    return ["--bucket", bucket, *_options(how, runs_code=bool(how.runs_code))]


def _options(how: RunOptions, *, runs_code: bool) -> list[str]:
    options = [] if how.root == Path() else ["--root", str(how.root)]
    if how.ray_address is not None:
        options += ["--ray-address", how.ray_address]
    elif how.runtime == "ray":
        options.append("--ray")
    return options + ["--run-code"] * runs_code


def _leave_terminal() -> None:
    """Send stdout and stderr nowhere, because the terminal is gone. Writing to it would fail, and
    end the job before it has cleaned up."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(fd).st_mode):
                os.dup2(null, fd)
    os.close(null)
