"""The process that forks for each shard of a request, as the service uses it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Final

from dsort.closing import ClosesOnExit
from dsort.errors import StorageError
from dsort.service.hosting.environment import JobEnvironment, interpreter
from dsort.service.objects.shard_main import OURS

__all__ = ["Forks"]

MODULE: Final = "dsort.service.objects.shard_main"
END_S_MAX: Final = 5.0


class Forks(ClosesOnExit):
    """Starts that process when it is first needed, and again if it has died. ``process``: the
    process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def begin(self, directory: Path) -> int:
        """Have a child carry out the order in ``directory``; returns the pipe of its answer."""
        answer, inside = os.pipe()
        try:
            with self._lock:
                if self.process is None or self.process.poll() is not None:
                    self._start()
                assert self._control is not None
                socket.send_fds(self._control, [os.fsencode(directory)], [inside])
        except OSError as error:
            os.close(answer)
            raise StorageError(f"no process can be begun for the shard: {error.strerror}") from None
        finally:
            os.close(inside)
        return answer

    def _start(self) -> None:
        self._end()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [*interpreter(), MODULE],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**JobEnvironment.path_environment(), **OURS},
                cwd="/",
                start_new_session=True,
            )
        self._control = ours

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S_MAX)
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """End the process, and all its children."""
        with self._lock:
            self._end()
            self.process = self._control = None
