"""The states of a job: which event leads where, for every pair of a state and an event."""

from __future__ import annotations

import ast
from itertools import product
from typing import get_args

import pytest

from dsort.errors import ConflictError
from dsort.service.database.tables import JobRow
from dsort.service.jobs.states import ENDED, QUEUED, STATES, Event, transition
from tests.test_architecture import PACKAGE, named, nodes, none_of, sources

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
    return JobRow(
        job_id="a",
        kind="run",
        owner="ann",
        spec={},
        input_uri="file:///in",
        output_uri="file:///out",
        claims=[],
        state=state,
    )


@pytest.mark.parametrize(("state", "event"), [*product(STATES, EVENTS)])
def test_an_event_leads_from_each_state_to_one_other_or_is_refused(
    state: str, event: Event
) -> None:
    after = LEADS[state].get(event)
    if after is not None:
        assert transition(job(state), event) == after
        return
    with pytest.raises(ConflictError) as refused:
        transition(job(state), event)
    assert f"job a is {state}" in str(refused.value)


def test_a_new_job_waits_and_can_come_to_every_state() -> None:
    reached, left = set[str](), [QUEUED]
    while left:
        state = left.pop()
        if state not in reached:
            reached.add(state)
            left += LEADS[state].values()
    assert reached == set(STATES)


@pytest.mark.parametrize("state", sorted(ENDED))
def test_a_job_that_has_ended_changes_on_request_alone(state: str) -> None:
    assert set(LEADS[state]) <= {"resumed"}
    assert job(state).ended


def test_one_statement_alone_changes_the_state_of_a_job() -> None:
    """``transition`` gives the state, and ``change`` stores it: no other code updates the column,
    or makes a row with another state than that of a new job."""
    wrong, changes = [], 0
    for path in sources("dsort"):
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
