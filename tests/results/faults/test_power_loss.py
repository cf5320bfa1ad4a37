"""A power cut, wherever a job is: shards are whole or absent, a manifest is there only with all of
its shards, and `dsort resume`, or the same `dsort start` again, gives the same bytes.

The job runs in an ext4 file system in a file. In the middle of the job its processes are suspended,
and a copy of that file is mounted: it has what the job forced to the disk, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import seed
from tests.support.coordinators import Coordinators, Running
from tests.support.debian import skip_outside_ci
from tests.support.disks import REAL_DISK, CannotMount, FileSystem, file_system, mounted
from tests.support.fault_points import PointFault, arm, struck
from tests.support.surviving import CASES, facts_of, prepare, start_arguments, undisturbed

REAL = {REAL_DISK: "1"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FileSystem]:
    """A file system to lose the power of."""
    try:
        with file_system(tmp_path) as made:
            yield made
    except CannotMount as reason:
        skip_outside_ci(f"no power-loss test ran: {reason}")


POINTS = [
    ("index:write", 3, "", "shuffle"),
    ("spill:append", 15, "", "spilled"),
    ("order:end", 3, "", "key map"),
    ("create:write", 3, "", "shuffle"),
    ("create:finish", 3, "", "verified"),
    ("create:end", 4, "", "surveyed"),
    ("create:end", 1, "", "rows"),
    ("seal:end", 1, "", "replacing"),
    ("journal:append", 2, "ShardExtracted", "shuffle"),
    ("journal:append", 1, "Planned", "key map"),
    ("journal:append", 4, "ShardCreated", "spilled"),
    ("commit:start", 1, "", "by range"),
    ("journal:append", 1, "Committing", "renamed"),
    ("publish:start", 1, ".tar", "shuffle"),
    ("publish:end", 1, ".tar", "replacing"),
    ("publish:end", 3, ".tar", "compressed"),
    ("publish:end", 1, "index.json", "replacing"),
    ("make_durable", 1, "", "renamed"),
    ("publish:start", 1, "manifest", "replacing"),
    ("publish:end", 1, "manifest", "shuffle"),
    ("publish:end", 1, "manifest", "replacing"),
]


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("names_written", [False, True], ids=["as is", "names written"])
@pytest.mark.parametrize(("point", "nth", "about", "case"), POINTS)
def test_power_is_lost_at_a_point(
    point: str,
    nth: int,
    about: str,
    case: str,
    names_written: bool,
    begun: Coordinators,
    base: Path,
    disk: FileSystem,
    tmp_path: Path,
) -> None:
    in_worker = "parent" if point.split(":")[0] in WORKING else ""
    fault = PointFault(point, nth, f"stop {in_worker}".strip(), about)
    job = start(begun, disk, case, tmp_path, fault)
    job.await_stop()
    lose_power(job, disk, tmp_path / "copy", names_written=names_written)
    assert struck(tmp_path / "points") == [point]
    check_after_power_loss(begun, case, base, tmp_path)


WORKING = ("index", "spill", "order", "create", "rows", "seal")
"""What workers do: their coordinator is suspended, and they are right after it."""


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("case", [*CASES])
@pytest.mark.parametrize("number", range(4))
def test_power_is_lost_at_a_random_moment(
    case: str,
    number: int,
    begun: Coordinators,
    base: Path,
    disk: FileSystem,
    tmp_path: Path,
) -> None:
    draw = random.Random(f"power {seed()} {case} {number}")
    job = start(begun, disk, case, tmp_path)
    # The job takes about half a second. Where it ends earlier, its result must be on the disk.
    psutil.wait_procs([psutil.Process(job.pid)], timeout=draw.random() * 0.7)
    lose_power(job, disk, tmp_path / "copy", names_written=draw.random() < 0.5)
    check_after_power_loss(begun, case, base, tmp_path)


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("case", [*CASES])
def test_power_is_lost_when_the_job_has_ended(
    case: str, begun: Coordinators, base: Path, disk: FileSystem, tmp_path: Path
) -> None:
    ended = start(begun, disk, case, tmp_path).wait()
    assert ended.code == 0, ended.err
    disk.cut(tmp_path / "copy")
    with mounted(tmp_path / "copy", tmp_path / "again") as again:
        assert facts_of(again.root / "out") == undisturbed(case, base)


def test_a_power_cut_loses_what_was_not_synced(disk: FileSystem, tmp_path: Path) -> None:
    (disk.root / "synced").write_bytes(b"x" * 10_000)
    disk.sync()
    (disk.root / "written").write_bytes(b"x" * 10_000)
    disk.cut(tmp_path / "bare")
    disk.cut(tmp_path / "named", names_written=True)
    with mounted(tmp_path / "bare", tmp_path / "a") as bare:
        assert (bare.root / "synced").stat().st_size == 10_000
        assert not (bare.root / "written").exists()
    with mounted(tmp_path / "named", tmp_path / "b") as named:
        assert (named.root / "synced").stat().st_size == 10_000
        assert (named.root / "written").stat().st_size == 0


def start(
    begun: Coordinators, disk: FileSystem, case: str, tmp_path: Path, *faults: PointFault
) -> Running:
    """Start the job on ``disk``, whose inputs are on it for good."""
    prepare(disk.root, CASES[case])
    disk.sync()
    points = arm(tmp_path / "points", *faults)
    return begun.start(disk.root, *start_arguments(CASES[case]), points=points, env=REAL)


def lose_power(job: Running, disk: FileSystem, copy: Path, *, names_written: bool) -> None:
    """Suspend the processes of ``job``, make ``copy``, and kill them."""
    processes = job.suspend_all()
    disk.cut(copy, names_written=names_written)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes[1:])
    job.wait()


def check_after_power_loss(begun: Coordinators, case: str, base: Path, tmp_path: Path) -> None:
    """The disk ``copy`` has nothing half-visible, and the job ends there as it would have."""
    expected = undisturbed(case, base)
    with mounted(tmp_path / "copy", tmp_path / "again") as again:
        out = again.root / "out"
        shards = [each for each in out.glob("out-*") if each.is_file()]
        for path in shards:
            allowed = [expected.shards.get(path.name), CASES[case].old.get(path.name)]
            assert path.read_bytes() in allowed, path.name
        for manifest in out.glob(".dsort/*/manifest.json"):
            json.loads(manifest.read_bytes())
            for name, content in expected.shards.items():
                assert (out / name).read_bytes() == content, name
        ended = begun.run(again.root, "resume", "out")
        if ended.code != 0:
            assert "Traceback" not in ended.err
            assert not [*out.glob(".dsort/*/manifest.json")], ended.err
            ended = begun.run(again.root, *start_arguments(CASES[case]))
        assert ended.code == 0, ended.err
        assert facts_of(out) == expected
