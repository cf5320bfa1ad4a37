"""Draws results, from ``benchmarks/results`` to ``docs/performance``: ``-m benchmarks.plots``.

One SVG for each suite that has rates: a bar for each contender, the median, with a line from the
slowest to the fastest round. Plots are plain text, so the same results give the same bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.measure import REPOSITORY

__all__ = ["SUITES", "bars_of", "draw", "main"]

RESULTS, PLOTS = REPOSITORY / "benchmarks" / "results", REPOSITORY / "docs" / "performance"
SUITES = (
    *("warm", "limited", "limited-tenth", "tables", "tables-limited"),
    *("s3", "nodes", "containers", "codecs"),
)
OTHERS = {
    *("cp", "rsync", "floor", "tarfile", "webdataset", "ray", "ray-tuned"),
    *("duckdb", "polars", "python", "terashuf"),
}
PARTS = {"decode", "encode"}
"""Contenders that do only a part of a shuffle: their rates cannot be compared with the others'."""
WIDTH, NAME_WIDTH, VALUE_WIDTH = 720, 150, 150
LINE, BAR, TITLE = 26, 16, 34
STYLE = (
    "text{fill:#333}.ours{fill:#2f6fd0}.others{fill:#9aa4b0}.range{stroke:#333}"
    "@media(prefers-color-scheme:dark)"
    "{text{fill:#ddd}.ours{fill:#6ea4f5}.others{fill:#7b8591}.range{stroke:#ddd}}"
)
"""Pages show plots as images, which follow the reader's light or dark scheme by themselves."""

Row = Mapping[str, Any]


def bars_of(result: Mapping[str, Any], suite: str) -> dict[str, list[Row]]:
    """The rows of a suite that have a rate, by profile, as a result has them."""
    found: dict[str, list[Row]] = {}
    for row in result["rows"]:
        if row["suite"] == suite and row["contender"] not in PARTS:
            found.setdefault(row["profile"], []).append(row)
    return found


def draw(title: str, profiles: Mapping[str, Sequence[Row]]) -> str:
    """An SVG with a chart for each profile, one below the other. All bars of a profile have one
    scale."""
    parts: list[str] = []
    top = 8
    for profile, rows in profiles.items():
        parts.append(_text(0, top + 18, f"{title}: {profile}, MB/s", weight="bold"))
        top += TITLE
        most = max((float(row["megabytes_per_second_max"]) for row in rows), default=0.0) or 1.0
        for row in rows:
            parts.extend(_bar(row, top, (WIDTH - NAME_WIDTH - VALUE_WIDTH) / most))
            top += LINE
        top += 10
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" '
        f'viewBox="0 0 {WIDTH} {top}" font-family="sans-serif" font-size="13">'
    )
    beginning = [head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>"]
    return "\n".join([*beginning, *parts, "</svg>"]) + "\n"


def _bar(row: Row, top: int, scale: float) -> list[str]:
    name, baseline = str(row["contender"]), top + BAR - 3
    rate, least, most = (
        float(row[f"megabytes_per_second{which}"]) for which in ("", "_min", "_max")
    )
    parts = [_text(NAME_WIDTH - 8, baseline, name, anchor="end")]
    if row["rounds"] == 0:
        return [*parts, _text(NAME_WIDTH, baseline, "failed")]
    whose = "others" if name in OTHERS else "ours"
    parts.append(
        f'<rect x="{NAME_WIDTH}" y="{top}" width="{rate * scale:.1f}" height="{BAR}" '
        f'class="{whose}"/>'
    )
    middle = top + BAR / 2
    parts.append(
        f'<path d="M{NAME_WIDTH + least * scale:.1f} {middle}H{NAME_WIDTH + most * scale:.1f}" '
        f'class="range"/>'
    )
    told = f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"
    parts.append(_text(NAME_WIDTH + most * scale + 6, baseline, told))
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


def main(arguments: list[str] | None = None) -> None:
    """Draw the plots of all suites that have results. Other plots are not changed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--plots", type=Path, default=PLOTS)
    parsed = parser.parse_args(arguments)
    for suite in SUITES:
        path = parsed.results / f"{suite}.json"
        if path.is_file():
            profiles = bars_of(json.loads(path.read_text()), suite)
            parsed.plots.mkdir(parents=True, exist_ok=True)
            (parsed.plots / f"{suite}.svg").write_text(draw(suite, profiles))
            print(f"{suite}.svg")


if __name__ == "__main__":
    main()
