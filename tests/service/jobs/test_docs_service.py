"""What the page of the service says works as it is written: its commands are read from there and
run, in their order, with another host, port and certificate."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.commands import ROOT, SPEC, CommandLine
from tests.support.datasets import small_dataset, write_shards
from tests.support.doc_pages import Shell, blocks, commands

PAGE = ROOT / "docs" / "operations" / "service.md"
QUICK_START, *TEAM = [each for each in blocks(PAGE) if each.tag == "sh"]
(PYTHON,) = [each for each in blocks(PAGE) if each.tag == "python"]
REFUSED = {"resume": 6}  # the service resumes no job that has finished


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine) -> Path:
    """A directory with what the commands name; state and settings are kept there, too."""
    write_shards(tmp_path / "images", small_dataset("readme", shards=2, records=6))
    nightly = small_dataset("readme", shards=1, records=6)
    write_shards(tmp_path / "samples", {"samples-000.tar": nightly["in-0.tar"]})
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    (tmp_path / "spec.yaml").write_text(json.dumps(SPEC))
    hourly = re.search(
        r'`hourly\.json` is a spec\s+with `"output_format": (".*?")`', PAGE.read_text("utf-8")
    )
    assert hourly is not None
    fresh = {"output_format": json.loads(hourly[1]), "algorithm": {"kind": "shuffle"}}
    (tmp_path / "hourly.json").write_text(json.dumps(SPEC | fresh))
    (tmp_path / "specs").symlink_to(ROOT / "specs")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def test_the_quick_start_and_the_python(
    place: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve, start = commands(QUICK_START.text)
    with ExitStack() as services:
        shell = Shell(place, cli, monkeypatch, services)
        shell(serve)
        assert "finished" in shell.dsort(start.replace("http://127.0.0.1:8080", shell.url))
        shell.run(PYTHON)
        assert getattr(shell.found["job"], "state", None) == "finished"


def test_a_team_of_its_own(place: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = cli("serve", "--host", "0.0.0.0", "--port", "0")
    assert (refused.code, "--insecure" in refused.err) == (2, True)
    refused = cli("serve", "--host", "0.0.0.0", "--port", "0", "--insecure")
    assert (refused.code, "there is no token yet" in refused.err) == (2, True)
    first_words = {line.split()[0] for block in TEAM for line in commands(block.text)}
    assert first_words == {"export", "dsort", "openssl", "curl"}
    with ExitStack() as services:
        shell = Shell(place, cli, monkeypatch, services, REFUSED)
        for block in TEAM:
            shell.run(block)
        schedules = json.loads(shell.dsort("dsort schedule ls --json"))
    assert sorted((each["name"], each["paused"]) for each in schedules) == [
        ("hourly", False),
        ("nightly", True),
    ]
