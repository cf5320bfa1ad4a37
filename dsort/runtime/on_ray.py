"""The Ray runtime: each worker an actor, on a cluster, on a Ray that this process is connected to
already, or on one of the job's own.

Ray carries tasks and answers, which are small; payload goes through files that all nodes see. Ray
is told to retry nothing: a worker that died is replaced here and its task done again, so that there
is one bound on both.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from dsort.errors import DsortError, InvariantError, StorageError, WorkerLostError
from dsort.runtime.base import TASK_TRIES_MAX, describe
from dsort.runtime.ray_address import check_form
from dsort.runtime.ray_stay import RayStay, join_ray, start_ray
from dsort.runtime.ray_words import explain, first_line, listed, node_words
from dsort.runtime.ray_worker import Place
from dsort.stopping import StopFlag
from dsort.workers.tasks import Task, TaskDone, WorkerSetup

if "ray" not in sys.modules:  # it reads its environment once
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # What Ray's servers have to tell would go to stdout; what of it matters is told here.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")

import ray
from ray.exceptions import (
    ActorUnavailableError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

__all__ = ["RayRuntime"]

JOIN_SECONDS_MAX = 30
BEGIN_SECONDS_MAX = 180
START_SECONDS_MAX = 120
LOOK_SECONDS_MAX = 60
KILL_SECONDS_MAX = 5
TICK_S = 0.1
"""How long a request to stop may go unnoticed."""

WORKERS_LOST_MAX = 16
"""Workers that may be lost in one job before it is given up, besides all of those it has at a time:
a node may go with many."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One try at a task. Its answer is told by the reference it was asked with, so that none to an
    older attempt can be taken for it."""

    task: Task
    tries: int


@dataclass(slots=True, eq=False)
class _Host:
    """One actor. ``place``: None as long as it is not known; ``is_ready``: it has said so, and no
    other was lost since; ``attempt``: what it is doing."""

    actor: Any
    number: int
    place: Place | None = None
    is_ready: bool = False
    attempt: _Attempt | None = None

    def __str__(self) -> str:
        return f"worker {self.number}" + (f" on node {self.place.node}" if self.place else "")


def _actor_class() -> Any:
    """The class of a job's actors. A local class travels whole, so that on this machine it can have
    dsort, and all else, imported from where we have it: Ray lets the current directory decide."""
    home, path = socket.gethostname(), list(sys.path)

    class DsortWorker:
        def __init__(self, setup: bytes, number: int) -> None:
            if socket.gethostname() == home:
                sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
            from dsort.runtime.ray_worker import RayWorker

            self._worker = RayWorker(pickle.loads(setup), number)

        def ready(self) -> tuple[Place, DsortError | None]:
            node_id = ray.get_runtime_context().get_node_id()
            return self._worker.ready(ray.util.get_node_ip_address(), node_id)

        def do(self, task: Task) -> tuple[TaskDone | None, DsortError | None]:
            return self._worker.do(task)

    options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
    return ray.remote(scheduling_strategy="SPREAD", **options)(DsortWorker)


class RayRuntime:
    """Actors on Ray.

    ``address``: of a cluster (``auto``, ``host:port``, ``ray://host:port``); None: the Ray that
    this process is connected to or, if there is none, one of the job's own, which ends with
    ``close`` and leaves nothing. Ray is begun or joined while the caller goes on; that it could not
    be is raised (``WorkerLostError``) where Ray is needed first.
    """

    name = "ray"

    def __init__(self, address: str | None, workers: int | None, stop: StopFlag) -> None:
        self._address = address
        self._workers = workers
        self._stop = stop
        self._hosts: list[_Host] = []
        self._asked: dict[Any, _Host] = {}  # by the reference to an answer, at most one a host
        self._actor_class: Any = None
        self._setup: Any = None
        self._started = 0
        self._lost = 0
        self._stay = _begin(address, workers or len(os.sched_getaffinity(0)))

    def workers_max(self) -> int:
        """As many as were asked for, or else the CPUs of the cluster."""
        if self._workers is not None:
            return self._workers
        if self._is_own:
            return len(os.sched_getaffinity(0))
        with self._on_ray():
            return max(1, int(ray.cluster_resources().get("CPU", 0)))

    def start(self, setup: WorkerSetup, workers: int) -> None:
        """Ask Ray for ``workers`` actors and wait for the first of them. The others join in when
        Ray has found room for them."""
        with self._on_ray():
            self._setup = ray.put(pickle.dumps(setup))
            self._actor_class = _actor_class()
            for _ in range(workers):
                self._launch()
            self._wait_for_worker()

    def check_directory(self, path: str, token: str) -> None:
        """See :class:`~dsort.runtime.base.Runtime`. Nodes without CPUs host no workers."""
        with self._on_ray():
            if self._is_own:
                return  # one machine: what the coordinator sees, its workers see
            # A lambda travels whole: that a node lacks dsort is for its first worker to tell.
            look = ray.remote(num_cpus=0, max_retries=1)(lambda file: os.access(file, os.R_OK))
            asked = {}
            for node in ray.nodes():
                if node["Alive"] and node["Resources"].get("CPU"):
                    pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                    reference = look.options(scheduling_strategy=pinned).remote(f"{path}/{token}")
                    asked[reference] = node_words(
                        node["NodeManagerHostname"], node["NodeManagerAddress"], node["NodeID"]
                    )
            blind = self._blind(asked)
        if blind:
            raise StorageError(
                f"{path} is not to be seen from node {listed(blind)}",
                hint="all nodes need the same directories under the same paths: use a file system "
                "that they share",
            )

    def run(
        self, tasks: Iterable[Task], *, workers_max: int | None = None
    ) -> Iterator[tuple[Task, TaskDone]]:
        """See :class:`~dsort.runtime.base.Runtime`."""
        waiting = deque(_Attempt(task, 1) for task in tasks)
        limit = len(self._hosts) if workers_max is None else workers_max
        busy = 0
        while waiting or busy:
            with self._on_ray():
                if not busy:
                    self._wait_for_worker()
                for host in self._hosts:
                    if waiting and busy < limit and host.is_ready and not host.attempt:
                        host.attempt = waiting.popleft()
                        self._asked[host.actor.do.remote(host.attempt.task)] = host
                        busy += 1
                reference, heard = self._answered()
                if heard is None:
                    continue
                attempt, heard.attempt = heard.attempt, None
                busy -= attempt is not None
                done = self._hear(reference, heard, attempt, waiting)
            if attempt is not None and done is not None:
                yield attempt.task, done

    def close(self) -> None:
        """Kill all actors, and leave Ray as it was found."""
        hosts, self._hosts = self._hosts, []
        self._asked.clear()
        if hosts and not self._is_own:
            _kill(hosts)
        if self._stay is not None:
            self._stay.close()

    @property
    def _is_own(self) -> bool:
        return self._stay is not None and self._stay.directory is not None

    @contextlib.contextmanager
    def _on_ray(self) -> Iterator[None]:
        """The body needs Ray, and what Ray raises in it is told in our words."""
        if self._stay is not None:
            limit_s = BEGIN_SECONDS_MAX if self._is_own else JOIN_SECONDS_MAX
            error = self._stay.wait(self._stop, seconds_max=limit_s)
            if error is not None:
                raise explain(error, self._address) from error
        try:
            yield
        except (RayError, ConnectionError) as error:
            raise WorkerLostError(
                f"Ray failed: {first_line(error)}", hint="look at Ray's own logs"
            ) from error

    def _launch(self) -> None:
        host = _Host(self._actor_class.remote(self._setup, self._started), self._started)
        self._started += 1
        self._hosts.append(host)
        self._ask_whether_ready(host)

    def _ask_whether_ready(self, host: _Host) -> None:
        host.is_ready = False
        self._asked[host.actor.ready.remote()] = host

    def _wait_for_worker(self) -> None:
        """Return once there is a worker; only while none is busy."""
        end_s = time.monotonic() + START_SECONDS_MAX
        while not any(host.is_ready for host in self._hosts):
            reference, host = self._answered()
            if host is not None:
                self._hear(reference, host, None, deque())
            elif time.monotonic() > end_s:
                free = int(ray.available_resources().get("CPU", 0))
                raise WorkerLostError(
                    f"Ray started no worker within {START_SECONDS_MAX} seconds: of its "
                    f"{int(ray.cluster_resources().get('CPU', 0))} CPUs {free} are free",
                    hint="a worker takes one CPU: wait until others are done, or add nodes",
                )

    def _answered(self) -> tuple[Any, _Host | None]:
        """Whoever answered first, or nobody if it takes longer than a tick."""
        self._stop.raise_if_requested()
        done, _ = ray.wait(list(self._asked), timeout=TICK_S)
        return (done[0], self._asked.pop(done[0])) if done else (None, None)

    def _hear(
        self, reference: Any, host: _Host, attempt: _Attempt | None, waiting: deque[_Attempt]
    ) -> TaskDone | None:
        """Take an answer. None: the worker is ready now, or it died, and its task waits again."""
        try:
            done, error = ray.get(reference)
        except RayTaskError as raised:
            raise _bug(raised, str(host)) from raised
        except RayError as died:
            if isinstance(died, RayActorError) and died.actor_init_failed:
                raise _bug(died, str(host)) from died
            self._replace(host, attempt, died)
            if attempt is not None:
                waiting.append(_Attempt(attempt.task, attempt.tries + 1))
            return None
        if error is not None:
            raise error
        if attempt is not None:
            return done  # type: ignore[no-any-return]
        host.place, host.is_ready = done, True
        return None

    def _replace(self, host: _Host, attempt: _Attempt | None, died: RayError) -> None:
        """A new actor in the place of one that died, unless there were too many."""
        doing = describe(attempt.task) if attempt else "starting"
        cause, hint = _cause(died)
        if attempt is not None and attempt.tries >= TASK_TRIES_MAX:
            raise WorkerLostError(
                f"{doing} ended its worker {attempt.tries} times; the last one, {host}: {cause}",
                hint=hint,
            ) from died
        self._lost += 1
        if self._lost > WORKERS_LOST_MAX + len(self._hosts):
            raise WorkerLostError(
                f"{self._lost} workers were lost, the last one, {host}, while {doing}: {cause}",
                hint=hint,
            ) from died
        self._hosts.remove(host)
        ray.kill(host.actor)  # it may be that only we cannot reach it
        for other in self._hosts:
            # Its node may have taken it along: no task is to pay for that with one of its tries.
            if other.is_ready and other.attempt is None:
                self._ask_whether_ready(other)
        self._launch()

    def _blind(self, asked: dict[Any, str]) -> list[str]:
        """The nodes that answer no."""
        blind = []
        end_s = time.monotonic() + LOOK_SECONDS_MAX
        while asked:
            self._stop.raise_if_requested()
            done, _ = ray.wait(list(asked), timeout=TICK_S)
            for reference in done:
                node = asked.pop(reference)
                try:
                    if not ray.get(reference):
                        blind.append(node)
                except RayTaskError as raised:
                    raise _bug(raised, f"node {node}") from raised
            if time.monotonic() > end_s:
                raise WorkerLostError(
                    f"no answer within {LOOK_SECONDS_MAX} seconds from node "
                    f"{listed(list(asked.values()))}",
                    hint="is it overloaded?",
                )
        return blind


def _begin(address: str | None, cpus: int) -> RayStay | None:
    """Begin to join a Ray, or to start one; None: there is one."""
    if address is not None:
        check_form(address)
    if not ray.is_initialized():
        if address is not None:
            return join_ray(ray.init, ray.shutdown, address)
        return start_ray(ray.init, ray.shutdown, cpus)
    if address in (None, "auto", ray.get_runtime_context().gcs_address):
        return None
    raise WorkerLostError(
        f"this process is connected to another Ray than {address}",
        hint="leave that first (ray.shutdown()), or give no address and use it",
    )


def _kill(hosts: Sequence[_Host]) -> None:
    """Return when all are dead, so that none of them writes what is about to be removed."""
    if not ray.is_initialized():
        return
    with contextlib.suppress(RayError, ConnectionError):
        for host in hosts:
            ray.kill(host.actor)
        ends = [host.actor.ready.remote() for host in hosts]
        ray.wait(ends, num_returns=len(ends), timeout=KILL_SECONDS_MAX)
    here = socket.gethostname()
    processes = []
    for host in hosts:
        if host.place is not None and host.place.host == here:
            with contextlib.suppress(psutil.NoSuchProcess):
                processes.append(psutil.Process(host.place.pid))
    psutil.wait_procs(processes, timeout=KILL_SECONDS_MAX)


def _bug(error: RayError, where: str) -> DsortError:
    text = str(error).strip()
    if "ModuleNotFoundError" in text or "ImportError" in text:
        address = re.search(r"ip=([^,)]+)", text)
        return WorkerLostError(
            f"{where}{f' at {address[1]}' if address else ''} cannot load dsort: "
            f"{text.splitlines()[-1]}",
            hint="install this version of dsort, with all that it needs, on every node",
        )
    return InvariantError(f"{where} failed:\n{text}")


def _cause(died: RayError) -> tuple[str, str]:
    """What a worker died of, and what would help."""
    text = str(died)
    if isinstance(died, OutOfMemoryError) or "running low on memory" in text:
        return "its node ran out of memory", "give less with --memory-max, or fewer --workers"
    if isinstance(died, ActorUnavailableError) or "its node has died" in text:
        return "its node was lost", "look at the node, and at the network"
    detail = text.rpartition("Worker exit detail: ")[2].partition(" Some common causes")[0]
    if detail == text:
        told = text.rpartition("The actor is dead because ")[2]
        return f"Ray says: {first_line(told)}", "look at Ray's own logs"
    return (
        f"its process ended ({first_line(detail)})",
        "look at that shard, and at the memory that workers have",
    )
