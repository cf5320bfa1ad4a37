"""A flag with which a signal handler or another thread asks a running job to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from dsort.closing import ClosesOnExit
from dsort.errors import JobStoppedError

__all__ = ["StopFlag", "run_into_future"]


T = TypeVar("T")

HEARD_S_MAX = 0.1
"""How often a waiting thread checks whether a stop was requested."""

LAST_PAUSE_S_MAX = 1.0
"""The longest pause before another try once a job is being cleaned up."""


class StopFlag(ClosesOnExit):
    """A flag that is raised once and stays up.

    ``request`` may be called from a signal handler or any thread: it takes no lock and never
    blocks. ``fileno`` becomes readable when the flag is raised, so that one selector can wait for
    both workers and the user. Holds two file descriptors until ``close``.
    """

    def __init__(self) -> None:
        self._signal_number: int | None = None
        self._why = ""
        self._discards = False
        self._is_heeded = False
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)

    @property
    def requested(self) -> bool:
        """Whether a stop of the job was requested."""
        return self._signal_number is not None

    @property
    def signal_number(self) -> int | None:
        """The signal of the first request."""
        return self._signal_number

    @property
    def discards(self) -> bool:
        """Whether the first request asks to remove the work of the job."""
        return self._discards

    def request(
        self, signal_number: int = signal.SIGINT, why: str = "", *, discards: bool = False
    ) -> bool:
        """Ask to stop. ``why``: the reason, if it is not a signal. ``discards``: the work of the
        job is removed instead of kept for ``dsort resume``. Returns False, and changes nothing, if
        a stop was requested before."""
        if self._signal_number is not None:
            return False
        self._why, self._discards = why, discards
        self._signal_number = signal_number
        # Two threads may both get here: a second byte in the pipe does no harm.
        with contextlib.suppress(OSError):
            os.write(self._write_fd, b"\0")
        return True

    def raise_if_requested(self) -> None:
        """Raise ``JobStoppedError`` with the signal's number if a stop was requested; never after
        ``heed``."""
        number = self._signal_number
        if number is not None and not self._is_heeded:
            name = self._why or signal.Signals(number).name
            raise JobStoppedError(f"the job was stopped by {name}", signal_number=number)

    def heed(self) -> None:
        """Remember that the job is being ended. From now on, no method raises
        ``JobStoppedError``."""
        self._is_heeded = True

    def pause(self, seconds: float) -> None:
        """Wait for ``seconds``, in any thread. ``JobStoppedError`` as soon as a stop is requested.
        After ``heed`` it waits a second at most."""
        until_s = time.monotonic() + (
            min(seconds, LAST_PAUSE_S_MAX) if self._is_heeded else seconds
        )
        self.raise_if_requested()
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, HEARD_S_MAX))
            self.raise_if_requested()

    def wait_for(self, action: Callable[[], T]) -> T:
        """Return ``action()``. ``JobStoppedError`` as soon as a stop is requested.

        ``action`` runs in a thread of its own, which a stop abandons. So it must change nothing
        that outlives the job, and should call ``raise_if_requested`` now and then.
        """
        self.raise_if_requested()
        if self._is_heeded:
            return action()
        done: Future[T] = Future()
        thread = threading.Thread(
            target=run_into_future, args=(done, action), name="dsort-stoppable", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads are allowed: then a stop takes effect afterwards
            return action()
        while thread.is_alive():
            thread.join(HEARD_S_MAX)
            if thread.is_alive():
                self.raise_if_requested()
        return done.result()

    def fileno(self) -> int:
        """A descriptor that is readable from the moment a stop was requested. Do not read it."""
        return self._read_fd

    def close(self) -> None:
        """Release the descriptors; a later ``request`` still sets the flag."""
        for name in ("_read_fd", "_write_fd"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                setattr(self, name, -1)
                os.close(descriptor)


def run_into_future(done: Future[T], action: Callable[[], T]) -> None:
    """Run ``action``, and give its result or its error to ``done``."""
    try:
        done.set_result(action())
    except BaseException as error:  # noqa: BLE001 - the thread that waits for ``done`` raises it again
        done.set_exception(error)
