"""Jobs of the service in processes of their own: they do what ``dsort.run`` does, say how far they
are, stop when they are asked to, and live on without the service that began them."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace
from sqlalchemy import text

from dsort.errors import JobStoppedError, SpecError
from dsort.options import RunOptions
from dsort.service.hosting import dispatcher as dispatcher_module
from dsort.service.hosting import job_main as doing_module
from dsort.service.hosting.job_main import JobAttempt
from dsort.service.hosting.process import log_path
from dsort.stop_flag import StopFlag
from dsort.storage.directory.bucket import LocalBucket
from tests.support.fault_points import PointFault, arm
from tests.support.hosted_jobs import WAIT_S, Hosting, hosting
from tests.support.internals import JobReport, Lease, Machine, Standing, read_hold
from tests.support.machines import FakeMachine
from tests.support.postgres import PostgresServer
from tests.support.service_process import await_that
from tests.support.surviving import KEY_MAP, Case, assert_whole, only_a_report, undisturbed

PHASES = ["resolve", "extract", "plan", "create", "commit"]


@pytest.fixture
def hosted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosting]:
    with hosting(tmp_path, monkeypatch) as hosted:
        yield hosted


@pytest.fixture
def holding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosting]:
    """Every worker that comes to create output shards stops there (twice at most)."""
    with hosting_held(tmp_path, monkeypatch) as hosted:
        yield hosted


def hosting_held(
    root: Path, monkeypatch: pytest.MonkeyPatch, **config: Any
) -> AbstractContextManager[Hosting]:
    points = arm(root / "points", PointFault("create:start", 1, "stop"))
    return hosting(root, monkeypatch, points=points, **config)


def test_a_job_gives_the_bytes_of_run_and_tells_how_it_went(hosted: Hosting, base: Path) -> None:
    job_id = hosted.submit()
    row = hosted.ended(job_id)
    assert (row.state, row.exit_code, row.error, row.attempt) == ("finished", 0, None, 1)
    assert_whole(hosted.root / "out", undisturbed("shuffle", base))
    assert row.result is not None
    assert (row.result["job_id"], row.result["records"]) == (job_id, 37)
    assert [each["phase"] for each in row.phases or ()] == PHASES
    assert [each["phase"] for each in hosted.events(job_id, "phase")] == PHASES
    assert [each["input_shards"] for each in hosted.events(job_id, "started")] == [4]
    assert {each["phase"] for each in hosted.events(job_id, "progress")} == set(PHASES)
    assert row.progress is not None
    assert row.progress["phase"] == "commit"
    kinds = [each["kind"] for each in hosted.events(job_id, "warning")]
    assert sorted(kinds) == ["duplicate_keys_dropped", "missing_shards"]
    assert row.warning_count == 2
    assert [each["state"] for each in hosted.events(job_id, "state")] == [
        "queued",
        "running",
        "finished",
    ]
    log = read_logs(hosted.config.state_dir, job_id)
    assert "input shard is missing" in log
    (event,) = hosted.events(job_id, "log")
    assert event["text"] == log
    levels = dict(zip(log.splitlines(), event["levels"], strict=True))
    assert {levels[line] for line in levels if "input shard is missing" in line} == {"I"}
    assert hosted.dispatcher is not None
    assert hosted.dispatcher.hosts(job_id)


@pytest.mark.parametrize("umask", [0o077, 0o027])
def test_outputs_have_the_modes_that_the_umask_of_the_service_leaves(
    hosted: Hosting, umask: int
) -> None:
    before = os.umask(umask)
    try:
        row = hosted.ended(hosted.submit())
    finally:
        os.umask(before)
    assert row.state == "finished"
    found = [*(hosted.root / "out").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in found if path.is_file()} == {0o666 & ~umask}
    made = {path.stat().st_mode & 0o777 for path in found if path.is_dir()}
    assert made == {0o777 & ~umask}


def test_a_plan_has_a_plan_for_a_result_and_writes_nothing(hosted: Hosting) -> None:
    job_id = hosted.submit(kind="plan")
    row = hosted.ended(job_id)
    assert (row.state, row.exit_code) == ("finished", 0)
    assert row.result is not None
    assert row.result["job_id"] == job_id
    assert row.result["shards_total"] == len(row.result["shards"]) == 6
    assert list((hosted.root / "out").iterdir()) == []


def test_a_job_that_fails_says_why(hosted: Hosting) -> None:
    nothing = Case("map", {"input_format": {"template": "none-{0..1}"}})
    row = hosted.ended(hosted.submit(nothing))
    assert (row.state, row.exit_code, row.deaths) == ("failed", 3, 0)
    assert row.error is not None
    assert row.error["type"] == "urn:dsort:problem:missing_shard"
    assert "none-0" in row.error["detail"]
    assert hosted.events(row.job_id, "state")[-1]["error"] == row.error
    log = read_logs(hosted.config.state_dir, row.job_id)
    assert "none-0" in log
    assert "Traceback" not in log  # it is the user's mistake, and no bug


def test_a_key_maps_names_are_claimed_by_the_job_that_has_read_it(hosted: Hosting) -> None:
    case = Case("map", {**KEY_MAP, "Config": {"ekm_missing_key": "ignore"}})
    row = hosted.ended(hosted.submit(case, claims=None))
    assert row.state == "finished"
    uri = (hosted.root / "out").as_uri()
    assert row.claims == [[uri, f"{name}-%02d.tar"] for name in ("low", "high", "rest")]


@pytest.fixture
def holding_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosting]:
    """The same, where processes have command lines and environments of their own."""
    with hosting_held(tmp_path, monkeypatch, fresh=True) as hosted:
        yield hosted


def test_a_job_keeps_to_itself_and_others_wait(holding_fresh: Hosting) -> None:
    holding = holding_fresh
    job_id = holding.submit()
    process, worker = holding.held(job_id)
    assert os.getsid(process.pid) == process.pid != os.getsid(0)
    shown = " ".join(process.cmdline() + worker.cmdline())
    assert "sqlite" not in shown
    assert "HOSTED" not in worker.environ()
    for each in (process, worker):
        assert Path(f"/proc/{each.pid}/oom_score_adj").read_text().strip() == "500"
    log = log_path(holding.config.state_dir, job_id, 1)
    assert log.stat().st_mode & 0o777 == 0o600
    second = holding.submit()
    assert holding.row(second).state == "queued"  # one may run at a time
    assert holding.store.ask_stop(second, "").state == "stopped"
    holding.close()
    assert holding.row(job_id).state == "running"
    assert holding.events(second, "started") == []


def test_a_stopped_job_leaves_nothing_and_goes_on_when_it_is_resumed(
    holding: Hosting, base: Path
) -> None:
    job_id = holding.submit()
    process, worker = holding.held(job_id)
    claimed = holding.row(job_id)
    assert claimed.heartbeat_at is not None
    assert claimed.started_at is not None
    assert claimed.heartbeat_at > claimed.started_at  # it is heard of
    assert holding.store.ask_stop(job_id, "not today").stopping
    row = holding.ended(job_id)
    assert (row.state, row.exit_code, row.attempt) == ("stopped", 143, 1)
    assert row.error is not None
    assert "not today" in row.error["detail"]
    only_a_report(holding.root / "out")
    await_that(lambda: not _lives(worker) and not _lives(process))
    holding.store.requeue(job_id)
    row = holding.ended(job_id)
    assert (row.state, row.attempt) == ("finished", 2)
    assert_whole(holding.root / "out", undisturbed("shuffle", base))


def test_a_job_runs_to_its_end_while_there_is_no_service(holding: Hosting, base: Path) -> None:
    job_id = holding.submit()
    process, worker = holding.held(job_id)
    holding.close()
    assert _lives(process)
    worker.send_signal(signal.SIGCONT)
    process_ended = psutil.wait_procs([process], timeout=180)
    assert process_ended[1] == []
    assert holding.row(job_id).state == "finished"
    assert holding.row(job_id).attempt == 1
    assert_whole(holding.root / "out", undisturbed("shuffle", base))


def test_a_job_that_runs_when_the_service_comes_back_is_seen_after(
    holding: Hosting, base: Path
) -> None:
    job_id = holding.submit()
    process, _ = holding.held(job_id)
    holding.close()
    dispatcher = holding.start()
    await_that(lambda: dispatcher.hosts(job_id))
    assert holding.row(job_id).attempt == 1  # it lives
    process.kill()
    row = holding.ended(job_id)
    assert (row.state, row.attempt, row.deaths) == ("finished", 2, 1)
    assert holding.reasons(job_id) == [f"its process {process.pid} is gone"]
    assert_whole(holding.root / "out", undisturbed("shuffle", base))


@pytest.fixture
def handing_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosting]:
    """As ``holding``, where a service that ends hands its jobs over, and has the time for it on a
    machine that is busy."""
    monkeypatch.setattr(dispatcher_module, "LEAVE_S_MAX", WAIT_S)
    with hosting_held(tmp_path, monkeypatch, hand_over=True) as hosted:
        yield hosted


def test_jobs_are_handed_over_by_a_service_that_ends_and_none_has_died(
    handing_over: Hosting, base: Path
) -> None:
    job_id = handing_over.submit()
    process, worker = handing_over.held(job_id)
    dispatcher = handing_over.dispatcher
    handing_over.close()
    assert dispatcher is not None
    assert dispatcher.handed_over == 1
    assert not _lives(process)
    row = handing_over.row(job_id)
    assert (row.state, row.attempt, row.deaths, row.host) == ("queued", 1, 0, None)
    said = handing_over.events(job_id, "state")[-1]
    assert said["reason"] == f"its process {process.pid} received SIGTERM"
    assert said["state"] == "queued"
    await_that(lambda: not _lives(worker))
    hold = read_hold(LocalBucket(handing_over.root / "out"), job_id)
    assert hold.standing is Standing.RELEASED  # no process has to wait until it lapses
    handing_over.start()
    row = handing_over.ended(job_id)
    assert (row.state, row.attempt, row.deaths) == ("finished", 2, 0)
    log = read_logs(handing_over.config.state_dir, job_id)
    assert "resumed from what earlier attempts left" in log
    assert_whole(handing_over.root / "out", undisturbed("shuffle", base))


def test_a_job_whose_process_has_no_time_to_leave_is_handed_over_too(
    handing_over: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher_module, "LEAVE_S_MAX", 0.1)
    job_id = handing_over.submit()
    process, _ = handing_over.held(job_id)
    handing_over.suspend(process)
    dispatcher = handing_over.dispatcher
    assert dispatcher is not None
    handing_over.close()
    assert dispatcher.handed_over == 1
    assert not _lives(process)
    row = handing_over.row(job_id)
    assert (row.state, row.attempt, row.deaths, row.host) == ("queued", 1, 0, None)
    said = handing_over.events(job_id, "state")[-1]
    assert said["reason"] == "the service that ran it has ended"


def test_a_job_that_was_to_stop_is_handed_over_to_be_cleaned_up(handing_over: Hosting) -> None:
    job_id = handing_over.submit()
    process, _ = handing_over.held(job_id)
    handing_over.suspend(process)  # so that it does not hear of it itself
    handing_over.store.ask_stop(job_id, "not today")
    process.terminate()
    dispatcher = handing_over.dispatcher
    assert dispatcher is not None
    dispatcher.rest()
    await_that(lambda: not dispatcher.alive)
    process.resume()
    handing_over.close()
    assert handing_over.row(job_id).state == "queued"
    handing_over.start()
    row = handing_over.ended(job_id)
    assert (row.state, row.deaths) == ("stopped", 0)
    only_a_report(handing_over.root / "out")


def test_a_job_does_not_wait_for_a_database_that_is_away(holding: Hosting, base: Path) -> None:
    job_id = holding.submit()
    _, worker = holding.held(job_id)
    with holding.database.writing() as connection:  # no other transaction may write
        connection.execute(text("SELECT 1"))
        worker.send_signal(signal.SIGCONT)
        manifest = holding.root / "out" / ".dsort" / job_id / "manifest.json"
        await_that(manifest.exists)
        assert holding.row(job_id).state == "running"
    row = holding.ended(job_id)
    assert (row.state, row.attempt) == ("finished", 1)
    assert [each["phase"] for each in holding.events(job_id, "phase")] == PHASES
    assert_whole(holding.root / "out", undisturbed("shuffle", base))


@pytest.mark.exhaustive
def test_connections_that_break_do_not_end_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: Path, postgres: PostgresServer
) -> None:
    points = arm(tmp_path / "points", PointFault("create:start", 1, "stop"))
    url = postgres.fresh_database()
    with hosting(tmp_path, monkeypatch, points=points, database_url=url) as hosted:
        job_id = hosted.submit()
        _, worker = hosted.held(job_id)
        before = hosted.row(job_id).heartbeat_at
        query = "SELECT pid FROM pg_stat_activity WHERE datname = "
        connected = {pid for (pid,) in postgres.run(f"{query}'{url.rpartition('/')[2]}'")}
        assert len(connected) >= 2  # the job's, and ours
        for pid in connected:
            postgres.run(f"SELECT pg_terminate_backend({pid})")
        await_that(lambda: not connected & {pid for (pid,) in postgres.run(f"{query}datname")})
        await_that(lambda: hosted.row(job_id).heartbeat_at != before)
        worker.send_signal(signal.SIGCONT)
        row = hosted.ended(job_id)
        assert (row.state, row.attempt) == ("finished", 1)
        assert [each["phase"] for each in hosted.events(job_id, "phase")] == PHASES
    assert_whole(hosted.root / "out", undisturbed("shuffle", base))


def doing(hosted: Hosting, stop: StopFlag) -> JobAttempt:
    """The second attempt of a job whose first one another process has."""
    hosted.close()
    row = replace(hosted.row(hosted.submit()), attempt=2)
    return JobAttempt.of(row, RunOptions(root=hosted.root, workers=1), lambda event: None, stop)


def test_a_job_that_lives_elsewhere_is_waited_for(
    hosted: Hosting, base: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(doing_module, "LOOK_S", 0.01)
    with StopFlag() as stop, ThreadPoolExecutor(1) as pool:
        job = doing(hosted, stop)
        lease = Lease.take(LocalBucket(hosted.root / "out"), job.row.job_id, attempt=1)
        waiting = pool.submit(job.run)
        await_that(lambda: "waiting for" in caplog.text)
        assert not waiting.done()
        lease.release()
        assert waiting.result(180).records == 37
    assert_whole(hosted.root / "out", undisturbed("shuffle", base))


def test_an_earlier_attempt_that_was_only_slow_is_waited_for(
    hosted: Hosting, base: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(doing_module, "LOOK_S", 0.01)
    real, leases = doing_module.api.run, []

    def run(*args: Any, **more: Any) -> JobReport:
        if not leases:  # it comes between our look and our claim
            bucket = LocalBucket(hosted.root / "out")
            leases.append(Lease.take(bucket, more["job_id"], attempt=1))
        return real(*args, **more)

    monkeypatch.setattr(doing_module.api, "run", run)
    with StopFlag() as stop, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(doing(hosted, stop).run)
        await_that(lambda: waiting.done() or "waiting for" in caplog.text)
        leases[0].release()
        assert waiting.result(180).records == 37
    assert_whole(hosted.root / "out", undisturbed("shuffle", base))


def test_a_job_that_lives_elsewhere_is_stopped_there(hosted: Hosting) -> None:
    asked = threading.Event()
    with StopFlag() as stop, ThreadPoolExecutor(1) as pool:
        job = doing(hosted, stop)
        bucket = LocalBucket(hosted.root / "out")
        lease = Lease.take(bucket, job.row.job_id, attempt=1, renew_s=0.01)
        lease.keep(on_lost=lambda why: None, on_stop=asked.set)
        stop.request(signal.SIGTERM, "a request", discards=True)
        waiting = pool.submit(job.run)
        assert asked.wait(180)
        lease.release()
        with pytest.raises(JobStoppedError):
            waiting.result(180)
    assert [path.name for path in (hosted.root / "out").rglob("*.tar")] == []


def test_a_process_leaves_its_job_though_clocks_do_not_agree(
    hosted: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "pause", None)  # it would wait for a minute
    with StopFlag() as stop:
        job = doing(hosted, stop)
        elsewhere = FakeMachine(host="node-2", boot_id="boot-2")
        elsewhere.time_s = 0.0  # long ago, and the store says: just now
        bucket = LocalBucket(hosted.root / "out")
        Lease.take(bucket, job.row.job_id, attempt=1, machine=elsewhere)
        stop.request(signal.SIGTERM)
        with pytest.raises(JobStoppedError):
            job.run()


def read_logs(state_dir: Path, job_id: str) -> str:
    """The logs of all attempts, of which there are fewer than ten."""
    paths = sorted((state_dir / "logs").glob(f"{job_id}-*.log"))
    return "".join(path.read_text() for path in paths)


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_job_that_takes_too_long_is_stopped_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A slow machine may take a second to get there.
    points = arm(tmp_path / "points", PointFault("create:start", 1, "stop"), may_miss=True)
    with hosting(tmp_path, monkeypatch, points=points, job_time_max_s=1.0) as hosted:
        row = hosted.ended(hosted.submit())
        assert (row.state, row.exit_code, row.attempt) == ("stopped", 143, 1)
        assert row.error is not None
        assert "ran longer than 1.00 s (--max-job-time)" in row.error["detail"]
        assert row.stop_reason is not None
        assert "--max-job-time" in row.stop_reason
        assert list((hosted.root / "out").glob("*.tar")) == []


def test_a_key_map_from_a_file_names_no_hidden_outputs(hosted: Hosting) -> None:
    (hosted.root / "keys.json").write_text('{"low-%02d": ["^0000"], ".ssh/x-%02d": ["^0001"]}')
    case = Case("map", {**KEY_MAP, "ekm": None, "ekm_default": None, "ekm_file": "keys.json"})
    files = [(hosted.root / "keys.json").as_uri()]
    row = hosted.ended(hosted.submit(case, claims=None, file_uris=files))
    assert (row.state, row.exit_code) == ("failed", SpecError.exit_code)
    assert row.error is not None
    assert [each["path"] for each in row.error["problems"]] == ["ekm_file"]
    assert list((hosted.root / "out").iterdir()) == []


def test_a_job_that_waits_for_its_key_map_stops_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A server that takes connections and never answers.
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/keys.json"
        allowed = {"ekm_allow_hosts": ("127.0.0.1:*",), "ekm_allow_private": True}
        with hosting(tmp_path, monkeypatch, **allowed) as hosted:
            case = Case("map", {**KEY_MAP, "ekm": None, "ekm_default": None, "ekm_file": url})
            job_id = hosted.submit(case, claims=None)
            server.settimeout(WAIT_S)
            connection, _ = server.accept()
            with connection:
                hosted.store.ask_stop(job_id, "never mind")
                row = hosted.ended(job_id)
            assert (row.state, row.exit_code, row.attempt) == ("stopped", 143, 1)
            assert row.error is not None
            assert "never mind" in row.error["detail"]
            assert list((hosted.root / "out").iterdir()) == []
