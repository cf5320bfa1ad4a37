"""A service whose Ray ends while a job runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dsort.service.database.engine import open_database
from dsort.service.database.tables import JobRow
from dsort.service.hosting import dispatcher
from dsort.service.hosting.dispatcher import Dispatcher
from dsort.service.hosting.environment import JobEnvironment
from dsort.service.hosting.process import Host, JobProcess
from dsort.service.jobs.queue import Limits, claim_next
from dsort.service.jobs.store import JobStore
from tests.support.service_here import SPEC, config_for


class Ray:
    """The Ray of a service, which has ended and is started again."""

    def __init__(self, *arguments: Any, **more: Any) -> None: ...

    def ensure(self) -> dict[str, str]:
        return {"RAY_ADDRESS": "127.0.0.1:2"}


def test_a_job_that_died_with_the_services_own_ray_is_resumed_on_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses: list[str | None] = []

    def begin(row: JobRow, environment: JobEnvironment) -> JobProcess:
        addresses.append(environment.run.ray_address)
        raise OSError("enough is known")

    monkeypatch.setattr(dispatcher, "RayHead", Ray)
    monkeypatch.setattr(JobProcess, "begin", begin)
    config = config_for(tmp_path)
    config = replace(config, run=replace(config.run, runtime="ray"))
    uris = {"input_uri": "file:///in", "output_uri": "file:///out"}
    job = JobRow(job_id="a", kind="run", owner="ann", spec=SPEC, claims=[], **uris)
    with open_database(config.database_url) as database:
        JobStore(database).submit(job)
        here = Host().name
        assert claim_next(
            database, host=here, replica=config.replica, limits=Limits(1, 1), now_s=1.0
        )
        Dispatcher(config, database).turn()
    assert addresses == ["127.0.0.1:2"]
