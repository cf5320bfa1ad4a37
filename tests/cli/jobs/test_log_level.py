"""``--log-level`` and ``DSORT_LOG``: who writes what to standard error while a job runs, and what a
store that is asked again makes a command say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.commands import SPEC, CommandLine
from tests.support.datasets import small_dataset, write_shards
from tests.support.faulty_proxy import faulty_proxy
from tests.support.seaweedfs import S3Server
from tests.support.service_process import running_service

LEVELS = ("'debug'", "'info'", "'warning'", "'error'")
LINE = re.compile(r"\S+T\S+ (debug|info|warning|error) (dsort\.\w+)([^:]*): (.+)")
JOB = ("start", "-f", json.dumps(SPEC), "--workers", "2", "--progress", "none", "--overwrite")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_shards(tmp_path / "images", small_dataset("logged"))
    return tmp_path


def lines_of(text: str) -> list[tuple[str, str, str, str]]:
    """(level, room, whose, message) of each line; all lines are of the log."""
    found = [LINE.fullmatch(line) for line in text.splitlines()]
    assert None not in found, text
    return [each.groups() for each in found if each is not None]  # type: ignore[misc]


def test_a_job_that_goes_well_writes_no_line(images: Path, command: CommandLine) -> None:
    ended = command(*JOB)
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_job_tells_what_coordinator_and_workers_do(
    by: str, images: Path, command: CommandLine
) -> None:
    if by == "option":
        ended = command(*JOB, "--json", "--log-level", "debug")
    else:
        ended = command(*JOB, "--json", env={"DSORT_LOG": "debug"})
    assert ended.code == 0
    job_id = json.loads(ended.out)["job_id"]
    lines = lines_of(ended.err)
    ours, theirs = f" job {job_id} attempt 1", rf" job {job_id} attempt 1 worker \d"
    assert {level for level, *_ in lines} == {"debug"}
    assert {"dsort.job", "dsort.runtime"} == {room for _, room, *_ in lines}
    said = [text for _, _, whose, text in lines if whose == ours]
    for phase in ("extract", "plan", "create", "commit"):
        assert f"the phase {phase} begins" in said
        assert any(text.startswith(f"the phase {phase} ends after") for text in said)
    of_workers = [text for _, _, whose, text in lines if re.fullmatch(theirs, whose)]
    assert any(text.startswith("the worker begins: extracting shard") for text in of_workers)
    assert any(text.startswith("the worker is done in") for text in of_workers)
    assert {"worker 0 waits for a task", "worker 1 waits for a task"} & set(of_workers)


def test_an_unknown_level_is_refused_with_the_known_ones(
    images: Path, command: CommandLine
) -> None:
    for args, env in ((("--log-level", "loud"), {}), ((), {"DSORT_LOG": "loud"})):
        ended = command("ls", "images", *args, env=env)
        assert (ended.code, ended.out) == (2, "")
        assert all(word in ended.err for word in ("--log-level", "'loud'", *LEVELS))


def test_a_store_that_fails_once_is_reported_before_it_is_asked_again(
    s3: S3Server, command: CommandLine
) -> None:
    name = s3.new_bucket_name()
    s3.client().create_bucket(Bucket=name)
    s3.client().put_object(Bucket=name, Key="a.tar", Body=b"")
    with faulty_proxy(s3.endpoint_url) as proxy:
        proxy.begin("503", times_max=2)
        env = {**s3.environment(), "AWS_ENDPOINT_URL": proxy.endpoint_url}
        ended = command("ls", f"s3://{name}", env=env)
        assert proxy.heal() == 2
        proxy.begin("503", times_max=2)
        told = command("ls", f"s3://{name}", "--log-level", "debug", "--json", env=env)
    assert (ended.code, told.code) == (0, 0)
    assert "a.tar" in ended.out
    assert [each["name"] for each in json.loads(told.out)["objects"]] == ["a.tar"]
    ((level, room, _, text),) = lines_of(ended.err)  # one, however often it is asked again
    assert (level, room) == ("warning", "dsort.storage")
    assert f"s3://{name}" in text
    assert re.search(r"; attempt 2 of 8 comes in \d+\.\d s", text)
    again = [line for line in lines_of(told.err) if " comes in " in line[3]]
    assert [line[0] for line in again] == ["warning", "debug"]
    for secret in (env["AWS_SECRET_ACCESS_KEY"], env["AWS_ACCESS_KEY_ID"]):
        assert secret not in ended.err + told.err


def test_a_service_has_the_lines_of_a_job_in_the_log_of_the_job(
    images: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--root", str(images), "--no-auth", "--workers", "1", "--log-level", "debug")
    with running_service(images, "--state-dir", str(images / "state"), *options) as service:
        monkeypatch.setenv("DSORT_SERVER", service.url)
        started = cli("start", "-f", json.dumps(SPEC))
        job_id = started.out.strip()
        assert cli("wait", job_id, "--progress", "none").code == 0
        log = (images / "state/logs" / f"{job_id}-1.log").read_text().splitlines()
        of_service = service.log_text()
    lines = [line.partition(" ")[2] for line in log]
    assert "I the job has finished" in lines
    assert "D dsort.job: the phase extract begins" in lines
    assert any(
        line.startswith("D dsort.runtime worker 0: the worker begins: extracting") for line in lines
    )
    taken = f"debug dsort.service: job {job_id}, attempt 1, is taken from the queue"
    assert any(line.endswith(taken) for line in of_service.splitlines())
