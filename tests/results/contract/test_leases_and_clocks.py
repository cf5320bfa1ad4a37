"""Who has a job, by machines whose clocks are hours apart: what is seen counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsort.errors import JobConflictError
from dsort.storage.directory.bucket import LocalBucket
from tests.support.internals import WATCH_S_MAX, Lease, Standing, attempt_name, lease_name, stop_job
from tests.support.machines import FakeMachine
from tests.support.refusals import raises

JOB = "20260131-000000-abcdef"
HOURS = [-7200.0, 7200.0]


@pytest.fixture
def bucket(tmp_path: Path) -> LocalBucket:
    bucket = LocalBucket(tmp_path)
    bucket.create()
    return bucket


def elsewhere(machine: FakeMachine, off_s: float) -> FakeMachine:
    """Another machine whose clock is ``off_s`` off."""
    other = machine.beside(host="node-2", boot_id="boot-2")
    other.pass_time(off_s)
    return other


def grow_old(bucket: LocalBucket, tmp_path: Path, seconds: float) -> None:
    """What the store says of when the lease and its claim were written is so long ago."""
    for name in (lease_name(JOB), attempt_name(JOB, 1)):
        path = tmp_path / name
        then = path.stat().st_mtime - seconds
        os.utime(path, (then, then))


@pytest.mark.parametrize("off_s", HOURS)
def test_a_job_that_lives_is_not_taken(bucket: LocalBucket, off_s: float) -> None:
    machine = FakeMachine()
    lease = Lease.take(bucket, JOB, attempt=1, machine=machine)
    other, reasons = elsewhere(machine, off_s), []

    def renew() -> None:
        machine.pass_time(1)
        lease.renew()

    other.on_pause = renew
    before_s = other.elapsed_s()
    with raises(JobConflictError, "node-1"):
        Lease.take(bucket, JOB, attempt=2, machine=other, waiting=reasons.append)
    assert other.elapsed_s() - before_s < 10
    assert not lease.is_lost()
    assert bool(reasons) is (off_s > 0)  # where it seemed to have lapsed


@pytest.mark.parametrize("off_s", HOURS)
def test_a_job_that_is_dead_is_taken_within_a_bounded_time(
    bucket: LocalBucket, tmp_path: Path, off_s: float
) -> None:
    machine = FakeMachine()
    Lease.take(bucket, JOB, attempt=1, machine=machine)
    machine.pass_time(90)
    grow_old(bucket, tmp_path, 90)
    other, reasons = elsewhere(machine, off_s), []
    before_s = other.elapsed_s()
    Lease.take(bucket, JOB, attempt=2, machine=other, waiting=reasons.append)
    assert other.elapsed_s() - before_s <= WATCH_S_MAX
    assert all("clocks do not agree" in why for why in reasons)
    assert sorted(found.name.rpartition("/")[2] for found in bucket.list(f".dsort/{JOB}/")) == [
        "0001",
        "0002",
        "lease.json",
    ]


def test_clocks_that_agree_cost_no_time(bucket: LocalBucket, tmp_path: Path) -> None:
    machine = FakeMachine()
    Lease.take(bucket, JOB, attempt=1, machine=machine)
    other = elsewhere(machine, 1.0)
    before_s = other.elapsed_s()
    with raises(JobConflictError, "node-1"):
        Lease.take(bucket, JOB, attempt=2, machine=other)
    assert other.elapsed_s() == before_s
    grow_old(bucket, tmp_path, 90)
    other.pass_time(90)
    Lease.take(bucket, JOB, attempt=2, machine=other)
    assert other.elapsed_s() == before_s + 90


def test_a_store_whose_clock_was_set_back_is_watched(bucket: LocalBucket, tmp_path: Path) -> None:
    machine = FakeMachine()
    Lease.take(bucket, JOB, attempt=1, machine=machine)
    grow_old(bucket, tmp_path, -7200)
    other = elsewhere(machine, 90.0)
    reasons: list[str] = []
    Lease.take(bucket, JOB, attempt=2, machine=other, waiting=reasons.append)
    assert reasons


def test_watching_can_be_stopped(bucket: LocalBucket) -> None:
    machine = FakeMachine()
    Lease.take(bucket, JOB, attempt=1, machine=machine)

    def stop(why: str) -> None:
        raise KeyboardInterrupt(why)

    with pytest.raises(KeyboardInterrupt, match="clocks do not agree"):
        Lease.take(bucket, JOB, attempt=2, machine=elsewhere(machine, 7200.0), waiting=stop)
    assert not [found for found in bucket.list(f".dsort/{JOB}/") if "clock" in found.name]


@pytest.mark.parametrize("off_s", HOURS)
def test_a_stop_of_a_job_that_is_dead_comes_back(
    bucket: LocalBucket, tmp_path: Path, off_s: float
) -> None:
    machine = FakeMachine()
    Lease.take(bucket, JOB, attempt=1, machine=machine)
    other = elsewhere(machine, off_s)
    before_s = other.elapsed_s()
    if off_s > 0:  # it seems to have lapsed, is watched, and has
        with raises(JobConflictError, JOB):
            stop_job(bucket, JOB, machine=other)
    else:
        assert stop_job(bucket, JOB, machine=other).standing is Standing.LAPSED
    assert other.elapsed_s() - before_s < 70


def test_a_stop_reaches_a_job_that_only_seems_to_be_dead(bucket: LocalBucket) -> None:
    machine = FakeMachine()
    lease = Lease.take(bucket, JOB, attempt=1, machine=machine)
    asked: list[bool] = []

    def stop() -> None:
        asked.append(True)

    lease._on_stop = stop
    other = elsewhere(machine, 7200.0)

    def run_on() -> None:
        machine.pass_time(1)
        lease.renew()
        if asked:
            lease.release()

    other.on_pause = run_on
    assert stop_job(bucket, JOB, machine=other).standing is Standing.RELEASED
