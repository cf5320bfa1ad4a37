"""How far a job is, in one number that only ever grows, and how long its phase still takes."""

from __future__ import annotations

from typing import Any

import pytest

from dsort.service.jobs.rows import PHASES, progress_view


def progress_of(phase: str, done: int, total: int, elapsed_s: float = 4.0) -> dict[str, Any]:
    return {
        "phase": phase,
        "shards_done": done,
        "shards_total": total,
        "records_done": 0,
        "bytes_done": done * 100,
        "bytes_total": total * 100,
        "elapsed_s": elapsed_s,
        "bytes_per_s": None,
    }


@pytest.mark.parametrize("kind", ["run", "plan"])
def test_the_share_grows_to_the_whole_over_all_phases(kind: str) -> None:
    phases = PHASES if kind == "run" else PHASES[:3]
    shares = []
    for phase in phases:
        for done in (0, 3, 10):
            view = progress_view(progress_of(phase, done, 10), kind)
            assert view is not None
            shares.append(view["share"])
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


def test_what_is_left_is_reported_once_one_can_tell() -> None:
    def left_s(done: int, total: int, elapsed_s: float) -> float | None:
        view = progress_view(progress_of("create", done, total, elapsed_s), "run")
        assert view is not None
        return view["left_s"]  # type: ignore[no-any-return]

    assert left_s(1, 4, 2.0) == 6.0
    assert left_s(1, 4, 0.5) is None  # too soon
    assert left_s(0, 4, 9.0) is None
    assert left_s(4, 4, 9.0) is None
    assert left_s(1, 0, 9.0) is None  # of how much is not known


def test_what_is_left_goes_with_the_rate_that_is_shown() -> None:
    """A job that goes on had most of it done before this attempt began."""
    view = progress_view({**progress_of("create", 9, 10, 2.0), "bytes_per_s": 10.0}, "run")
    assert view is not None
    assert view["left_s"] == 10.0


def test_without_bytes_shards_are_counted() -> None:
    counted = {**progress_of("extract", 5, 10), "bytes_done": 0, "bytes_total": 0}
    view = progress_view(counted, "run")
    assert view is not None
    assert view["share"] == pytest.approx(0.02 + 0.43 / 2)
    assert progress_view(None, "run") is None
