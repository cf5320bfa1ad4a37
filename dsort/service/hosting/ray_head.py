"""A Ray of the service's own: ``ray start --head``, on loopback only and locked with a token.

The Ray outlives a service that leaves running jobs: the next service finds the Ray by a file in the
state directory, which only this user can read.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import threading
import time
from pathlib import Path

import psutil
from msgspec import MsgspecError, Struct, json

from dsort.errors import StorageError, WorkerLostError
from dsort.runtime.machine import Holder, Machine
from dsort.runtime.ray.cluster import check_loopback, listeners
from dsort.runtime.ray.directory import (
    make_ray_directory,
    note_owner,
    ray_files,
    remove_ray_directory,
)
from dsort.service.hosting.process import (
    JobEnvironment,
    begin_process,
    for_us_only,
    interpreter,
    tail,
)

START_S_MAX, STOP_S_MAX, LOOK_S = 120, 15, 0.1
STARTED = "Ray runtime started."
OBJECT_STORE_BYTES = 160 << 20  # the object store carries little data
# With the first setting Ray listens on loopback only. The second setting switches off Ray's memory
# monitor, which counts the page cache of mapped inputs as memory in use, and would kill processes.
SETTINGS = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_memory_monitor_refresh_ms": "0"}


class _Head(Struct, frozen=True):
    """A head: its process, its files, and the variables of processes that join it."""

    process: Holder
    directory: str
    variables: dict[str, str]


class RayHead:
    """The head in ``state_dir``. ``cpus``: the CPUs for all workers of all jobs that may run at
    once. ``over``: set when the service ends."""

    def __init__(self, state_dir: Path, *, cpus: int, over: threading.Event) -> None:
        self._file, self._log = state_dir / "ray.json", state_dir / "logs" / "ray.log"
        self._cpus, self._over, self._machine = cpus, over, Machine()
        self._child: subprocess.Popen[bytes] | None = None
        self._ready: _Head | None = None

    def ensure(self) -> dict[str, str]:
        """The variables of processes that join the head. A head that does not run is started.
        ``WorkerLostError``."""
        head = self._stored()
        try:
            if head is None or not self._runs(head):
                head = self._begin()
            if head != self._ready:
                self._await_start(head)
        except (OSError, psutil.Error, WorkerLostError) as error:
            self.stop()
            message = f"the service's own Ray could not be started: {error}"
            raise WorkerLostError(message, hint=f"its log is {self._log}") from error
        self._ready = head
        return head.variables

    def stop(self) -> None:
        """End the head and all its processes, and remove its files."""
        head = self._stored()
        if head is not None and self._runs(head):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(head.process.pid)
                process.terminate()
                psutil.wait_procs([process], timeout=STOP_S_MAX)
                process.kill()  # raises an error if the process has ended
                process.wait(STOP_S_MAX)
        if self._child is not None:
            self._child.poll()  # else the child stays as a zombie
        if head is not None:
            with contextlib.suppress(StorageError):
                remove_ray_directory(Path(head.directory))  # kills processes that are left
        self._file.unlink(missing_ok=True)

    def _stored(self) -> _Head | None:
        with contextlib.suppress(OSError, MsgspecError):
            return json.decode(self._file.read_bytes(), type=_Head)
        return None

    def _runs(self, head: _Head) -> bool:
        is_here = head.process.boot_id == self._machine.holder().boot_id
        return is_here and not self._machine.is_gone(head.process)

    def _begin(self) -> _Head:
        self.stop()
        directory = make_ray_directory(Path("/tmp"))  # a short path: Ray puts sockets there
        # The kernel chooses a free port; Ray listens there once this socket is closed.
        with socket.create_server(("127.0.0.1", 0)) as held:
            port = held.getsockname()[1]
        variables = {"RAY_ADDRESS": f"127.0.0.1:{port}", "RAY_AUTH_MODE": "token"}
        variables["RAY_AUTH_TOKEN"] = secrets.token_hex(24)
        # Ray's variables in this process's environment belong to another Ray.
        others = JobEnvironment.path_environment().items()
        ours = {name: text for name, text in others if not name.startswith("RAY_")}
        command = [
            *interpreter(), "ray.scripts.scripts", "start", "--head", "--block",
            f"--port={port}", "--include-dashboard=false", f"--num-cpus={self._cpus}",
            "--num-gpus=0", f"--object-store-memory={OBJECT_STORE_BYTES}",
            f"--temp-dir={ray_files(directory)}", "--disable-usage-stats",
        ]  # fmt: skip
        self._log.unlink(missing_ok=True)  # the file may have the line STARTED of an earlier head
        environment = {**ours, **variables, **SETTINGS}
        self._child = begin_process(command, environment, self._log, cwd=directory)
        head = _Head(self._machine.holder_of(self._child.pid), str(directory), variables)
        note_owner(directory, head.process)
        with open(self._file, "wb", opener=for_us_only) as file:
            file.write(json.encode(head))
        return head

    def _await_start(self, head: _Head) -> None:
        end_s = time.monotonic() + START_S_MAX
        while STARTED.encode() not in self._log.read_bytes():
            if time.monotonic() > end_s or not self._runs(head) or self._over.wait(LOOK_S):
                raise ChildProcessError(" ".join(tail(self._log, bytes_max=600).split()))
        process = psutil.Process(head.process.pid)
        check_loopback(listeners([process, *process.children(recursive=True)]))
