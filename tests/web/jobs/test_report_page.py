"""A job says whether its shuffle is one: in its report, its manifest, its plan and its page; and so
does a job that another attempt has finished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from dsort.errors import CorruptShardError
from tests.support.commands import SPEC, CommandLine
from tests.support.datasets import files_of, write_shards
from tests.support.engine import keys_in, plan_local, run_local, shard_of, spec_of
from tests.support.refusals import raises

pytestmark = pytest.mark.usefixtures("workers_here")

SHARDS, RECORDS, A_SHARD = 6, 40, 30
SHUFFLE = {"kind": "shuffle", "seed": 9}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root whose bucket ``in`` has shards of which every record says where it is from."""
    write_shards(
        tmp_path / "in",
        {
            f"s-{shard}.tar": shard_of(*(f"{shard}-{record:03}" for record in range(RECORDS)))
            for shard in range(SHARDS)
        },
    )
    return tmp_path


def manifest_in(root: Path) -> dict[str, Any]:
    (path,) = (root / "out" / ".dsort").glob("*/manifest.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def counted(root: Path) -> list[list[int]]:
    """How many records of each input shard are in each output shard, by their names."""
    found = files_of(root / "out")
    table = [[0] * len(found) for _ in range(SHARDS)]
    for output, name in enumerate(sorted(found, key=lambda n: (len(n), n))):
        for key in keys_in(found[name]):
            table[int(key[0])][output] += 1
    return table


@pytest.mark.parametrize(
    ("kind", "move"),
    [("shuffle", "map"), ("shuffle", "spill"), ("none", "map"), ("alphanumeric", "spill")],
)
def test_a_job_knows_where_its_records_went(root: Path, move: str, kind: str) -> None:
    spec = spec_of(algorithm={**SHUFFLE, "kind": kind}, output_shard_records=A_SHARD)
    if kind != "shuffle":
        del spec["algorithm"]["seed"]
    plan = plan_local(root, spec, move=move)
    report = run_local(root, spec, move=move, workers=2)
    mixing = report.order.mixing
    assert mixing is not None
    assert [list(row) for row in mixing.counts] == counted(root)
    assert mixing.verdict == ("even" if kind == "shuffle" else "uneven")
    assert plan.order.mixing == mixing
    stored = manifest_in(root)
    assert stored["mixing"] == json.loads(json.dumps(asdict(mixing)))
    assert stored["manifest"] == 1
    phases = [row[1] for row in stored["timeline"]]
    assert list(dict.fromkeys(phases)) == ["resolve", "extract", "plan", "create", "commit"]
    assert [each.phase for each in report.run.timeline][: len(phases)] == phases
    json.dumps(report.to_dict())


def test_with_a_key_map_each_shard_is_counted_in_the_order_of_the_result(root: Path) -> None:
    templates = {
        "a-%d": ["0-000.jpg", "1-000.jpg"],
        "b-%d": ["0-001.jpg", "0-002.jpg", "2-001.jpg"],
    }
    spec = spec_of(
        algorithm={"kind": "none"},
        output_format=None,
        ekm=templates,
        output_shard_records=2,
        config={"ekm_missing_key": "ignore"},
    )
    report = run_local(root, spec)
    assert report.order.mixing is not None
    names = [each["name"] for each in manifest_in(root)["outputs"]]
    assert names == ["a-0.tar", "b-0.tar", "b-1.tar"]
    columns = [list(column) for column in zip(*report.order.mixing.counts, strict=True)]
    assert columns == [[1, 1, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]]


def test_an_aborted_job_tells_how_far_it_came(root: Path) -> None:
    (root / "in" / "s-3.tar").write_bytes(b"this is no tar" * 1000)
    with raises(CorruptShardError, shard="s-3.tar", offset=0):
        run_local(root, spec_of(algorithm=SHUFFLE))
    (path,) = (root / "out" / ".dsort").glob("*/report.json")
    document = json.loads(path.read_text())
    assert document["mixing"] is None
    assert "extract" in {row[1] for row in document["timeline"]}


# --- dsort show --html


@pytest.fixture
def job(cli: CommandLine) -> str:
    """The id of a job that finished."""
    assert cli("gen-shards", "images/s-{0..2}.tar", "--fcount", 60).code == 0
    spec = {**SPEC, "output_shard_records": 45}
    report = json.loads(cli("start", "-f", json.dumps(spec), "--json").out)
    assert report["mixing"]["verdict"] == "even"
    return str(report["job_id"])


def test_report_writes_one_file_and_does_not_replace_another(
    cli: CommandLine, job: str, tmp_path: Path
) -> None:
    ended = cli("show", job, "--html", "page.html")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == "wrote page.html\n"
    text = (tmp_path / "page.html").read_text()
    assert text.startswith("<!doctype html>")
    assert f"<title>Job {job}</title>" in text
    assert "shuffled-03.tar" in text
    (tmp_path / "page.html").write_text("mine")
    refused = cli("show", job, "--html", "page.html")
    assert refused.code == 4
    assert "--overwrite" in refused.err
    assert (tmp_path / "page.html").read_text() == "mine"
    assert cli("show", job, "--html", "page.html", "--overwrite").code == 0
    assert (tmp_path / "page.html").read_text() == text
    assert cli("show", job, "--html", "-").out == text.rstrip("\n") + "\n"
    assert cli("show", "shuffled", "--html", "other.html").code == 0
    assert (tmp_path / "other.html").read_text() == text


def test_report_gives_the_document_alone_and_show_the_verdict(cli: CommandLine, job: str) -> None:
    page = json.loads(cli("show", job, "--html", "-", "--json").out)
    assert (page["job"]["job_id"], page["shards"]["total"]) == (job, 4)
    assert page["mixing"]["before"][0] == [45, 15, 0, 0]
    lines = [line for line in cli("show", job).out.splitlines() if line.startswith("mixing ")]
    assert len(lines) == 1
    assert lines[0].startswith("mixing     even (p = ")
    assert len(lines[0]) <= 80


def test_report_of_a_job_that_failed_shows_why(cli: CommandLine, tmp_path: Path) -> None:
    assert cli("gen-shards", "images/s-{0..2}.tar").code == 0
    (tmp_path / "images" / "s-1.tar").write_bytes(b"this is no tar" * 1000)
    assert cli("start", "-f", json.dumps(SPEC)).code == 3
    page = json.loads(cli("show", "shuffled", "--html", "-", "--json").out)
    assert page["job"]["state"] == "failed"
    assert "s-1.tar" in page["job"]["error"]["detail"]
    assert cli("show", "shuffled", "--html", "-").code == 0


def test_report_of_what_is_no_job_says_so(cli: CommandLine, tmp_path: Path) -> None:
    for text in ("not json", "[1, 2]", '{"job_id": "x"}'):
        (tmp_path / "manifest.json").write_text(text)
        ended = cli("show", "manifest.json", "--html", "-")
        assert ended.code == 3
        assert "manifest.json" in ended.err
        assert ended.out == ""
    missing = cli("show", "no-such-job", "--html", "-")
    assert (missing.code, missing.out) == (3, "")
    (tmp_path / "out" / ".dsort" / "20260101-000000-aaaaaa").mkdir(parents=True)
    running = cli("show", tmp_path / "out" / ".dsort" / "20260101-000000-aaaaaa", "--html", "-")
    assert running.code == 3
    assert "dsort show" in running.err
