"""Workers that the kernel kills because a memory limit is reached, really: the job goes on without
them, and gives up where that happens again and again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsort.errors import WorkerLostError
from tests.support.fault_points import PointFault, arm, struck
from tests.support.small_places import control_group
from tests.support.surviving import Trial, only_a_report

LIMIT_BYTES = 32 << 20


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with little memory and no swap."""
    limits = {"memory.max": LIMIT_BYTES, "memory.swap.max": 0}
    with control_group("memory", limits) as group:
        yield group


def kills_of(group: Path) -> int:
    """How many processes of the group the kernel has killed for memory."""
    for name in ("memory.oom_control", "memory.events"):
        if (group / name).exists():
            lines = dict(line.split() for line in (group / name).read_text().splitlines())
            return int(lines["oom_kill"])
    raise AssertionError("the kernel does not tell")


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(
    ("point", "case"),
    [("spill:append", "spilled"), ("create:write", "renamed")],
)
def test_a_worker_killed_for_memory_is_replaced(
    point: str, case: str, small_group: Path, trial: Trial
) -> None:
    points = arm(trial.root / "points", PointFault(point, 2, "out of memory"))
    (points / "group").write_text(str(small_group))
    trial.done(*trial.prepare(case), points=points)
    assert kills_of(small_group) == 1
    trial.is_whole()


def test_a_task_that_always_takes_too_much_memory_ends_the_job_by_name(
    small_group: Path, trial: Trial
) -> None:
    fault = PointFault("create:write", 1, "out of memory", times=100)
    points = arm(trial.root / "points", fault)
    (points / "group").write_text(str(small_group))
    ended = trial.run(*trial.prepare("spilled"), points=points)
    assert ended.code == WorkerLostError.exit_code
    assert "writing output shards number" in ended.err
    words = r"ended its worker 3 times; the last one, worker \d+: it died of signal 9"
    assert re.search(words, ended.err)
    assert "memory" in ended.err
    assert kills_of(small_group) >= 3
    # The job ends its other worker, which may be at the fault at that moment.
    assert len(struck(points)) - kills_of(small_group) in (0, 1)
    only_a_report(trial.out)
