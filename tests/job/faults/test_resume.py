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
    Trial,
    facts_of,
    job_in,
    only_a_report,
    prepare,
    start_arguments,
    undisturbed,
)

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
    fault: PointFault, case: str, trial: Trial
) -> None:
    trial.die(case, fault, flush_s=NEVER)
    staged = {path.name for path in trial.root.glob("out/.dsort/*/staged/[0-9]*")}
    known = trial.known
    assert {str(ordinal) for ordinal in known.created} < staged or not known.extracted
    trial.resume()
    trial.is_whole()


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("point", ["create:finish", "create:end"])
def test_compressed_shards_have_the_same_bytes_and_sizes_after_a_death(
    point: str, trial: Trial
) -> None:
    trial.die("compressed", PointFault(point, 3, "kill parent"), flush_s=NEVER)
    trial.resume()
    trial.is_whole()


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("nth", [3, 5])
def test_a_shard_that_was_staged_in_an_unfinished_task_is_not_written_again(
    nth: int, trial: Trial
) -> None:
    trial.die("spilled", PointFault("create:finish", nth, "kill parent"), flush_s=NEVER)
    (scratch,) = trial.root.glob("out/.dsort/*/scratch")
    recorded = {shard.ordinal for shard in read_created_logs(Scratch(scratch))}
    assert recorded
    resumed = trial.resume()
    assert resumed.created & recorded == set()
    trial.is_whole()


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("case", ["shuffle", "spilled", "renamed"])
def test_a_journal_that_lost_its_end(case: str, trial: Trial) -> None:
    trial.die(case, PointFault("commit:start"))
    journal = sorted((trial.out / journal_prefix(job_in(trial.out))).glob("0001-*"))
    for segment in journal[-4:]:
        segment.unlink()
    recorded = set(trial.known.created)
    resumed = trial.resume()
    assert resumed.created & recorded == set()
    trial.is_whole()


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("case", ["shuffle", "spilled", "key map"])
def test_staged_shards_that_are_gone_are_written_again(case: str, trial: Trial) -> None:
    trial.die(case, PointFault("commit:start"))
    (staged,) = trial.root.glob("out/.dsort/*/staged")
    for ordinal in ("0", "3"):
        (staged / ordinal).unlink()
    resumed = trial.resume()
    assert resumed.created == {0, 3}
    trial.is_whole()


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
    how: str, point: str, nth: int, case: str, trial: Trial
) -> None:
    trial.die(case, PointFault(point, nth, "kill parent"))
    (scratch,) = trial.root.glob("out/.dsort/*/scratch")
    LOST[how](scratch)
    recorded = set(trial.known.created)
    resumed = trial.resume()
    assert resumed.created & recorded == set()
    trial.is_whole()


def test_dying_again_and_again(trial: Trial) -> None:
    trial.die("renamed", PointFault("extract:end", 6, "kill parent"))
    again = [
        PointFault("order:end", 2, "kill parent"),
        PointFault("journal:append", 3, about="ShardCreated"),
        PointFault("create:write", 4, "kill parent"),
        PointFault("publish:end", 2),
        PointFault("publish:end", 5),
        PointFault("make_durable", 1),
    ]
    for fault in again:
        arguments = ["resume", job_in(trial.out), "--bucket", "out", "--workers", "2"]
        trial.begun.killed(trial.root, *arguments, by=fault)
    resumed = trial.resume()
    assert resumed.tasks == []
    trial.is_whole()


def test_fewer_workers_and_another_scratch(trial: Trial) -> None:
    trial.die("spilled", PointFault("create:end", 3, "kill parent"))
    trial.resume(workers=1, scratch=trial.root / "other")
    assert list((trial.root / "other").iterdir()) == []
    trial.is_whole()


STOPPED = [
    ("create:end", 2, "spilled"),
    ("extract:end", 2, "shuffle"),
    ("seal:start", 1, "verified"),
]


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(("point", "nth", "case"), STOPPED)
def test_a_coordinator_that_was_only_suspended_loses_its_job(
    point: str, nth: int, case: str, trial: Trial
) -> None:
    first = trial.stand_still(case, PointFault(point, nth, "stop parent"))
    refused = trial.refused()
    assert isinstance(refused, JobConflictError)
    assert "is being run by" in refused.message
    let_lapse(trial.out)
    trial.resume()
    assert facts_of(trial.out) == undisturbed(case, trial.base)
    os.kill(first.pid, signal.SIGCONT)
    ended = first.wait()
    assert ended.code == JobConflictError.exit_code, ended.err
    assert "is no longer run from here" in ended.err
    trial.is_whole()


def let_lapse(bucket: Path) -> None:
    """The lease was last renewed long ago, as if the machine had slept."""
    name = lease_name(job_in(bucket))
    held = LocalBucket(bucket)
    record = decode_lease(held.read(name))
    held.write(name, encode_lease(replace(record, renewed_at_s=record.renewed_at_s - 1000)))
    # A lease is as old as its newest file is, by the clock of the store.
    for path in (bucket / name, *(bucket / name).parent.glob("attempts/*")):
        os.utime(path, (record.renewed_at_s - 1000,) * 2)


def test_two_resumes_cannot_both_have_the_job(trial: Trial) -> None:
    trial.die("spilled", PointFault("create:end", 2, "kill parent"))
    job = job_in(trial.out)
    points = arm(trial.root / "points-2", PointFault("create:end", 2, "stop parent"))
    arguments = ["resume", job, "--bucket", "out", "--workers", "2", "--progress", "none"]
    second = trial.begun.start(trial.root, *arguments, points=points)
    second.await_stop()
    third = trial.run(*arguments)
    assert third.code == JobConflictError.exit_code
    assert f"process {second.pid} (attempt 2)" in third.err
    os.kill(second.pid, signal.SIGCONT)
    ended = second.wait()
    assert ended.code == 0, ended.err
    trial.is_whole()


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("case", ["spilled", "shuffle"])
def test_a_job_is_stopped_from_elsewhere_and_can_be_begun_again(case: str, trial: Trial) -> None:
    first = trial.stand_still(case, PointFault("create:end", 2, "stop parent"))
    asked = arm(trial.root / "asked", PointFault("lease:pause", 1, "stop"))
    arguments = ["stop", job_in(trial.out), "--bucket", "out"]
    stop = trial.begun.start(trial.root, *arguments, points=asked)
    stop.await_stop()
    for each in (first, stop):
        os.kill(each.pid, signal.SIGCONT)
    first_ended, stop_ended = first.wait(), stop.wait()
    assert (first_ended.code, stop_ended.code) == (143, 0), first_ended.err
    assert "stopped by `dsort stop`" in first_ended.err
    assert "has stopped" in stop_ended.out
    only_a_report(trial.out)
    trial.resume()
    trial.is_whole()


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
    fault: PointFault, case: str, trial: Trial
) -> None:
    points = arm(trial.root / "points", fault)
    ended = trial.run(*trial.prepare(case), points=points)
    assert ended.code == 1, ended.err
    only_a_report(trial.out)
    # The next one dies as well, when there is only its own journal beside the report.
    arguments = ["resume", job_in(trial.out), "--bucket", "out", "--workers", "2"]
    trial.begun.killed(trial.root, *arguments, by=PointFault("create:end", 1, "kill parent"))
    recorded = set(trial.known.created)
    resumed = trial.resume()
    assert resumed.created & recorded == set()
    trial.is_whole()


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
    fault: PointFault, trial: Trial
) -> None:
    trial.die("shuffle", fault)
    path = trial.root / "in" / "in-1.tar"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    error = trial.refused()
    assert isinstance(error, ChangedInputError)
    assert "in-1.tar changed" in error.message
    only_a_report(trial.out)


def test_a_key_map_that_changed_since_is_named(trial: Trial) -> None:
    case = CASES["key map"]
    (trial.root / "map.txt").write_text("^0000\tlow-%02d\n^0001\thigh-%02d\n")
    fields = {**case.fields, "ekm": None, "ekm_file": str(trial.root / "map.txt")}
    named = dataclasses.replace(case, fields=fields)
    prepare(trial.root, named)
    trial.begun.killed(
        trial.root, *start_arguments(named), by=PointFault("create:end", 2, "kill parent")
    )
    (trial.root / "map.txt").write_text("^0001\tlow-%02d\n^0000\thigh-%02d\n")
    error = trial.refused()
    assert isinstance(error, ChangedInputError)
    assert "map.txt" in error.message
    only_a_report(trial.out)


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_dying_before_the_journal_says_enough_is_reported(nth: int, trial: Trial) -> None:
    """The first three things that are stored: the claim, the lease, and the accepted spec."""
    trial.die("shuffle", PointFault("file:sync", nth, about=".dsort"))
    error = trial.refused()
    assert isinstance(error, JobConflictError)
    assert "start the job again" in error.hint
    trial.done("gc", "out", "--remove", "--older-than", "0s")
    assert tree_of(trial.out) == {}


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(
    "fault", [PointFault("make_durable", 2), PointFault("discard", 3)], ids=str
)
def test_dying_after_the_commit_is_a_finished_job(fault: PointFault, trial: Trial) -> None:
    trial.die("spilled", fault)
    ended = trial.run("resume", job_in(trial.out), "--bucket", "out")
    assert (ended.code, "has finished already" in ended.err) == (0, True)
    trial.is_whole()


def test_files_of_another_spec_are_not_resumed(trial: Trial) -> None:
    trial.die("spilled", PointFault("create:end", 4, "kill parent"))
    (job,) = (trial.out / ".dsort").iterdir()
    accepted = trial.known.accepted
    assert accepted is not None
    own = parse_spec(dict(accepted.spec)).spec
    before = tree_of(trial.out)
    other = own.model_copy(update={"description": "another user's"})
    with raises(JobConflictError, job.name):
        api.resume(job.name, "out", options=RunOptions(root=trial.root), expected=other)
    assert tree_of(trial.out) == before
