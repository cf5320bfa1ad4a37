"""Services, processes of jobs and PostgreSQL are killed at random moments: all jobs end once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import seed
from tests.support.debian import CannotInstall, skip_outside_ci
from tests.support.postgres_restarts import RestartedServer
from tests.support.service_chaos import ServiceChaos, chaos_server, kills_of

KILLS = 5


@pytest.fixture(scope="module")
def server() -> Iterator[RestartedServer]:
    try:
        with chaos_server() as server:
            yield server
    except CannotInstall as none:
        skip_outside_ci(f"there is no PostgreSQL: {none.reason}")


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("number", range(4))
def test_all_jobs_end_once_whatever_is_killed(
    number: int, server: RestartedServer, tmp_path: Path
) -> None:
    own = seed() + number
    print(f"python -m tests.support.service_chaos --seed {own} --kills {KILLS} does this again")
    chaos = ServiceChaos(own, tmp_path, server)
    chaos.run(KILLS)
    assert kills_of(chaos.struck) == KILLS
