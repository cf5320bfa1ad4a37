"""Plots show each contender's rate, and what failed."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.plots import PLOTS, RESULTS, SUITES, main
from benchmarks.results import Run, to_json

SVG = "{http://www.w3.org/2000/svg}"


def test_a_plot_has_a_bar_for_each_rate_and_names_what_failed(tmp_path: Path) -> None:
    runs = [
        Run("tables", "3k", "dsort", 0, 10**8, 0.1, 0.2),
        Run("tables", "3k", "dsort", 1, 10**8, 0.2, 0.3),
        Run("tables", "3k", "duckdb", 0, 10**8, 0.4, 0.5),
        Run("tables", "100k", "a < b", 0, 10**8, failure="no"),
    ]
    (tmp_path / "tables.json").write_text(json.dumps(to_json({}, {}, runs, [])))
    main(["--results", str(tmp_path), "--plots", str(tmp_path / "plots")])
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["tables.svg"]
    plot = ElementTree.parse(tmp_path / "plots" / "tables.svg")
    texts = [each.text for each in plot.iter(f"{SVG}text")]
    first = ["tables: 3k, MB/s", "dsort", "750", "duckdb", "250"]
    assert texts == [*first, "tables: 100k, MB/s", "a < b", "failed"]
    widths = [float(each.attrib["width"]) for each in plot.iter(f"{SVG}rect")]
    assert round(widths[0] / widths[1], 2) == 3.0


def test_the_charts_of_the_docs_are_those_of_the_results(tmp_path: Path) -> None:
    main(["--plots", str(tmp_path)])
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text() for path in PLOTS.glob("*.svg")}
    page = (PLOTS.parent / "performance.md").read_text("utf-8")
    for suite in SUITES:
        is_measured = (RESULTS / f"{suite}.json").is_file()
        assert (f"(performance/{suite}.svg)" in page) == is_measured == (f"{suite}.svg" in drawn)
