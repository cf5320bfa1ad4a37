"""The local runtime: worker processes on this machine, started at once, ended with the job.

Workers of a command are forks of its process, made while it has one thread: they have all modules
loaded that it has loaded. Two kinds of workers are fresh interpreters, without a second import of
the user's ``__main__``: those in a user's process, which may have threads, and replacements of lost
workers. Workers start before the inputs are resolved, so that both happen at the same time."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from msgspec import Struct

from dsort.errors import DsortError, ScratchLostError, WorkerLostError
from dsort.log_lines import LogLine, logger_of, pass_on
from dsort.runtime.local_worker import ForkedProcess, can_fork
from dsort.runtime.task_queue import TaskQueue
from dsort.scratch.index import IndexStore
from dsort.scratch.nodes import Request, make_scratch, open_scratch, scratch_owner
from dsort.stop_flag import StopFlag
from dsort.storage.process_limits import PROCESSES_HINT
from dsort.workers.tasks import Task, TaskDone, WorkerSetup

BOOTSTRAP = (
    "import gc, json, sys; gc.disable(); sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from dsort.runtime.local_worker import main; main()"
)
"""A worker imports modules from the same path as its coordinator, wherever that was started."""

AHEAD_A_WORKER = 4
"""The tasks that are made before a worker is free for them. More would take memory, and keep
workers waiting until all are made."""
LOST_HINT = "look at that shard, and at the memory that workers have: --max-memory, --workers"

log = logger_of("runtime")


class _Host(Struct, eq=False):
    """One worker process."""

    process: subprocess.Popen[bytes] | ForkedProcess
    link: Connection
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
                    if queue.doing(host) is None:
                        self._give(selector, at)
                # Here, while all are busy: making tasks of thousands of small shards takes a while.
                queue.fill()
                for key, _ in selector.select():
                    self._stop.raise_if_requested()
                    answer = self._receive(selector, key.data)
                    if answer is not None:
                        yield answer
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
        with theirs:
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
        return _Host(process, Connection(ours.detach()), number)

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
                error = host.link.recv()
            except (EOFError, ConnectionError):
                self._replace(at)
                continue
            if isinstance(error, LogLine):
                pass_on(error)
                continue
            if error is not None:
                raise error
            log.debug("%s is ready", host)
            return

    def _give(self, selector: selectors.BaseSelector, at: int) -> None:
        """Send the next task to a free worker, or to its replacement."""
        host = self._hosts[at]
        task = self._queue.take(host)
        if task is None:
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

    def _receive(self, selector: selectors.BaseSelector, at: int) -> tuple[Task, TaskDone] | None:
        """Receive one worker's answer; None if its task failed, or if the worker died and its task
        waits again."""
        host = self._hosts[at]
        try:
            message = host.link.recv()
        except (EOFError, ConnectionError):
            self._replace_in(selector, at)
            return None
        if isinstance(message, LogLine):
            pass_on(message)
            return None
        return self._queue.answer(host, *message)

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
        if host.process.poll() is None:
            host.process.kill()
    for host in hosts:  # all of them unmap their files at the same time
        host.process.wait()


def _cause(host: _Host) -> str:
    code = host.process.returncode or 0
    return f"it died of signal {-code}" if code < 0 else f"it ended with exit code {code}"
