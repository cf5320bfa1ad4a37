"""The workers of a job on Ray: starts them, gives them tasks, and replaces those that died."""

from __future__ import annotations

import gc
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dsort.errors import DsortError, WorkerLostError
from dsort.log_lines import LogLine, about_worker, lines_to_coordinator, logger_of, pass_on
from dsort.runtime.base import WORKERS_LOST_MAX, TaskQueue, answer
from dsort.runtime.ray.exchange import RayExchange
from dsort.runtime.ray.library import (
    LOST_ERRORS,
    RayError,
    RayTaskError,
    bug,
    cause,
    located,
    node_words,
    ray,
)
from dsort.runtime.ray.scratch_nodes import RayScratchNodes, node_slot_of, token_of
from dsort.scratch.index import IndexStore
from dsort.scratch.nodes import ScratchNodes, open_scratch
from dsort.stop_flag import StopFlag
from dsort.workers.tasks import ScratchLost, Task, TaskDone, WorkerSetup
from dsort.workers.worker import Heap, Worker

START_SECONDS_MAX = 120
KILL_SECONDS_MAX = 5
TICK_S = 0.1
"""The longest time after which a request to stop is noticed."""

LINES_MAX = 2_000
"""The most log lines that a worker keeps for its next answer."""
NODE_ID_SHOWN = 8
"""Of 56 characters: enough to distinguish nodes with the same host name."""

log = logger_of("runtime")


class _Host(Struct, eq=False):
    """One actor. ``location`` and ``scratch_node`` are None and "" until they are known.
    ``is_ready``: it has reported that it is ready, and no other worker was lost since then."""

    actor: Any
    number: int
    location: WorkerLocation | None = None
    scratch_node: str = ""
    is_ready: bool = False

    def __str__(self) -> str:
        return f"worker {self.number}" + (f" on node {self.location.node}" if self.location else "")


class RayWorkers:
    """Workers, each an actor that ``launch`` makes with its number; the first is ``number``.

    ``no_room``: makes the error for a job without workers, given the seconds that it has waited.
    """

    def __init__(
        self,
        launch: Callable[[int], Any],
        scratch_nodes: RayScratchNodes,
        stop: StopFlag,
        no_room: Callable[[int], WorkerLostError],
        number: int,
    ) -> None:
        self._make = launch
        self._scratch_nodes = scratch_nodes
        self._stop = stop
        self._no_room = no_room
        self._number = number
        self._hosts: list[_Host] = []
        self._queue: TaskQueue[_Host] = TaskQueue()
        self._asked: dict[Any, _Host] = {}  # by reference to the answer; at most one per host
        self._chosen: list[_Host] = []  # the hosts that do tasks with a limit on workers
        self._warnings: dict[str, str] = {}  # reason, by the node that cannot be reached
        self._warned: set[str] = set()
        scratch_nodes.on_lost = self._kill_on

    def launch(self) -> None:
        """Start one more worker."""
        log.debug("Ray is asked for worker %d", self._number)
        host = _Host(self._make(self._number), self._number)
        self._number += 1
        self._hosts.append(host)
        self._ask_whether_ready(host)

    def wait(self) -> None:
        """Wait until there is a worker; only called while none is busy."""
        end_s = time.monotonic() + START_SECONDS_MAX
        while not any(host.is_ready for host in self._hosts):
            answered = self._answered()
            if not answered and time.monotonic() > end_s:
                raise self._no_room(START_SECONDS_MAX)
            for reference, host in answered:
                self._receive(reference, host)

    def run(
        self, tasks: Iterable[Task], workers_max: int | None
    ) -> Iterator[tuple[Task, TaskDone]]:
        """See :class:`~dsort.runtime.base.Runtime`."""
        queue = self._queue
        # All tasks are made now: making one may need a node, which may be lost once workers work.
        queue.begin(tasks)
        while queue.is_open():
            if queue.is_idle():
                self.wait()
            for host in self._hosts:
                if host.is_ready and queue.is_free(host) and self._may_do(host, workers_max):
                    task = queue.take(host, host.scratch_node)
                    if not task:
                        break
                    self._asked[host.actor.do.remote(task)] = host
                    if log.isEnabledFor(logging.DEBUG):
                        log.debug("%s gets a task: %s", host, task)
            for reference, host in self._answered():
                yield from self._receive(reference, host)
        queue.raise_failure()

    def _may_do(self, host: _Host, workers_max: int | None) -> bool:
        """Whether ``host`` is one of the ``workers_max`` workers that do a kind of task. The same
        workers do all tasks of this kind, because the processes of user code that a worker starts
        run until it does another kind of task."""
        if workers_max is None or host in self._chosen:
            return True
        self._chosen = [each for each in self._chosen if each in self._hosts]
        if len(self._chosen) >= workers_max:
            return False
        self._chosen.append(host)
        return True

    def warnings(self) -> list[str]:
        """See :class:`~dsort.runtime.base.Runtime`: one warning for each node, even if several
        workers met the problem."""
        new = [each for each in self._warnings if each not in self._warned]
        self._warned.update(new)
        return [
            f"spill of node {each} goes through Ray, which takes more processor time: the node "
            f"is not reached directly ({self._warnings[each]})"
            for each in new
        ]

    def kill(self) -> dict[str, list[int]]:
        """Kill all workers, and wait until Ray lists them as dead. Return their processes by
        node."""
        hosts, self._hosts = self._hosts, []
        log.debug("%d workers are ended", len(hosts))
        self._asked.clear()
        for host in hosts:
            ray.kill(host.actor)
        # Calls to a killed actor fail as soon as Ray lists it as dead.
        ends = [host.actor.location.remote() for host in hosts]
        if ends:
            ray.wait(ends, num_returns=len(ends), timeout=KILL_SECONDS_MAX)
        processes: dict[str, list[int]] = {}
        for host in hosts:
            if host.location is not None:
                processes.setdefault(host.location.node_id, []).append(host.location.pid)
        return processes

    def _ask_whether_ready(self, host: _Host) -> None:
        host.is_ready = False
        self._asked[host.actor.location.remote()] = host

    def _answered(self) -> list[tuple[Any, _Host]]:
        """The first answer and its host; nothing if no answer comes within a tick."""
        self._stop.raise_if_requested()
        done, _ = ray.wait(list(self._asked), timeout=TICK_S)
        return [(reference, self._asked.pop(reference)) for reference in done]

    def _receive(self, reference: Any, host: _Host) -> Sequence[tuple[Task, TaskDone]]:
        """Receive an answer. Return nothing if the worker is still starting, if its task failed, or
        if the worker died, so that its task waits again."""
        try:
            done = ray.get(reference)
        except RayError as died:
            # The worker answers with its errors, so an error that is raised is a bug.
            raised = isinstance(died, RayTaskError) and not isinstance(died, LOST_ERRORS)
            if raised or getattr(died, "actor_init_failed", False):
                raise bug(died, str(host)) from died
            self._replace(host, died)
            return ()
        if isinstance(done, Done):
            for line in done.lines:
                pass_on(line)
            for scratch_node, reason in done.unreachable:
                self._warnings.setdefault(node_slot_of(scratch_node), reason)
            if isinstance(done.done, ScratchLost):
                self._scratch_nodes.lose(done.done.node)
            found = done.done
            if isinstance(found, DsortError):
                found = self._located(found, host)
            return self._queue.answer(host, found)
        if isinstance(done, DsortError):
            raise self._located(done, host)
        if isinstance(done, WorkerLocation):
            host.location = done
            scratch_ref = self._scratch_nodes.scratch_ref(done.node_id)
            self._asked[host.actor.begin.remote(scratch_ref)] = host
        else:
            host.scratch_node, host.is_ready = done, True
            log.debug("%s is ready", host)
        return ()

    def _located(self, error: DsortError, host: _Host) -> DsortError:
        """``error`` with the name of its worker, if workers are on several nodes."""
        return located(error, str(host)) if len(self._scratch_nodes) > 1 else error

    def _replace(self, host: _Host, died: Exception) -> None:
        """Start a new actor in the place of a dead one, unless too many were lost. A lost node may
        take all current workers of the job with it at once."""
        reason, hint = cause(died)
        log.debug("%s was lost: %s", host, reason)
        try:
            self._queue.lose(host, reason, hint, WORKERS_LOST_MAX + len(self._hosts))
        except WorkerLostError as lost:
            raise lost from died
        self._hosts.remove(host)
        ray.kill(host.actor)  # it may be alive, and only unreachable from here
        self._doubt(self._hosts)
        self.launch()

    def _doubt(self, hosts: Iterable[_Host]) -> None:
        """Check whether idle workers are alive. Without this check, a worker that died on the same
        lost node could get a task, which would lose one of its tries."""
        for host in hosts:
            if host.is_ready and self._queue.is_free(host):
                self._ask_whether_ready(host)

    def _kill_on(self, node_id: str) -> None:
        """Kill the workers of a node whose scratch node is lost, so that they are replaced."""
        there = [host for host in self._hosts if host.location and host.location.node_id == node_id]
        for host in there:
            ray.kill(host.actor)
        self._doubt(there)


class Done(Struct, frozen=True):
    """The answer of a worker to a task, or the error with which it ended. ``unreachable``: (scratch
    node, reason) for each node whose spill came through Ray, because it could not be reached
    directly. ``lines``: lines of the log since the last answer."""

    done: TaskDone | DsortError
    unreachable: tuple[tuple[str, str], ...]
    lines: tuple[LogLine, ...] = ()


class WorkerLocation(Struct, frozen=True):
    """The place of a worker. ``node``: in words."""

    node: str
    node_id: str
    pid: int


class RayWorker:
    """A worker that returns its errors, because Ray would wrap raised ones.

    It is made in two steps, because the id of its scratch node is known only when Ray has put it on
    a node.
    """

    def __init__(self, setup: WorkerSetup, number: int, exchange: RayExchange) -> None:
        gc.disable()  # as in the local runtime: hundreds of thousands of slices, and no cycles
        self._setup = setup
        self._number = number
        self._exchange = exchange
        self._worker: Worker | None = None
        self._scratch_node = ""
        self._lines: deque[LogLine] = deque(maxlen=LINES_MAX)

    def location(self, address: str, node_id: str) -> WorkerLocation:
        """The location of the worker, which all of its log lines contain from now on. The lines
        come with the answers of the worker. They are also in Ray's log of its process, where they
        can be read if the worker gives no answer."""
        lines_to_coordinator(self._setup.log_level, self._lines.append, on_stderr=True)
        about_worker(
            job=self._setup.job_id,
            attempt=self._setup.attempt.number,
            worker=self._number,
            node=f"{socket.gethostname()}-{node_id[:NODE_ID_SHOWN]}",
        )
        return WorkerLocation(
            node_words(socket.gethostname(), address, node_id), node_id, os.getpid()
        )

    def begin(self, opened: str | DsortError) -> str | DsortError:
        """The id of its scratch node, or the error that prevents it from working. ``opened``: the
        answer of its node's agent. May be called again; the scratch node stays the same."""
        if self._scratch_node or isinstance(opened, DsortError):
            return self._scratch_node or opened
        directory = Path(self._setup.scratch) / node_slot_of(opened)
        try:
            store = IndexStore(open_scratch(directory, token_of(opened)))
            self._worker = Worker(
                self._setup,
                self._number,
                ScratchNodes(opened, store, self._exchange),
                Heap(self._setup.movement.buffer_bytes),
            )
        except DsortError as failed:
            return failed
        self._scratch_node = opened
        return opened

    def do(self, task: Task) -> Done:
        """The answer to ``task``."""
        assert self._worker is not None, "a worker that could not be made is given no task"
        done = answer(self._worker, task)
        lines = tuple(self._lines.popleft() for _ in range(len(self._lines)))
        return Done(done, self._exchange.unreachable(), lines)
