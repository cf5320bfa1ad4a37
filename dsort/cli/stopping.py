"""How a signal stops a command, and what the command prints then."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from dsort.cli.progress import Reporter
from dsort.stop_flag import StopFlag

__all__ = ["stoppable"]

STOPPING = b"stopping: ending the workers\n"
STOPPING_ALREADY = b"stopping, please wait\n"


@contextmanager
def stoppable(reporter: Reporter) -> Iterator[StopFlag]:
    """A flag that Ctrl-C, SIGTERM and SIGHUP set (not SIGHUP under ``nohup``).

    The first signal prints what happens now, and ends the progress display. Later signals have no
    effect: the job is being prepared for ``dsort resume``, or removed.
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
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _leave_terminal() -> None:
    """Discard the output of stdout and stderr, because the terminal is gone. Writing to it would
    fail, and end the job before it has cleaned up."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(fd).st_mode):
                os.dup2(null, fd)
    os.close(null)
