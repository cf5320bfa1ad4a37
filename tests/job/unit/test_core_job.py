"""The state of a job: phases come in their order, each once."""

from __future__ import annotations

import pytest

from dsort.errors import InvariantError
from dsort.spec.load import parse_spec
from tests.support.engine import spec_of
from tests.support.internals import PHASES, WARNING_TEXTS, JobState, Reporter, Tally


def test_a_jobs_phases_one_after_the_other() -> None:
    state = JobState()
    for at, phase in enumerate(PHASES):
        state.begin(phase, float(at), shards_total=3)
        assert state.phase == phase
        assert state.current is state.phases[phase]
        state.end(at + 0.25)
        assert state.phase == ""
    assert state.seconds() == dict.fromkeys(PHASES, 0.25)


@pytest.mark.parametrize("second", ["resolve", "extract"])
def test_no_phase_begins_twice_or_goes_back(second: str) -> None:
    state = JobState()
    for phase in ("resolve", "extract"):
        state.begin(phase, 0.0)
        state.end(1.0)
    with pytest.raises(InvariantError):
        state.begin(second, 2.0)


def test_no_phase_begins_while_another_runs() -> None:
    state = JobState()
    state.begin("resolve", 0.0)
    with pytest.raises(InvariantError):
        state.begin("extract", 1.0)


def test_nothing_advances_or_ends_without_a_phase() -> None:
    with pytest.raises(InvariantError):
        reporter().advance(records=1)
    with pytest.raises(InvariantError):
        JobState().end(1.0)


def test_a_phase_advances_by_all_that_is_done() -> None:
    told = reporter()
    with told.phase("extract"):
        told.advance(shards=1, records=10, bytes_done=100)
        told.advance(shards=2, bytes_done=5)
    totals = told.state.phases["extract"]
    assert (totals.shards, totals.records, totals.bytes) == (3, 10, 105)


def test_what_is_noted_is_kept_through_all_phases() -> None:
    told, tally = reporter(), Tally()
    tally.add("a", 2, ["x"])
    told.note(tally)
    with told.phase("resolve"):
        told.note(tally)
    assert list(told.state.tally) == [("a", 4, ("x", "x"))]


def reporter() -> Reporter:
    spec = parse_spec(spec_of()).spec
    return Reporter("some-job", spec, (), lambda event: None)


@pytest.mark.parametrize("kind", WARNING_TEXTS)
def test_a_warning_has_forms_for_one_and_many(kind: str) -> None:
    told = reporter()
    for count in (1, 2):
        told.note(Tally({kind: count}))
    one, many = (text.replace(f"{count} ", "", 1) for count, text in enumerate(told.warnings, 1))
    assert one != many
    assert "|" not in one + many
