"""Processes of this machine pass both suites of runtimes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dsort.runtime.base import Runtime
from dsort.runtime.local import LocalRuntime
from dsort.stop_flag import StopFlag
from tests.contract.runtime_suite import OneRuntimeSuite, RuntimeSuite
from tests.support.forked_workers import fresh_workers
from tests.support.runtime_work import Work, lasting_runtime


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


class TestOneLocalRuntime(OneRuntimeSuite):
    pass
