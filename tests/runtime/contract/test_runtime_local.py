"""Processes of this machine pass both suites of runtimes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dsort.stop_flag import StopFlag
from tests.support.forked_workers import fresh_workers
from tests.support.internals import AHEAD_A_WORKER, ExtractTask, LocalRuntime, Runtime
from tests.support.runtime_suite import OneRuntimeSuite, RuntimeSuite
from tests.support.runtime_work import SHARDS, Work, done_shards, lasting_runtime


@pytest.fixture(scope="module", autouse=True)
def fresh() -> Iterator[None]:
    """Processes as they are begun where nothing is known about a process."""
    with fresh_workers():
        yield


@pytest.fixture(scope="module")
def lasting(
    fresh: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Runtime, Work]]:
    with lasting_runtime(lambda stop: LocalRuntime(2, stop), tmp_path_factory) as lasting:
        yield lasting


class TestLocalRuntime(RuntimeSuite):
    @pytest.fixture
    def make_runtime(self, stop: StopFlag) -> Callable[[], LocalRuntime]:
        return lambda: LocalRuntime(2, stop)

    def test_tasks_are_made_while_others_are_done(self, lasting: tuple[Runtime, Work]) -> None:
        runtime, work = lasting
        made: list[int] = []

        def tasks() -> Iterator[ExtractTask]:
            for task in work.tasks() * 4:
                made.append(task.shard)
                yield task

        answers = runtime.run(tasks())
        first = next(answers)
        assert len(made) <= 2 + 2 * AHEAD_A_WORKER
        assert done_shards([first, *answers]) == sorted([*range(SHARDS)] * 4)


class TestOneLocalRuntime(OneRuntimeSuite):
    pass
