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
from tests.support.coordinators import Coordinators
from tests.support.fault_points import PointFault, struck
from tests.support.ray_cluster import SharedCluster, shared_cluster
from tests.support.surviving import (
    CASES,
    assert_whole,
    known_of,
    prepare,
    resume_here,
    start_arguments,
    undisturbed,
)

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
    fault: PointFault, case: str, cluster: SharedCluster, base: Path, tmp_path: Path
) -> None:
    prepare(tmp_path, CASES[case])
    expected = undisturbed(case, base)
    cluster.arm(fault)
    options = RunOptions(
        root=tmp_path,
        runtime="ray",
        move=CASES[case].move,
        scratch=tmp_path / "scratch",
        workers=ACTORS,
    )
    api.run(parse_spec(CASES[case].spec).spec, options=options)
    assert struck(cluster.points) == [fault.point]
    assert_whole(tmp_path / "out", expected)
    nothing_in(tmp_path / "scratch")


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
    fault: PointFault,
    case: str,
    runtime: str,
    cluster: SharedCluster,
    begun: Coordinators,
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare(tmp_path, CASES[case])
    cluster.arm()
    there = ["--ray-address", cluster.address, "--scratch", str(tmp_path / "scratch")]
    arguments = start_arguments(CASES[case], *there)
    begun.killed(tmp_path, *arguments, by=fault, env=dict(os.environ))
    known = known_of(tmp_path / "out")
    resumed = resume_here(
        tmp_path, monkeypatch, runtime=runtime, scratch=tmp_path / "scratch", workers=ACTORS
    )
    assert resumed.error is None
    assert resumed.created & set(known.created) == set()
    if runtime == "ray":
        assert resumed.extracted & set(known.extracted) == set()
    assert_whole(tmp_path / "out", undisturbed(case, base))
    nothing_in(tmp_path / "scratch")


@pytest.mark.exhaustive
def test_a_job_that_died_here_is_resumed_there(
    cluster: SharedCluster,
    begun: Coordinators,
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare(tmp_path, CASES["spilled"])
    fault = PointFault("create:end", 3, "kill parent")
    begun.killed(tmp_path, *start_arguments(CASES["spilled"]), by=fault)
    cluster.arm()
    resumed = resume_here(tmp_path, monkeypatch, runtime="ray", workers=ACTORS)
    assert resumed.error is None
    assert_whole(tmp_path / "out", undisturbed("spilled", base))
