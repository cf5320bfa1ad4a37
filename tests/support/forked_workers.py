"""Worker processes of the jobs of a test's process, as forks of one process that has loaded what
workers load: a fresh interpreter takes a third of a second of a processor, and tests begin
hundreds of them.

They are worker processes like any other: children of the test's process, each in a session of its
own, with the environment and the standard error that it has at that moment.

``python -m tests.support.forked_workers`` is the process that is forked.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import dsort.runtime.local
from dsort.runtime import forked
from tests.support.children import FIRST_WORKER
from tests.support.fault_points import points_environment

__all__ = ["forked_workers", "fresh_workers"]

LOADED = (
    *("dsort.runtime.forked", "dsort.workers.table_creator", "dsort.workers.table_extractor"),
    *("numpy.ma", "pyarrow.compute", "pyarrow.parquet"),
)
REQUEST_BYTES_MAX = 1 << 20
PR_SET_CHILD_SUBREAPER = 36
USUAL = dsort.runtime.local.BOOTSTRAP


class _ForkedWorker(forked.ForkedProcess):
    def __init__(self, pid: int) -> None:
        self.returncode = None
        self.pid = pid

    def _wait(self, flags: int) -> int | None:
        try:
            return super()._wait(flags)
        except ChildProcessError:  # a test has waited for it: subprocess.Popen says the same
            self.returncode = 0
            return 0


class _Begin:
    """What stands for ``dsort.runtime.local._begin``. Its process begins when it is first asked."""

    def __init__(self) -> None:
        self.fresh = dsort.runtime.local._begin
        self._one_at_a_time = threading.Lock()
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, link: socket.socket) -> subprocess.Popen[bytes] | forked.ForkedProcess:
        if dsort.runtime.local.BOOTSTRAP != USUAL:  # a test has workers run something else
            return self.fresh(link)
        request = {
            "cwd": str(Path.cwd()),
            "env": {**os.environ, "OMP_NUM_THREADS": "1"},
            "parent": os.getpid(),
            "path": sys.path,
        }
        with self._one_at_a_time, _adopting():
            ours = self._link or self._begin()
            socket.send_fds(ours, [json.dumps(request).encode()], [link.fileno(), 2])
            return _ForkedWorker(int(ours.recv(32)))

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            ours.setsockopt(socket.SOL_SOCKET, option, REQUEST_BYTES_MAX)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forked_workers", str(theirs.fileno())],
                env={**os.environ, **points_environment(None), "OMP_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._link = ours
        return ours

    def close(self) -> None:
        if self._link is not None and self._process is not None:
            self._link.close()
            self._process.wait()


@contextlib.contextmanager
def forked_workers() -> Iterator[None]:
    """The body of a fixture."""
    begin = _Begin()
    fresh, dsort.runtime.local._begin = dsort.runtime.local._begin, begin  # type: ignore[assignment]
    try:
        yield
    finally:
        dsort.runtime.local._begin = fresh
        begin.close()


@contextlib.contextmanager
def fresh_workers() -> Iterator[None]:
    """The body of a fixture: until it ends, workers are fresh interpreters after all."""
    begin = dsort.runtime.local._begin
    dsort.runtime.local._begin = getattr(begin, "fresh", begin)
    try:
        yield
    finally:
        dsort.runtime.local._begin = begin


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Meanwhile, processes below this one whose parents end become its children."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)


def _serve(link: socket.socket) -> None:
    """Fork a worker whenever one is asked for, until nobody asks."""
    while True:
        data, (*descriptors,), _, _ = socket.recv_fds(link, REQUEST_BYTES_MAX, 2)
        if not data:
            return
        pid = _fork(json.loads(data), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        link.send(str(pid).encode())


def _fork(request: dict[str, object], worker_link: int, stderr: int) -> int:
    """By a process between, which ends: so the worker becomes a child of who asks."""
    told, tell = os.pipe()
    waits, goes = os.pipe()
    between = os.fork()
    if not between:
        pid = os.fork()
        if pid:
            os.write(tell, str(pid).encode())
            os._exit(0)
        os.close(goes)
        os.read(waits, 1)  # nothing: until the process between has ended
        os.dup2(stderr, 2)
        _become_worker(request, worker_link)
    os.waitpid(between, 0)
    pid = int(os.read(told, 32))
    for descriptor in (told, tell, waits, goes):
        os.close(descriptor)
    return pid


def _become_worker(request: dict[str, object], link: int) -> None:
    Path("/proc/self/comm").write_text("python")
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    sys.path[:] = request["path"]  # type: ignore[call-overload]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    above = fcntl.fcntl(link, fcntl.F_DUPFD_CLOEXEC, forked.LINK + 1)
    forked._become_worker(socket.socket(fileno=above), int(str(request["parent"])), mask)


if __name__ == "__main__":
    Path("/proc/self/comm").write_text(FIRST_WORKER)
    for module in LOADED:
        importlib.import_module(module)
    _serve(socket.socket(fileno=int(sys.argv[1])))
