"""Reports, plans, manifests and records in a notebook, and how far a job is there."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import dsort
from dsort.html_tables import ROWS_MAX, fields_html, members_html, rows_html
from dsort.progress_display import NotebookProgress, TerminalProgress, show_progress
from tests.support.datasets import small_dataset, write_shards
from tests.support.engine import spec_of
from tests.support.internals import JobStarted, JobWarning, PhaseDone, Progress, parse_manifest

pytestmark = pytest.mark.usefixtures("workers_here")
EVIL = '<script>alert("1")</script>'
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


def is_safe(html: str) -> bool:
    """Whether nothing of a name has become a tag."""
    tags = {*re.findall(r"<(/?[a-z]+)", html)}
    known = {"table", "caption", "b", "tr", "th", "td", "thead", "tbody", "p", "img", "div"}
    return {each.lstrip("/") for each in tags} <= known | {"progress"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_shards(tmp_path / "in", small_dataset(1, shards=2, records=30, payload_bytes_max=50))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_reports_plans_and_manifests_are_tables(root: Path) -> None:
    spec = spec_of(output_shard_records=2, description=EVIL)
    plan = dsort.plan(spec)
    report = dsort.run(spec)
    manifest = parse_manifest((root / "out" / (report.manifest_name or "")).read_bytes())
    for shown in (plan, report, manifest):
        html = shown._repr_html_()
        assert is_safe(html)
        assert "60" in html
        assert len(html) < 20_000
    assert "... and 10 more" in plan._repr_html_()
    assert "readers" in plan._repr_html_()
    bad = replace(report, warnings=(EVIL,), error=EVIL)._repr_html_()
    assert is_safe(bad)
    assert "&lt;script&gt;" in bad


def test_records_show_texts_small_images_and_a_few_bytes(root: Path) -> None:
    record = next(dsort.read_shards("in"))
    assert is_safe(record._repr_html_())
    with dsort.open("in/in-0.tar") as shard:
        assert is_safe(shard[0]._repr_html_())
    members = {"a.png": PNG, "a.txt": EVIL.encode(), "a.bin": b"\xff\x00" * 500, EVIL: b""}
    asked: list[int] = []

    def read(name: str, bytes_max: int) -> bytes:
        asked.append(bytes_max)
        return members[name][:bytes_max]

    sizes = [(name, len(content)) for name, content in members.items()]
    html = members_html("record", [*sizes, ("large.png", 1 << 40)][:4], read)
    assert is_safe(html)
    assert html.count("<img ") == 1
    assert "ff 00 ff" in html
    members["large.png"] = PNG
    html = members_html("record", [("large.png", 1 << 40)], read)
    assert "<img " not in html  # it is not all there
    assert max(asked) <= 1 << 18


def test_tables_are_bounded() -> None:
    rows = rows_html(("a",), (("x" * 1000,) for _ in range(10**6)), 10**6)
    assert rows.count("<tr>") == ROWS_MAX + 1
    assert len(rows) < 10_000
    assert len(fields_html("t", (("n", "x" * 1000) for _ in range(10**6)))) < 20_000
    assert is_safe(rows_html((EVIL,), [("\ud800" + EVIL,)], 1))


EVENTS = [
    JobStarted("j", "map", 1, 2, 100),
    JobWarning("j", "odd", EVIL),
    Progress("j", "extract", 1, 2, 10, 50, 100, 0.1),
    PhaseDone("j", "extract", 0.2, 2, 20, 100),
]


@pytest.fixture
def notebook() -> Iterator[Any]:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell.instance()
    with capture_output() as captured:
        yield captured
    shell.clear_instance()


def test_a_notebook_has_bars_without_widgets(notebook: Any) -> None:
    with show_progress() as shown:
        assert isinstance(shown, NotebookProgress)
        for event in EVENTS:
            shown(event)
    drawn = [output.data["text/html"] for output in notebook.outputs]
    assert len(drawn) >= 2
    assert '<progress max="1" value="1.000">' in drawn[-1]
    assert all(is_safe(html) for html in drawn)


def test_a_terminal_has_bars_and_a_log_has_none() -> None:
    stream = io.StringIO()
    with TerminalProgress(stream) as shown:
        for event in EVENTS:
            shown(event)
    assert "extract" in stream.getvalue()
    assert EVIL in stream.getvalue()
    with show_progress(io.StringIO()) as silent:
        assert type(silent).__name__ == "ProgressDisplay"


def test_jobs_run_where_an_event_loop_does(root: Path, notebook: Any) -> None:
    async def cell() -> dsort.JobReport:
        return dsort.read("in").write("out/x-%d", records=20).run()

    report = asyncio.run(cell())
    assert report.records == 60
    assert "commit" in notebook.outputs[-1].data["text/html"]
