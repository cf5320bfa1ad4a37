"""The Ray runtime: each worker is an actor, and each node with workers has one more, the agent of
its scratch. Actors run on a cluster, on a Ray that this process is already connected to, or on a
Ray that the job starts."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from dsort.errors import DsortError, SpecError, StorageError, TransformError, WorkerLostError
from dsort.runtime.ray.block_server import BlockPlace
from dsort.runtime.ray.block_stream import BlockKey
from dsort.runtime.ray.cluster import (
    ROUNDING,
    GivenRay,
    Needs,
    OwnRay,
    check_form,
    check_ray_version,
    is_only_on_loopback,
    join_ray,
    start_ray,
)
from dsort.runtime.ray.exchange import BlockRules
from dsort.runtime.ray.library import (
    LOST_ERRORS,
    NodeAffinitySchedulingStrategy,
    RayError,
    RayTaskError,
    TaskUnschedulableError,
    bug,
    explain,
    first_line,
    listed,
    ray,
    words_of,
)
from dsort.runtime.ray.scratch_nodes import (
    AGENT_THREADS,
    NAMESPACE,
    RayScratchNodes,
    agent_name,
    node_of,
    node_slot_of,
    remove_scratch,
)
from dsort.runtime.ray.workers import Done, RayWorkers, WorkerLocation
from dsort.scratch.nodes import Request, scratch_owner
from dsort.stop_flag import StopFlag
from dsort.workers.gpus import gpus_here
from dsort.workers.tasks import Task, TaskDone, WorkerSetup

JOIN_SECONDS_MAX = 30
BEGIN_SECONDS_MAX = 180
LOOK_SECONDS_MAX = 60
TICK_S = 0.1
"""The longest time after which a request to stop is noticed."""

AGENT_RESTARTS_MAX = 3
ASK_TRIES_MAX = 3


def _actor_classes() -> tuple[type[Any], type[Any]]:
    """The classes of a job's actors: workers and agents. Ray pickles local classes by value. So on
    this machine, actors can import dsort and all other modules from the same path as this process;
    otherwise the current directory would decide which modules they import."""
    here, path = socket.gethostname(), list(sys.path)

    def see_what_we_see() -> None:
        if socket.gethostname() == here:
            sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]

    class DsortWorker:
        def __init__(self, packed: bytes, number: int, prefix: str) -> None:
            see_what_we_see()
            from dsort.runtime.ray.exchange import RayExchange
            from dsort.runtime.ray.workers import RayWorker

            # From Ray's object store, where this job's coordinator put it; never from a file.
            setup, rules = pickle.loads(packed)
            self._worker = RayWorker(setup, number, RayExchange(prefix, rules))

        def location(self) -> WorkerLocation:
            node_id = ray.get_runtime_context().get_node_id()
            return self._worker.location(ray.util.get_node_ip_address(), node_id)

        def begin(self, opened: str | DsortError) -> str | DsortError:
            return self._worker.begin(opened)

        def do(self, task: Task) -> Done:
            return self._worker.do(task)

    class DsortAgent:
        def __init__(
            self, scratch: str, node_slot: str, owner: dict[str, str], alone: bool
        ) -> None:
            see_what_we_see()
            from dsort.runtime.ray.scratch_nodes import NodeAgent

            address = None if alone else ray.util.get_node_ip_address()
            self._agent = NodeAgent(scratch, node_slot, owner, address)

        def open(self, names: list[str], *files: bytes) -> str | DsortError:
            return self._agent.open(dict(zip(names, files, strict=True)))

        def answer(self, scratch_node: str, request: Request) -> Any:
            return self._agent.answer(scratch_node, request)

        def blocks_at(self, key: BlockKey, place: BlockPlace) -> tuple[str, str]:
            return self._agent.blocks_at(key, place, ray.util.get_node_ip_address())

        def store(self, name: str, data: bytes) -> DsortError | Literal[""]:
            return self._agent.store(name, data)

        def close(self, workers: list[int], keep: bool) -> None:
            self._agent.close(workers, keep)

    return DsortWorker, DsortAgent


# Ray carries tasks and answers, and small answers from another node's scratch; spill goes directly
# from node to node (`exchange`). Payload does not pass through this process. Ray retries requests
# for scratch only: dsort replaces a worker that died and does its task again, so that one limit
# covers both.
class RayRuntime:
    """Actors on Ray.

    ``address``: the address of a cluster (``auto``, ``host:port``, ``ray://host:port``). None: the
    Ray to which this process is connected; or else a new one, which ``close`` ends without a trace.
    Ray is started or joined in the background. If this fails, ``WorkerLostError`` is raised where
    Ray is needed first. ``resources``, ``labels``, ``cpus`` and ``gpus``: see
    :class:`~dsort.runtime.ray.cluster.Needs`.
    """

    name = "ray"

    def __init__(
        self,
        address: str | None,
        workers: int | None,
        stop: StopFlag,
        *,
        resources: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
        cpus: float = 1,
        gpus: float = 0,
        direct: bool = True,
        place: BlockPlace | None = None,
    ) -> None:
        """``direct``: send blocks of spill directly from node to node, not through Ray. ``place``:
        where the agents of nodes may listen for requests of blocks."""
        self._direct = direct
        self._place = place or BlockPlace()
        self._address = address
        self._workers = workers
        self._stop = stop
        self._needs = Needs(dict(resources or {}), dict(labels or {}), cpus, gpus)
        self._scratch = Path()
        self._job: tuple[RayScratchNodes, RayWorkers] | None = None
        self._session = _begin(address, workers, self._needs)

    def workers_max(self) -> int:
        """The requested number, or else the CPUs of the nodes that can host workers."""
        if self._workers is not None:
            return self._workers
        if self._is_own:
            return own_workers_max(self._needs)
        with self._on_ray():
            return max(1, sum(map(self._needs.workers, ray.nodes())))

    def nodes(self) -> int:
        """The number of nodes that can host workers."""
        if self._is_own:
            return 1
        with self._on_ray():
            return max(1, len(self._needs.hosts(ray.nodes())))

    def where(self) -> str:
        """See :class:`~dsort.runtime.base.Runtime`."""
        return self._session.where()

    def start(self, setup: WorkerSetup, workers: int) -> None:
        """Request ``workers`` actors from Ray, and wait for the first of them. The others join once
        Ray has room for them."""
        with self._on_ray():
            self._scratch = Path(setup.scratch)
            self._job = self._prepare(setup)
            nodes = self._needs.hosts(ray.nodes())
            if len(nodes) <= workers:  # each node will have a worker: make its scratch node now
                for node in nodes:
                    self._scratch_nodes.scratch_ref(node["NodeID"])
            # Workers may be on other nodes than the workers that extracted in an earlier attempt.
            held = {node_of(node_slot_of(each)) for each in setup.attempt.scratch_before}
            for node_id in sorted(held & {node["NodeID"] for node in nodes}):
                self._scratch_nodes.scratch_ref(node_id)
            for _ in range(workers):
                self._crew.launch()
            self._scratch_nodes.wait()
            self._crew.wait()

    def scratch_nodes(self) -> tuple[str, ...]:
        """See :class:`~dsort.runtime.base.Runtime`."""
        with self._on_ray():
            return self._scratch_nodes.scratch_nodes()

    def share(self, name: str, data: bytes) -> None:
        """See :class:`~dsort.runtime.base.Runtime`."""
        with self._on_ray():
            self._scratch_nodes.share(name, data)

    def ask(self, scratch_node: str, request: Request) -> Any:
        """See :class:`~dsort.runtime.base.Runtime`."""
        with self._on_ray():
            return self._scratch_nodes.ask(scratch_node, request)

    def tell(self, scratch_node: str, request: Request) -> None:
        """See :class:`~dsort.runtime.base.Runtime`."""
        with self._on_ray():
            self._scratch_nodes.tell(scratch_node, request)

    def check_directory(self, path: str, token: str) -> tuple[str, ...]:
        """See :class:`~dsort.runtime.base.Runtime`. Checks only nodes that can host workers."""
        with self._on_ray():
            if self._is_own:
                return ()  # one machine: workers see the same directories as the coordinator
            # Pickled by value, so it needs no dsort: a missing dsort is reported by the node's
            # first worker.
            look = ray.remote(num_cpus=0, max_retries=1)(lambda file: os.access(file, os.R_OK))

            def ask(node: Mapping[str, Any]) -> Any:
                pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                return look.options(scheduling_strategy=pinned).remote(f"{path}/{token}")

            blind, gone = self._look(ask)
        if blind:
            raise StorageError(
                f"{path} cannot be seen from node {listed(blind)}",
                hint="all nodes need the same directories under the same paths: use a file system "
                "that they share",
            )
        return gone

    def run(
        self, tasks: Iterable[Task], *, workers_max: int | None = None
    ) -> Iterator[tuple[Task, TaskDone]]:
        """See :class:`~dsort.runtime.base.Runtime`."""
        with self._on_ray():
            yield from self._crew.run(tasks, workers_max)

    def warnings(self) -> list[str]:
        """See :class:`~dsort.runtime.base.Runtime`."""
        return self._crew.warnings() if self._job else []

    def close(self, *, keep_scratch: bool = False) -> None:
        """Kill all actors, remove the scratch nodes, and leave Ray as it was found."""
        job, self._job = self._job, None
        if job is not None and not self._is_own and ray.is_initialized():
            scratch_nodes, crew = job
            with contextlib.suppress(RayError, ConnectionError):
                scratch_nodes.close(crew.kill(), keep=keep_scratch)
        self._session.close()
        if job is not None and self._is_own and not keep_scratch:
            remove_scratch(self._scratch)

    @property
    def _is_own(self) -> bool:
        return self._session.is_own

    @property
    def _scratch_nodes(self) -> RayScratchNodes:
        assert self._job is not None, "the job has started"
        return self._job[0]

    @property
    def _crew(self) -> RayWorkers:
        assert self._job is not None, "the job has started"
        return self._job[1]

    @contextlib.contextmanager
    def _on_ray(self) -> Iterator[None]:
        """Wait for Ray, then run the body. Converts Ray's errors in the body to dsort's."""
        limit_s = BEGIN_SECONDS_MAX if self._is_own else JOIN_SECONDS_MAX
        error = self._session.wait(self._stop, seconds_max=limit_s)
        if error is not None:
            raise explain(error, self._address) from error
        try:
            yield
        except (RayError, ConnectionError) as error:
            raise WorkerLostError(
                f"Ray failed: {first_line(error)}", hint="look at Ray's own logs"
            ) from error

    def _prepare(self, setup: WorkerSetup) -> tuple[RayScratchNodes, RayWorkers]:
        """Make the functions that launch workers and agents. Launches none."""
        worker_class, agent_class = _actor_classes()
        alone = self.nodes() == 1
        prefix = f"{setup.job_id}-{secrets.token_hex(4)}"
        rules = BlockRules(BlockKey.new() if self._direct else None, self._place)
        packed = ray.put(pickle.dumps((setup, rules)))
        chosen: dict[str, Any] = {"resources": dict(self._needs.resources)}
        if self._needs.gpus:
            chosen["num_gpus"] = self._needs.gpus
        if self._needs.labels:
            chosen["label_selector"] = dict(self._needs.labels)
        try:
            workers = ray.remote(
                num_cpus=self._needs.cpus,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy="SPREAD",
                **chosen,
            )(worker_class)
        except ValueError as error:
            raise SpecError(f"--ray-labels: {first_line(error)}") from error
        agents = ray.remote(
            num_cpus=0,
            max_restarts=AGENT_RESTARTS_MAX,
            max_task_retries=ASK_TRIES_MAX,
            max_concurrency=AGENT_THREADS,
            namespace=NAMESPACE,
        )(agent_class)

        def launch_worker(number: int) -> Any:
            return workers.remote(packed, number, prefix)

        def launch_agent(node_id: str, node_slot: str) -> Any:
            # Never on another node: an agent serves the scratch of its node.
            pinned = NodeAffinitySchedulingStrategy(node_id, soft=False)
            options = agents.options(name=agent_name(prefix, node_slot), scheduling_strategy=pinned)
            return options.remote(
                setup.scratch, node_slot, scratch_owner(setup.job_id, setup.output_uri), alone
            )

        scratch_nodes = RayScratchNodes(launch_agent, self._stop)
        first = setup.attempt.first_worker
        return scratch_nodes, RayWorkers(
            launch_worker, scratch_nodes, self._stop, self._no_room, first
        )

    def _no_room(self, waited_seconds: int) -> WorkerLostError:
        free, there = ray.available_resources(), ray.cluster_resources()
        found = [
            f"of its {there.get(name, 0):g} {name}s {free.get(name, 0):g} are free"
            for name in ("CPU", *["GPU"] * bool(self._needs.gpus))
        ]
        return WorkerLostError(
            f"Ray started no worker within {waited_seconds} seconds: {', '.join(found)}",
            hint=f"a worker takes {self._needs}: wait until other jobs end, or add nodes",
        )

    def _look(self, ask: Callable[[Mapping[str, Any]], Any]) -> tuple[list[str], tuple[str, ...]]:
        """Return (the nodes whose answer is False, the nodes that were found to be lost). For up to
        40 seconds after a node died, Ray counts it as alive, and all requests to the node fail."""
        asked = {ask(node): node for node in self._needs.hosts(ray.nodes())}
        blind, gone = [], []
        end_s = time.monotonic() + LOOK_SECONDS_MAX
        while asked:
            self._stop.raise_if_requested()
            done, _ = ray.wait(list(asked), timeout=TICK_S)
            for reference in done:
                node = asked.pop(reference)
                try:
                    if not ray.get(reference):
                        blind.append(words_of(node))
                except (TaskUnschedulableError, *LOST_ERRORS):
                    if _is_alive(node):  # only a process was lost, or the node comes back
                        asked[ask(node)] = node
                    else:
                        gone.append(words_of(node))
                except RayTaskError as raised:
                    raise bug(raised, f"node {words_of(node)}") from raised
            if not done:  # Ray may wait for an answer of a node that it lists as dead
                alive = {each["NodeID"] for each in ray.nodes() if each["Alive"]}
                lost = [ref for ref, node in asked.items() if node["NodeID"] not in alive]
                gone += [words_of(asked.pop(reference)) for reference in lost]
            if asked and time.monotonic() > end_s:
                raise WorkerLostError(
                    f"no answer within {LOOK_SECONDS_MAX} seconds from node "
                    f"{listed([words_of(node) for node in asked.values()])}",
                    hint="is it overloaded?",
                )
        return blind, tuple(gone)


def _is_alive(node: Mapping[str, Any]) -> bool:
    """Whether Ray lists the node as alive now."""
    return any(each["NodeID"] == node["NodeID"] and each["Alive"] for each in ray.nodes())


def _begin(address: str | None, workers: int | None, needs: Needs) -> GivenRay:
    """Begin to join a Ray, or to start one, unless this process is connected to one."""
    check_ray_version(ray.__version__)
    if address is not None:
        check_form(address)
    if not ray.is_initialized():
        if address is not None:
            return join_ray(_join, ray.shutdown, address)
        if needs:
            raise SpecError(
                "--ray-resources and --ray-labels choose among the nodes of a cluster",
                hint="name the cluster: --ray-address",
            )
        return _start(workers or own_workers_max(needs), needs)
    if address in (None, "auto", ray.get_runtime_context().gcs_address):
        return GivenRay()
    raise WorkerLostError(
        f"this process is connected to another Ray than {address}",
        hint="leave that Ray first (ray.shutdown()), or use it: give no address",
    )


def own_workers_max(needs: Needs) -> int:
    """How many workers a Ray that the job starts can host. ``TransformError``: too few GPUs."""
    cpus, gpus = len(os.sched_getaffinity(0)), gpus_here() if needs.gpus else ()
    workers = max(1, int(cpus / needs.cpus))
    if not needs.gpus:
        return workers
    if len(gpus) < needs.gpus:
        raise TransformError(
            f"a worker needs {needs}, and this machine has {len(gpus)} GPUs that a job may use",
            hint="name a cluster that has enough: --ray-address",
        )
    return min(workers, int(len(gpus) / needs.gpus + ROUNDING))


def _start(workers: int, needs: Needs) -> OwnRay:
    """Begin to start a Ray that listens on loopback."""
    cpus, gpus = math.ceil(workers * needs.cpus), len(gpus_here()) if needs.gpus else 0

    def init(**arguments: Any) -> None:
        # Ray has read its environment already, which may have turned tokens off. Read it again.
        ray._raylet.Config.initialize("")
        with _on_loopback():
            ray.init(**arguments)

    try:
        return start_ray(init, ray.shutdown, cpus, gpus)
    except OSError as error:
        raise explain(error, None) from error


def _join(**arguments: Any) -> None:
    """Call ``ray.init`` with an address, even if Ray listens only on loopback there."""
    alone = is_only_on_loopback(arguments["address"], ray.util.get_node_ip_address())
    with _on_loopback() if alone else contextlib.nullcontext():
        ray.init(**arguments)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Make Ray use 127.0.0.1 as this node's address, and listen only there. Without this, Ray would
    use the address that other machines can reach. (Ray does the same by itself on systems that ask
    their users about each program that listens.)"""
    constants = ray._private.ray_constants
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
