"""On a Ray cluster whose nodes share no scratch: workers that die change nothing, and a job whose
driver dies is resumed, there or on this machine. (Nodes that are lost: ``test_cluster``.)"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsort import api
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.support.fault_points import PointFault, struck
from tests.support.ray_cluster import SharedCluster, shared_cluster
from tests.support.surviving import CASES, Trial, undisturbed

pytestmark = [pytest.mark.ray, pytest.mark.slow]


ACTORS = 2
"""Workers of a job, on nodes of their own. (It takes seconds to start one.)"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    """A cluster whose workers look for faults."""
    cluster = shared_cluster(tmp_path_factory)
    yield cluster
    cluster.arm()


def nothing_in(scratch: Path) -> None:
    assert list(scratch.rglob("*")) == []


WORKERS = [
    (PointFault("spill:append", 3), "renamed"),
    (PointFault("order:end", 1), "spilled"),
    (PointFault("create:write", 3), "verified"),
]


@pytest.mark.exhaustive  # of a worker on one node (``test_service_on_ray``), and of nodes
@pytest.mark.parametrize(
    ("fault", "case"), WORKERS, ids=lambda each: each if isinstance(each, str) else each.point
)
def test_a_worker_that_dies_changes_nothing(
    fault: PointFault, case: str, cluster: SharedCluster, trial: Trial
) -> None:
    trial.prepare(case)
    undisturbed(case, trial.base)  # before its workers have the fault
    cluster.arm(fault)
    options = RunOptions(
        root=trial.root,
        runtime="ray",
        move=CASES[case].move,
        scratch=trial.root / "scratch",
        workers=ACTORS,
    )
    api.run(parse_spec(CASES[case].spec).spec, options=options)
    assert struck(cluster.points) == [fault.point]
    trial.is_whole()
    nothing_in(trial.root / "scratch")


DRIVERS = [
    (PointFault("journal:append", 3, about="ShardCreated"), "spilled", "ray"),
    (PointFault("plan:start"), "renamed", "local"),
]


@pytest.mark.exhaustive  # in ``test_same_bytes_on_both_runtimes`` a stopped job is resumed on Ray
@pytest.mark.parametrize(
    ("fault", "case", "runtime"),
    DRIVERS,
    ids=lambda each: each if isinstance(each, str) else each.point,
)
def test_a_job_whose_driver_dies_is_resumed(
    fault: PointFault, case: str, runtime: str, cluster: SharedCluster, trial: Trial
) -> None:
    cluster.arm()
    scratch = trial.root / "scratch"
    there = ["--ray-address", cluster.address, "--scratch", str(scratch)]
    arguments = [*trial.prepare(case), *there]
    trial.begun.killed(trial.root, *arguments, by=fault, env=dict(os.environ))
    known = trial.known
    resumed = trial.resume(runtime=runtime, scratch=scratch, workers=ACTORS)
    assert resumed.created & set(known.created) == set()
    if runtime == "ray":
        assert resumed.extracted & set(known.extracted) == set()
    trial.is_whole()
    nothing_in(scratch)


@pytest.mark.exhaustive
def test_a_job_that_died_here_is_resumed_there(cluster: SharedCluster, trial: Trial) -> None:
    trial.die("spilled", PointFault("create:end", 3, "kill parent"))
    cluster.arm()
    trial.resume(runtime="ray", workers=ACTORS)
    trial.is_whole()
