"""Processes of this machine pass the whole :class:`RuntimeSuite`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dsort.runtime.local import LocalRuntime
from dsort.stopping import StopFlag
from tests.contract.runtime_suite import RuntimeSuite


class TestLocalRuntime(RuntimeSuite):
    @pytest.fixture
    def runtime(self, stop: StopFlag) -> Iterator[LocalRuntime]:
        runtime = LocalRuntime(2, stop)
        yield runtime
        runtime.close()
