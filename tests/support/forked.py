"""Python processes as forks of one process that has loaded their modules. A fresh interpreter takes
half a second of a processor or more to load them, and tests begin hundreds of processes.

A fork is an ordinary process: a child of the process that asks, in a session of its own, with the
given environment and directory. Only its command line and environment in ``/proc`` are those of the
process that was forked.

``python -m tests.support.forked`` is the process that is forked.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.support.fault_points import points_environment
from tests.support.internals import ForkedProcess

REQUEST_BYTES_MAX = 1 << 20
DESCRIPTORS_MAX = 4
PR_SET_CHILD_SUBREAPER = 36
ONE_THREAD = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Settings for libraries that begin threads when they are loaded."""


_nurseries: dict[str, Nursery] = {}


def end_nurseries() -> None:
    """End the processes of which others are forks. The forks continue."""
    while _nurseries:
        _nurseries.popitem()[1].close()


class Forked(ForkedProcess):
    """A process that was forked, with those methods of ``subprocess.Popen`` that are used."""

    def __init__(self, pid: int) -> None:
        self.returncode = None
        self.pid = pid
        self._one_at_a_time = threading.Lock()

    def poll(self) -> int | None:
        """The exit code; None while the process runs."""
        with self._one_at_a_time:
            return super().poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait at most ``timeout_s`` for the end of the process. Returns its exit code. Raises
        ``TimeoutExpired``."""
        with contextlib.suppress(ProcessLookupError):  # its parent has waited for it
            ends = os.pidfd_open(self.pid)
            try:
                poll = select.poll()
                poll.register(ends, select.POLLIN)
                if not poll.poll(None if timeout_s is None else timeout_s * 1000):
                    raise subprocess.TimeoutExpired(str(self.pid), timeout_s or 0)
            finally:
                os.close(ends)
        with self._one_at_a_time:
            return super().wait()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _wait(self, flags: int) -> int | None:
        try:
            return super()._wait(flags)
        except ChildProcessError:  # a test has waited for it: subprocess.Popen returns 0, too
            self.returncode = 0
            return 0


class Nursery:
    """Begins processes as forks of one process, which begins with the first request. ``loaded``:
    the modules that this process loads; ``name``: its name."""

    def __init__(self, loaded: Sequence[str], name: str) -> None:
        self._loaded = loaded
        self._name = name
        self._one_at_a_time = threading.Lock()
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def called(name: str, loaded: Sequence[str]) -> Nursery:
        """The nursery ``name`` of this process."""
        return _nurseries.setdefault(name, Nursery(loaded, name))

    @classmethod
    def here(cls, name: str) -> Nursery:
        """A nursery whose process is a fork of this process, which must have only one thread."""
        ours, theirs = _links()
        if not os.fork():
            ours.close()
            Path("/proc/self/comm").write_text(name)
            try:
                _serve(theirs)
            finally:
                os._exit(0)
        theirs.close()
        nursery = cls((), name)
        nursery._link = ours
        return nursery

    @property
    def descriptor(self) -> int:
        """The descriptor of the link to the process that is forked, in a nursery that ``here``
        made."""
        assert self._link is not None
        return self._link.fileno()

    def begin(
        self,
        become: str,
        *given: Any,
        descriptors: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Forked:
        """Begin a process that calls ``become`` (``module:function``), which never returns. The
        arguments are ``descriptors``, the id of this process, and ``given`` (JSON values)."""
        request = {
            "become": become,
            "given": given,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "parent": os.getpid(),
            "path": sys.path,
        }
        # Adoption is a setting of the process: of two threads, one would end it for the other.
        with self._one_at_a_time, _adopting():
            ours = self._link or self._begin()
            socket.send_fds(ours, [json.dumps(request).encode()], list(descriptors))
            return Forked(int(ours.recv(32)))

    def close(self) -> None:
        """Begin no more processes. Processes that were begun continue."""
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            self._process.wait()

    def _begin(self) -> socket.socket:
        ours, theirs = _links()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.support.forked"),
                    *(str(theirs.fileno()), self._name, *self._loaded),
                ],
                env={**os.environ, **points_environment(None), **ONE_THREAD},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._link = ours
        return ours


def become_command(descriptors: list[int], *keep: int) -> None:
    """Begin a session. ``descriptors`` become standard output, standard error and, if there is a
    third, standard input. All others but ``keep`` are closed."""
    os.setsid()
    output, error, *given = descriptors
    for stream, number in enumerate(
        [*(given or [os.open(os.devnull, os.O_RDONLY)]), output, error]
    ):
        os.dup2(number, stream)
    # The nursery cannot end while one of its processes has its link open.
    for number in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number not in keep:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(number)


def _links() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # A request has a whole environment in it, and goes as one packet or not at all.
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        ours.setsockopt(socket.SOL_SOCKET, option, REQUEST_BYTES_MAX)
    return ours, theirs


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """In this block, descendants of this process whose parents end become its children."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)


def _serve(link: socket.socket) -> None:
    """Fork a process for each request, until the link is closed."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(link, REQUEST_BYTES_MAX, DESCRIPTORS_MAX)
        if not data:
            return
        pid = _fork(json.loads(data), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        link.send(str(pid).encode())


def _fork(request: dict[str, Any], descriptors: list[int]) -> int:
    """Fork by an intermediate process, which ends: so the new process becomes a child of the
    process that asks."""
    told, tell = os.pipe()
    waits, goes = os.pipe()
    between = os.fork()
    if not between:
        pid = os.fork()
        if pid:
            os.write(tell, str(pid).encode())
            os._exit(0)
        os.close(goes)
        os.read(waits, 1)  # returns once the intermediate process has ended
        _become(request, descriptors)
    os.waitpid(between, 0)
    pid = int(os.read(told, 32))
    for descriptor in (told, tell, waits, goes):
        os.close(descriptor)
    return pid


def _become(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    code = 1
    try:
        Path("/proc/self/comm").write_text("python")
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.path[:] = request["path"]
        module, _, function = request["become"].partition(":")
        become = getattr(importlib.import_module(module), function)
        become(descriptors, request["parent"], *request["given"])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        atexit._run_exitfuncs()  # ``os._exit``, by which a fork has to end, runs none of them
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    Path("/proc/self/comm").write_text(sys.argv[2])
    for loaded in sys.argv[3:]:
        importlib.import_module(loaded)
    _serve(socket.socket(fileno=int(sys.argv[1])))
