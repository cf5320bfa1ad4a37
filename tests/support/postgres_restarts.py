"""A PostgreSQL server of one test, which ends and starts again under the same address."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.support.postgres import OWNER, SETTINGS, PostgresServer, postgres_server
from tests.support.service_process import await_that

STOP_SECONDS_MAX = 120


class RestartedServer:
    """``server``: the server as it was started first, so its ``pid`` is that of the first start."""

    def __init__(self, binaries: Path, server: PostgresServer) -> None:
        self.server = server
        self._binaries = binaries
        self._home = server.log.parent
        self._again: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """End the server; all clients are disconnected."""
        os.kill(self._pid(), signal.SIGINT)
        pid_file = self._home / "data" / "postmaster.pid"
        await_that(lambda: not pid_file.exists(), STOP_SECONDS_MAX)
        if self._again is not None:
            self._again.wait(STOP_SECONDS_MAX)

    def kill(self) -> None:
        """Kill the server and all processes that it has begun, as ``kill -9`` does."""
        main = psutil.Process(self._pid())
        each = [main, *main.children(recursive=True)]
        for process in each:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        main.wait(STOP_SECONDS_MAX)  # a zombie would keep its lock file
        # Process 1 may leave the others zombies for seconds.
        await_that(lambda: not any(map(_lives, each)), STOP_SECONDS_MAX)

    def _pid(self) -> int:
        return self.server.pid if self._again is None else self._again.pid

    def start(self) -> None:
        """Start the server again; it may take a moment until it answers."""
        command = [self._binaries / "postgres", "-D", self._home / "data"]
        for name, value in {**SETTINGS, "port": str(self.server.port)}.items():
            command += ["-c", f"{name}={value}"]  # type: ignore[list-item]
        someone: dict[str, Any] = {}
        if os.geteuid() == 0:
            owner = pwd.getpwnam(OWNER)
            someone = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        with (self._home / "again.log").open("ab") as output:
            self._again = subprocess.Popen(
                command,
                cwd=self._home,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **someone,
            )

    def end(self) -> None:
        """End the server if it was started again."""
        if self._again is not None and psutil.pid_exists(self._again.pid):
            self._again.send_signal(signal.SIGINT)
            self._again.wait(STOP_SECONDS_MAX)


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


@contextmanager
def restarted_server(binaries: Path) -> Iterator[RestartedServer]:
    """A running server, which the test may stop and start."""
    with postgres_server(binaries) as server:
        restarted = RestartedServer(binaries, server)
        try:
            yield restarted
        finally:
            restarted.end()
