"""What the README says of the service works as it is written: its commands are read from there and
run, in their order, with another host, port and certificate."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.commands import ROOT, SPEC, CommandLine
from tests.support.datasets import small_dataset, write_shards
from tests.support.service_process import running_service

SECTION = (ROOT / "README.md").read_text("utf-8").partition("\n## The service\n")[2]
SECTION = SECTION.partition("\n## ")[0]
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
LINES = [
    line.strip()
    for block in re.findall(r"(?m)^(?: {4}.*\n)+", PYTHON.sub("", SECTION))
    for line in block.replace("\\\n", "").splitlines()
]
QUICK_START, TEAM = LINES[:2], LINES[2:]
HERE, THERE = "http://127.0.0.1:8080", "https://dsort.example.com:8080"
REFUSED = {"resume": 2}  # a job that has finished is not gone on with


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine) -> Path:
    """A directory with what the commands name; state and settings are kept there, too."""
    write_shards(tmp_path / "images", small_dataset("readme", shards=2, records=6))
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    (tmp_path / "spec.yaml").write_text(json.dumps(SPEC))
    hourly = re.search(r'`hourly\.json` is a spec with `"output_format": (".*?")`', SECTION)
    assert hourly is not None
    fresh = {"output_format": json.loads(hourly[1]), "algorithm": {"kind": "shuffle"}}
    (tmp_path / "hourly.json").write_text(json.dumps(SPEC | fresh))
    (tmp_path / "specs").symlink_to(ROOT / "specs")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def words(line: str) -> list[str]:
    """The words of a command, without ``dsort``."""
    first, *others = shlex.split(line, comments=True)
    assert first == "dsort"
    return others


def test_the_quick_start_and_the_python(place: Path, cli: CommandLine) -> None:
    serve, start = map(words, QUICK_START)
    snippet = PYTHON.search(SECTION)
    assert snippet is not None
    with running_service(place, *serve[1:]) as service:
        ended = cli(*(word.replace(HERE, service.url) for word in start))
        assert (ended.code, "finished" in ended.out) == (0, True), ended.err
        assert HERE in snippet[1]
        found: dict[str, object] = {}
        exec(snippet[1].replace(HERE, service.url), found)
        assert getattr(found["job"], "state", None) == "finished"


class Shell:
    """Runs the lines one after another, as somebody would type them."""

    def __init__(self, place: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.cli, self.monkeypatch = place, cli, monkeypatch
        self.url, self.job_id = "", ""
        self.codes: list[tuple[str, int]] = []

    def __call__(self, line: str, services: ExitStack) -> None:
        line = line.replace(THERE, self.url).replace("DNS:dsort.example.com", "IP:127.0.0.1")
        line = re.sub(r"\bJOB\b", self.job_id, line)
        if line.startswith("dsort serve"):
            arguments = [word.replace("0.0.0.0", "127.0.0.1") for word in words(line)[1:]]
            self.url = services.enter_context(running_service(self.place, *arguments)).url
        elif export := re.match(r"export (\w+)=(?:\$\((.*?)\)|(\S+))", line):
            value = self.dsort(export[2]) if export[2] else export[3]
            self.monkeypatch.setenv(export[1], value)
        elif line.startswith("dsort "):
            for each in line.partition("  #")[0].split("; "):
                self.dsort(each)
        else:
            self.shell(line)

    def dsort(self, line: str) -> str:
        ended = self.cli(*words(line))
        verb = words(line)[0]
        assert ended.code == REFUSED.get(verb, 0), f"{line}: {ended.err}"
        assert "warning" not in ended.err, f"{line}: {ended.err}"
        if verb == "start":
            self.job_id = ended.out.strip()
        return ended.out.strip()

    def shell(self, line: str) -> None:
        line = line.replace("curl ", "curl --fail --silent --show-error --cacert cert.pem ")
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.place, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        if "--data-binary" in line:
            self.job_id = json.loads(done.stdout)["job_id"]


def test_a_team_of_its_own(place: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = cli("serve", "--host", "0.0.0.0", "--port", "0")
    assert (refused.code, "--insecure" in refused.err) == (2, True)
    refused = cli("serve", "--host", "0.0.0.0", "--port", "0", "--insecure")
    assert (refused.code, "there is no token yet" in refused.err) == (2, True)
    shell = Shell(place, cli, monkeypatch)
    assert {line.split()[0] for line in TEAM} == {"export", "dsort", "openssl", "curl"}
    with ExitStack() as services:
        for line in TEAM:
            shell(line, services)
        schedules = json.loads(shell.dsort("dsort schedule ls --json"))
    assert sorted((each["name"], each["paused"]) for each in schedules) == [
        ("hourly", False),
        ("nightly", True),
    ]
