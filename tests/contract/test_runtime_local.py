"""Processes of this machine pass the whole :class:`RuntimeSuite`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsort.runtime.local import LocalRuntime
from dsort.stopping import StopFlag
from tests.contract.runtime_suite import RuntimeSuite


class TestLocalRuntime(RuntimeSuite):
    @pytest.fixture
    def make_runtime(self, stop: StopFlag) -> Callable[[], LocalRuntime]:
        return lambda: LocalRuntime(2, stop)
