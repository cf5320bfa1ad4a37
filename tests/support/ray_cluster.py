"""A Ray cluster of several nodes on this machine, whose scratch is not shared: each node has its
own directory, which is removed with the node."""

from __future__ import annotations

import atexit
import contextlib
import logging
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.support.children import children_here
from tests.support.fault_points import PointFault, arm, disarm, points_environment
from tests.support.ray_nodes import bare_nodes

NODES = 3
OBJECT_STORE_BYTES = 80 << 20
UNUSED = {"include_log_monitor": False}
"""Options that turn off the log monitor, which takes half a second of CPU to start."""
ZONES = "abc"
HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 3,
}
"""With these settings, Ray counts a dead node as lost after two seconds, and a node that does not
answer after ten (by default: half a minute). With shorter times, Ray loses nodes of a busy
machine."""


class Nodes:
    """Three nodes of one CPU each, which can host workers, and the head, which cannot. The test is
    connected to the head. Nodes are named by their ids."""

    def __init__(self, cluster: Any, directory: str, environment: Mapping[str, str]) -> None:
        """``environment``: the environment of all nodes, including later ones."""
        self._cluster = cluster
        self._directory = directory
        self._environment = dict(environment)
        self._by_zone: dict[str, Any] = {}
        self.heal()

    @property
    def ids(self) -> list[str]:
        return [node.node_id for node in self._by_zone.values()]

    @property
    def head_id(self) -> str:
        head: str = self._cluster.head_node.node_id
        return head

    def id_in(self, zone: str) -> str:
        node_id: str = self._by_zone[zone].node_id
        return node_id

    def object_store_bytes(self) -> dict[str, int]:
        """The number of bytes of each node's object store that were ever used, by node id."""
        nodes = [self._cluster.head_node, *self._by_zone.values()]
        return {node.node_id: _touched_bytes(_raylet(node).pid) for node in nodes}

    def spilled_objects(self) -> list[Path]:
        """The files of objects that Ray moved to disk because an object store was full."""
        return [p for p in Path(self._directory).rglob("ray_spilled_objects*/*") if p.is_file()]

    def heal(self) -> None:
        """Replace lost nodes with new ones."""
        for zone in ZONES:
            if zone not in self._by_zone:
                self._by_zone[zone] = self._cluster.add_node(
                    wait=False,
                    num_cpus=1,
                    **UNUSED,
                    object_store_memory=OBJECT_STORE_BYTES,
                    temp_dir=self._directory,
                    labels={"zone": zone},
                    env_vars=self._environment,
                    resources={"slots": 2},
                )
        self._cluster.wait_for_nodes()

    def believed(self, node_id: str) -> bool:
        """Whether Ray counts a node as alive."""
        import ray

        return any(each["NodeID"] == node_id and each["Alive"] for each in ray.nodes())

    def silence(self, node_id: str) -> None:
        """Make a node answer no more, as behind a broken network. Ray counts it as alive until its
        health checks have failed for long enough. The test has to ``lose`` the node in the end."""
        (node,) = [node for node in self._by_zone.values() if node.node_id == node_id]
        _raylet(node).suspend()

    def lose(self, node_id: str, scratch: Path) -> None:
        """End a node as a power cut does, with all of its processes and its part of ``scratch``."""
        (zone,) = [zone for zone, node in self._by_zone.items() if node.node_id == node_id]
        node = self._by_zone.pop(zone)
        below = _raylet(node).children(recursive=True)
        self._cluster.remove_node(node, allow_graceful=False)
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(below, timeout=30)
        for directory in [*scratch.rglob(f"{node_id}*")]:
            shutil.rmtree(directory)


def _raylet(node: Any) -> psutil.Process:
    (raylet,) = node.all_processes["raylet"]
    return psutil.Process(raylet.process.pid)


def _touched_bytes(pid: int) -> int:
    """The bytes of a raylet's shared memory that were ever written: Linux allocates a page at the
    first write."""
    touched = {0: 0}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if "plasma" in str(link.readlink()):
                known = link.stat()
                touched[known.st_ino] = known.st_blocks * 512
    return sum(touched.values())


@dataclass(frozen=True)
class SharedCluster:
    """A cluster whose workers look for faults in ``points``. ``address``: of its GCS."""

    nodes: Nodes
    address: str
    points: Path

    def arm(self, *faults: PointFault) -> None:
        """Make the cluster's workers meet these faults, and no others."""
        disarm(self.points)
        arm(self.points, *faults)


_clusters: list[SharedCluster] = []
_ends = contextlib.ExitStack()


def shared_cluster(directories: pytest.TempPathFactory) -> SharedCluster:
    """The cluster that several test files share, because it takes ten seconds to start. It ends
    before the first test that does not use it (see ``tests/conftest.py``)."""
    if not _clusters:
        points = directories.mktemp("points")
        with pytest.MonkeyPatch.context() as patched:
            for name, value in points_environment(points).items():
                patched.setenv(name, value)
            _ends.enter_context(bare_nodes())
            _ends.enter_context(exits_taken_back())
            nodes = _ends.enter_context(_nodes_here(points_environment(points)))
        import ray

        _clusters.append(SharedCluster(nodes, ray.get_runtime_context().gcs_address, points))
    return _clusters[0]


def end_shared_cluster() -> None:
    """End the shared cluster, if there is one, with all of its processes."""
    _clusters.clear()
    _ends.close()


@contextlib.contextmanager
def exits_taken_back() -> Iterator[None]:
    """Remove the ``atexit`` functions that Ray registers for the nodes of the body.

    Ray never unregisters these functions, and only they keep a node that has ended and its client
    of the GCS in memory. Since Python 3.13, a fork of ``multiprocessing`` clears the registered
    functions at its start. Then it would destroy the client, whose threads it does not have, and
    die.
    """
    from ray._private import node

    registered: list[Callable[..., Any]] = []

    def register(function: Callable[..., Any]) -> None:
        registered.append(atexit.register(function))

    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(node, "atexit", SimpleNamespace(register=register))
            yield
    finally:
        for function in registered:
            atexit.unregister(function)


@contextlib.contextmanager
def _nodes_here(environment: Mapping[str, str]) -> Iterator[Nodes]:
    """A cluster to which this process is connected. ``environment``: that of its nodes."""
    import ray
    from ray.cluster_utils import Cluster

    directory = tempfile.mkdtemp(prefix="dt-", dir="/tmp")  # a short path: Ray puts sockets there
    handler = signal.getsignal(signal.SIGTERM)  # Ray replaces the handler
    remember, ray._private.utils.write_ray_address = (
        ray._private.utils.write_ray_address,
        lambda *given: None,  # in /tmp/ray, for drivers without an address
    )
    before = set(children_here(recursive=True))
    cluster = None
    try:
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "no_monitor": True,
                **UNUSED,
                "object_store_memory": OBJECT_STORE_BYTES,
                "include_dashboard": False,
                "temp_dir": directory,
                "_system_config": {"memory_monitor_refresh_ms": 0, **HEALTH},
            },
        )
        nodes = Nodes(cluster, directory, environment)
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.CRITICAL)
        yield nodes
    finally:
        begun = set(children_here(recursive=True)) - before
        ray.shutdown()
        if cluster is not None:
            cluster.shutdown()
        for process in psutil.wait_procs(list(begun), timeout=30)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        ray._private.utils.write_ray_address = remember
        signal.signal(signal.SIGTERM, handler)
        shutil.rmtree(directory, ignore_errors=True)
