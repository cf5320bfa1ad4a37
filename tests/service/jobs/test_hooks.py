"""Hooks of a job that runs here: who is told when it finishes or fails, and that nothing about the
job hangs on it."""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import dsort
from dsort.errors import MissingShardError, SpecError
from dsort.options import RunOptions
from dsort.settings import Settings
from dsort.stop_flag import StopFlag
from dsort.storage.network_policy import FetchPolicy
from tests.support.datasets import write_shards
from tests.support.engine import shard_of
from tests.support.hook_server import DRIP, HookServer, hook_program, hook_server
from tests.support.internals import JobWarning, call_command, call_webhook

SECRET = "/T000/B000/very-secret"


@pytest.fixture
def server() -> Iterator[HookServer]:
    with hook_server() as running:
        yield running


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
    spec = spec_of(on_success={"webhook": server.url + SECRET}, on_failure={"command": "page"})
    report = dsort.run(spec, options=with_commands(options, page=("/bin/false",)))
    received = server.notices.get_nowait()
    assert (received["event"], received["job_id"], received["records"]) == (
        "job.finished",
        report.job_id,
        3,
    )
    assert received["text"].startswith(f"dsort job {report.job_id} finished")
    assert server.notices.empty()
    assert server.paths == [SECRET]
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
    ids=["error", "redirection", "nobody there"],
)
def test_a_webhook_that_cannot_be_called_is_a_warning_without_its_secret(
    server: HookServer, options: RunOptions, status: int, words: str
) -> None:
    server.statuses.append(status)
    url = server.url if status else "http://127.0.0.1:9"
    events: list[object] = []
    spec = spec_of(on_success={"webhook": url + SECRET})
    report = dsort.run(spec, options=options, on_event=events.append)
    assert report.state == "finished"
    warnings = hook_warnings(events)
    assert [words in text for text in warnings] == [True]
    assert SECRET not in warnings[0]
    assert server.paths == ([SECRET] if status else [])


def test_a_command_that_fails_is_a_warning_with_its_last_word(
    options: RunOptions, tmp_path: Path
) -> None:
    program, _ = hook_program(tmp_path, exit_code=3)
    events: list[object] = []
    spec = spec_of(on_success={"command": "page"})
    dsort.run(spec, options=with_commands(options, page=program), on_event=events.append)
    warnings = hook_warnings(events)
    assert warnings == ["the command page ended with 3: no page today"]


def test_a_server_that_drips_is_given_up_and_cut_off(server: HookServer) -> None:
    server.statuses.append(DRIP)
    policy = FetchPolicy(hosts=("127.0.0.1:*",), allow_private=True)
    failure = call_webhook(server.url + SECRET, {}, policy=policy, seconds_max=0.3)
    assert failure == f"{server.url}/… took longer than 0.3 s"
    assert server.cut.wait(120)


def test_a_call_that_was_cut_at_its_time_is_no_answer(
    server: HookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a busy machine: whoever waits for the answer is woken after the connection was cut.
    join = threading.Thread.join
    monkeypatch.setattr(threading.Thread, "join", lambda thread, seconds_max: join(thread))
    server.statuses.append(DRIP)
    policy = FetchPolicy(hosts=("127.0.0.1:*",), allow_private=True)
    failure = call_webhook(server.url + SECRET, {}, policy=policy, seconds_max=0.1)
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
    assert hook_warnings(events) == ["a hook may not have been told: it was not waited for"]


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    lock = tmp_path / "held"
    script = f"(flock -x 9; sleep 600) 9>{lock} & wait"
    failure = call_command("page", ("/bin/sh", "-c", script), {}, seconds_max=0.5)
    assert failure == "the command page took longer than 0 s, and was ended"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as soon as what it started is gone


def test_a_command_that_nobody_defined_is_refused_before_anything_is_read(
    options: RunOptions,
) -> None:
    spec = spec_of(on_failure={"command": "pgae"}, on_success={"command": "mail"})
    with pytest.raises(SpecError) as raised:
        dsort.run(spec, options=with_commands(options, page=("/bin/true",)))
    problems = {each.path: each.hint for each in raised.value.problems}
    assert problems["on_failure.command"] == 'did you mean "page"?'
    assert "on_success.command" in problems
    assert not (options.root / "shuffled").exists()


def test_a_stopped_job_and_a_dry_run_call_nobody(server: HookServer, options: RunOptions) -> None:
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
def test_what_is_no_hook_is_a_problem_of_the_spec(hook: object) -> None:
    with pytest.raises(SpecError) as raised:
        spec_of(on_failure=hook)
    assert raised.value.problems[0].path.startswith("on_failure")
    assert "user:pass" not in str(raised.value)
