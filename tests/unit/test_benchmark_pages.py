"""Figures on pages are those of the results that are kept with them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.measure import REPOSITORY
from benchmarks.page_blocks import BLOCKS
from benchmarks.pages import BLOCK, PAGES, RESULTS, read_results, updated
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


FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(
    r"""\d\**\s*(?:
        (?:[KMG]i?B|bytes)/s | CPU\s+s\b | s/GiB | s\s+a\s+GiB | µs | ×\s+`cp`
        | times\s+(?:the\s+speed|as\s+(?:fast|slow|long)|faster|slower)
        | (?:m?s|seconds)\s+of\s+(?:a\s+processor|processor\s+time|one\s+core)
        | processor\s+seconds
        | (?:samples|records|rows|pictures|jobs|submissions)\s+a\s+second
    )|\bfactor\s+of\s+\d""",
    re.VERBOSE,
)
"""What a measured figure looks like. A page may say what it is allowed, and how much there was."""
NOT_MEASURED = {
    "docs/operations/deploy.md": (
        "25 Gbit/s (3 GB/s each way) and disks of 4 GB/s",
        "at 2.5 s a GiB, an assumption",
    )
}
"""Assumptions of an arithmetic, named as such."""
SIZES = {"1.1 GB", "3.3 GB"}
"""Of the data, on the page that has little but figures."""
WRITTEN = [
    REPOSITORY / "README.md",
    *(
        path
        for path in sorted((REPOSITORY / "docs").rglob("*.md"))
        if path.relative_to(REPOSITORY).parts[1] not in ("design", "reference", "man")
    ),
]


def by_hand(text: str) -> str:
    """A page without what is measured, and without code."""
    return BLOCK.sub("", FENCE.sub("", text))


@pytest.mark.parametrize(
    "path", WRITTEN, ids=[str(path.relative_to(REPOSITORY)) for path in WRITTEN]
)
def test_no_figure_is_written_by_hand(path: Path) -> None:
    text = by_hand(path.read_text())
    for allowed in NOT_MEASURED.get(str(path.relative_to(REPOSITORY)), ()):
        assert allowed in text
        text = text.replace(allowed, "")
    found = [text[max(0, each.start() - 30) : each.end()] for each in FIGURE.finditer(text)]
    assert found == [], "figures come from benchmarks/results: see benchmarks/page_blocks.py"


def test_the_page_of_figures_has_no_decimal_by_hand() -> None:
    text = by_hand((REPOSITORY / "docs" / "performance.md").read_text())
    assert {*re.findall(r"\d[\d,]*\.\d+\s?\w*", text)} <= SIZES


@pytest.mark.parametrize(
    "text",
    [
        "it reaches 119 MB/s",
        "**2.4** s a GiB",
        "takes 3.6 µs",
        "runs at 0.8\ntimes the speed of `cp`",
        "0.9 × `cp`",
        "70 s of processor time",
        "163,800 samples a second",
        "costs a factor of 30",
    ],
)
def test_a_figure_by_hand_is_found(text: str) -> None:
    assert FIGURE.search(by_hand(text))
    measured = f"<!-- measured: stores -->{text}<!-- end of stores -->"
    assert not FIGURE.search(by_hand(f"{measured}\n```\n{text}\n```\n"))


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
        "limited-tenth": result_of(
            run_of("limited-tenth", "100k", "cp", 0.1),
            run_of("limited-tenth", "100k", "dsort", 0.4),
        ),
    }
    text = "".join(
        f"<!-- measured: {name} -->old<!-- end of {name} -->\n"
        for name in ("summary", "rates", "costs", "stores")
    )
    found = updated(text, results)
    assert (
        "at 0.8 to 0.8 times the speed of `cp` of the same tars where the data fits in memory"
        in found
    )
    assert "and at 0.25 to 0.5 times the speed of `cp` where the data does not fit." in found
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
