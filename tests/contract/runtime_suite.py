"""The law of every runtime: :class:`RuntimeSuite`, to be run over each implementation.

A test module subclasses it and gives a fixture ``runtime``: one that may host two workers, was not
started, obeys the fixture ``stop``, and is closed after the test.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from dsort.core.sort_rule import SortRule
from dsort.errors import (
    CorruptShardError,
    InvariantError,
    JobStoppedError,
    SpecError,
    WorkerLostError,
)
from dsort.runtime.base import TASK_TRIES_MAX, Runtime
from dsort.stopping import StopFlag
from dsort.storage.local import LocalBucket
from dsort.workers.tasks import ExtractDone, ExtractTask, ReactionRules, WorkerSetup
from tests.support.datasets import small_dataset, write_shards
from tests.support.traps import Trap

__all__ = ["RuntimeSuite", "Work", "done_shards", "release"]

SHARDS = 12
SIGTERM = 15


@dataclass
class Work:
    """Shards to extract, and what a worker needs for it. ``directory``: for a test's own files."""

    directory: Path
    setup: WorkerSetup

    def tasks(self, count: int = SHARDS) -> list[ExtractTask]:
        """One task for each of the first ``count`` shards."""
        bucket = LocalBucket(self.directory / "in")
        found = [bucket.stat(f"in-{number}.tar") for number in range(count)]
        return [
            ExtractTask(number, info.name, info.size_bytes, info.etag, "index", False, 1)
            for number, info in enumerate(found)
        ]

    def trapped(self, task: ExtractTask, kind: str, *names: str) -> ExtractTask:
        """``task`` with the name of its shard made a trap that uses the files ``names``."""
        paths = [self.directory / name for name in names]
        return replace(task, name=Trap(task.name, kind, *paths))

    def pipe(self, name: str) -> Path:
        """A new named pipe."""
        path = self.directory / name
        os.mkfifo(path)
        return path

    def blocked(self, task: ExtractTask, mark: str = "") -> ExtractTask:
        """``task``, which waits in the midst of things: the pipe ``reached`` can be read from then
        on, and it goes on once ``released`` was opened to write."""
        self.pipe(f"reached{mark}")
        self.pipe(f"released{mark}")
        return self.trapped(task, "block", f"reached{mark}", f"released{mark}")

    def noted(self) -> list[int]:
        """The workers that did the tasks trapped with ``note``, by process id."""
        return [int(line) for line in (self.directory / "noted").read_text().splitlines()]


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def done_shards(answers: Sequence[tuple[object, object]]) -> list[int]:
    """The shards that ``answers`` are about, each of which belongs to its task."""
    found = []
    for task, done in answers:
        assert isinstance(task, ExtractTask)
        assert isinstance(done, ExtractDone)
        assert task.shard == done.shard
        assert done.records > 0
        found.append(done.shard)
    return sorted(found)


class RuntimeSuite:
    """What holds for processes and actors alike."""

    @pytest.fixture
    def stop(self) -> Iterator[StopFlag]:
        with StopFlag() as flag:
            yield flag

    @pytest.fixture
    def work(self, tmp_path: Path) -> Work:
        write_shards(tmp_path / "in", small_dataset("runtime", shards=SHARDS, records=4))
        for name in ("out", "scratch"):
            (tmp_path / name).mkdir()
        setup = WorkerSetup(
            job_id="job-1",
            input_uri=(tmp_path / "in").as_uri(),
            output_uri=(tmp_path / "out").as_uri(),
            root=str(tmp_path),
            scratch=str(tmp_path / "scratch"),
            way="map",
            sort_rule=SortRule("alphanumeric"),
            reactions=ReactionRules("warn", "abort", "keep", "abort"),
            keymap=None,
            buckets=1,
            buffer_bytes=1 << 20,
            verify_content=False,
        )
        return Work(tmp_path, setup)

    # --- answers -------------------------------------------------------------------------------

    def test_every_task_is_answered_once_in_every_run(self, runtime: Runtime, work: Work) -> None:
        runtime.start(work.setup, 2)
        assert done_shards(list(runtime.run(work.tasks()))) == list(range(SHARDS))
        assert list(runtime.run([])) == []
        assert done_shards(list(runtime.run(iter(work.tasks(3))))) == [0, 1, 2]

    def test_workers_work_at_the_same_time_and_answers_come_at_once(
        self, runtime: Runtime, work: Work
    ) -> None:
        runtime.start(work.setup, 2)
        first, *others = work.tasks(4)
        answers = runtime.run([work.blocked(first), *others])
        assert done_shards([next(answers) for _ in others]) == [1, 2, 3]
        (work.directory / "reached").read_bytes()
        with (work.directory / "released").open("w"):
            assert done_shards(list(answers)) == [0]

    def test_no_more_workers_are_used_than_allowed(self, runtime: Runtime, work: Work) -> None:
        runtime.start(work.setup, 2)
        tasks = [work.trapped(task, "note", "noted") for task in work.tasks()]
        assert done_shards(list(runtime.run(tasks, workers_max=1))) == list(range(SHARDS))
        assert len(work.noted()) == SHARDS
        first, second = work.tasks(2)
        # Were they done at the same time, the one that waits would not be the first to answer.
        waits = threading.Thread(target=release, args=(work,))
        tasks = [work.blocked(first), second]
        waits.start()
        answers = list(runtime.run(tasks, workers_max=1))
        waits.join()
        assert [done.shard for _, done in answers if isinstance(done, ExtractDone)] == [0, 1]

    # --- errors --------------------------------------------------------------------------------

    def test_what_a_task_raises_is_raised_as_it_is(self, runtime: Runtime, work: Work) -> None:
        (work.directory / "in" / "in-3.tar").write_bytes(b"no header" * 100)
        runtime.start(work.setup, 2)
        with pytest.raises(CorruptShardError) as caught:
            list(runtime.run(work.tasks()))
        assert (caught.value.shard, caught.value.offset) == ("in-3.tar", 0)
        assert caught.value.hint

    def test_a_bug_in_a_worker_is_told_with_its_traceback(
        self, runtime: Runtime, work: Work
    ) -> None:
        runtime.start(work.setup, 1)
        with pytest.raises(InvariantError, match=r"Traceback(.|\n)*extractor\.py"):
            list(runtime.run([work.trapped(work.tasks(1)[0], "number")]))

    def test_a_worker_that_cannot_be_made_says_why(self, runtime: Runtime, work: Work) -> None:
        with pytest.raises(SpecError, match="gopher: is not supported"):
            runtime.start(replace(work.setup, input_uri="gopher://in"), 2)

    # --- death ---------------------------------------------------------------------------------

    def test_a_worker_that_dies_is_replaced_and_its_task_done_again(
        self, runtime: Runtime, work: Work
    ) -> None:
        runtime.start(work.setup, 1)
        first, *others = work.tasks(4)
        deadly = work.trapped(first, "die", *(f"death-{n}" for n in range(TASK_TRIES_MAX - 1)))
        answers = list(runtime.run([deadly, *others]))
        assert done_shards(answers) == [0, 1, 2, 3]
        (number,) = [
            done.worker for _, done in answers if isinstance(done, ExtractDone) and done.shard == 0
        ]
        assert number >= TASK_TRIES_MAX - 1, "the number of a dead worker is given to no other"

    def test_a_task_that_kills_one_worker_after_another_is_named(
        self, runtime: Runtime, work: Work
    ) -> None:
        runtime.start(work.setup, 2)
        tasks = work.tasks(4)
        tasks[2] = work.trapped(tasks[2], "die", *(f"death-{n}" for n in range(SHARDS)))
        with pytest.raises(WorkerLostError, match=r"in-2\.tar ended its worker 3 times") as caught:
            list(runtime.run(tasks))
        assert caught.value.hint
        deaths = len(list(work.directory.glob("death-*")))
        assert deaths == TASK_TRIES_MAX

    def test_a_worker_that_dies_while_idle_is_replaced(self, runtime: Runtime, work: Work) -> None:
        runtime.start(work.setup, 1)
        task = work.trapped(work.tasks(1)[0], "note", "noted")
        assert done_shards(list(runtime.run([task]))) == [0]
        (pid,) = work.noted()
        worker = psutil.Process(pid)
        worker.kill()
        psutil.wait_procs([worker], timeout=5)
        assert done_shards(list(runtime.run(work.tasks()))) == list(range(SHARDS))

    # --- the end -------------------------------------------------------------------------------

    def test_a_request_to_stop_ends_a_run_in_the_midst_of_a_task(
        self, runtime: Runtime, work: Work, stop: StopFlag
    ) -> None:
        runtime.start(work.setup, 2)
        first, *others = work.tasks(4)
        tasks = [work.blocked(first), *others]

        def ask() -> None:
            (work.directory / "reached").read_bytes()
            stop.request(SIGTERM)

        asking = threading.Thread(target=ask)
        asking.start()
        with pytest.raises(JobStoppedError) as caught:
            list(runtime.run(tasks))
        asking.join()
        assert caught.value.signal_number == SIGTERM

    def test_a_request_to_stop_ends_the_start(
        self, runtime: Runtime, work: Work, stop: StopFlag
    ) -> None:
        stop.request(SIGTERM)
        with pytest.raises(JobStoppedError):
            runtime.start(work.setup, 2)

    def test_close_leaves_no_worker_behind_and_may_come_twice(
        self, runtime: Runtime, work: Work
    ) -> None:
        runtime.start(work.setup, 2)
        first, second, third = work.tasks(3)
        busy = work.blocked(first)
        answers = runtime.run(
            [work.trapped(second, "note", "noted"), busy, work.trapped(third, "note", "noted")]
        )
        assert done_shards([next(answers), next(answers)]) == [1, 2]
        (work.directory / "reached").read_bytes()
        runtime.close()
        assert [pid for pid in work.noted() if is_alive(pid)] == []
        with pytest.raises(OSError, match="No such device"):  # nobody reads it any more
            os.open(work.directory / "released", os.O_WRONLY | os.O_NONBLOCK)
        runtime.close()

    def test_close_may_come_before_the_start(self, runtime: Runtime) -> None:
        runtime.close()


def release(work: Work, *marks: str) -> None:
    """Let blocked tasks go on as soon as all of them wait."""
    for mark in marks or [""]:
        (work.directory / f"reached{mark}").read_bytes()
    for mark in marks or [""]:
        with (work.directory / f"released{mark}").open("w"):
            pass
