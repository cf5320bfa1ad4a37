"""``show``, ``resume``, ``stop`` and ``gc`` on jobs that run, or died."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from dsort.errors import JobConflictError
from dsort.options import RunOptions
from dsort.storage.directory.bucket import LocalBucket
from tests.support.commands import SPEC, CommandLine, answering
from tests.support.internals import (
    InputRow,
    InputsResolved,
    JobAccepted,
    JobReport,
    Journal,
    Lease,
    ManifestOutput,
    Order,
    Planned,
    PlannedRow,
    Run,
    ShardCreated,
    ShardExtracted,
    Totals,
    attempt_name,
    manifest_name,
    segment_name,
    stop_name,
)
from tests.support.machines import FakeMachine
from tests.support.manifests import manifest_bytes

JOB = "20260131-235959-4f2a9c"
REPORT = JobReport(
    job_id=JOB,
    state="finished",
    output_uri="file:///data/out",
    totals=Totals(2, 3, 6, 6, 10, 10),
    run=Run("map", 2),
    order=Order("7"),
)


@pytest.fixture
def out(tmp_path: Path) -> LocalBucket:
    bucket = LocalBucket(tmp_path / "out")
    bucket.create()
    return bucket


def leave_job(bucket: LocalBucket, *, ago_s: float) -> Lease:
    """A job of another node that created one of three shards, and was last heard of so long ago."""
    machine = FakeMachine("node-9", "boot-9")
    machine.time_s = time.time() - ago_s
    lease = Lease.take(bucket, JOB, attempt=1, machine=machine)
    journal = Journal(bucket, JOB, 1)
    for event in (
        JobAccepted(JOB, "0.1.0", SPEC, "2026-01-31T23:59:59+00:00"),
        InputsResolved((InputRow("a.tar", 1 << 20, 1, "x"), InputRow("b.tar", 1 << 20, 1, "y"))),
        ShardExtracted(0, 0, "h", 3, 3, 5, 5),
        ShardExtracted(1, 1, "h", 3, 3, 5, 5),
        Planned("d", tuple(PlannedRow(f"s-{n}.tar", 2, 2, 3, 3) for n in range(3))),
        ShardCreated(1, "00ff", "", "", -1),
    ):
        journal.append(event)
    journal.flush()
    inside = bucket.local_path(stop_name(JOB))
    assert inside is not None
    # A lease is as old as its newest file is, by the clock of the store.
    for path in (inside.parent, *inside.parent.rglob("*")):
        os.utime(path, (machine.time_s, machine.time_s))
    return lease


def test_show_tells_of_a_running_job(cli: CommandLine, out: LocalBucket) -> None:
    leave_job(out, ago_s=1)
    shown = cli("show", JOB)
    assert shown.code == 0
    assert "running on node-9, process 100 (attempt 1)" in shown.out
    assert "2026-01-31T23:59:59+00:00" in shown.out
    assert "2 of 2 shards" in shown.out
    assert "1 of 3 shards" in shown.out
    assert f"dsort stop {JOB}" in shown.out
    document = json.loads(cli("show", JOB, "--bucket", "out", "--json").out)
    assert (document["state"], document["host"], document["pid"], document["attempt"]) == (
        "running",
        "node-9",
        100,
        1,
    )
    assert (
        document["extracted_shards"],
        document["created_shards"],
        document["output_shards"],
    ) == (2, 1, 3)


def test_show_tells_of_a_dead_job_and_what_to_do(
    cli: CommandLine, out: LocalBucket, tmp_path: Path
) -> None:
    leave_job(out, ago_s=7200)
    for way in (JOB, JOB[:10], "out", tmp_path / "out" / ".dsort" / JOB):
        shown = cli("show", way)
        assert shown.code == 0
        assert "dead: it does not renew its lease" in shown.out
        assert f"dsort resume {JOB}" in shown.out
        assert "2 h 00 min ago" in shown.out
    assert json.loads(cli("show", JOB, "--json").out)["resumable"]
    (listed,) = json.loads(cli("show", "--json").out)
    assert (listed["job_id"], listed["state"]) == (JOB, "dead")
    assert cli("verify", JOB).code == 3


def test_show_tells_of_a_job_that_cannot_be_resumed(cli: CommandLine, out: LocalBucket) -> None:
    leave_job(out, ago_s=7200)
    out.write(f".dsort/{JOB}/journal/0001-000002.json", b"{")
    shown = cli("show", JOB)
    assert shown.code == 0
    assert "segment 1 of attempt 1 is missing" in shown.out
    assert "cannot be resumed" in shown.out


def test_a_job_of_another_journal_format_is_not_resumed(cli: CommandLine, out: LocalBucket) -> None:
    leave_job(out, ago_s=7200)
    name = segment_name(JOB, 1, 0)
    segment = json.loads(out.read(name))
    version = segment["journal"] - 1
    out.write(name, json.dumps({**segment, "journal": version}).encode())
    refused = cli("resume", JOB)
    assert refused.code == JobConflictError.exit_code
    assert f"format {version}, " in refused.err
    assert f" {version + 1}" in refused.err
    assert f"format {version}" in cli("show", JOB).out
    assert json.loads(out.read(name))["journal"] == version


def test_resume_hands_the_job_to_the_library(
    cli: CommandLine, out: LocalBucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    leave_job(out, ago_s=7200)
    calls = answering(monkeypatch, "resume", REPORT)
    ended = cli("resume", JOB[:12], "--workers", 3, "--max-memory", "1GB", "--progress", "none")
    assert ended.code == 0, ended.err
    assert f"{JOB} finished" in ended.out
    ((job_id, bucket), named) = calls[0]
    assert (job_id, bucket) == (JOB, out.uri)
    run: RunOptions = named["options"]
    assert (run.workers, run.move, run.overwrite) == (3, "auto", None)
    assert cli("resume", JOB, "--bucket", "out", "--json").code == 0
    assert calls[1][0] == (JOB, "out")


def test_resume_and_stop_of_a_finished_job_say_so(cli: CommandLine, out: LocalBucket) -> None:
    manifest = manifest_bytes(
        job_id=JOB,
        spec={**SPEC, "algorithm": {"kind": "shuffle", "seed": "7", "decreasing": False}},
        inputs=[],
        outputs=[ManifestOutput("shuffled-00.tar", 4, 4, 10, 10240, "00ff")],
    )
    out.write(manifest_name(JOB), manifest)
    resumed = cli("resume", JOB)
    assert resumed.code == 0
    assert "shuffled-00.tar" in resumed.out
    assert json.loads(cli("resume", "out", "--json").out) == json.loads(manifest)
    assert cli("stop", JOB).code == 0


def test_stop_of_a_job_without_a_coordinator_is_an_error(
    cli: CommandLine, out: LocalBucket
) -> None:
    leave_job(out, ago_s=7200)
    ended = cli("stop", JOB)
    assert ended.code == 2
    assert JOB in ended.err


def test_stop_asks_the_job_to_stop(
    cli: CommandLine, out: LocalBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = leave_job(out, ago_s=1)
    asked: list[bool] = []

    def pause(self: object, pause_s: float) -> None:
        asked.append(bool(out.read(stop_name(JOB))))
        lease.release()

    monkeypatch.setattr("dsort.runtime.machine.Machine.pause", pause)
    ended = cli("stop", JOB)
    assert (ended.code, ended.out) == (0, f"job {JOB} has stopped\n")
    assert asked == [True]


def test_gc_lists_and_only_then_removes(cli: CommandLine, out: LocalBucket, tmp_path: Path) -> None:
    leave_job(out, ago_s=30 * 3600)
    scratch = tmp_path / "tmp"
    (scratch / f"dsort-{JOB}").mkdir(parents=True)
    owner = {"job_id": JOB, "output_uri": out.uri, "created": ""}
    (scratch / f"dsort-{JOB}" / "owner.json").write_text(json.dumps(owner))
    listed = cli("gc", "out", "--scratch", scratch)
    assert listed.code == 0
    assert f"dsort resume {JOB}" in listed.out
    assert "30 h 00 min" in listed.out
    assert "--remove" in listed.err
    assert (tmp_path / "out" / attempt_name(JOB, 1)).exists()
    young = cli("gc", "out", "--older-than", "7d", "--remove", "--scratch", scratch)
    assert (young.code, young.out) == (0, "")
    removed = cli("gc", "out", "--remove", "--json", "--older-than", "0s", "--scratch", scratch)
    assert removed.code == 0
    garbage = json.loads(removed.out)["garbage"]
    assert [(each["kind"], each["resumable"], each["removed"]) for each in garbage] == [
        ("job", True, True),
        ("scratch", False, True),
    ]
    assert list(scratch.iterdir()) == []
    assert list(out.list(".dsort/")) == []


def test_gc_leaves_a_running_job_alone(cli: CommandLine, out: LocalBucket, tmp_path: Path) -> None:
    leave_job(out, ago_s=1)
    before = [found.name for found in out.list(".dsort/")]
    ended = cli("gc", "out", "--older-than", "0s", "--remove", "--scratch", tmp_path / "none")
    assert (ended.code, ended.out) == (0, "")
    assert [found.name for found in out.list(".dsort/")] == before


@pytest.mark.parametrize("age", ["", "soon", "-1h", "12", "1y"])
def test_gc_refuses_what_is_no_age(cli: CommandLine, out: LocalBucket, age: str) -> None:
    ended = cli("gc", "out", "--older-than", age)
    assert ended.code == 2
    assert "--older-than" in ended.err
