"""``show`` and ``verify``: what a job left behind, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsort.options import RunOptions
from tests.support.commands import SPEC, CommandLine, answering
from tests.support.internals import VerifyProblem, VerifyReport

pytestmark = pytest.mark.usefixtures("workers_here")


@pytest.fixture
def shards(cli: CommandLine) -> None:
    assert cli("gen-shards", "images/s-{0..2}.tar", "--fcount", 6).code == 0


@pytest.mark.usefixtures("shards")
def test_show_finds_a_job_by_id_path_or_bucket(cli: CommandLine, tmp_path: Path) -> None:
    report = json.loads(cli("start", "-f", json.dumps(SPEC), "--json").out)
    job_id = report["job_id"]
    shown = cli("show", job_id)
    assert shown.code == 0
    assert shown.out.startswith(f"job        {job_id} finished ")
    assert "shuffled-04.tar" in shown.out
    manifest = tmp_path / "shuffled" / report["manifest_name"]
    for way in (job_id[:-2], manifest, manifest.parent, "shuffled"):
        assert cli("show", way).out == shown.out
    assert cli("show", job_id, "--bucket", "shuffled").out == shown.out
    assert json.loads(cli("show", job_id, "--json").out) == json.loads(manifest.read_text())


@pytest.mark.usefixtures("shards")
def test_show_says_which_jobs_there_are(cli: CommandLine) -> None:
    nothing = cli("show", "no-such-job")
    assert nothing.code == 3
    assert "--bucket" in nothing.err
    ids = [
        json.loads(cli("start", "images", f"out{n}", "-f", json.dumps(SPEC), "--json").out)[
            "job_id"
        ]
        for n in range(2)
    ]
    missing = cli("show", "no-such-job")
    several = cli("show", "2")
    assert (missing.code, several.code) == (3, 3)
    for job_id in ids:
        assert job_id in missing.err
        assert job_id in several.err


@pytest.mark.usefixtures("shards")
def test_show_tells_why_a_job_was_aborted(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "images" / "s-1.tar").write_bytes(b"this is no tar" * 1000)
    assert cli("start", "-f", json.dumps(SPEC)).code == 3
    shown = cli("show", "shuffled")
    assert shown.code == 0
    assert " aborted" in shown.out
    assert "s-1.tar" in shown.out


@pytest.mark.usefixtures("shards")
def test_verbs_that_need_a_result_refuse_a_job_without_one(
    cli: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "images" / "s-1.tar").write_bytes(b"this is no tar" * 1000)
    assert cli("start", "-f", json.dumps(SPEC)).code == 3
    (tmp_path / "keys").write_text("1")
    for words in (
        ["verify", "shuffled"],
        ["where", "shuffled", "1"],
        ["view", "export", "shuffled", "--jsonl"],
        ["materialize", "shuffled", "more"],
        ["append", "shuffled", "images"],
        ["remove", "shuffled", "--keys", tmp_path / "keys"],
    ):
        refused = cli(*words)
        assert refused.code == 3, words
        assert "dsort show" in refused.err


@pytest.mark.usefixtures("shards")
def test_verify_of_a_bucket_takes_the_newest_job_that_finished(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = cli("start", "-f", json.dumps(SPEC), "--json")
    finished = json.loads(started.out)["job_id"]
    for later, left in (("29990101-000000-000000", "report.json"), ("29990102-0", "lease.json")):
        path = tmp_path / "shuffled" / ".dsort" / later / left
        path.parent.mkdir()
        path.write_text(json.dumps({"job_id": later, "state": "aborted"}))
    calls = answering(monkeypatch, "verify", VERIFIED)
    for bucket in ("shuffled", f"file://{tmp_path}/shuffled"):
        assert cli("verify", bucket).code == 0
    assert [json.loads(arguments[0])["job_id"] for arguments, _ in calls] == [finished] * 2
    assert cli("verify", "29990101", "--bucket", "shuffled").code == 3


def test_show_of_something_else_says_so(cli: CommandLine, tmp_path: Path) -> None:
    for text in ("not json", "[1, 2]", '{"job_id": "x"}'):
        (tmp_path / "manifest.json").write_text(text)
        ended = cli("show", "manifest.json")
        assert ended.code == 3
        assert "manifest.json" in ended.err


VERIFIED = VerifyReport(
    job_id="job-1",
    output_uri="file:///data/out",
    input_shards=3,
    output_shards=4,
    records=10,
    members=20,
    bytes_read=1 << 20,
    elapsed_s=1.5,
    problem_count=0,
    problems=(),
    warnings=(),
)


@pytest.mark.usefixtures("shards")
def test_verify_hands_over_the_manifest_and_where_it_lies(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cli("start", "-f", json.dumps(SPEC)).code == 0
    calls = answering(monkeypatch, "verify", VERIFIED)
    ended = cli("verify", "shuffled")
    assert ended.code == 0
    assert ended.out.startswith("job      job-1: correct")
    (manifest,), named = calls[0]
    assert json.loads(manifest)["job_id"]
    assert named["output_uri"] == (tmp_path / "shuffled").as_uri()
    assert named["options"] == RunOptions(root=Path())
    moved = tmp_path / "moved.json"
    moved.write_bytes(manifest)
    assert cli("verify", moved, "--max-expansion", "7").code == 0
    assert calls[1][1]["output_uri"] is None
    assert [named["max_expansion"] for _, named in calls] == [None, 7]


@pytest.mark.usefixtures("shards")
def test_verify_ends_with_the_inputs_code_if_anything_differs(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("start", "-f", json.dumps(SPEC)).code == 0
    problem = VerifyProblem("missing_record", "s-1.tar", "000003", "is in no output shard")
    fields = {name: getattr(VERIFIED, name) for name in VerifyReport.__slots__}
    bad = VerifyReport(**{**fields, "problem_count": 1200, "problems": (problem,)})
    answering(monkeypatch, "verify", bad)
    ended = cli("verify", "shuffled")
    assert ended.code == 3
    assert "missing_record" in ended.out
    assert "... and 1,199 more" in ended.out
    assert ended.err.splitlines()[-1] == "error: the result of job job-1 has 1,200 differences"
    as_json = json.loads(cli("verify", "shuffled", "--json").out)
    assert (as_json["ok"], as_json["problem_count"]) == (False, 1200)
