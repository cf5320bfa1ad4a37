"""The states of a job: which event leads where, for every pair of a state and an event; and whether
two jobs may write one name is found out once, and not while others wait for it."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from sqlalchemy import Connection

from dsort.errors import ConflictError
from dsort.service.database.engine import Database
from dsort.service.database.tables import JobRow
from dsort.service.jobs import queue as conflicts
from dsort.service.jobs.queue import (
    Claims,
    Limits,
    claim_next,
    claim_outputs,
    conflict_of,
    is_known,
)
from dsort.service.jobs.states import STATES, Event, transition
from tests.support.internals import overlap
from tests.support.job_rows import job_row
from tests.support.refusals import raises
from tests.support.service_here import SPEC, ServiceHere, service_here
from tests.test_architecture import PACKAGE, named, nodes, none_of, sources, text_of

CHANGES = PACKAGE / "service/jobs/changes.py"
EVENTS: tuple[Event, ...] = get_args(Event)
LEADS = {
    "queued": {"begun": "running", "stop_asked": "stopped", "discard_asked": "queued"},
    "running": {
        "reported": "running",
        "taken_over": "running",
        "put_back": "queued",
        "stop_asked": "running",
        "finished": "finished",
        "failed": "failed",
        "stopped": "stopped",
    },
    "finished": {},
    "failed": {"resumed": "queued"},
    "stopped": {"resumed": "queued"},
}


def job(state: str) -> JobRow:
    return job_row("a", state=state)


@pytest.mark.parametrize(("state", "event"), [*product(STATES, EVENTS)])
def test_an_event_leads_from_each_state_to_one_other_or_is_refused(
    state: str, event: Event
) -> None:
    after = LEADS[state].get(event)
    if after is not None:
        assert transition(job(state), event) == after
        return
    with raises(ConflictError, "job a", state):
        transition(job(state), event)


@pytest.mark.parametrize("state", STATES)
def test_a_job_that_has_ended_changes_on_request_alone(state: str) -> None:
    assert job(state).ended == (set(LEADS[state]) <= {"resumed"})


def test_one_statement_alone_changes_the_state_of_a_job() -> None:
    """``transition`` gives the state, and ``change`` stores it: no other code updates the column,
    or makes a row with another state than that of a new job."""
    wrong, changes = [], 0
    for path in sources("dsort"):
        if "service.database" not in text_of(path):  # knows neither the table nor its rows
            continue
        for call in nodes(path, ast.Call):
            text = ast.unparse(call.func)
            columns = {each.arg for each in call.keywords}
            if text.endswith(".values") and "update(jobs)" in text:
                if path == CHANGES:
                    changes += 1
                elif call.args or columns & {"state", None}:  # None: a mapping
                    wrong.append(f"{named(path)}:{call.lineno}: update(jobs)")
            makes_rows = text == "JobRow" or (text == "replace" and path.parent == CHANGES.parent)
            if makes_rows and "state" in columns:
                wrong.append(f"{named(path)}:{call.lineno}: {text}")
    none_of(wrong)
    assert changes == 1


LIMITS = Limits(running_jobs_max=5, running_plans_max=1)


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each search: whether a transaction was writing to the database at that moment."""
    found: list[bool] = []
    now: list[bool] = []
    search, write = overlap.first_conflict, Database.writing

    def first_conflict(ours: Claims, theirs: Claims) -> object:
        found.append(bool(now))
        return search(ours, theirs)

    @contextlib.contextmanager
    def writing(self: Database, *, alone: str = "") -> Iterator[Connection]:
        with write(self, alone=alone) as connection:
            now.append(True)
            try:
                yield connection
            finally:
                now.pop()

    monkeypatch.setattr(conflicts, "first_conflict", first_conflict)
    monkeypatch.setattr(Database, "writing", writing)
    conflicts._known.clear()
    return found


def test_a_pair_is_searched_once_and_distinguished_by_what_it_claims(searched: list[bool]) -> None:
    one, same, other = [["file:///d", "a-%d"]], [("file:///d", "a-%d")], [["file:///d", "b-%d"]]
    assert conflict_of(one, other) is None
    assert conflict_of(same, other) is None
    assert len(searched) == 1
    assert is_known(one, other)
    assert not is_known(one, one)
    assert conflict_of(one, one) == "a-%d"
    assert conflict_of([["file:///d", "{"]], one) is None  # no template
    assert conflict_of(None, one) is None
    assert conflict_of([], one) is None
    assert is_known(None, one)


def test_known_conflicts_are_bounded(searched: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "KNOWN_MAX", 2)
    claims = [[["file:///d", f"{name}-%d"]] for name in "abcd"]
    for each in claims:
        conflict_of(each, each)
    assert [is_known(each, each) for each in claims] == [False, False, True, True]


def test_conflicts_are_searched_outside_of_transactions(
    searched: list[bool], tmp_path: Path
) -> None:
    def claimed(here: ServiceHere) -> str | None:
        row = claim_next(here.service.database, host="h", replica="r", limits=LIMITS, now_s=1.0)
        return None if row is None else row.job_id

    def spec(name: str) -> dict[str, object]:
        return {**SPEC, "output_format": f"{name}-%04d"}

    with service_here(tmp_path) as here:
        jobs = [here.submit(spec(name))["job_id"] for name in ("a", "a", "b")]
        assert [claimed(here), claimed(here), claimed(here)] == [jobs[0], jobs[2], None]
        assert here.client.post("/v1/jobs", json=spec("a")).status_code == 409
        assert here.client.post("/v1/jobs", json=spec("c")).status_code == 201
        definition = {"name": "s", "every": "1d", "paused": True, "spec": spec("b")}
        assert here.client.post("/v1/schedules", json=definition).status_code == 201
        assert here.client.post("/v1/schedules/s/run-now").status_code == 409
        assert claim_outputs(here.service.database, jobs[0], 1, [["file:///d", "d-%d"]])
    assert len(searched) >= 4
    assert not any(searched)
