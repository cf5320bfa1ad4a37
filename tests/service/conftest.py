"""Fixtures of the service's tests: a database, a service over it, schedules with a clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsort.service.database.engine import Database, open_database
from tests.support.fake_clock import FakeClock
from tests.support.schedules import Nights, at
from tests.support.service_here import ServiceHere, service_here


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with open_database(database_url) as opened:
        yield opened


@pytest.fixture
def here(tmp_path: Path, database_url: str) -> Iterator[ServiceHere]:
    """A service that asks for no tokens, over an empty data root."""
    with service_here(tmp_path, database_url=database_url) as opened:
        yield opened


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[ServiceHere]:
    """A service that asks for tokens."""
    with service_here(tmp_path, no_auth=False) as opened:
        yield opened


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(at("2026-11-20 00:00") + 0.1234567)  # changed_at has a fraction


@pytest.fixture
def nights(database: Database, tmp_path: Path, clock: FakeClock) -> Nights:
    """One replica, whose clock stands still before the night of the 20th."""
    return Nights(database, tmp_path, clock)
