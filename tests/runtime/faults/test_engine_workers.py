"""Workers that die, wherever they are: the result is the same, or nothing but a report is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsort.errors import DsortError, InvariantError, StorageFullError, WorkerLostError
from tests.support.children import children_here
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import left_in, refused, run_local, spec_of
from tests.support.faults import Fault, bootstrap, strikes
from tests.support.internals import Event, JobReport, JobStarted, PhaseDone
from tests.support.refusals import raises
from tests.support.surviving import assert_kept

DATASET = small_dataset("workers", shards=4)
SPEC = spec_of(
    algorithm={"kind": "shuffle", "seed": 11},
    output_shard_records=11,
    Config={"duplicate_keys": "drop"},
    verify="content",
)


def run(root: Path, move: str, *, workers: int = 2, **options: object) -> JobReport:
    if not (root / "in").exists():
        write_shards(root / "in", DATASET)
    # Of what is read by range, no hash is taken before it is written.
    spec = {**SPEC, "verify": "none"} if move == "range" else SPEC
    return run_local(root, spec, move=move, workers=workers, **options)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The result of the job when nothing goes wrong."""
    root = tmp_path_factory.mktemp("undisturbed")
    run(root, "map")
    return files_of(root / "out")


@pytest.fixture
def struck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Have workers begin with a fault; returns the directory of its strikes."""

    def prepare(task: str, at: str, action: str = "die", times: int = 1) -> Path:
        directory = tmp_path / "strikes"
        directory.mkdir()
        fault = Fault(str(directory), task, at, action, times)
        monkeypatch.setattr("dsort.runtime.local.BOOTSTRAP", bootstrap(fault))
        return directory

    return prepare


PLACES = [
    ("ExtractTask", "before", "map"),  # nothing is done yet: the same for any task
    *[("ExtractTask", at, move) for at in ("middle", "after") for move in ("map", "spill")],
    ("CreateTask", "middle", "range"),
    ("DuplicatesTask", "after", "map"),
    *[("OrderTask", at, "spill") for at in ("middle", "after")],
    ("CutTask", "after", "spill"),
    *[("CreateTask", at, move) for at in ("middle", "after") for move in ("map", "spill")],
    *[("SealTask", at, "map") for at in ("middle", "after")],
]


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize(("task", "at", "move"), PLACES)
def test_a_worker_that_dies_changes_nothing(
    task: str, at: str, move: str, tmp_path: Path, struck: object, undisturbed: dict[str, bytes]
) -> None:
    directory = struck(task, at)  # type: ignore[operator]
    report = run(tmp_path, move)
    assert strikes(directory) == 1
    assert files_of(tmp_path / "out") == undisturbed
    assert left_in(tmp_path / "out") == [".dsort/JOB/manifest.json", *undisturbed]
    assert report.records == 48


def test_one_that_dies_while_it_reads_the_next_partition_past_the_cache_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    struck: object,
    undisturbed: dict[str, bytes],
) -> None:
    monkeypatch.setattr("dsort.job.setup.worker_setup.PAST_CACHE_FACTOR", 0)
    directory = struck("CreateTask", "middle")  # type: ignore[operator]
    run(tmp_path, "spill")
    assert strikes(directory) == 1
    assert files_of(tmp_path / "out") == undisturbed


def test_several_deaths_in_a_row_change_nothing(
    tmp_path: Path, struck: object, undisturbed: dict[str, bytes]
) -> None:
    # Four extractions: at worst all of them die twice, which is once less than is put up with.
    directory = struck("ExtractTask", "after", times=2)  # type: ignore[operator]
    run(tmp_path, "spill", workers=1)
    assert strikes(directory) == 2
    assert files_of(tmp_path / "out") == undisturbed


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("phase", ["start", "extract", "plan", "create"])
def test_workers_that_die_while_idle_are_replaced(
    phase: str, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    killed: list[int] = []

    def kill_all(event: Event) -> None:
        due = phase == "start" if isinstance(event, JobStarted) else False
        if due or (isinstance(event, PhaseDone) and event.phase == phase):
            for worker in children_here():
                worker.kill()
                os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
                killed.append(worker.pid)

    run(tmp_path, "spill", on_event=kill_all)
    assert len(killed) == 2
    assert files_of(tmp_path / "out") == undisturbed
    assert children_here() == []


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(
    ("task", "named"),
    [
        ("ExtractTask", "shard in-"),
        ("OrderTask", "partition"),
        ("CreateTask", "output shard"),
        ("SealTask", "output shards"),
    ],
)
def test_a_task_that_always_kills_its_worker_ends_the_job(
    task: str, named: str, tmp_path: Path, struck: object
) -> None:
    struck(task, "middle", times=100)  # type: ignore[operator]
    write_shards(tmp_path / "in", DATASET)
    write_shards(tmp_path / "out", {"out-0.tar": b"would be replaced", "out-3.tar": b"this, too"})
    with refused(tmp_path, WorkerLostError, named, "3 times", "signal 9"):
        run(tmp_path, "spill", overwrite=True)
    assert children_here() == []
    assert WorkerLostError.exit_code == 5


def test_workers_that_never_start_end_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsort.runtime.local.BOOTSTRAP", "raise SystemExit(3)")
    write_shards(tmp_path / "in", DATASET)
    with refused(tmp_path, WorkerLostError):
        run(tmp_path, "map")
    assert children_here() == []


@pytest.mark.parametrize(
    ("action", "error", "named"),
    [("raise", InvariantError, "ZeroDivisionError"), ("memory", StorageFullError, "")],
)
def test_what_breaks_in_a_worker_ends_the_job(
    action: str, error: type[DsortError], named: str, tmp_path: Path, struck: object
) -> None:
    struck("CreateTask", "middle", action)  # type: ignore[operator]
    with raises(error, named):
        run(tmp_path, "spill")
    if action == "memory":  # the job can be resumed where there is more
        assert_kept(tmp_path / "out")
    else:
        assert left_in(tmp_path / "out") == [".dsort/JOB/report.json"]
