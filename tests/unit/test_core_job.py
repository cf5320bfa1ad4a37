"""The state of a job: phases come in their order, each once, and only events change it."""

from __future__ import annotations

import pytest

from dsort.errors import InvariantError
from tests.support.internals import PHASES, Advanced, JobState, Noted, PhaseBegan, PhaseEnded, Tally


def test_a_jobs_phases_one_after_the_other() -> None:
    state = JobState()
    for at, phase in enumerate(PHASES):
        state.apply(PhaseBegan(phase, float(at), shards_total=3))
        assert state.phase == phase
        state.apply(Advanced(shards=1, records=10, bytes=100))
        state.apply(Advanced(shards=2, bytes=5))
        state.apply(PhaseEnded(at + 0.25))
        assert state.phase is None
        totals = state.phases[phase]
        assert (totals.shards, totals.records, totals.bytes) == (3, 10, 105)
    assert state.seconds() == dict.fromkeys(PHASES, 0.25)


def test_a_phase_that_runs_has_taken_no_time_yet() -> None:
    state = JobState()
    state.apply(PhaseBegan("resolve", 5.0))
    assert state.seconds() == {"resolve": 0.0}


def test_phases_may_be_left_out() -> None:
    state = JobState()
    for phase in ("resolve", "plan"):
        state.apply(PhaseBegan(phase, 0.0))
        state.apply(PhaseEnded(1.0))
    assert list(state.phases) == ["resolve", "plan"]


@pytest.mark.parametrize("second", ["resolve", "extract"])
def test_no_phase_begins_twice_or_goes_back(second: str) -> None:
    state = JobState()
    for phase in ("resolve", "extract"):
        state.apply(PhaseBegan(phase, 0.0))
        state.apply(PhaseEnded(1.0))
    with pytest.raises(InvariantError):
        state.apply(PhaseBegan(second, 2.0))


def test_no_phase_begins_while_another_runs() -> None:
    state = JobState()
    state.apply(PhaseBegan("resolve", 0.0))
    with pytest.raises(InvariantError):
        state.apply(PhaseBegan("extract", 1.0))


@pytest.mark.parametrize("event", [Advanced(records=1), PhaseEnded(1.0)])
def test_nothing_advances_or_ends_without_a_phase(event: Advanced | PhaseEnded) -> None:
    with pytest.raises(InvariantError):
        JobState().apply(event)


def test_what_is_noted_is_kept_through_all_phases() -> None:
    state, tally = JobState(), Tally()
    tally.add("a", 2, ["x"])
    state.apply(Noted(tally))
    state.apply(PhaseBegan("resolve", 0.0))
    state.apply(Noted(tally))
    assert list(state.tally) == [("a", 4, ("x", "x"))]
