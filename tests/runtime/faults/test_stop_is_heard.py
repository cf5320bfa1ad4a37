"""A stop is heard at once, whatever a job waits for: a store that does not answer or is to be asked
again, ten million names to look for, names to give."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from dsort.errors import JobStoppedError, TransientStorageError
from dsort.retry import RetryPolicy
from dsort.stop_flag import StopFlag
from dsort.storage.directory.bucket import LocalBucket
from dsort.storage.limit import StoreLimits
from dsort.storage.transport import Transport
from tests.support.children import children_here
from tests.support.commands import ROOT
from tests.support.datasets import small_dataset, write_shards
from tests.support.engine import left_in, run_local, spec_of
from tests.support.hooked_bucket import HookedBucket
from tests.support.retried_bucket import RetriedBucket
from tests.support.surviving import assert_kept

T = TypeVar("T")

HEARD_S_MAX = 20.0
DATASET = small_dataset("heard")
NAMED = {"objnames": sorted(DATASET)}
MEMORY_BYTES_MAX = 200 << 20


class Waiting(HookedBucket):
    """A bucket that does not return from operation ``at``, once a stop was requested then."""

    def __init__(self, inner: LocalBucket, at: tuple[str, int], struck: Callable[[], None]) -> None:
        super().__init__(inner)
        self._operation, self._left = at
        self._struck = struck

    def around(self, operation: str, name: str, action: Callable[[], T]) -> T:
        self._left -= operation == self._operation
        if operation == self._operation and self._left == 0:
            self._struck()
        return action()


@pytest.fixture
def flag() -> Iterator[StopFlag]:
    with StopFlag() as flag:
        yield flag


WAITS = [
    ("in", ("exists", 1), {}, False),
    ("in", ("list", 1), {}, False),
    ("in", ("stat_many", 1), {"input_format": NAMED}, False),
    ("out", ("create", 1), {}, False),
    ("out", ("stat_many", 1), {}, True),  # names that are taken, in plan
    ("in", ("stat_many", 1), {}, True),  # inputs that changed, in commit
]
"""The bucket, the operation, fields of the spec, and whether anything was done by then."""


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize(("bucket", "at", "fields", "kept"), WAITS, ids=lambda each: str(each))
def test_a_stop_is_heard_while_a_store_does_not_answer(
    bucket: str,
    at: tuple[str, int],
    fields: dict[str, Any],
    kept: bool,
    flag: StopFlag,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_shards(tmp_path / "in", DATASET)
    asked_s: list[float] = []
    over = threading.Event()

    def struck() -> None:
        asked_s.append(time.monotonic())
        flag.request(signal.SIGTERM)
        over.wait(60)

    def opened(ref: Any, *, root: Path, **_: Any) -> Any:
        inner = LocalBucket(root / ref.path)
        return Waiting(inner, at, struck) if ref.path == bucket else inner

    monkeypatch.setattr("dsort.opened_job.open_bucket", opened)
    try:
        with pytest.raises(JobStoppedError, match="SIGTERM"):
            run_local(tmp_path, spec_of(**fields), stop=flag)
        assert time.monotonic() - asked_s[0] < HEARD_S_MAX
    finally:
        over.set()
    if kept:
        assert_kept(tmp_path / "out")
    else:
        left = left_in(tmp_path / "out") if (tmp_path / "out").exists() else []
        assert left in ([], [".dsort/JOB/report.json"])
    assert children_here() == []


def test_a_stop_is_heard_while_a_failed_request_waits_for_its_retry(
    flag: StopFlag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "in", DATASET)
    asked_s: list[float] = []

    def struck() -> None:
        asked_s.append(time.monotonic())
        flag.request(signal.SIGTERM)
        raise TransientStorageError("busy")

    def opened(ref: Any, *, root: Path, pause: Callable[[float], None], **_: Any) -> Any:
        inner: Any = LocalBucket(root / ref.path)
        if ref.path == "out":
            inner = Waiting(inner, ("write", 2), struck)  # the lease, then what was resolved
        policy = RetryPolicy(delay_s_min=30.0, delay_s_max=30.0, sleep=pause)
        return RetriedBucket(inner, Transport(StoreLimits(), policy=policy))

    monkeypatch.setattr("dsort.opened_job.open_bucket", opened)
    with pytest.raises(JobStoppedError, match="SIGTERM"):
        run_local(tmp_path, spec_of(), stop=flag)
    assert time.monotonic() - asked_s[0] < HEARD_S_MAX
    assert left_in(tmp_path / "out") == [".dsort/JOB/report.json"]


def test_a_stop_is_heard_while_names_are_given(
    flag: StopFlag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "in", DATASET)

    def ask() -> None:
        flag.request()

    def opened(ref: Any, *, root: Path, **_: Any) -> Any:
        inner = LocalBucket(root / ref.path)
        return Waiting(inner, ("publish", 3), ask)

    monkeypatch.setattr("dsort.opened_job.open_bucket", opened)
    with pytest.raises(JobStoppedError, match="SIGINT"):
        run_local(tmp_path, spec_of(), stop=flag)
    assert assert_kept(tmp_path / "out") != set()


@pytest.mark.exhaustive
@pytest.mark.parametrize("template", ["s-{0..9999999}", "{a,b}-{0000000..4999999}"])
def test_a_stop_is_heard_while_ten_million_names_are_looked_for(
    template: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    spec = spec_of(input_format={"template": template}, Config={"missing_shards": "ignore"})
    process = subprocess.Popen(
        [sys.executable, "-m", "dsort", "start", "-f", json.dumps(spec), "--progress", "json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process, process.stderr:
        assert '"resolve"' in process.stderr.readline()
        own = psutil.Process(process.pid)
        before_s = own.cpu_times().user
        while own.cpu_times().user < before_s + 1.0:
            assert process.poll() is None
            os.sched_yield()
        assert own.memory_info().rss < MEMORY_BYTES_MAX
        asked_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
    assert process.returncode == 143, said
    assert time.monotonic() - asked_s < HEARD_S_MAX
    assert "the job was stopped by SIGTERM" in said


def test_what_is_waited_for_gives_its_result_or_its_error(flag: StopFlag) -> None:
    assert flag.wait_for(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        flag.wait_for(lambda: 1 // 0)


def test_once_it_is_heeded_a_stop_is_no_longer_raised(flag: StopFlag) -> None:
    flag.request(signal.SIGTERM)
    for use in (flag.raise_if_requested, lambda: flag.pause(0), lambda: flag.wait_for(list)):
        with pytest.raises(JobStoppedError):
            use()
    flag.heed()
    began_s = time.monotonic()
    flag.raise_if_requested()
    flag.pause(30.0)
    assert flag.wait_for(lambda: 7) == 7
    assert time.monotonic() - began_s < HEARD_S_MAX
