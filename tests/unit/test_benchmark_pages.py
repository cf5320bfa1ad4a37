"""Figures on pages are those of the results that are kept with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.measure import REPOSITORY
from benchmarks.pages import BLOCKS, PAGES, RESULTS, read_results, updated
from benchmarks.results import Run, to_json

MACHINE = {
    "cpu": "A cpu, 2 cores",
    "memory": "24 GiB",
    "kernel": "Linux",
    "file system": "ext4",
    "date": "2026-01-31",
    "busy cores before": "0.02",
}


def result_of(*runs: Run) -> dict[str, object]:
    return to_json(MACHINE, {}, list(runs), [], [])


def run_of(suite: str, profile: str, contender: str, seconds: float, **details: object) -> Run:
    kept = {"read_bytes": 10**8, "written_bytes": 2 * 10**8, "peak_bytes": 10**8, **details}
    return Run(suite, profile, contender, 0, 10**8, seconds, cpu_seconds=0.2, details=kept)


@pytest.mark.parametrize("name", PAGES)
def test_pages_say_what_was_measured(name: str) -> None:
    text = (REPOSITORY / name).read_text()
    assert updated(text, read_results(RESULTS)) == text, "run `python -m benchmarks.pages`"


def test_every_block_is_on_a_page() -> None:
    text = "".join((REPOSITORY / name).read_text() for name in PAGES)
    assert [name for name in BLOCKS if f"<!-- measured: {name} -->" not in text] == []


def test_a_block_has_the_figures_of_the_results(tmp_path: Path) -> None:
    results = {
        "warm": result_of(
            run_of("warm", "100k", "cp", 0.1), run_of("warm", "100k", "dsort-map", 0.125)
        ),
        "limited": result_of(
            run_of("limited", "100k", "cp", 0.2),
            run_of("limited", "100k", "dsort", 0.4),
            Run("limited", "100k", "dsort-spill", 0, 10**8, failure="no"),
        ),
    }
    text = "".join(
        f"<!-- measured: {name} -->old<!-- end of {name} -->\n"
        for name in ("summary", "rates", "costs", "stores")
    )
    found = updated(text, results)
    assert "at 0.8 to 0.8 times the speed where the data fits in memory" in found
    assert "at 0.5 to 0.5 times the speed where it does not." in found
    assert "| **dsort** (`map`), in memory | 800 (0.80 ×) |" in found
    assert "| `cp`, in a third | 500 |" in found
    assert "| **dsort** (`spill`), in a third | failed |" in found
    assert "| `cp`, in memory | 2.1 · 1.0 + 2.0 · 100 MB |" in found
    assert "Measured 2026-01-31, A cpu, 2 cores, 24 GiB" in found
    assert "<!-- measured: stores -->old<!-- end of stores -->" in found  # nobody measured that
    assert updated(found, results) == found


@pytest.mark.parametrize(
    "text", ["<!-- measured: rates -->", "<!-- measured: x --><!-- end of x -->"]
)
def test_a_block_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="has no end, or is none of"):
        updated(text, {})
