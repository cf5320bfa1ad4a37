"""A job that is stopped, by a signal or from Python: workers end, no shard is seen, what is done is
kept, and the exit code says what happened. A coordinator that is killed takes its workers with
it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from dsort.errors import JobStoppedError
from dsort.stop_flag import StopFlag
from tests.support.children import children_here
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.faults import Fault, make_pipes
from tests.support.faulty_cli import begin_faulty
from tests.support.forked import Forked
from tests.support.internals import Event, PhaseDone
from tests.support.surviving import assert_kept

END_SECONDS_MAX = 120
SPEC = spec_of(algorithm={"kind": "shuffle", "seed": 3})
DATASET = small_dataset("signals")


@dataclass
class Running:
    """``dsort start``, as far as the place where one of its workers waits."""

    process: Forked
    root: Path
    log: Path
    workers: list[psutil.Process] = field(default_factory=list)

    def finish(self) -> tuple[int, str]:
        """Wait for its end; (exit code, what it said). No worker is left."""
        code = self.process.wait(END_SECONDS_MAX)
        assert code is not None
        _, alive = psutil.wait_procs(self.workers, timeout=END_SECONDS_MAX)
        assert alive == []
        return code, self.log.read_text()


StartJob = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartJob]:
    """Start a job one of whose workers hangs at a task; returns once it hangs there."""
    started: list[Running] = []

    def begin(task: str, at: str, *options: str, workers: int = 2) -> Running:
        write_shards(tmp_path / "in", DATASET)
        pipes = tmp_path / "pipes"
        make_pipes(pipes)
        arguments = ["start", "-f", json.dumps(SPEC), "--workers", str(workers)]
        fault, log = Fault(str(pipes), task, at, "hang"), tmp_path / "said"
        arguments += ["--progress", "none", *options]
        process = begin_faulty(fault, arguments, cwd=tmp_path, log=log)
        running = Running(process, tmp_path, log)
        started.append(running)
        assert wait_for_worker(pipes / "reached", process) == b"!"
        running.workers = psutil.Process(process.pid).children(recursive=True)
        assert len(running.workers) == workers
        return running

    yield begin
    for running in started:
        running.process.kill()
        for worker in running.workers:
            if worker.is_running():
                worker.kill()
        running.process.wait(END_SECONDS_MAX)


def wait_for_worker(pipe: Path, process: Forked) -> bytes:
    """What the worker writes to ``pipe`` when it gets there; nothing if the job ends before."""
    # Should the job end without getting there, no other process would ever open the pipe.
    unblock = threading.Thread(target=lambda: (process.wait(), write_nothing(pipe)), daemon=True)
    unblock.start()
    return pipe.read_bytes()


def write_nothing(pipe: Path) -> None:
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return  # no reader waits any more


PLACES = [
    ("ExtractTask", "middle", "spill", signal.SIGINT),
    ("OrderTask", "before", "map", signal.SIGTERM),
    ("CreateTask", "middle", "map", signal.SIGTERM),
    ("CreateTask", "middle", "spill", signal.SIGINT),
    ("SealTask", "after", "map", signal.SIGTERM),
    ("CreateTask", "middle", "spill", signal.SIGHUP),
]
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize(("task", "at", "move", "number"), PLACES)
def test_a_signal_stops_the_job_wherever_it_is(
    task: str, at: str, move: str, number: signal.Signals, start: StartJob
) -> None:
    running = start(task, at, "--move", move)
    os.kill(running.process.pid, number)
    assert running.finish()[0] == CODES[number]
    assert_kept(running.root / "out")


def test_impatience_changes_nothing(start: StartJob) -> None:
    running = start("CreateTask", "middle", "--move", "spill")
    for _ in range(5):
        os.kill(running.process.pid, signal.SIGINT)
    code, said = running.finish()
    assert code == 130
    assert "Traceback" not in said
    assert_kept(running.root / "out")


def test_scratch_elsewhere_is_kept_as_well(start: StartJob, tmp_path: Path) -> None:
    options = ("--move", "spill", "--scratch", str(tmp_path / "s"))
    # A second worker would still write shards, whose spill the coordinator removes.
    running = start("CreateTask", "middle", *options, workers=1)
    spilled = list((tmp_path / "s").rglob("spill-*"))
    assert spilled != []
    os.kill(running.process.pid, signal.SIGTERM)
    assert running.finish()[0] == 143
    assert list((tmp_path / "s").rglob("spill-*")) == spilled


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(("task", "at"), [("ExtractTask", "middle"), ("CreateTask", "middle")])
def test_workers_do_not_outlive_a_coordinator_that_is_killed(
    task: str, at: str, start: StartJob
) -> None:
    running = start(task, at, "--move", "spill")
    running.process.kill()
    assert running.finish()[0] == -signal.SIGKILL
    # No result: neither a shard with a name, nor a manifest.
    assert files_of(running.root / "out") == {}
    assert list((running.root / "out").rglob("manifest.json")) == []


def test_a_job_that_was_killed_does_not_stand_in_the_way_of_the_next(start: StartJob) -> None:
    running = start("CreateTask", "middle", "--move", "spill")
    running.process.kill()
    running.finish()
    report = run_local(running.root, SPEC)
    assert report.records == 36
    assert len(files_of(running.root / "out")) == 8


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("phase", ["resolve", "extract", "plan", "create"])
def test_a_job_is_stopped_from_python(phase: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", DATASET)
    with StopFlag() as stop:

        def listen(event: Event) -> None:
            if isinstance(event, PhaseDone) and event.phase == phase:
                stop.request(signal.SIGTERM)

        with pytest.raises(JobStoppedError, match="SIGTERM") as stopped:
            run_local(tmp_path, SPEC, move="spill", on_event=listen, stop=stop)
    assert stopped.value.signal_number == signal.SIGTERM
    assert_kept(tmp_path / "out")
    assert children_here() == []
