"""Job processes that die: their jobs go on in new ones and give the bytes of an undisturbed job,
until a job has died three times; other jobs are not affected."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from dsort.service.hosting import process as hosting_process
from dsort.service.jobs.queue import Limits, claim_next, hand_over
from dsort.service.jobs.store import JobStore
from tests.runtime.faults.test_out_of_memory import kills_of, small_group
from tests.support.fault_points import PointFault, arm, struck
from tests.support.hosted_jobs import WAIT_S, Hosting, hosting
from tests.support.internals import new_job_id
from tests.support.service_process import await_that
from tests.support.surviving import CASES, Case, assert_whole, only_a_report, undisturbed

__all__ = ["small_group"]


@pytest.fixture
def points(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The faults that the test is parametrised with."""
    return arm(tmp_path / "points", *getattr(request, "param", ()))


@pytest.fixture
def hosted(points: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosting]:
    with hosting(tmp_path, monkeypatch, points=points, jobs_running_max=2) as hosted:
        yield hosted


DYING = [
    (PointFault("lease:take"), "begun anew"),
    (PointFault("create:write", 3, "kill parent"), "is resumed from"),
    (PointFault("publish:end", 1, "kill", "manifest"), "its manifest is there"),
]


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(
    ("points", "fault", "way"),
    [([fault], fault, way) for fault, way in DYING],
    indirect=["points"],
    ids=[f"{fault.point} {fault.about}" for fault, _ in DYING],
)
def test_a_job_whose_process_is_killed_goes_on_in_another(
    hosted: Hosting, points: Path, fault: PointFault, way: str, base: Path
) -> None:
    job_id = hosted.submit()
    row = hosted.ended(job_id)
    assert struck(points) == [fault.point]
    assert (row.state, row.exit_code, row.error) == ("finished", 0, None)
    assert (row.attempt, row.deaths) == (2, 1)
    (reason,) = hosted.reasons(job_id)
    assert "was killed by SIGKILL" in reason
    assert way in (hosted.config.state_dir / "logs" / f"{job_id}-2.log").read_text()
    assert row.result is not None
    assert (row.result["records"], row.result["output_shards"]) == (37, 6)
    assert row.result["mixing"] is not None
    assert_whole(hosted.root / "out", undisturbed("shuffle", base))


ENDINGS = (signal.SIGKILL, signal.SIGTERM, signal.SIGTERM)
LEAVING = ["lease:take", "extract:start", "plan:start", "create:end", "publish:start"]


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize(
    ("points", "point"),
    [([PointFault(point, 1, "stop")], point) for point in LEAVING],
    indirect=["points"],
    ids=LEAVING,
)
def test_a_process_that_receives_sigterm_puts_its_job_back_into_the_queue(
    hosted: Hosting, points: Path, point: str, base: Path
) -> None:
    job_id = hosted.submit()
    process = hosted.process(job_id)

    def suspended() -> list[psutil.Process]:
        each = [process, *process.children(recursive=True)]
        return [one for one in each if one.status() == psutil.STATUS_STOPPED]

    stopped = await_that(lambda: suspended() or None, WAIT_S)
    process.terminate()
    for each in stopped:
        each.resume()
    row = hosted.ended(job_id)
    assert struck(points) == [point]
    assert (row.state, row.attempt, row.deaths) == ("finished", 2, 0)
    left = [each for each in hosted.events(job_id, "state") if each["state"] == "queued"]
    assert left[-1]["reason"] == f"its process {process.pid} received SIGTERM"
    assert_whole(hosted.root / "out", undisturbed("shuffle", base))


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("points", [[PointFault("plan:start", 1, "stop")]], indirect=True)
def test_jobs_end_once_whenever_processes_and_services_end(
    hosted: Hosting, base: Path, seed: int
) -> None:
    """Jobs' processes receive SIGKILL or SIGTERM, and dispatchers are replaced, at random times."""
    random, pause, received = Random(seed), threading.Event(), 0
    shuffle = CASES["shuffle"]
    outputs = {}
    for number in range(5):
        output = hosted.root / f"out-{number}"
        output.mkdir()
        case = Case(shuffle.move, {**shuffle.fields, "output_bck": output.name})
        outputs[hosted.submit(case, output_uri=output.as_uri())] = output
        if number == 0:  # one at least is hit: jobs may be over before a random time comes
            process = hosted.process(next(iter(outputs)))
            hosted.until_stopped(process)
            process.kill()
    end_s = time.monotonic() + WAIT_S
    while not all(hosted.row(job_id).ended for job_id in outputs):
        assert time.monotonic() < end_s
        pause.wait(random.random() / 2)
        running = [row for row in hosted.store.running() if row.pid and row.deaths < 2]
        if random.random() < 0.2:
            hosted.close()
            hosted.start()
        elif running and received < 8:
            with contextlib.suppress(ProcessLookupError):
                os.kill(random.choice(running).pid or 0, random.choice(ENDINGS))
                received += 1
    for job_id, output in outputs.items():
        states = [each["state"] for each in hosted.events(job_id, "state")]
        assert (hosted.row(job_id).state, states.count("finished")) == ("finished", 1)
        assert_whole(output, undisturbed("shuffle", base))


@pytest.mark.parametrize("points", [[PointFault("plan:start", times=9)]], indirect=True)
def test_a_job_that_dies_three_times_has_failed(hosted: Hosting, points: Path) -> None:
    job_id = hosted.submit()
    row = hosted.ended(job_id)
    assert (row.state, row.exit_code, row.attempt, row.deaths) == ("failed", 5, 3, 3)
    assert len(struck(points)) == 3
    assert row.error is not None
    assert row.error["type"] == "urn:dsort:problem:worker_lost"
    assert "died 3 times" in row.error["detail"]
    assert "killed by SIGKILL" in row.error["detail"]
    assert "resume" in row.error["hint"]
    logs = [each["text"] for each in hosted.events(job_id, "log")]
    assert [f"attempt {number}" in text for number, text in enumerate(logs, 1)] == [True] * 3
    assert list((hosted.root / "out").glob("*.tar")) == []
    assert list((hosted.root / "out").glob(".dsort/*/journal/*")) != []  # what was done is kept


@pytest.mark.parametrize(
    "points", [[PointFault("commit:start", 1, "out of memory")]], indirect=True
)
def test_a_job_that_is_killed_for_memory_ends_no_other(
    small_group: Path, hosted: Hosting, points: Path, base: Path
) -> None:
    (points / "group").write_text(str(small_group))
    job_id = hosted.submit()
    plan = hosted.submit(kind="plan")
    row = hosted.ended(job_id)
    assert kills_of(small_group) == 1
    assert (row.state, row.deaths) == ("finished", 1)
    assert hosted.reasons(job_id)[0].endswith("killed by SIGKILL, probably because memory ran out")
    assert (hosted.ended(plan).state, hosted.row(plan).deaths) == ("finished", 0)
    assert_whole(hosted.root / "out", undisturbed("shuffle", base))


@pytest.mark.parametrize("points", [[PointFault("extract:start", 1, "stop")]], indirect=True)
def test_a_process_that_does_not_stop_is_killed_and_cleaned_up_after(hosted: Hosting) -> None:
    hosted.close()
    hosted.start(stop_grace_s=3.0)
    job_id = hosted.submit()
    process, _ = hosted.held(job_id)
    hosted.suspend(process)
    hosted.store.ask_stop(job_id, "")
    row = hosted.ended(job_id)
    assert (row.state, row.exit_code, row.attempt) == ("stopped", 143, 2)
    only_a_report(hosted.root / "out")


def test_a_job_whose_process_cannot_be_begun_waits_until_it_can(hosted: Hosting) -> None:
    hosted.close()
    logs = hosted.config.state_dir / "logs"
    logs.write_text("no log can be made here")
    hosted.start(unborn_s=0.2)
    job_id = hosted.submit()

    def tried() -> list[str]:
        return [each["reason"] for each in hosted.events(job_id, "state") if "reason" in each]

    await_that(lambda: len(tried()) >= 4)  # more often than a job may die
    assert hosted.row(job_id).state in ("queued", "running")
    assert set(tried()) == {"its process could not be begun: File exists"}
    logs.unlink()
    row = hosted.ended(job_id)
    assert (row.state, row.deaths) == ("finished", 0)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_job_that_could_not_begin_goes_back_into_the_queue_or_is_stopped(
    hosted: Hosting, stopped: bool
) -> None:
    hosted.close()
    job_id = hosted.submit()
    room = Limits(running_jobs_max=1, running_plans_max=1)
    claimed = claim_next(hosted.database, host="h", replica="r", limits=room, now_s=1.0)
    assert claimed is not None
    if stopped:
        hosted.store.ask_stop(job_id, "not wanted")
    of_attempt: dict[str, Any] = {"now_s": 2.0, "reason": "no room", "has_begun": False}
    assert hand_over(hosted.database, job_id, claimed.attempt, **of_attempt)
    assert hosted.row(job_id).state == ("stopped" if stopped else "queued")
    assert not hand_over(hosted.database, job_id, claimed.attempt, **of_attempt)


@pytest.mark.parametrize("points", [[PointFault("plan:start", 1, "stop")]], indirect=True)
@pytest.mark.exhaustive
def test_a_full_disk_keeps_no_process_from_ending_as_it_was_asked_to(
    hosted: Hosting, base: Path
) -> None:
    job_id = new_job_id()
    logs = hosted.config.state_dir / "logs"
    logs.mkdir(exist_ok=True)
    (logs / f"{job_id}-1.log").symlink_to("/dev/full")
    hosted.submit(job_id=job_id)
    process = hosted.process(job_id)
    hosted.until_stopped(process)
    process.terminate()
    process.resume()
    row = hosted.ended(job_id)
    assert (row.state, row.attempt, row.deaths) == ("finished", 2, 0)
    assert_whole(hosted.root / "out", undisturbed("shuffle", base))


@pytest.mark.parametrize("points", [[PointFault("plan:start", 1, "stop")]], indirect=True)
def test_a_process_that_was_asked_to_end_while_no_service_ran_has_not_died(hosted: Hosting) -> None:
    job_id = hosted.submit()
    process = hosted.process(job_id)
    hosted.until_stopped(process)
    hosted.close()
    process.terminate()
    process.resume()
    process.wait(WAIT_S)
    hosted.start()
    row = hosted.ended(job_id)
    assert (row.state, row.attempt, row.deaths) == ("finished", 2, 0)


@pytest.mark.parametrize("points", [[PointFault("plan:start", 1, "stop")]], indirect=True)
@pytest.mark.parametrize("ends", [True, False], ids=["dead", "cut off"])
def test_a_job_without_heartbeats_is_taken_over_by_another_replica_and_fenced(
    hosted: Hosting, points: Path, base: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(hosting_process, "SILENT_S_MAX", 1.0)
    job_id = hosted.submit()
    process = hosted.process(job_id)
    hosted.until_stopped(process)
    hosted.close()
    if ends:
        process.kill()
    hosted.config = replace(hosted.config, replica="two")
    hosted.start()
    if not ends:  # it has the lease, and so the second attempt waits for it
        log = hosted.config.state_dir / "logs" / f"{job_id}-2.log"
        await_that(lambda: log.exists() and "waiting for another process" in log.read_text())
        process.resume()
    row = hosted.ended(job_id)
    assert struck(points) == ["plan:start"]
    assert (row.state, row.attempt, row.deaths, row.replica) == ("finished", 2, 1, "two")
    (reason,) = hosted.reasons(job_id)
    assert "has sent no heartbeat for" in reason
    assert_whole(hosted.root / "out", undisturbed("shuffle", base))


def test_a_replica_with_another_root_does_not_touch_the_job(
    hosted: Hosting, tmp_path: Path
) -> None:
    hosted.close()
    job_id = hosted.submit()
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(hosted.root / "in", elsewhere / "in")
    hosted.config = replace(hosted.config, run=replace(hosted.config.run, root=elsewhere))
    hosted.start()
    row = hosted.ended(job_id)
    assert row.state == "failed"
    assert row.error is not None
    assert "need the same --root" in row.error["hint"]
    assert [each.name for each in elsewhere.iterdir()] == ["in"]


def test_a_dispatcher_outlives_a_bug(hosted: Hosting, monkeypatch: pytest.MonkeyPatch) -> None:
    hosted.close()
    dispatcher = hosted.start()
    with monkeypatch.context() as patched:
        patched.setattr(JobStore, "running", lambda store: 1 / 0)
        dispatcher.wake()
        dispatcher._thread.join(0.3)
    job_id = hosted.submit()
    assert hosted.ended(job_id).state == "finished"


@pytest.mark.parametrize("points", [[PointFault("create:start", action="raise")]], indirect=True)
def test_where_in_the_code_a_bug_is_stays_in_the_log_on_disk(hosted: Hosting, points: Path) -> None:
    row = hosted.ended(hosted.submit())
    assert struck(points) == ["create:start"]
    assert (row.state, row.exit_code) == ("failed", 1)
    assert row.error is not None
    assert row.error["detail"] == "a worker failed: RuntimeError: a bug that a test put here"
    recorded = [each.data for each in hosted.store.events_after(0, job_id=row.job_id)]
    report = (hosted.root / "out" / ".dsort" / row.job_id / "report.json").read_text()
    assert "a bug that a test put here" in report
    for seen in (json.dumps(recorded), json.dumps(row.error), report):
        assert "Traceback" not in seen
        assert ".py" not in seen
    log = (hosted.config.state_dir / "logs" / f"{row.job_id}-1.log").read_text()
    assert "Traceback (most recent call last)" in log
    assert "runtime/base.py" in log
