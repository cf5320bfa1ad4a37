"""Programs that a job's spec names, run beside the job: without a shell, in a process group of
their own, and with an end that is waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from dsort.errors import InputError
from dsort.user_code.environment import outside_environment

SHOWN_BYTES: Final = 4096
"""The bytes of a program's messages that are kept: the last ones."""
CLOSING_S_MAX: Final = 1.0


class Command:
    """A running program. Its standard error is read, and the end of it kept; its standard output is
    read likewise, or, with ``is_source``, is available as ``stdout``.

    ``InputError`` if it cannot be started."""

    def __init__(
        self, words: Sequence[str], *, is_source: bool, variables: Mapping[str, str] | None = None
    ) -> None:
        self.program = Path(words[0]).name
        self._tail = b""
        read_fd, write_fd = os.pipe()
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_source else write_fd,
                stderr=write_fd,
                env={**outside_environment(), **(variables or {})},
                start_new_session=True,  # so that processes that it starts can be ended with it
            )
        except (OSError, ValueError) as error:
            os.close(read_fd)
            raise InputError(f"the program {self.program} cannot be run: {error}") from None
        finally:
            os.close(write_fd)
        self._reader = threading.Thread(target=self._keep_tail, args=(read_fd,), daemon=True)
        self._reader.start()

    @property
    def stdout(self) -> IO[bytes]:
        """The standard output of the program."""
        assert self._process.stdout is not None
        return self._process.stdout

    def wait(self, seconds_max: float | None = None) -> str:
        """Wait for the program; returns why it failed, "" on success. Ends all that it has
        started."""
        try:
            exit_code = self._process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            self.end()
            return f"took longer than {seconds_max:g} s, and was ended"
        self.end()
        if exit_code == 0:
            return ""
        ended = f"ended with {exit_code}" if exit_code > 0 else f"was ended by signal {-exit_code}"
        said = self._tail.decode("utf-8", "replace").strip().splitlines()
        return f"{ended}: {said[-1]}" if said else ended

    def end(self) -> None:
        """End the program, with all that it has started. It may have ended already."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(CLOSING_S_MAX)

    def _keep_tail(self, read_fd: int) -> None:
        with open(read_fd, "rb", buffering=0) as said:
            while piece := said.read(1 << 16):
                self._tail = (self._tail + piece)[-SHOWN_BYTES:]
