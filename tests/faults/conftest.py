"""What the tests of deaths share: where coordinators are begun, and results to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.coordinators import Coordinators, coordinators


@pytest.fixture(scope="session")
def begun() -> Iterator[Coordinators]:
    """Begins coordinators that may die."""
    with coordinators() as begun:
        yield begun


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the results of undisturbed jobs are."""
    return tmp_path_factory.mktemp("undisturbed")
