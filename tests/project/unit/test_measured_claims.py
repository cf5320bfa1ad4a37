"""Sentences and tables about speed say the measured figures, of all rows that they speak of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.plots import PLOTS, RESULTS, SUITES, main
from benchmarks.results import Run, ratios_of

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text("utf-8")
PERFORMANCE = (ROOT / "docs/performance.md").read_text("utf-8")
PROFILES = ("1k", "32k", "100k", "4m")
DISKS = ("warm", "limited", "limited-tenth")


def stored(suite: str) -> Any:
    return json.loads((ROOT / f"benchmarks/results/{suite}.json").read_text())


def rows(suite: str) -> list[dict[str, Any]]:
    found = [row for row in stored(suite)["rows"] if row["suite"] == suite]
    return [row for row in found if row["profile"] in PROFILES]


def test_the_readme_says_the_slowest_and_the_fastest_job_beside_cp() -> None:
    places = {
        "where the data fits in memory": (("warm",), "dsort-map"),
        "where the data does not fit": (("limited", "limited-tenth"), "dsort"),
    }
    for place, (suites, contender) in places.items():
        ratios = [
            row["cp_ratio"]
            for suite in suites
            for row in rows(suite)
            if row["contender"] == contender and row["cp_ratio"]
        ]
        figures = f"{min(ratios):.2g} to {max(ratios):.2g} times the speed of `cp`"
        assert re.search(f"at {re.escape(figures)}( of the same tars)? {place}", README), figures


def test_the_readme_says_how_fast_jobs_between_buckets_are() -> None:
    names = [name for name in Run.__slots__ if name != "details"]
    runs = [Run(**{name: run[name] for name in names}) for run in stored("s3")["runs"]]
    ratios = ratios_of(runs, "s3", "100k", "dsort", "floor")
    spread = f"{median(ratios):.2f} (rounds: {min(ratios):.2f} to {max(ratios):.2f})"
    assert f"{spread} of the speed of a client that only downloads and uploads" in README


def test_each_rate_beside_cp_is_measured() -> None:
    table = PERFORMANCE.partition("## On one disk")[2].partition("\n\nMeasured")[0]
    said = set(re.findall(r"(\d+) \((\d\.\d\d) ×\)", table))
    measured = {
        (f"{row['megabytes_per_second']:.0f}", f"{row['cp_ratio']:.2f}")
        for suite in DISKS
        for row in rows(suite)
        if row["cp_ratio"]
    }
    assert len(said) > 20
    assert said <= measured


def test_the_charts_of_the_docs_are_those_of_the_results(tmp_path: Path) -> None:
    main(["--plots", str(tmp_path)])
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text() for path in PLOTS.glob("*.svg")}
    page = (PLOTS.parent / "performance.md").read_text("utf-8")
    for suite in SUITES:
        is_measured = (RESULTS / f"{suite}.json").is_file()
        assert (f"(performance/{suite}.svg)" in page) == is_measured == (f"{suite}.svg" in drawn)
