"""Resuming a job after any change meanwhile: what was staged and never recorded, a node
that is gone, a coordinator that only seemed to be dead, inputs that changed, a job that was
aborted."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsort import api
from dsort.errors import ChangedInputError, JobConflictError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from dsort.storage.directory.bucket import LocalBucket
from tests.support.coordinators import Coordinators
from tests.support.datasets import tree_of
from tests.support.fault_points import PointFault, arm
from tests.support.internals import (
    NODE_FILE,
    Scratch,
    decode_lease,
    encode_lease,
    journal_prefix,
    lease_name,
    read_created_logs,
)
from tests.support.refusals import raises
from tests.support.surviving import (
    CASES,
    assert_whole,
    facts_of,
    job_in,
    known_of,
    only_a_report,
    prepare,
    resume_here,
    start_arguments,
    undisturbed,
)


def die(
    begun: Coordinators, root: Path, case: str, fault: PointFault, *, flush_s: float = 0.0
) -> None:
    prepare(root, CASES[case])
    begun.killed(root, *start_arguments(CASES[case]), by=fault, flush_s=flush_s)


NEVER = 1e9

UNRECORDED = [
    PointFault("extract:end", 4, "kill parent"),
    PointFault("create:end", 4, "kill parent"),
    PointFault("journal:append", 6, about="ShardCreated"),
    PointFault("create:finish", 3, "kill parent"),
]


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(
    ("fault", "case"),
    list(zip(UNRECORDED, ["spilled", "spilled", "renamed", "renamed"], strict=True)),
    ids=lambda each: each if isinstance(each, str) else each.point,
)
def test_what_was_done_and_not_recorded_is_done_again(
    fault: PointFault,
    case: str,
    begun: Coordinators,
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    die(begun, tmp_path, case, fault, flush_s=NEVER)
    staged = {path.name for path in tmp_path.glob("out/.dsort/*/staged/[0-9]*")}
    known = known_of(tmp_path / "out")
    assert {str(ordinal) for ordinal in known.created} < staged or not known.extracted
    resumed = resume_here(tmp_path, monkeypatch)
    assert resumed.error is None
    assert_whole(tmp_path / "out", undisturbed(case, base))


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("point", ["create:finish", "create:end"])
def test_compressed_shards_have_the_same_bytes_and_sizes_after_a_death(
    point: str, begun: Coordinators, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(begun, tmp_path, "compressed", PointFault(point, 3, "kill parent"), flush_s=NEVER)
    resumed = resume_here(tmp_path, monkeypatch)
    assert resumed.error is None
    assert_whole(tmp_path / "out", undisturbed("compressed", base))


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("nth", [3, 5])
def test_a_shard_that_was_staged_in_an_unfinished_task_is_not_written_again(
    nth: int, begun: Coordinators, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(begun, tmp_path, "spilled", PointFault("create:finish", nth, "kill parent"), flush_s=NEVER)
    (scratch,) = tmp_path.glob("out/.dsort/*/scratch")
    recorded = {shard.ordinal for shard in read_created_logs(Scratch(scratch))}
    assert recorded
    resumed = resume_here(tmp_path, monkeypatch)
    assert resumed.error is None
    assert resumed.created & recorded == set()
    assert_whole(tmp_path / "out", undisturbed("spilled", base))


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("case", ["shuffle", "spilled", "renamed"])
def test_a_journal_that_lost_its_end(
    case: str, begun: Coordinators, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(begun, tmp_path, case, PointFault("commit:start"))
    journal = sorted((tmp_path / "out" / journal_prefix(job_in(tmp_path / "out"))).glob("0001-*"))
    for segment in journal[-4:]:
        segment.unlink()
    recorded = set(known_of(tmp_path / "out").created)
    resumed = resume_here(tmp_path, monkeypatch)
    assert resumed.error is None
    assert resumed.created & recorded == set()
    assert_whole(tmp_path / "out", undisturbed(case, base))


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("case", ["shuffle", "spilled", "key map"])
def test_staged_shards_that_are_gone_are_written_again(
    case: str, begun: Coordinators, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(begun, tmp_path, case, PointFault("commit:start"))
    (staged,) = tmp_path.glob("out/.dsort/*/staged")
    for ordinal in ("0", "3"):
        (staged / ordinal).unlink()
    resumed = resume_here(tmp_path, monkeypatch)
    assert resumed.error is None
    assert resumed.created == {0, 3}
    assert_whole(tmp_path / "out", undisturbed(case, base))


LOST = {
    "gone": shutil.rmtree,
    "of another boot": lambda scratch: (scratch / NODE_FILE).write_text(
        json.dumps({"node": "0123456789abcdef", "boot_id": "before"})
    ),
    "cut off with the power": lambda scratch: (scratch / NODE_FILE).write_bytes(b""),
    "half there": lambda scratch: [path.unlink() for path in scratch.glob("index-*[02].col")],
}


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize(
    ("how", "point", "nth", "case"),
    [
        ("half there", "extract:end", 3, "spilled"),
        ("gone", "order:end", 2, "renamed"),
        ("cut off with the power", "order:end", 1, "spilled"),
        ("gone", "create:end", 3, "spilled"),
        ("of another boot", "create:end", 3, "renamed"),
        ("half there", "create:finish", 3, "verified"),
        ("of another boot", "seal:start", 1, "shuffle"),
    ],
)
def test_a_node_that_is_lost_with_its_scratch(
    how: str,
    point: str,
    nth: int,
    case: str,
    begun: Coordinators,
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    die(begun, tmp_path, case, PointFault(point, nth, "kill parent"))
    (scratch,) = tmp_path.glob("out/.dsort/*/scratch")
    LOST[how](scratch)
    recorded = set(known_of(tmp_path / "out").created)
    resumed = resume_here(tmp_path, monkeypatch)
    assert resumed.error is None
    assert resumed.created & recorded == set()
    assert_whole(tmp_path / "out", undisturbed(case, base))


def test_dying_again_and_again(
    begun: Coordinators, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(begun, tmp_path, "renamed", PointFault("extract:end", 6, "kill parent"))
    again = [
        PointFault("order:end", 2, "kill parent"),
        PointFault("journal:append", 3, about="ShardCreated"),
        PointFault("create:write", 4, "kill parent"),
        PointFault("publish:end", 2),
        PointFault("publish:end", 5),
        PointFault("make_durable", 1),
    ]
    for fault in again:
        arguments = ["resume", job_in(tmp_path / "out"), "--bucket", "out", "--workers", "2"]
        begun.killed(tmp_path, *arguments, by=fault)
    resumed = resume_here(tmp_path, monkeypatch)
    assert resumed.error is None
    assert resumed.tasks == []
    assert_whole(tmp_path / "out", undisturbed("renamed", base))


def test_fewer_workers_and_another_scratch(
    begun: Coordinators, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(begun, tmp_path, "spilled", PointFault("create:end", 3, "kill parent"))
    resumed = resume_here(tmp_path, monkeypatch, workers=1, scratch=tmp_path / "other")
    assert resumed.error is None
    assert list((tmp_path / "other").iterdir()) == []
    assert_whole(tmp_path / "out", undisturbed("spilled", base))


STOPPED = [
    ("create:end", 2, "spilled"),
    ("extract:end", 2, "shuffle"),
    ("seal:start", 1, "verified"),
]


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(("point", "nth", "case"), STOPPED)
def test_a_coordinator_that_was_only_suspended_loses_its_job(
    point: str,
    nth: int,
    case: str,
    begun: Coordinators,
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare(tmp_path, CASES[case])
    points = arm(tmp_path / "points", PointFault(point, nth, "stop parent"))
    first = begun.start(tmp_path, *start_arguments(CASES[case]), points=points)
    first.await_stop()
    refused = resume_here(tmp_path, monkeypatch).error
    assert isinstance(refused, JobConflictError)
    assert "is being run by" in refused.message
    let_lapse(tmp_path / "out")
    resumed = resume_here(tmp_path, monkeypatch)
    assert resumed.error is None
    assert_results(tmp_path / "out", undisturbed(case, base))
    os.kill(first.pid, signal.SIGCONT)
    ended = first.wait()
    assert ended.code == JobConflictError.exit_code, ended.err
    assert "is no longer run from here" in ended.err
    assert_whole(tmp_path / "out", undisturbed(case, base))


def let_lapse(bucket: Path) -> None:
    """The lease was last renewed long ago, as if the machine had slept."""
    name = lease_name(job_in(bucket))
    held = LocalBucket(bucket)
    record = decode_lease(held.read(name))
    held.write(name, encode_lease(replace(record, renewed_at_s=record.renewed_at_s - 1000)))
    for path in (bucket / name, *(bucket / name).parent.glob("attempts/*")):
        os.utime(path, (record.renewed_at_s - 1000,) * 2)


def assert_results(bucket: Path, expected: object) -> None:
    assert facts_of(bucket) == expected


def test_two_resumes_cannot_both_have_the_job(
    begun: Coordinators, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(begun, tmp_path, "spilled", PointFault("create:end", 2, "kill parent"))
    job = job_in(tmp_path / "out")
    points = arm(tmp_path / "points-2", PointFault("create:end", 2, "stop parent"))
    arguments = ["resume", job, "--bucket", "out", "--workers", "2", "--progress", "none"]
    second = begun.start(tmp_path, *arguments, points=points)
    second.await_stop()
    third = begun.run(tmp_path, *arguments)
    assert third.code == JobConflictError.exit_code
    assert f"process {second.pid} (attempt 2)" in third.err
    os.kill(second.pid, signal.SIGCONT)
    ended = second.wait()
    assert ended.code == 0, ended.err
    assert_whole(tmp_path / "out", undisturbed("spilled", base))


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("case", ["spilled", "shuffle"])
def test_a_job_is_stopped_from_elsewhere_and_can_be_begun_again(
    case: str, begun: Coordinators, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path, CASES[case])
    points = arm(tmp_path / "points", PointFault("create:end", 2, "stop parent"))
    first = begun.start(tmp_path, *start_arguments(CASES[case]), points=points)
    first.await_stop()
    asked = arm(tmp_path / "asked", PointFault("lease:pause", 1, "stop"))
    arguments = ["stop", job_in(tmp_path / "out"), "--bucket", "out"]
    stop = begun.start(tmp_path, *arguments, points=asked)
    stop.await_stop()
    for each in (first, stop):
        os.kill(each.pid, signal.SIGCONT)
    first_ended, stop_ended = first.wait(), stop.wait()
    assert (first_ended.code, stop_ended.code) == (143, 0), first_ended.err
    assert "stopped by `dsort stop`" in first_ended.err
    assert "has stopped" in stop_ended.out
    only_a_report(tmp_path / "out")
    resumed = resume_here(tmp_path, monkeypatch)
    assert resumed.error is None
    assert_whole(tmp_path / "out", undisturbed(case, base))


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(
    ("fault", "case"),
    [
        (PointFault("extract:end", 2, "raise"), "spilled"),
        (PointFault("create:write", 3, "raise"), "renamed"),
        (PointFault("seal:end", 1, "raise"), "key map"),
    ],
)
def test_an_aborted_job_is_begun_again_by_its_report(
    fault: PointFault,
    case: str,
    begun: Coordinators,
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare(tmp_path, CASES[case])
    points = arm(tmp_path / "points", fault)
    ended = begun.run(tmp_path, *start_arguments(CASES[case]), points=points)
    assert ended.code == 1, ended.err
    only_a_report(tmp_path / "out")
    # The next one dies as well, when there is only its own journal beside the report.
    arguments = ["resume", job_in(tmp_path / "out"), "--bucket", "out", "--workers", "2"]
    begun.killed(tmp_path, *arguments, by=PointFault("create:end", 1, "kill parent"))
    recorded = set(known_of(tmp_path / "out").created)
    resumed = resume_here(tmp_path, monkeypatch)
    assert resumed.error is None
    assert resumed.created & recorded == set()
    assert_whole(tmp_path / "out", undisturbed(case, base))


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize(
    "fault",
    [
        PointFault("extract:end", 2, "kill parent"),
        PointFault("create:end", 2, "kill parent"),
        PointFault("publish:end", 2),
    ],
    ids=lambda fault: fault.point,
)
def test_inputs_that_changed_since_are_named_and_nothing_is_left(
    fault: PointFault, begun: Coordinators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(begun, tmp_path, "shuffle", fault)
    path = tmp_path / "in" / "in-1.tar"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    resumed = resume_here(tmp_path, monkeypatch)
    assert isinstance(resumed.error, ChangedInputError)
    assert "in-1.tar changed" in resumed.error.message
    only_a_report(tmp_path / "out")


def test_a_key_map_that_changed_since_is_named(
    begun: Coordinators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["key map"]
    (tmp_path / "map.txt").write_text("^0000\tlow-%02d\n^0001\thigh-%02d\n")
    fields = {**case.fields, "ekm": None, "ekm_file": str(tmp_path / "map.txt")}
    named = dataclasses.replace(case, fields=fields)
    prepare(tmp_path, named)
    begun.killed(tmp_path, *start_arguments(named), by=PointFault("create:end", 2, "kill parent"))
    (tmp_path / "map.txt").write_text("^0001\tlow-%02d\n^0000\thigh-%02d\n")
    resumed = resume_here(tmp_path, monkeypatch)
    assert isinstance(resumed.error, ChangedInputError)
    assert "map.txt" in resumed.error.message
    only_a_report(tmp_path / "out")


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_dying_before_the_journal_says_enough_is_reported(
    nth: int, begun: Coordinators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first three things that are stored: the claim, the lease, and the accepted spec."""
    die(begun, tmp_path, "shuffle", PointFault("file:sync", nth, about=".dsort"))
    resumed = resume_here(tmp_path, monkeypatch)
    assert isinstance(resumed.error, JobConflictError)
    assert "start it again" in resumed.error.hint
    begun.done(tmp_path, "gc", "out", "--remove", "--older-than", "0s")
    assert tree_of(tmp_path / "out") == {}


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(
    "fault", [PointFault("make_durable", 2), PointFault("discard", 3)], ids=str
)
def test_dying_after_the_commit_is_a_finished_job(
    fault: PointFault, begun: Coordinators, base: Path, tmp_path: Path
) -> None:
    die(begun, tmp_path, "spilled", fault)
    ended = begun.run(tmp_path, "resume", job_in(tmp_path / "out"), "--bucket", "out")
    assert (ended.code, "has finished already" in ended.err) == (0, True)
    assert_whole(tmp_path / "out", undisturbed("spilled", base))


def test_files_of_another_spec_are_not_resumed(begun: Coordinators, tmp_path: Path) -> None:
    die(begun, tmp_path, "spilled", PointFault("create:end", 4, "kill parent"))
    (job,) = (tmp_path / "out" / ".dsort").iterdir()
    accepted = known_of(tmp_path / "out").accepted
    assert accepted is not None
    own = parse_spec(dict(accepted.spec)).spec
    before = tree_of(tmp_path / "out")
    other = own.model_copy(update={"description": "another user's"})
    with raises(JobConflictError, job.name):
        api.resume(job.name, "out", options=RunOptions(root=tmp_path), expected=other)
    assert tree_of(tmp_path / "out") == before
