"""The process of one worker of the local runtime: a fork of the coordinator, which has all needed
modules loaded, or a fresh interpreter. It reads tasks from a socket and sends answers."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from dsort.errors import DsortError
from dsort.log_lines import about_worker, lines_to_coordinator, logger_of
from dsort.runtime.base import answer
from dsort.scratch.index import IndexStore
from dsort.scratch.nodes import ScratchNodes, open_scratch
from dsort.workers.worker import Heap, Worker

PR_SET_PDEATHSIG = 1

log = logger_of("runtime")
LINK = 3
"""The descriptor of a worker's socket, after those of the standard streams."""
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Serve the coordinator at the other end of the socket with the descriptor ``argv[1]``."""
    serve(os.dup(int(sys.argv[1])), int(sys.argv[2]))


def serve(descriptor: int, parent: int) -> None:
    """Serve the coordinator at the other end of the socket until that end is closed. ``parent``:
    the id of the coordinator's process, with which this process ends."""
    _die_with(parent)
    # Hundreds of thousands of slices would start one collection after another, of objects without
    # cycles: 10 % of the time of a job with small records.
    gc.disable()
    link, lock = Connection(descriptor), threading.Lock()

    def send(message: object) -> None:
        with lock:  # threads of the worker send log lines, too
            link.send(message)

    worker: Worker | None = None
    try:
        setup, number, node = link.recv()
        lines_to_coordinator(setup.log_level, send)
        about_worker(job=setup.job_id, attempt=setup.attempt.number, worker=number)
        try:
            store = IndexStore(open_scratch(Path(setup.scratch), node))
            nodes = ScratchNodes(node, store, None)
            worker = Worker(setup, number, nodes, Heap(setup.movement.buffer_bytes))
        except DsortError as error:
            send(error)
            return
        send(None)
        while True:
            log.debug("worker %d waits for a task", number)
            send(answer(worker, link.recv()))
    except (EOFError, ConnectionError):
        return  # the coordinator has closed the socket, or died
    finally:
        if worker is not None:
            worker.close()


def _die_with(parent: int) -> None:
    """Make the kernel end this process with its parent, however the parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    main()


def can_fork() -> bool:
    """Whether this process has one thread, as the kernel counts them.

    In a fork of several threads, locks that the others held stay locked for ever. So nothing is
    forked once a thread runs, whether Python or a library started it.
    """
    return len(list(Path("/proc/self/task").iterdir())) == 1


class ForkedProcess:
    """A worker process, with the part of the interface of ``subprocess.Popen`` that is used here.
    ``link``: the worker's end of the socket pair. ``OSError`` if no more processes can be
    started."""

    def __init__(self, link: socket.socket) -> None:
        self.returncode: int | None = None
        parent = os.getpid()
        # No signal may run the coordinator's handlers in the worker: they write to its pipe.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _become_worker(link, parent, before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def poll(self) -> int | None:
        """The exit code, as for ``wait``; None while it runs."""
        return self.returncode if self.returncode is not None else self._wait(os.WNOHANG)

    def kill(self) -> None:
        """Kill it. Do nothing if it has ended: its number may then belong to another process."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int | None:
        """Wait for its end; return its exit code, or minus the number of the signal that ended
        it."""
        return self.returncode if self.returncode is not None else self._wait(0)

    def _wait(self, flags: int) -> int | None:
        pid, status = os.waitpid(self.pid, flags)
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _become_worker(
    link: socket.socket, parent: int, mask: set[signal.Signals] | set[int]
) -> NoReturn:
    """Make the process like a fresh interpreter, serve, and never return: the frames below on the
    stack belong to the coordinator."""
    code = 1
    try:
        gc.disable()
        os.setsid()  # Ctrl-C is handled by the coordinator
        for number in HANDLED:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _keep_descriptors(link)
        serve(LINK, parent)
        code = 0
    except SystemExit:
        code = 0
    except BaseException:  # noqa: BLE001 - printed as by an interpreter that ends with an error
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)  # forked buffers and clean-up functions belong to the coordinator


def _keep_descriptors(link: socket.socket) -> None:
    """Keep ``link``, as ``LINK``, and stderr; close all else: the coordinator's files, pipes and
    connections, including those to earlier workers."""
    os.dup2(link.fileno(), LINK, inheritable=False)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(null, stream)
    for number in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if number > LINK:
            with contextlib.suppress(OSError):  # the descriptor of the listing is closed already
                os.close(number)
