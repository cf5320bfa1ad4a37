"""A job's throughput over time: bounded, in order, with the borders of its phases, and rates that
add up to what was moved."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.internals import TIMELINE_SAMPLES_MAX, Timeline

PHASES = ("resolve", "extract", "plan", "create", "commit")

steps = st.lists(st.tuples(st.floats(0, 50), st.integers(0, 1000)), max_size=400)


def fed(phases: list[list[tuple[float, int]]]) -> tuple[Timeline, dict[str, int]]:
    """Phases of (seconds, bytes) after each other, and the bytes of each."""
    timeline, now_s, totals = Timeline(), 0.0, {}
    for name, moved in zip(PHASES, phases, strict=False):
        timeline.begin(name, now_s)
        done = 0
        for seconds, size_bytes in moved:
            now_s += seconds
            done += size_bytes
            timeline.note(name, now_s, done)
        timeline.end(name, now_s, done)
        totals[name] = done
    return timeline, totals


@given(st.lists(steps, min_size=1, max_size=5))
def test_samples_are_few_and_in_order_and_keep_the_borders(
    phases: list[list[tuple[float, int]]],
) -> None:
    timeline, totals = fed(phases)
    samples = timeline.samples()
    assert len(samples) <= TIMELINE_SAMPLES_MAX
    times = [each.elapsed_s for each in samples]
    assert times == sorted(times)
    for name, total in totals.items():
        mine = [each for each in samples if each.phase == name]
        assert (mine[0].bytes_done, mine[0].bytes_per_s) == (0, 0.0)
        assert mine[-1].bytes_done == (total if name in ("extract", "create") else 0)


def test_rates_are_what_was_moved_since_the_sample_before() -> None:
    timeline, _ = fed([[], [(1.0, 100), (2.0, 100), (0.01, 0), (0.5, 400)]])
    assert [tuple(each) for each in timeline.samples()] == [
        (0.0, "resolve", 0, 0.0),
        (0.0, "resolve", 0, 0.0),
        (0.0, "extract", 0, 0.0),
        (1.0, "extract", 100, 100.0),
        (3.0, "extract", 200, 50.0),
        (3.51, "extract", 600, 784.3),
    ]


def test_what_came_last_is_reported_though_it_is_close() -> None:
    timeline = Timeline()
    timeline.begin("extract", 0.0)
    timeline.note("extract", 1.0, 10)
    timeline.note("extract", 1.01, 30)
    assert timeline.samples()[-1][:3] == (1.01, "extract", 30)
    assert timeline.samples()[-1].bytes_per_s == pytest.approx(2000)
    timeline.begin("plan", 5.0)  # and a phase that was left has its last word, too
    assert [each.phase for each in timeline.samples()] == ["extract"] * 3 + ["plan"]


def test_a_long_job_is_sampled_evenly() -> None:
    timeline = Timeline()
    timeline.begin("extract", 0.0)
    for second in range(1, 100_001):
        timeline.note("extract", float(second), second * 7)
    samples = timeline.samples()
    assert TIMELINE_SAMPLES_MAX // 3 < len(samples) <= TIMELINE_SAMPLES_MAX
    gaps = [b.elapsed_s - a.elapsed_s for a, b in pairwise(samples[1:-1])]
    assert max(gaps) <= 2.1 * min(gaps)
    assert {round(each.bytes_per_s, 3) for each in samples[1:]} == {7.0}


def test_more_phases_than_there_is_room_for_are_thinned_as_well() -> None:
    timeline = Timeline(samples_max=10)
    for number in range(100):
        timeline.begin("extract", float(number))
        timeline.end("extract", number + 0.5, 1)
        assert len(timeline.samples()) <= 10
