"""A job whose coordinator was killed is free at once on its machine, one that stalls is not."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsort.errors import JobConflictError
from dsort.storage.directory.bucket import LocalBucket
from tests.support.internals import Lease, Standing, read_hold, stop_job
from tests.support.refusals import raises

JOB = "20260131-000000-abcdef"

HOLD_IT = """
import sys, threading
from pathlib import Path
from dsort.results.lease import Lease
from dsort.storage.directory.bucket import LocalBucket

stopped = threading.Event()
lease = Lease.take(LocalBucket(Path(sys.argv[1])), sys.argv[2], attempt=1, renew_s=0.01)
lease.keep(on_lost=print, on_stop=stopped.set)
print("held", flush=True)
stopped.wait()
lease.release()
"""


@pytest.fixture
def bucket(tmp_path: Path) -> LocalBucket:
    bucket = LocalBucket(tmp_path / "out")
    bucket.create()
    return bucket


@contextmanager
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the job, and renews its lease until it is asked to stop."""
    command = [sys.executable, "-c", HOLD_IT, str(tmp_path / "out"), JOB]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_killed_holder_is_dead_at_once(bucket: LocalBucket, tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with raises(JobConflictError, f"process {process.pid} "):
            Lease.take(bucket, JOB, attempt=2)
        process.kill()
        process.wait()
        assert read_hold(bucket, JOB).standing is Standing.DEAD
        lease = Lease.take(bucket, JOB, attempt=2)
        lease.check()
        lease.release()


def test_a_stalled_holder_is_not_dead(bucket: LocalBucket, tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        with raises(JobConflictError, JOB):
            Lease.take(bucket, JOB, attempt=2)
        process.send_signal(signal.SIGCONT)
        assert stop_job(bucket, JOB).standing is Standing.RELEASED
        assert process.wait(180) == 0
