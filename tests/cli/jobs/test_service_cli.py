"""The command line and a service (with tokens, over TLS): submit, wait, look at, stop, resume,
remove, schedule, in the words and with the exit codes of jobs that run here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dsort.service.database.engine import open_database
from dsort.service.security.tokens import TokenStore
from tests.support.certificates import make_certificate
from tests.support.commands import ROOT, CommandLine
from tests.support.datasets import small_dataset, write_shards
from tests.support.engine import spec_of
from tests.support.fault_points import points_environment
from tests.support.held_jobs import held_workers, holding
from tests.support.service_process import ServiceProcess, await_that, running_service

# A test that hangs is not to hold up the others, which have the same service.
pytestmark = pytest.mark.timeout(120, func_only=True)

SHUFFLE = {"algorithm": {"kind": "shuffle", "seed": 5}, "output_shard_records": 7}


@dataclass
class Place:
    """A service, its data root, and how to reach it."""

    root: Path
    service: ServiceProcess
    certificate: Path
    faults: Path
    made: int = 0

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a user who may submit."""
        return {
            "DSORT_SERVER": self.service.url,
            "DSORT_TOKEN_FILE": str(self.root / "alice"),
            "DSORT_CA_FILE": str(self.certificate),
            "COLUMNS": "80",
        }

    def spec(self, **fields: Any) -> str:
        """A spec of a shuffle into a bucket of its own, as a text."""
        self.made += 1
        return json.dumps(spec_of(**{"output_bck": f"out-{self.made}", **SHUFFLE, **fields}))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("cli")
    faults = root / "faults"
    faults.mkdir()
    write_shards(root / "in", small_dataset("cli", shards=3, records=12))
    url = f"sqlite:///{root}/service.db"
    with open_database(url) as database:
        tokens = TokenStore(database)
        for name, role in (("alice", "submitter"), ("victor", "viewer")):
            (root / name).write_text(tokens.add(name, role, ["*"], ["*"]), encoding="utf-8")
    certificate, key = make_certificate(root)
    arguments = ["--root", str(root), "--state-dir", str(root / "state"), "--database", url]
    arguments += ["--ssl-certfile", str(certificate), "--ssl-keyfile", str(key), "--workers", "1"]
    with running_service(root, *arguments, env=points_environment(faults)) as service:
        yield Place(root, service, certificate, faults)


@pytest.fixture
def there(cli: CommandLine, place: Place, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line with a service for it in the environment."""
    for name, value in place.variables.items():
        monkeypatch.setenv(name, value)
    return cli


def shown(there: CommandLine, *args: str) -> Any:
    ended = there(*args, "--json")
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def fits(text: str) -> bool:
    return max(map(len, text.splitlines())) <= 80


def test_a_job_is_submitted_waited_for_and_shown(place: Place, there: CommandLine) -> None:
    args = ("--label", "nightly", "--priority", "-2")
    started = there("start", "in", f"more-{place.made}", "-f", place.spec(), *args)
    assert (started.code, started.err) == (0, "")
    job_id = started.out.removesuffix("\n")
    waited = there("wait", job_id[:-1])
    assert waited.code == 0
    assert waited.out.startswith(f"job        {job_id} finished in ")
    assert "result     /" in waited.out
    assert "create: done, " in waited.err
    # Over already: the same again, at once.
    assert there("wait", job_id).out == waited.out
    one = there("show", job_id)
    assert one.code == 0
    for words in (f"{job_id} finished", "alice", "nightly", "out-0.tar", "mixing "):
        assert words in one.out
    (took,) = [line for line in one.out.splitlines() if line.startswith("took")]
    assert re.match(r"took +[0-9.]+ (s|min.*): resolve ", took)
    document = shown(there, "show", job_id)
    assert (document["job_id"], document["priority"]) == (job_id, -2)
    assert document["output_uri"].endswith("/more-0")
    listed = there("show")
    header, *rows = listed.out.splitlines()
    assert header.split()[:6] == ["JOB", "STATE", "AGE", "FROM", "TO", "LABELS"]
    assert [row.split()[:2] for row in rows if job_id in row] == [[job_id, "finished"]]
    assert fits(listed.out)
    (row,) = (each for each in there("show", "--wide").out.splitlines() if job_id in each)
    assert {"alice", "nightly", str(place.root / "more-0")} <= set(row.split())
    assert "running, attempt 1" in there("log", job_id).out
    assert there("log", job_id, "--follow").out == there("log", job_id).out
    none = there("show", "--state", "failed", "--owner", "victor")
    assert (none.code, none.out, none.err) == (0, "", "there is no such job\n")
    assert shown(there, "show", "--label", "nightly")[0]["job_id"] == job_id


def test_start_that_waits_ends_as_a_job_that_runs_here(place: Place, there: CommandLine) -> None:
    finished = there("start", "-f", place.spec(), "--wait", "--progress", "json", "--json")
    assert finished.code == 0
    assert json.loads(finished.out)["state"] == "finished"
    events = [json.loads(line) for line in finished.err.splitlines()]
    assert {each["event"] for each in events} >= {"JobStarted", "PhaseDone", "Progress"}
    failed = there(
        "start", "-f", place.spec(input_bck="in/nothing"), "--wait", "--progress", "none"
    )
    assert (failed.code, failed.out) == (4, "")
    assert failed.err.startswith("error: ")
    job_id = shown(there, "show", "--state", "failed")[0]["job_id"]
    good = shown(there, "show", "--state", "finished")[0]["job_id"]
    both = there("wait", good, job_id)
    assert both.code == 4
    assert both.out.splitlines()[0] == f"job {good} finished"
    assert both.out.splitlines()[1].startswith(f"job {job_id} failed: ")
    printed = there("show", job_id).out
    assert f"resume it with `dsort resume {job_id}`" in printed
    assert there("wait", job_id).code == 4


def but_for_the_moment(plan: str) -> str:
    """But for how much memory was free just then, and how fast disks were: others use them too."""
    steady = re.sub(r"^(time|probe) .*\n", "", plan, flags=re.MULTILINE)
    return re.sub(r"twice in the [0-9.]+ [KMGT]iB", "twice in the memory", steady)


def test_a_plan_is_made_by_the_service(place: Place, there: CommandLine) -> None:
    spec = place.spec()
    planned = there("plan", "-f", spec, "-v")
    assert planned.code == 0
    assert planned.out.startswith("plan       nothing was written\n")
    assert "out-0.tar" in planned.out
    assert '"output_shard_records": 7' in planned.err
    job_id = there("start", "-f", spec, "--dry-run").out.strip()
    waited = there("wait", job_id, "--progress", "none").out
    assert but_for_the_moment(waited) == but_for_the_moment(planned.out)
    assert f"{job_id} finished, a plan" in there("show", job_id).out


def test_a_job_is_stopped_resumed_and_removed(place: Place, there: CommandLine) -> None:
    with holding(place.faults, place.service):
        job_id = there("start", "-f", place.spec()).out.strip()
        held_workers(place.service)
        row = next(line for line in there("show").out.splitlines() if job_id in line)
        assert row.split()[1] == "running"
        running = there("show", job_id).out
        assert f"`dsort wait {job_id}` waits for it, `dsort stop {job_id}` ends it" in running
        late = there("wait", job_id, "--timeout", "0s", "--progress", "none")
        assert late.code == 6
        assert there("rm", job_id).code == 6
        stopped = there("stop", job_id, "--reason", "too slow")
    assert (stopped.code, stopped.out) == (0, f"job {job_id} has stopped\n")
    assert there("stop", job_id).out == f"job {job_id} has stopped already\n"
    waited = there("wait", job_id)
    assert (waited.code, waited.out) == (143, "")
    assert there("resume", job_id).out == f"{job_id}\n"
    assert there("wait", job_id).code == 0
    again = there("resume", job_id)
    assert again.code == 6
    removed = there("rm", job_id)
    assert (removed.code, removed.out) == (0, f"job {job_id} is removed from the history\n")
    gone = there("show", job_id)
    assert (gone.code, gone.err.splitlines()[0]) == (6, f"error: there is no job {job_id}")


def test_an_interrupt_ends_the_waiting_only(place: Place, there: CommandLine) -> None:
    with holding(place.faults, place.service):
        args = [sys.executable, "-m", "dsort", "start", "--wait", "-f", place.spec()]
        waiting = subprocess.Popen(
            args,
            env={**os.environ, **place.variables, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
            # As in a terminal: what is started in the background may ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        held_workers(place.service)
        waiting.send_signal(signal.SIGINT)
        _, printed = waiting.communicate(timeout=120)
        job_id = await_that(lambda: shown(there, "show", "--state", "running")[0]["job_id"])
        assert waiting.returncode == 130
        assert printed.splitlines()[-3:] == [
            f"job {job_id} continues",
            f"hint: `dsort wait {job_id}` waits for it,",
            f"      `dsort stop {job_id}` ends it",
        ]
        assert there("stop", job_id).code == 0


def test_specs_are_checked_by_the_service(place: Place, there: CommandLine) -> None:
    good = there("spec", "check", "-f", place.spec())
    assert (good.code, good.out) == (0, "the spec is valid\n")
    bad = there("spec", "check", "-f", '{"algoritm": {}}', "--json")
    assert bad.code == 2
    paths = {each["path"] for each in json.loads(bad.out)["error"]["problems"]}
    assert {"input_bck", "algoritm"} <= paths
    assert there("start", "-f", '{"algoritm": {}}').code == 2


def test_schedules_are_added_shown_run_and_removed(
    place: Place, there: CommandLine, tmp_path: Path
) -> None:
    spec = place.spec(output_format="{{run_id}}/s-%d", input_bck="in")
    at_two = ("--cron", "0 2 * * *", "--timezone", "Europe/Berlin")
    added = there("schedule", "add", "nightly", "-f", spec, *at_two, "--retain", "7")
    assert added.code == 0
    assert added.out.startswith("schedule nightly: next due 20")
    assert added.out.split()[-2] == "02:00"
    whole = {"spec": json.loads(spec), "every": "6h", "overlap": "replace", "paused": True}
    (tmp_path / "schedule.json").write_text(json.dumps({**whole, "name": "other"}))
    assert (
        there("schedule", "add", "often", "-f", "schedule.json").out == "schedule often: paused\n"
    )
    named = there("schedule", "add", "-f", "schedule.json")
    assert named.out == "schedule other: paused\n"
    assert there("schedule", "rm", "other").code == 0
    nameless = there("schedule", "add", "-f", spec, *at_two)
    assert (nameless.code, "NAME" in nameless.err) == (2, True)
    listed = there("schedule", "ls").out
    header, *rows = listed.splitlines()
    assert header.split() == ["SCHEDULE", "DUE", "NEXT", "LAST", "OWNER"]
    assert [row.split()[0] for row in rows] == ["nightly", "often"]
    assert fits(listed)
    assert there("schedule", "pause", "nightly").out == "schedule nightly: paused\n"
    assert there("schedule", "resume", "nightly").out == added.out
    job_id = there("schedule", "run", "nightly").out.strip()
    assert there("wait", job_id, "--progress", "none").code == 0
    printed = there("schedule", "show", "nightly").out
    for words in ("0 2 * * * Europe/Berlin", "the newest 7 results", "finished, by hand", job_id):
        assert words in printed
    assert there("schedule", "ls").out.splitlines()[1].split()[-2] == "finished"
    document = shown(there, "schedule", "show", "nightly")
    assert (document["retain"], document["runs"][0]["job_id"]) == (7, job_id)
    again = there("schedule", "add", "nightly", "-f", spec, *at_two)
    assert again.code == 6
    assert there("schedule", "add", "nightly", "-f", spec, *at_two, "--replace").code == 0
    for name in ("nightly", "often"):
        assert there("schedule", "rm", name).out == f"schedule {name} is removed\n"
    none = there("schedule", "ls")
    assert (none.out, none.err) == ("", "there is no schedule\n")
    undue = there("schedule", "add", "never", "-f", spec)
    assert (undue.code, "--cron" in undue.err) == (2, True)
    mistyped = there("schedule", "add", "never", "-f", '{"crno": "0 2 * * *", "spec": {}}')
    assert (mistyped.code, '"crno"' in mistyped.err) == (2, True)


def test_options_of_the_other_way_are_refused(place: Place, there: CommandLine) -> None:
    spec = place.spec()
    both = there("start", "-f", spec, "--workers", "2", "--root", "x", "--move", "map")
    assert both.code == 2
    for option in ("--workers", "--root", "--move"):
        assert f"{option}: " in both.err
    assert "--local" in both.err
    url = place.service.url
    here = there("start", "-f", spec, "--local", "--wait", "--priority", "3")
    assert here.code == 2
    assert "--wait: " in here.err
    assert "--priority: " in here.err
    assert there("show", "--local", "--owner", "ann").code == 2
    assert there("start", "-f", spec, "--server", url, "--local").code == 2
    missing = there("start", "-f", spec, "--local")
    assert missing.code == 4  # here there is no bucket of that name


def test_without_a_service_the_verbs_for_one_say_so(cli: CommandLine) -> None:
    for args in (["wait", "x"], ["log", "x"], ["rm", "x"], ["schedule", "ls"]):
        ended = cli(*args)
        assert (ended.code, ended.out) == (2, "")
        assert "--server URL" in ended.err
    absent = cli("wait", "x", "--server", "http://127.0.0.1:9")
    assert absent.code == 6
    assert "http://127.0.0.1:9" in absent.err


def test_only_the_right_certificate_in_the_right_name_is_trusted(
    place: Place, there: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert there("show").code == 0
    elsewhere = place.service.url.replace("127.0.0.1", "localhost")
    other_name = there("show", "--server", elsewhere)
    monkeypatch.setenv("DSORT_CA_FILE", str(make_certificate(tmp_path)[0]))
    other_issuer = there("show")
    for refused, url in ((other_name, elsewhere), (other_issuer, place.service.url)):
        assert (refused.code, refused.out) == (6, "")
        assert f"certificate of {url}" in refused.err


def test_who_may_not_is_refused_with_the_reason(
    place: Place, there: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = place.service.url
    viewer = there("start", "-f", place.spec(), "--token-file", str(place.root / "victor"))
    assert (viewer.code, viewer.out) == (6, "")
    assert "viewer" in viewer.err
    monkeypatch.delenv("DSORT_TOKEN_FILE")
    monkeypatch.setenv("DSORT_TOKEN", "unknown-token")
    stranger = there("show")
    assert stranger.code == 6
    assert "unknown-token" not in stranger.err
    monkeypatch.delenv("DSORT_CA_FILE")
    untrusted = there("show")
    assert untrusted.code == 6
    assert f"certificate of {url}" in untrusted.err
    plain = there("show", "--server", url.replace("https:", "http:"))
    assert plain.code == 6
    assert "https://" in plain.err


def test_a_key_map_that_is_not_utf8_spoils_no_list(place: Place, there: CommandLine) -> None:
    (place.root / "keys.txt").write_bytes(b"caf\xe9 and no template\nsample-0 out-%d\n")
    spec = {**json.loads(place.spec()), "ekm_file": "keys.txt", "ekm_malformed_line": "abort"}
    started = there("start", "-f", json.dumps(spec))
    assert started.code == 0, started.err
    job_id = started.out.strip()
    assert there("wait", job_id).code == 3
    assert job_id in there("show").out
    found = {each["job_id"]: each for each in shown(there, "show")}
    assert "caf\\xe9" in found[job_id]["error"]["detail"]
    assert "caf\\xe9" in there("show", job_id).out
    assert there("log", job_id).code == 0
    assert there("rm", job_id).code == 0
    assert job_id not in there("show").out
