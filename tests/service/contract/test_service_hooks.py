"""Hooks of jobs, in a service and without one: they are called at the end of a job, also when a
server cannot be reached at first or the replica dies; only what the operator allows is called; no
job hangs on it; and the URL of a webhook is for its owner."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import func, select

import dsort
from dsort.errors import MissingShardError, SpecError
from dsort.options import RunOptions
from dsort.service.api.schedules import schedule_view
from dsort.service.database.engine import Database
from dsort.service.database.tables import JobRow, notices
from dsort.service.hosting.notifier import (
    FIRST_PAUSE_S,
    HELD_S,
    TRIES_MAX,
    NoticeStore,
    Notifier,
)
from dsort.service.jobs.queue import Ending, Limits, claim_next, finish
from dsort.service.jobs.store import JobStore
from dsort.settings import Settings
from dsort.stop_flag import StopFlag
from dsort.storage.network_policy import FetchPolicy
from tests.support.databases import on_both_databases
from tests.support.datasets import write_shards
from tests.support.engine import shard_of
from tests.support.fake_clock import FakeClock
from tests.support.hook_server import DRIP, HookServer, hook_program, hook_server
from tests.support.internals import JobWarning, call_command, call_webhook
from tests.support.schedules import Nights
from tests.support.schedules import spec as schedule_spec
from tests.support.service_here import SPEC, service_here
from tests.support.service_process import await_that

WAIT_S = 180
SECRET = "/T000/very-secret"
ROOM = Limits(running_jobs_max=1, running_plans_max=1)
HERE = FetchPolicy(hosts=("127.0.0.1:*",), allow_private=True)
FAILED = Ending("failed", 3, error={"detail": "no input shard was found", "hint": "look"})


@pytest.fixture
def server() -> Iterator[HookServer]:
    with hook_server() as running:
        yield running


def end_job(database: Database, ending: Ending, now_s: float, **hooks: dict[str, str]) -> None:
    """A job with these hooks, from the queue to its end."""
    row = begin_job(database, now_s, **hooks)
    assert finish(database, "one", row.attempt, ending, now_s=now_s)


def begin_job(database: Database, now_s: float, **hooks: dict[str, str]) -> JobRow:
    """A job with these hooks that runs."""
    store = JobStore(database)
    more = {"input_uri": "file:///in", "output_uri": "file:///out", "claims": []}
    new = JobRow(job_id="one", kind="run", owner="ann", spec={}, hooks=hooks or None, **more)
    store.submit(new)
    row = claim_next(database, host="h", replica="r", limits=ROOM, now_s=now_s)
    assert row is not None
    return row


def left(database: Database) -> int:
    with database.reading() as connection:
        return connection.execute(select(func.count()).select_from(notices)).scalar_one()


def notifier(store: NoticeStore, **more: Any) -> Notifier:
    return Notifier(store, **{"commands": {}, "policy": HERE, "look_s": 0.02, **more})


def test_a_webhook_and_a_command_learn_why_a_job_failed(
    database: Database, clock: FakeClock, server: HookServer, tmp_path: Path
) -> None:
    program, received = hook_program(tmp_path)
    hook = {"webhook": server.url + SECRET, "command": "page"}
    end_job(database, FAILED, clock.now(), on_failure=hook, on_success={"command": "never"})
    with notifier(NoticeStore(database, clock=clock.now), commands={"page": program}) as running:
        running.start()
        document = server.notices.get(timeout=WAIT_S)
        await_none_left(database)
    assert (document["event"], document["job_id"], document["owner"]) == (
        "job.failed",
        "one",
        "ann",
    )
    assert document["error"] == {"detail": "no input shard was found", "hint": "look"}
    assert document["text"] == "dsort job one failed: no input shard was found"
    assert server.paths == [SECRET]
    assert json.loads(received.read_text()) == document


def await_none_left(database: Database) -> None:
    await_that(lambda: not left(database), why="there are notices left")


@pytest.mark.parametrize("as_failure", [False, True])
def test_a_stop_by_a_limit_is_reported_to_the_hook_of_failures(
    database: Database, clock: FakeClock, as_failure: bool
) -> None:
    row = begin_job(database, clock.now(), on_failure={"command": "page"})
    JobStore(database).ask_stop("one", "it ran longer than a job may", as_failure=as_failure)
    ending = Ending("stopped", 143, error={"detail": "it ran longer than a job may"})
    assert finish(database, "one", row.attempt, ending, now_s=clock.now())
    notice = NoticeStore(database, clock=clock.now).take()
    assert (notice is not None) == as_failure
    if notice is not None:
        assert notice.document["event"] == "job.stopped"
        assert "it ran longer than a job may" in notice.document["text"]


def test_a_hook_that_cannot_be_reached_is_tried_again_and_then_the_job_is_warned(
    database: Database, clock: FakeClock
) -> None:
    store = NoticeStore(database, clock=clock.now)
    end_job(database, FAILED, clock.now(), on_failure={"webhook": "http://127.0.0.1:9/x"})
    tries, pause_s = 0, FIRST_PAUSE_S
    while (notice := store.take()) is not None:
        tries += 1
        assert store.take() is None
        store.record_outcome(notice, "cannot reach http://127.0.0.1:9/…: no server is there")
        assert store.take() is None
        clock.seconds += pause_s
        pause_s *= 4
    assert (tries, left(database)) == (TRIES_MAX, 0)
    row = JobStore(database).get("one")
    assert row is not None
    assert row.warning_count == 1
    last = JobStore(database).events_after(0, job_id="one")[-1]
    assert last.kind == "warning"
    assert "a hook could not be called: cannot reach" in last.data["text"]


@on_both_databases
def test_what_a_replica_that_died_was_telling_is_reported_by_another(
    database: Database, clock: FakeClock
) -> None:
    end_job(database, FAILED, clock.now(), on_failure={"command": "page"})
    dying, other = (NoticeStore(database, clock=clock.now) for _ in range(2))
    taken = dying.take()
    assert taken is not None
    assert other.take() is None
    clock.seconds += HELD_S
    again = other.take()
    assert again is not None
    dying.record_outcome(taken, "it came back to life, and speaks of the first try")
    clock.seconds += FIRST_PAUSE_S
    assert other.take() is None  # only who has the last try is heard
    other.record_outcome(again, "")
    assert left(database) == 0


def test_a_slow_hook_does_not_hold_up_the_others(
    database: Database, clock: FakeClock, server: HookServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    slow = ("/bin/sh", "-c", f"read line < {gate}")
    hook = {"command": "slow", "webhook": server.url}
    end_job(database, FAILED, clock.now(), on_failure=hook)
    with notifier(NoticeStore(database, clock=clock.now), commands={"slow": slow}) as running:
        running.start()
        try:
            assert server.notices.get(timeout=WAIT_S)["event"] == "job.failed"
            assert left(database) >= 1
        finally:
            gate.write_text("go on\n")
        await_none_left(database)


def test_a_webhook_at_a_private_address_is_not_called_unless_that_is_allowed(
    database: Database, clock: FakeClock, server: HookServer
) -> None:
    store = NoticeStore(database, clock=clock.now)
    end_job(database, FAILED, clock.now(), on_failure={"webhook": server.url})
    policy = FetchPolicy(hosts=("127.0.0.1:*",))
    notice = store.take()
    assert notice is not None
    notifier(store, policy=policy)._give(notice)
    assert (server.paths, left(database)) == ([], 1)


def test_a_run_of_a_schedule_that_became_no_job_is_reported(
    database: Database, tmp_path: Path, clock: FakeClock
) -> None:
    nights = Nights(database, tmp_path, clock, identity_of=lambda name: None)
    nights.add(on_failure={"webhook": "https://hooks.example.com/x"}, spec=schedule_spec())
    nights.at("2026-11-20 02:00")
    assert nights.outcomes() == [("11-20 02:00", "refused")]
    notice = NoticeStore(database, clock=clock.now).take()
    assert notice is not None
    assert (notice.document["event"], notice.document["schedule"]) == ("run.refused", "nightly")
    assert "there is no token" in notice.document["text"]


def test_only_what_the_operator_allows_can_be_a_hook(tmp_path: Path) -> None:
    settings = Settings(commands=(("page", ("/bin/true",)),))
    more = {"settings": settings, "webhook_allow_hosts": ("hooks.example.com",)}
    with service_here(tmp_path, **more) as here:

        def status(**hook: str) -> int:
            return here.client.post("/v1/jobs", json={**SPEC, "on_failure": hook}).status_code

        assert status(command="page") == 201
        assert status(webhook="https://hooks.example.com/x") == 201
        assert status(webhook="http://hooks.example.com/x") == 201
        assert status(webhook="https://hooks.example.com:8443/x") == 403
        assert status(webhook="http://169.254.169.254/latest") == 403
        assert status(command="rm") == 400
        schedule = {"name": "n", "every": "1h", "spec": schedule_spec()}
        wrong = here.client.post(
            "/v1/schedules", json={**schedule, "on_failure": {"command": "rm"}}
        ).json()
        assert [each["path"] for each in wrong["problems"]] == ["on_failure.command"]
        inside = schedule_spec(on_failure={"command": "page"})
        wrong = here.client.post("/v1/schedules", json={**schedule, "spec": inside}).json()
        assert [each["path"] for each in wrong["problems"]] == ["spec.on_failure"]


def test_the_url_of_a_webhook_is_for_who_may_change_what_it_belongs_to(tmp_path: Path) -> None:
    url = "https://hooks.example.com" + SECRET
    with service_here(tmp_path, webhook_allow_hosts=("hooks.example.com",)) as here:
        job = here.submit({**SPEC, "on_failure": {"webhook": url}})
        assert job["on_failure"] == {"webhook": "https://hooks.example.com/…"}
        assert (job["on_success"], "on_failure" in job["spec"]) == (None, False)
        schedule = {"name": "n", "every": "1h", "spec": schedule_spec(), "paused": True}
        schedule["on_success"] = {"webhook": url}
        made = here.client.post("/v1/schedules", json=schedule).json()
        assert made["on_success"] == {"webhook": url}
        row = here.service.schedules.get("n")
        assert row is not None
        assert SECRET not in json.dumps(schedule_view(row, None, now_s=0.0))
        run = here.client.post("/v1/schedules/n/run-now").json()
        stored = here.service.store.get(run["job_id"])
        assert stored is not None
        assert stored.hooks == {"on_success": {"webhook": url}}
        here.client.post(f"/v1/jobs/{run['job_id']}/stop", json={})
        again = here.client.post(f"/v1/jobs/{run['job_id']}/retry").json()
        retried = here.service.store.get(again["job_id"])
        assert retried is not None
        assert retried.hooks == stored.hooks


HOOK_SECRET = "/T000/B000/very-secret"


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    write_shards(tmp_path / "images", {"a.tar": shard_of("1", "2"), "b.tar": shard_of("3")})
    return RunOptions(root=tmp_path)


def spec_of(**hooks: object) -> dsort.JobSpec:
    fields = {"input_bck": "images", "output_bck": "shuffled", "output_format": "x-%d"}
    return dsort.load_spec(json.dumps({**fields, "output_shard_size": "10KB", **hooks}))


def with_commands(options: RunOptions, **commands: tuple[str, ...]) -> RunOptions:
    return replace(options, settings=Settings(commands=tuple(commands.items())))


def hook_warnings(events: Iterable[object]) -> list[str]:
    found = [each for each in events if isinstance(each, JobWarning)]
    return [each.text for each in found if each.kind == "hook"]


def test_a_webhook_learns_of_success_and_no_manifest_has_its_url(
    server: HookServer, options: RunOptions
) -> None:
    spec = spec_of(on_success={"webhook": server.url + HOOK_SECRET}, on_failure={"command": "page"})
    report = dsort.run(spec, options=with_commands(options, page=("/bin/false",)))
    received = server.notices.get_nowait()
    assert (received["event"], received["job_id"], received["records"]) == (
        "job.finished",
        report.job_id,
        3,
    )
    assert received["text"].startswith(f"dsort job {report.job_id} finished")
    assert server.notices.empty()
    assert server.paths == [HOOK_SECRET]
    kept = [path for path in options.root.rglob("*") if path.is_file()]
    assert not [path for path in kept if b"very-secret" in path.read_bytes()]


def test_a_command_learns_of_failure_on_its_input(options: RunOptions, tmp_path: Path) -> None:
    program, received = hook_program(tmp_path)
    spec = spec_of(input_format={"template": "no-{0..3}"}, on_failure={"command": "page"})
    with pytest.raises(MissingShardError):
        dsort.run(spec, options=with_commands(options, page=program))
    notice = json.loads(received.read_text())
    assert (notice["event"], notice["state"]) == ("job.failed", "failed")
    assert "no input shard was found" in notice["error"]["detail"]
    variables = received.with_name("received.json.variables").read_text()
    assert variables == f"job.failed {notice['job_id']}"


@pytest.mark.parametrize(
    ("status", "words"),
    [(500, "answered 500"), (302, "answered 302"), (0, "cannot reach")],
    ids=["error", "redirection", "no server"],
)
def test_a_webhook_that_cannot_be_called_is_a_warning_without_its_secret(
    server: HookServer, options: RunOptions, status: int, words: str
) -> None:
    server.statuses.append(status)
    url = server.url if status else "http://127.0.0.1:9"
    events: list[object] = []
    spec = spec_of(on_success={"webhook": url + HOOK_SECRET})
    report = dsort.run(spec, options=options, on_event=events.append)
    assert report.state == "finished"
    warnings = hook_warnings(events)
    assert [words in text for text in warnings] == [True]
    assert HOOK_SECRET not in warnings[0]
    assert server.paths == ([HOOK_SECRET] if status else [])


def test_a_server_that_drips_is_given_up_and_cut_off(server: HookServer) -> None:
    server.statuses.append(DRIP)
    policy = FetchPolicy(hosts=("127.0.0.1:*",), allow_private=True)
    failure = call_webhook(server.url + HOOK_SECRET, {}, policy=policy, seconds_max=0.3)
    assert failure == f"{server.url}/… took longer than 0.3 s"
    assert server.cut.wait(120)


def test_a_call_that_was_cut_at_its_time_is_no_answer(
    server: HookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a busy machine: the thread that waits for the answer wakes after the cut.
    join = threading.Thread.join
    monkeypatch.setattr(threading.Thread, "join", lambda thread, seconds_max: join(thread))
    server.statuses.append(DRIP)
    policy = FetchPolicy(hosts=("127.0.0.1:*",), allow_private=True)
    failure = call_webhook(server.url + HOOK_SECRET, {}, policy=policy, seconds_max=0.1)
    assert failure == f"{server.url}/… took longer than 0.1 s"


def test_a_stop_ends_the_wait_for_a_hook_and_not_the_job(
    server: HookServer, options: RunOptions
) -> None:
    server.statuses.append(DRIP)
    events: list[object] = []
    with StopFlag() as stop:

        def stop_once_called() -> None:
            server.notices.get(timeout=180)
            stop.request(15, "a test")

        stopper = threading.Thread(target=stop_once_called)
        stopper.start()
        spec = spec_of(on_success={"webhook": server.url})
        report = dsort.run(spec, options=options, stop=stop, on_event=events.append)
        stopper.join()
    assert report.state == "finished"
    assert hook_warnings(events) == [
        "a hook may not have received its notice: the job did not wait for it"
    ]


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    lock = tmp_path / "held"
    script = f"(flock -x 9; sleep 600) 9>{lock} & wait"
    failure = call_command("page", ("/bin/sh", "-c", script), {}, seconds_max=0.5)
    assert failure == "the command page took longer than 0 s, and was ended"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as soon as what it started is gone


def test_a_command_without_a_definition_is_refused_before_anything_is_read(
    options: RunOptions,
) -> None:
    spec = spec_of(on_failure={"command": "pgae"}, on_success={"command": "mail"})
    with pytest.raises(SpecError) as raised:
        dsort.run(spec, options=with_commands(options, page=("/bin/true",)))
    problems = {each.path: each.hint for each in raised.value.problems}
    assert problems["on_failure.command"] == 'did you mean "page"?'
    assert "on_success.command" in problems
    assert not (options.root / "shuffled").exists()


def test_a_stopped_job_and_a_dry_run_call_no_hook(server: HookServer, options: RunOptions) -> None:
    hooks = {"on_success": {"webhook": server.url}, "on_failure": {"webhook": server.url}}
    dsort.run(spec_of(dry_run=True, **hooks), options=options)
    with StopFlag() as stop:
        stop.request(15, "a test")
        with pytest.raises(dsort.errors.JobStoppedError):
            dsort.run(spec_of(**hooks), options=options, stop=stop)
    assert server.notices.empty()


@pytest.mark.parametrize(
    "hook",
    [
        {},
        {"webhook": "ftp://example.com/x"},
        {"webhook": "https://user:pass@example.com/"},
        {"webhook": "https://example.com/a b"},
        {"command": "rm -rf /"},
        {"command": ["rm"]},
        {"shell": "rm"},
        "https://example.com",
    ],
    ids=str,
)
def test_a_wrong_hook_is_a_problem_of_the_spec(hook: object) -> None:
    with pytest.raises(SpecError) as raised:
        spec_of(on_failure=hook)
    assert raised.value.problems[0].path.startswith("on_failure")
    assert "user:pass" not in str(raised.value)
