"""A spec is parsed once and checked once, whatever request submits it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import update

from dsort.service.database.tables import jobs
from dsort.service.jobs import submit
from tests.support.service_here import SPEC, ServiceHere, service_here

SERVICE = str(Path(submit.__file__).parents[1])
MODULES_MAX = 18
ONCE = {"parse_spec": 1, "check_spec": 1}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[ServiceHere]:
    with service_here(tmp_path) as service:
        (service.service.config.run.root / "images").mkdir()
        yield service


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a spec is parsed and checked."""
    found: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            found[name] += 1
            return function(*arguments, **named)

        return call

    for name in ONCE:
        monkeypatch.setattr(submit, name, counting(name, getattr(submit, name)))
    return found


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/validate", "/v1/sort"])
def test_a_spec_that_is_sent_is_read_once(
    here: ServiceHere, counted: Counter[str], path: str
) -> None:
    answer = here.client.post(path, json=SPEC)
    assert answer.is_success, answer.text
    assert counted == ONCE


def test_a_submission_enters_few_modules_of_the_service(here: ServiceHere) -> None:
    entered: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SERVICE):
            entered.add(frame.f_code.co_filename.removeprefix(SERVICE))

    threading.setprofile(note)  # each request has threads of its own
    try:
        here.submit()
    finally:
        threading.setprofile(None)
    own = {name for name in entered if not name.startswith("/aistore/")}
    assert "/jobs/submit.py" in own
    assert len(own) <= MODULES_MAX, sorted(own)


@pytest.mark.parametrize("what", ["resume", "retry"])
def test_the_spec_of_a_job_is_read_once_more_when_it_is_submitted_again(
    here: ServiceHere, counted: Counter[str], what: str
) -> None:
    job_id = here.submit()["job_id"]
    here.client.post(f"/v1/jobs/{job_id}/stop")
    counted.clear()
    answer = here.client.post(f"/v1/jobs/{job_id}/{what}")
    assert answer.status_code == 202, answer.text
    assert counted == ONCE


def test_a_run_of_a_schedule_reads_its_spec_once(here: ServiceHere, counted: Counter[str]) -> None:
    definition = {"name": "s", "every": "1d", "paused": True, "spec": SPEC}
    assert here.client.post("/v1/schedules", json=definition).status_code == 201
    counted.clear()
    answer = here.client.post("/v1/schedules/s/run-now")
    assert answer.status_code == 202, answer.text
    assert counted == ONCE


@pytest.mark.parametrize("part", ["manifest", "report", "page"])
def test_to_show_a_job_parses_no_spec(
    here: ServiceHere, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    job_id = here.submit()["job_id"]
    for name in ("dsort.spec.load._parse", "dsort.spec.load._validate"):
        monkeypatch.setattr(name, None)
    assert here.client.get(f"/v1/jobs/{job_id}/{part}").status_code in (200, 404)


@pytest.mark.parametrize("spec", [{}, {"output_bck": 1}, {"output_bck": {"name": ""}}])
def test_a_row_that_names_no_bucket_is_an_error_and_no_bug(
    here: ServiceHere, spec: dict[str, Any]
) -> None:
    job_id = here.submit()["job_id"]
    with here.service.database.writing() as connection:
        connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(spec=spec))
    answer = here.client.get(f"/v1/jobs/{job_id}/manifest")
    assert answer.status_code == 400, answer.text
    assert answer.json()["problems"][0]["path"] == "output_bck"
