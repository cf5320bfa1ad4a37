"""A Ray of the service's own: one head on this machine that all of its jobs share.

The head is a separate process (``ray start --head``), so running jobs survive the end of the
service. The next service finds the head by a file in the state directory. The head listens on
loopback only and requires a token, which only that file and job processes have. It ends with the
service, unless jobs run then.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from msgspec.structs import replace

from dsort.errors import StorageError, WorkerLostError
from dsort.log_lines import logger_of
from dsort.runtime.machine import Machine
from dsort.runtime.ray.cluster import check_loopback, listeners, listening_words
from dsort.runtime.ray.directory import (
    discard_ray_directory,
    make_ray_directory,
    note_owner,
    ray_files,
    remove_ray_directory,
)
from dsort.runtime.ray.watchdog import begin_watchdog, end_watchdog
from dsort.service.hosting.environment import JobEnvironment, interpreter
from dsort.service.hosting.logs import tail
from dsort.service.hosting.process import Host

__all__ = ["RayHead", "RayHeadProcess"]

log = logger_of("service")

STATE_FILE = "ray.json"
LOG_FILE = "ray.log"
START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 15
LOOK_S = 0.1
STARTED = "Ray runtime started."
OBJECT_STORE_BYTES = 160 << 20  # the object store carries little data


@dataclass(frozen=True, slots=True)
class RayHead:
    """A running head: its process, and how to join it. ``cpus``: the number of workers that fit."""

    host: str
    pid: int
    started: float
    address: str
    directory: str
    cpus: int
    token: str = field(repr=False)

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables with which a process can connect to the head."""
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
        }


class RayHeadProcess:
    """The process of the head in ``state_dir``: finds, starts and ends it. ``cpus``: all workers of
    all jobs that may run at once. ``over``: set when the service ends, so that no one waits for the
    head any more."""

    def __init__(self, state_dir: Path, *, cpus: int, over: threading.Event) -> None:
        self._file = state_dir / STATE_FILE
        self._log = state_dir / "logs" / LOG_FILE
        self._cpus = cpus
        self._over = over
        self._host = Host()
        self._head: RayHead | None = None
        self._popen: subprocess.Popen[bytes] | None = None

    def ensure(self) -> RayHead:
        """The head: found, or started. ``WorkerLostError`` if it cannot be started."""
        if self._popen is not None:
            # Reaps the process, so that a zombie does not pass for a running Ray.
            self._popen.poll()
        head = self._head or self._stored()
        if head is None or not self._is_alive(head):
            if head is not None:
                with contextlib.suppress(StorageError):
                    remove_ray_directory(Path(head.directory))
            try:
                head = self._start()
            except OSError as error:
                raise WorkerLostError(
                    f"the service's own Ray could not be started: {error}",
                    hint="the service needs room for it in /tmp and in its state directory",
                ) from error
        self._head = head
        return head

    def stop(self) -> None:
        """End the head, if there is one, and all its processes."""
        head = self._head or self._stored()
        self._head = None
        if head is not None and self._is_alive(head):
            _end(head.pid)
        if self._popen is not None:
            self._popen.wait()
            self._popen = None
        if head is not None:
            with contextlib.suppress(StorageError):
                remove_ray_directory(Path(head.directory))
        self._file.unlink(missing_ok=True)

    def let_go(self) -> None:
        """Leave the head running, for jobs that still run."""
        if self._popen is not None and self._popen.poll() is None:
            self._popen.returncode = 0  # else Popen warns when it is garbage collected
        self._popen = None

    def _is_alive(self, head: RayHead) -> bool:
        return head.host == self._host.name and self._host.is_alive(head.pid, head.started)

    def _stored(self) -> RayHead | None:
        try:
            return RayHead(**json.loads(self._file.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def _start(self) -> RayHead:
        directory = make_ray_directory(Path("/tmp"))  # a short path: Ray puts sockets there
        watchdog = begin_watchdog(directory)  # runs until a file records where the head is
        popen = None
        try:
            token, port = secrets.token_hex(24), _free_port()
            popen = self._launch(directory, token, port)
            address = self._wait_until_started(popen, port)
            head = self._keep(popen, address, directory, token)
        except (WorkerLostError, OSError):
            if popen is not None:
                _end(popen.pid)
                popen.wait()
            with contextlib.suppress(StorageError):
                discard_ray_directory(directory)
            raise
        finally:
            end_watchdog(watchdog)
        self._popen = popen
        return head

    def _launch(self, directory: Path, token: str, port: int) -> subprocess.Popen[bytes]:
        # Ray's variables in this process's environment belong to another Ray.
        ours = JobEnvironment.path_environment()
        environment = {name: text for name, text in ours.items() if not name.startswith("RAY_")}
        environment |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            "RAY_USAGE_STATS_ENABLED": "0",
            # As on systems that show their user each program that listens: on loopback only.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            # Ray counts the page cache of mapped inputs as memory in use, and would kill processes
            # for it.
            "RAY_memory_monitor_refresh_ms": "0",
        }
        command = [
            *interpreter(), "ray.scripts.scripts", "start", "--head", "--block",
            f"--port={port}", "--include-dashboard=false", f"--num-cpus={self._cpus}",
            "--num-gpus=0", f"--object-store-memory={OBJECT_STORE_BYTES}",
            f"--temp-dir={ray_files(directory)}", "--disable-usage-stats",
        ]  # fmt: skip
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as file:
            return subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def _keep(
        self, popen: subprocess.Popen[bytes], address: str, directory: Path, token: str
    ) -> RayHead:
        """Find the port of the head, and write the file by which it is found again."""
        try:
            process = psutil.Process(popen.pid)
            found = listeners([process, *process.children(recursive=True)])
        except psutil.NoSuchProcess:
            raise WorkerLostError(
                "the service's own Ray ended as soon as it was there",
                hint=f"its log is {self._log}",
            ) from None
        check_loopback(found)
        started = self._host.start_of(popen.pid) or 0.0
        note_owner(directory, replace(Machine().holder(), pid=popen.pid, pid_start=int(started)))
        head = RayHead(
            self._host.name, popen.pid, started, address, str(directory), self._cpus, token
        )
        with open(self._file, "w", encoding="utf-8", opener=_for_us_only) as file:
            json.dump(asdict(head), file)
        log.info("the service's own Ray listens on %s", listening_words(found))
        return head

    def _wait_until_started(self, popen: subprocess.Popen[bytes], port: int) -> str:
        """The address of the head, once it reports that it has started."""
        deadline_s = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline_s:
            said = self._log.read_text(encoding="utf-8", errors="replace")
            if STARTED in said:
                words = said.replace('"', "'").split("'")
                return next(
                    (word for word in words if word.endswith(f":{port}")), f"127.0.0.1:{port}"
                )
            if popen.poll() is not None:
                break
            if self._over.wait(LOOK_S):
                raise WorkerLostError("the service ends")
        raise WorkerLostError(
            "the service's own Ray could not be started: "
            + " ".join(tail(self._log, bytes_max=600).split()),
            hint=f"its log is {self._log}",
        )


def _end(pid: int) -> None:
    """Request Ray to end, and make sure that it does."""
    with contextlib.suppress(psutil.NoSuchProcess):
        head = psutil.Process(pid)
        below = head.children(recursive=True)
        head.send_signal(signal.SIGTERM)
        for process in psutil.wait_procs([head, *below], timeout=STOP_SECONDS_MAX)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def _for_us_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
