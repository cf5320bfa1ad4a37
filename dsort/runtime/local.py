"""The local runtime: worker processes on this machine, started at once, ended with the job. They
start before the inputs are resolved, so that both happen at the same time."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import pickle
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from msgspec import Struct

from dsort.errors import DsortError, ScratchLostError, WorkerLostError
from dsort.log_lines import LogLine, about_worker, lines_to_coordinator, logger_of, pass_on
from dsort.runtime.base import TaskQueue, answer, given
from dsort.scratch.index import IndexStore
from dsort.scratch.nodes import (
    NoExchange,
    Request,
    ScratchNodes,
    make_scratch,
    open_scratch,
    scratch_owner,
)
from dsort.stop_flag import StopFlag
from dsort.storage.process_limits import PROCESSES_HINT
from dsort.workers.tasks import Task, TaskDone, WorkerSetup
from dsort.workers.worker import Heap, Worker

if TYPE_CHECKING:
    import subprocess

BOOTSTRAP = (
    "import gc, json, sys; gc.disable(); sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from dsort.runtime.local import main; main()"
)
"""A worker imports modules from the same path as its coordinator, wherever the coordinator was
started."""

AHEAD_A_WORKER = 4
"""The tasks that are made before a worker is free for them. More would take memory, and keep
workers waiting until all are made."""
LENGTH_BYTES: Final = 8
LOST_HINT = "look at that shard, and at the memory that workers have: --max-memory, --workers"

log = logger_of("runtime")


class Link:
    """One end of a socket pair between a coordinator and its worker. A message is any object, as a
    pickle with its length in front."""

    # The connections of ``multiprocessing`` would do, but load 12 modules in each small job.

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)  # whatever timeout the user's program gives to all new sockets
        self._end = end

    def fileno(self) -> int:
        """The descriptor, for selectors."""
        return self._end.fileno()

    def close(self) -> None:
        """Close this end: the other end receives ``EOFError``."""
        self._end.close()

    def send(self, message: object) -> None:
        """Send a message. ``OSError`` if the other end is closed."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        # Sent in one piece: for a length alone, the receiver would wake up, and wait again.
        self._end.sendall(len(data).to_bytes(LENGTH_BYTES, "big") + data)

    def recv(self) -> Any:
        """The next message. ``EOFError`` or ``ConnectionError`` if the other end is closed."""
        length = int.from_bytes(self._read(LENGTH_BYTES), "big")
        return pickle.loads(self._read(length))

    def _read(self, count: int) -> bytearray:
        data = bytearray(count)
        left = memoryview(data)
        while left:
            received = self._end.recv_into(left)
            if not received:
                raise EOFError
            left = left[received:]
        return data


class _Host(Struct, eq=False):
    """One worker process."""

    process: subprocess.Popen[bytes] | ForkedProcess
    link: Link
    number: int

    def __str__(self) -> str:
        return f"worker {self.number}"


class LocalRuntime:
    """Processes on this machine."""

    name = "local"

    def __init__(self, workers: int, stop: StopFlag, *, forks: bool = False) -> None:
        """``forks``: this process belongs to dsort, so workers may be forks of it."""
        self._forks = forks
        self._stop = stop
        self._setup: WorkerSetup | None = None
        self._store: IndexStore | None = None
        self._node = ""
        self._hosts: list[_Host] = []
        self._started = 0
        self._queue: TaskQueue[_Host] = TaskQueue()
        for _ in range(workers):
            try:
                self._hosts.append(self._launch())
            except WorkerLostError:
                if not self._hosts:
                    raise
                break  # fewer workers suffice

    def workers_max(self) -> int:
        """The number of workers that were started."""
        return len(self._hosts)

    def nodes(self) -> int:
        """1: this machine."""
        return 1

    def where(self) -> str:
        """See :class:`~dsort.runtime.base.Runtime`."""
        return ""

    def start(self, setup: WorkerSetup, workers: int) -> None:
        """Send ``setup`` to the first ``workers`` processes; end the others."""
        self._setup = setup
        self._node = make_scratch(
            Path(setup.scratch), scratch_owner(setup.job_id, setup.output_uri)
        )
        self._store = IndexStore(open_scratch(Path(setup.scratch), self._node))
        _end(self._hosts[workers:])
        del self._hosts[workers:]
        for number, host in enumerate(self._hosts):
            host.number = setup.attempt.first_worker + number
        self._started = setup.attempt.first_worker + len(self._hosts)
        for at, host in enumerate(list(self._hosts)):
            self._stop.raise_if_requested()
            self._greet(at, host)
        for at in range(len(self._hosts)):
            self._await_ready(at)

    def scratch_nodes(self) -> tuple[str, ...]:
        """The single node of this machine."""
        return (self._node,)

    def share(self, name: str, data: bytes) -> None:
        """See :class:`~dsort.runtime.base.Runtime`."""
        log.debug("the file %s is shared: %d bytes", name, len(data))
        self._scratch.write_file(name, data)

    def ask(self, node: str, request: Request) -> Any:
        """Answer the request in this process, as the files are on this machine."""
        if node != self._node:
            raise ScratchLostError(node, f"scratch {node} is not on this machine")
        log.debug("the coordinator asks scratch %s: %s", node, type(request).__name__)
        return request.answer(self._scratch)

    def tell(self, node: str, request: Request) -> None:
        """See :class:`~dsort.runtime.base.Runtime`."""
        with contextlib.suppress(DsortError):
            self.ask(node, request)

    def check_directory(self, path: str, token: str) -> tuple[str, ...]:
        """Nothing to check: workers see the same directories as the coordinator."""
        return ()

    def run(
        self, tasks: Iterable[Task], *, workers_max: int | None = None
    ) -> Iterator[tuple[Task, TaskDone]]:
        """See :class:`~dsort.runtime.base.Runtime`."""
        queue = self._queue
        queue.begin(tasks, ahead=AHEAD_A_WORKER * len(self._hosts))
        with selectors.DefaultSelector() as selector:
            selector.register(self._stop, selectors.EVENT_READ)
            for at, host in enumerate(self._hosts):
                selector.register(host.link, selectors.EVENT_READ, at)
            while queue.is_open():
                for at, host in enumerate(self._hosts[:workers_max]):
                    if queue.is_free(host):
                        self._give(selector, at)
                # While all workers are busy: making the tasks of thousands of small shards takes
                # long.
                queue.fill()
                for key, _ in selector.select():
                    self._stop.raise_if_requested()
                    yield from self._receive(selector, key.data)
        queue.raise_failure()

    def warnings(self) -> list[str]:
        """See :class:`~dsort.runtime.base.Runtime`."""
        return []

    def close(self, *, keep_scratch: bool = False) -> None:
        """Kill all running workers: the end of the job needs nothing from them."""
        if self._hosts:
            log.debug("%d workers are ended", len(self._hosts))
        _end(self._hosts)
        self._hosts.clear()
        store, self._store = self._store, None
        if store is not None and keep_scratch:
            store.scratch.close()
        elif store is not None:
            store.scratch.remove()

    @property
    def _scratch(self) -> IndexStore:
        assert self._store is not None, "the job has started"
        return self._store

    def _launch(self) -> _Host:
        ours, theirs = socket.socketpair()
        process: subprocess.Popen[bytes] | ForkedProcess
        with theirs:  # a copy here would keep the stream open when the worker dies
            try:
                # The job starts threads (lease, requests, waiting). After that, nothing is forked.
                process = ForkedProcess(theirs) if self._forks and can_fork() else _begin(theirs)
            except OSError as error:
                ours.close()
                raise WorkerLostError(
                    f"no worker can be started: {error.strerror}", hint=PROCESSES_HINT
                ) from error
        number = self._started
        self._started += 1
        kind = "a fork" if isinstance(process, ForkedProcess) else "a fresh interpreter"
        log.debug("process %d was started as a worker: %s", process.pid, kind)
        return _Host(process, Link(ours), number)

    def _greet(self, at: int, host: _Host) -> None:
        try:
            host.link.send((self._setup, host.number, self._node))
        except OSError:
            self._replace(at)

    def _await_ready(self, at: int) -> None:
        """Wait until a worker is ready; replace it if it dies before."""
        while True:
            host = self._hosts[at]
            with selectors.DefaultSelector() as selector:
                selector.register(self._stop, selectors.EVENT_READ)
                selector.register(host.link, selectors.EVENT_READ)
                selector.select()
            self._stop.raise_if_requested()
            try:
                message = host.link.recv()
            except (EOFError, ConnectionError):
                self._replace(at)
                continue
            if isinstance(message, LogLine):
                pass_on(message)
                continue
            given(message)
            log.debug("%s is ready", host)
            return

    def _give(self, selector: selectors.BaseSelector, at: int) -> None:
        """Send the next task to a free worker, or to its replacement."""
        host = self._hosts[at]
        task = self._queue.take(host)
        if not task:
            return
        try:
            host.link.send(task)
        except OSError:
            self._queue.put_back(host)
            self._replace_in(selector, at)
            self._give(selector, at)
            return
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s gets a task: %s", host, task)

    def _receive(
        self, selector: selectors.BaseSelector, at: int
    ) -> Sequence[tuple[Task, TaskDone]]:
        """Receive one worker's answer; nothing if its task failed, or if the worker died and its
        task waits again."""
        host = self._hosts[at]
        try:
            message = host.link.recv()
        except (EOFError, ConnectionError):
            self._replace_in(selector, at)
            return ()
        if isinstance(message, LogLine):
            pass_on(message)
            return ()
        return self._queue.answer(host, message)

    def _replace_in(self, selector: selectors.BaseSelector, at: int) -> None:
        """Replace a worker that died, and wait until the new one is ready."""
        selector.unregister(self._hosts[at].link)
        self._replace(at)
        self._await_ready(at)
        selector.register(self._hosts[at].link, selectors.EVENT_READ, at)

    def _replace(self, at: int) -> None:
        """Start a new process in the place of one that died."""
        host = self._hosts[at]
        _end([host])
        log.debug("%s was lost: %s", host, _cause(host))
        self._queue.lose(host, _cause(host), LOST_HINT)
        self._hosts[at] = self._launch()
        log.debug("%s takes the place of %s", self._hosts[at], host)
        self._greet(at, self._hosts[at])


def _begin(link: socket.socket) -> subprocess.Popen[bytes]:
    """Start a fresh interpreter that becomes a worker."""
    import subprocess  # few commands start one: workers are forks

    # -P: before BOOTSTRAP sets the path, no module may come from the current directory.
    command = [sys.executable, "-P", "-c", BOOTSTRAP, json.dumps(sys.path)]
    return subprocess.Popen(
        [*command, str(link.fileno()), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[link.fileno()],
        start_new_session=True,  # Ctrl-C is handled by the coordinator
        # Workers do no linear algebra, so they need no threads for it.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def _end(hosts: Sequence[_Host]) -> None:
    for host in hosts:
        host.link.close()
        host.process.kill()
    for host in hosts:  # all of them unmap their files at the same time
        host.process.wait()


def _cause(host: _Host) -> str:
    code = host.process.returncode or 0
    return f"it died of signal {-code}" if code < 0 else f"it ended with exit code {code}"


PR_SET_PDEATHSIG = 1
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
    # Hundreds of thousands of slices would start one garbage collection after another, although
    # they have no cycles: 10 % of the time of a job with small records.
    gc.disable()
    link, lock = Link(socket.socket(fileno=descriptor)), threading.Lock()

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
            nodes = ScratchNodes(node, store, NoExchange())
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
    # The parent may have died before the call above.
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    main()


# Workers of a command are forks of its process, made while it has one thread: they have all modules
# loaded that it has loaded. Two kinds of workers are fresh interpreters, without a second import of
# the user's `__main__`: workers of a job in a user's process, which may have threads, and
# replacements of lost workers.
def can_fork() -> bool:
    """Whether this process has only one thread by the kernel's count.

    In a fork of a process with several threads, locks that the other threads held stay locked for
    ever. So nothing is forked once a thread runs, whether Python or a library started it.
    """
    return len(list(Path("/proc/self/task").iterdir())) == 1


class ForkedProcess:
    """A worker process, with the part of the interface of ``subprocess.Popen`` that is used here.
    ``link``: the worker's end of the socket pair. ``OSError`` if no more processes can be
    started."""

    def __init__(self, link: socket.socket) -> None:
        self.returncode: int | None = None
        parent = os.getpid()
        # No signal may run the coordinator's handlers in the worker: they would write to the
        # coordinator's pipe.
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
        """Kill the process. Do nothing if it has ended: its number may then belong to another
        process."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int | None:
        """Wait for the end of the process; return its exit code, or minus the number of the signal
        that ended it."""
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
    """Keep stderr and ``link``, which becomes ``LINK``; close the coordinator's other files, pipes
    and connections, also its connections to earlier workers."""
    os.dup2(link.fileno(), LINK, inheritable=False)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(null, stream)
    for number in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if number > LINK:
            with contextlib.suppress(OSError):  # the descriptor of the listing is closed already
                os.close(number)
