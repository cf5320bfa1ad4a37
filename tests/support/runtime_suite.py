"""The law of every runtime: :class:`RuntimeSuite` and :class:`OneRuntimeSuite`, to be run over each
implementation.

A test module makes a subclass and defines a fixture ``make_runtime``, which makes runtimes that may
host two workers, are not started, and obey the fixture ``stop``. They are closed after the test.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import psutil
import pytest
from msgspec.structs import replace

from dsort.errors import (
    CorruptShardError,
    InvariantError,
    JobStoppedError,
    ObjectNotFoundError,
    ScratchLostError,
    WorkerLostError,
)
from dsort.stop_flag import StopFlag
from dsort.storage.directory.bucket import LocalBucket
from dsort.storage.ref import BucketRef
from dsort.storage.routed import BucketPlace
from tests.support.internals import (
    TASK_TRIES_MAX,
    Attempt,
    ExtractRunTask,
    Indexed,
    RunExtracted,
    Runtime,
    ShardExtracted,
    Stage,
)
from tests.support.refusals import raises
from tests.support.runtime_work import SHARDS, Work, done_shards, make_work, release
from tests.support.service_process import await_that
from tests.support.traps import FileBytes, WriteTo

SIGTERM = 15


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def files_below(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


class RuntimeSuite:
    """Laws of processes and actors alike."""

    workers: ClassVar = 2
    """For tests that need only one worker: a subclass whose workers start slowly sets 1."""

    @pytest.fixture
    def stop(self) -> Iterator[StopFlag]:
        with StopFlag() as flag:
            yield flag

    @pytest.fixture
    def begin(self, make_runtime: Callable[[], Runtime]) -> Iterator[Callable[[], Runtime]]:
        begun = []

        def begin() -> Runtime:
            begun.append(make_runtime())
            return begun[-1]

        yield begin
        for runtime in begun:
            runtime.close()

    @pytest.fixture
    def runtime(self, begin: Callable[[], Runtime]) -> Runtime:
        return begin()

    @pytest.fixture
    def work(self, tmp_path: Path) -> Work:
        return make_work(tmp_path)

    # --- the log -------------------------------------------------------------------------------

    def test_lines_of_workers_come_to_the_coordinator_with_worker_job_and_attempt(
        self, runtime: Runtime, work: Work, caplog: pytest.LogCaptureFixture
    ) -> None:
        setup = replace(work.setup, attempt=Attempt(4, first_worker=7), log_level=logging.DEBUG)
        with caplog.at_level(logging.DEBUG, "dsort"):
            runtime.start(setup, self.workers)
            list(runtime.run(work.tasks(4)))
            runtime.close()
        origins = [getattr(each, "origin", None) for each in caplog.records]
        texts = [
            each.getMessage()
            for each, origin in zip(caplog.records, origins, strict=True)
            if origin is not None
        ]
        assert {origin["worker"] for origin in origins if origin} <= {7, 8}
        assert {(each["job"], each["attempt"]) for each in origins if each} == {("job-1", 4)}
        assert {bool(each["node"]) for each in origins if each} == {runtime.name == "ray"}
        begun = [text for text in texts if text.startswith("the worker begins: extracting shard")]
        assert len(begun) == 4
        assert sum(text.startswith("the worker is done in") for text in texts) == 4

    # --- attempts ------------------------------------------------------------------------------

    def test_the_next_attempt_has_the_scratch_that_was_kept_and_new_numbers(
        self, begin: Callable[[], Runtime], work: Work
    ) -> None:
        first = begin()
        first.start(work.setup, self.workers)
        nodes = first.scratch_nodes()
        list(first.run(work.tasks(3)))
        first.close(keep_scratch=True)
        second = begin()
        second.start(replace(work.setup, attempt=Attempt(first_worker=70)), self.workers)
        assert second.scratch_nodes() == nodes
        there = second.ask(nodes[0], Indexed("index", np.arange(4)))
        assert there.tolist() == [True, True, True, False]
        answers = list(second.run(work.tasks()))
        numbers = {done.worker for _, done in answers if isinstance(done, ShardExtracted)}
        assert numbers <= {70, 71}
        assert numbers
        second.share("shared", b"data")
        assert len(files_below(work.directory / "scratch")) > SHARDS
        second.close()
        assert not (work.directory / "scratch").exists()

    # --- errors --------------------------------------------------------------------------------

    def test_a_worker_that_cannot_be_made_says_why(self, runtime: Runtime, work: Work) -> None:
        nowhere = BucketPlace("", BucketRef("gopher", "in"))
        setup = replace(work.setup, inputs=(nowhere,))
        with raises(InvariantError, "gopher://in"):
            runtime.start(setup, self.workers)

    # --- death ---------------------------------------------------------------------------------

    def test_a_worker_that_dies_is_replaced_while_idle_and_in_the_midst_of_a_task(
        self, runtime: Runtime, work: Work
    ) -> None:
        runtime.start(work.setup, 1)
        first, *others = work.tasks(4)
        assert done_shards(list(runtime.run([work.trapped(first, "note", "noted")]))) == [0]
        (pid,) = work.noted()
        worker = psutil.Process(pid)
        worker.kill()
        psutil.wait_procs([worker], timeout=60)
        assert done_shards(list(runtime.run(others))) == [1, 2, 3]
        deadly = work.trapped(first, "die", *(f"death-{n}" for n in range(TASK_TRIES_MAX - 1)))
        answers = list(runtime.run([deadly, *others]))
        assert done_shards(answers) == [0, 1, 2, 3]
        (number,) = [
            done.worker
            for _, done in answers
            if isinstance(done, ShardExtracted) and done.shard == 0
        ]
        assert number >= TASK_TRIES_MAX, "the number of a dead worker is given to no other"

    def test_a_task_that_kills_one_worker_after_another_is_named(
        self, runtime: Runtime, work: Work
    ) -> None:
        runtime.start(work.setup, self.workers)
        tasks = work.tasks(4)
        tasks[2] = work.trapped(tasks[2], "die", *(f"death-{n}" for n in range(SHARDS)))
        with raises(WorkerLostError, "in-2.tar", "3 times") as caught:
            list(runtime.run(tasks))
        assert caught.value.hint
        deaths = len(list(work.directory.glob("death-*")))
        assert deaths == TASK_TRIES_MAX

    # --- the end -------------------------------------------------------------------------------

    def test_a_request_to_stop_ends_a_run_in_the_midst_of_a_task(
        self, runtime: Runtime, work: Work, stop: StopFlag
    ) -> None:
        runtime.start(work.setup, self.workers)
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
            runtime.start(work.setup, self.workers)

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
        with raises(OSError, errno=errno.ENXIO):  # without a reader
            os.open(work.directory / "released", os.O_WRONLY | os.O_NONBLOCK)
        assert not (work.directory / "scratch").exists()
        runtime.close()

    def test_close_may_come_before_the_start(self, runtime: Runtime) -> None:
        runtime.close()


class OneRuntimeSuite:
    """Laws whose tests leave the workers unchanged, so that all of them share one runtime.

    A test module defines the fixture ``lasting``: a runtime with two workers, and its work.
    """

    @pytest.fixture
    def runtime(self, lasting: tuple[Runtime, Work]) -> Runtime:
        return lasting[0]

    @pytest.fixture
    def work(self, lasting: tuple[Runtime, Work], tmp_path: Path) -> Work:
        return dataclasses.replace(lasting[1], directory=tmp_path)

    def test_every_task_is_answered_once_in_every_run(self, runtime: Runtime, work: Work) -> None:
        assert done_shards(list(runtime.run(work.tasks()))) == list(range(SHARDS))
        assert list(runtime.run([])) == []
        assert done_shards(list(runtime.run(iter(work.tasks(3))))) == [0, 1, 2]

    def test_what_workers_wrote_is_on_the_scratch_node_that_they_name(
        self, runtime: Runtime, work: Work
    ) -> None:
        (node,) = runtime.scratch_nodes()
        answers = list(runtime.run(replace(task, stage=Stage("survey")) for task in work.tasks(5)))
        assert {done.node for _, done in answers if isinstance(done, ShardExtracted)} == {node}
        there = runtime.ask(node, Indexed("survey", np.array([4, 5, 1])))
        assert there.tolist() == [True, False, True]

    def test_a_run_of_shards_is_on_one_node_in_one_file(self, runtime: Runtime, work: Work) -> None:
        tasks = [replace(task, stage=Stage("run")) for task in work.tasks()]
        runs = [ExtractRunTask(tuple(tasks[:6])), ExtractRunTask(tuple(tasks[6:]))]
        (node,) = runtime.scratch_nodes()
        shards = []
        for _, done in runtime.run(runs):
            assert isinstance(done, RunExtracted)
            shards += done.shards
        found = {(each.shard, each.file, each.run_shards, each.node) for each in shards}
        assert found == {(at, at - at % 6, 6, node) for at in range(SHARDS)}
        there = runtime.ask(node, Indexed("run", np.arange(SHARDS)))
        assert np.flatnonzero(there).tolist() == [0, 6]

    def test_what_a_task_raises_is_raised_as_it_is(self, runtime: Runtime, work: Work) -> None:
        bucket = Path(work.setup.inputs[0].ref.path)
        (bucket / "bad.tar").write_bytes(b"no header" * 100)
        info = LocalBucket(bucket).stat("bad.tar")
        (task,) = work.tasks(1)
        bad = replace(task, name=info.name, size_bytes=info.size_bytes, etag=info.etag)
        with pytest.raises(CorruptShardError) as caught:
            list(runtime.run([bad]))
        assert (caught.value.shard, caught.value.offset) == ("bad.tar", 0)
        assert caught.value.hint

    def test_of_tasks_that_fail_the_first_is_named_though_another_one_fails_before(
        self, runtime: Runtime, work: Work
    ) -> None:
        bucket = Path(work.setup.inputs[0].ref.path)
        bad = []
        for number, task in enumerate(work.tasks(2)):
            (bucket / f"bad-{number}.tar").write_bytes(b"no header" * 100)
            info = LocalBucket(bucket).stat(f"bad-{number}.tar")
            named = replace(task, name=info.name, size_bytes=info.size_bytes, etag=info.etag)
            bad.append(named)
        first, second, never = work.blocked(bad[0]), bad[1], work.tasks(3)[2]

        def release_once_the_second_is_done() -> None:
            (work.directory / "reached").read_bytes()
            await_that((work.directory / "second").exists)
            with (work.directory / "released").open("w"):
                pass

        waits = threading.Thread(target=release_once_the_second_is_done)
        waits.start()
        second = work.trapped(second, "note", "second")
        with pytest.raises(CorruptShardError) as caught:
            list(runtime.run([first, second, work.trapped(never, "note", "never")]))
        waits.join()
        assert caught.value.shard == "bad-0.tar"
        assert not (work.directory / "never").exists()
        assert done_shards(list(runtime.run(work.tasks(2)))) == [0, 1]

    def test_an_answer_to_a_task_of_a_failed_run_is_dropped(
        self, runtime: Runtime, work: Work
    ) -> None:
        bucket = Path(work.setup.inputs[0].ref.path)
        bad = []
        for number, task in enumerate(work.tasks(2)):
            (bucket / f"bad-{number}.tar").write_bytes(b"no header" * 100)
            info = LocalBucket(bucket).stat(f"bad-{number}.tar")
            named = replace(task, name=info.name, size_bytes=info.size_bytes, etag=info.etag)
            bad.append(work.blocked(named, f"-bad-{number}"))

        def open_gate(mark: str) -> None:
            with (work.directory / f"released-{mark}").open("w"):
                pass

        def fail_the_first() -> None:
            for number in range(2):
                (work.directory / f"reached-bad-{number}").read_bytes()
            open_gate("bad-0")

        def answer_late() -> None:
            (work.directory / "reached-0").read_bytes()
            open_gate("bad-1")
            (work.directory / "reached-1").read_bytes()  # by the worker that has answered
            open_gate("0")
            open_gate("1")

        waits = threading.Thread(target=fail_the_first)
        waits.start()
        with pytest.raises(CorruptShardError) as caught:
            list(runtime.run(bad))
        waits.join()
        assert caught.value.shard == "bad-0.tar"
        tasks = [work.blocked(task, f"-{number}") for number, task in enumerate(work.tasks(2))]
        waits = threading.Thread(target=answer_late)
        waits.start()
        assert done_shards(list(runtime.run(tasks))) == [0, 1]
        waits.join()

    def test_workers_work_at_the_same_time_and_answers_come_at_once(
        self, runtime: Runtime, work: Work
    ) -> None:
        first, *others = work.tasks(4)
        answers = runtime.run([work.blocked(first), *others])
        assert done_shards([next(answers) for _ in others]) == [1, 2, 3]
        (work.directory / "reached").read_bytes()
        with (work.directory / "released").open("w"):
            assert done_shards(list(answers)) == [0]

    def test_no_more_workers_are_used_than_allowed(self, runtime: Runtime, work: Work) -> None:
        tasks = [work.trapped(task, "note", "noted") for task in work.tasks()]
        assert done_shards(list(runtime.run(tasks, workers_max=1))) == list(range(SHARDS))
        assert len(work.noted()) == SHARDS
        first, second = work.tasks(2)
        # If both were done at the same time, the task that waits would not answer first.
        waits = threading.Thread(target=release, args=(work,))
        tasks = [work.blocked(first), second]
        waits.start()
        answers = list(runtime.run(tasks, workers_max=1))
        waits.join()
        assert [done.shard for _, done in answers if isinstance(done, ShardExtracted)] == [0, 1]

    def test_a_shared_file_is_on_every_scratch_node_and_replaces_an_older_one(
        self, runtime: Runtime, work: Work
    ) -> None:
        (node,) = runtime.scratch_nodes()
        for data in (b"old", bytes(range(256)) * 1000):
            runtime.share("shared", data)
            assert runtime.ask(node, FileBytes("shared")) == data

    def test_what_an_answer_raises_is_raised_as_it_is(self, runtime: Runtime, work: Work) -> None:
        (node,) = runtime.scratch_nodes()
        with pytest.raises(ObjectNotFoundError, match="missing"):
            runtime.ask(node, FileBytes("missing"))

    def test_a_scratch_node_that_is_unknown_is_lost(self, runtime: Runtime, work: Work) -> None:
        (node,) = runtime.scratch_nodes()
        for other in ("0123", node[::-1]):
            with pytest.raises(ScratchLostError) as caught:
                runtime.ask(other, FileBytes("x"))
            assert caught.value.node == other
            runtime.tell(other, FileBytes("x"))
        assert runtime.scratch_nodes() == (node,)

    def test_a_scratch_node_does_what_it_is_asked(self, runtime: Runtime, work: Work) -> None:
        (node,) = runtime.scratch_nodes()
        written = work.pipe("written")
        heard: list[bytes] = []
        hearing = threading.Thread(target=lambda: heard.append(written.read_bytes()))
        hearing.start()
        runtime.tell(node, WriteTo(str(written), b"done"))
        hearing.join()
        assert heard == [b"done"]
        runtime.tell(node, FileBytes("missing"))  # whose failure does not matter

    def test_a_bug_in_a_worker_is_reported_with_its_traceback(
        self, runtime: Runtime, work: Work
    ) -> None:
        with raises(InvariantError, "extractor.py"):
            list(runtime.run([work.trapped(work.tasks(1)[0], "number")]))
