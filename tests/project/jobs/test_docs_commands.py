"""Each command, Python block and file of a page works as it is written there, and prints what the
page shows as its output."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dsort.cli.main import whole_app
from tests.support.commands import ROOT, CommandLine
from tests.support.doc_pages import TAGS, Shell, blocks, commands, hand_written
from tests.support.loose_files import write_tree

pytestmark = pytest.mark.usefixtures("workers_here")
PAGES = hand_written()
SERVICE = ROOT / "docs" / "operations" / "service.md"  # which has a test of its own
RUNNING = [
    page
    for page in PAGES
    if page != SERVICE and {"sh", "python"} & {each.tag for each in blocks(page)}
]

LOOSE_FILES = {
    f"imagenet/train/{name}.JPEG": b"image" * 4000 for name in ("n01440764/1", "n01443537/2")
}
"""What pages say that there is, and do not make."""


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.whole
@pytest.mark.parametrize("page", RUNNING, ids=named)
def test_the_commands_of_a_page_run(
    page: Path, tmp_path: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_tree(tmp_path, LOOSE_FILES)
    with ExitStack() as services:
        shell = Shell(tmp_path, cli, monkeypatch, services)
        for block in blocks(page):
            shell.run(block)


def test_the_pages_that_have_commands_run_them() -> None:
    assert {named(page) for page in RUNNING} >= {"README.md", "docs/tutorial.md", "docs/running.md"}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_of_a_page_has_a_tag_that_is_known(page: Path) -> None:
    """So that no command escapes the test above, also not one that is only indented."""
    text = page.read_text("utf-8")
    found = blocks(page)
    assert {each.tag for each in found} <= TAGS
    assert text.count("```") == 2 * len(found)
    outside = re.sub(r"(?ms)^```.*?^```$", "", text)
    assert not re.findall(r"(?m)^ {4,}(?:\$ )?(?:dsort|curl|make|pip|export) .*", outside)


def not_run(page: Path) -> list[str]:
    """The calls of dsort that a page shows and no test runs: those in its text, and those that
    need what a test does not have."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text("utf-8"))
    shown = [each for each in re.findall(r"`([^`]+)`", text) if each.startswith("dsort ")]
    shown += [
        command
        for block in blocks(page)
        if block.tag == "console"
        for command in commands(block.text)
    ]
    return [each for each in shown if re.search(r"(^|-- )dsort ", each)]


@pytest.fixture(scope="module")
def whole_command() -> Any:
    """``dsort`` with all its verbs, which takes a third of a second to make."""
    return whole_app()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_that_no_test_runs_have_options_that_exist(page: Path, whole_command: Any) -> None:
    for command in not_run(page):
        words = shlex.split(re.sub(r"[][]", "", command), comments=True)
        verb = whole_command
        given = words[words.index("dsort") + 1 :]
        while given and given[0] in (verbs := getattr(verb, "commands", {})):
            verb = verbs[given.pop(0)]
        assert not hasattr(verb, "commands") or len(words) == 2, f"no such verb: {command}"
        known = {name for each in verb.params for name in each.opts}
        assert {word for word in given if word.startswith("--")} <= known, command


def test_make_demo_makes_what_the_readme_says(tmp_path: Path) -> None:
    makefile, here = str(ROOT / "Makefile"), str(Path(sys.executable).parent)
    done = subprocess.run(
        ["make", "-f", makefile, "-o", ".venv/.runs", f"BIN={here}", "demo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "demo" / "images").glob("samples-*.tar"))) == 19
    assert list((tmp_path / "demo" / "shuffled").glob("shard-*.tar"))


def test_every_target_of_make_that_a_page_names_is_there() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8")))
    shown = {
        name
        for page in PAGES
        for code in (*re.findall(r"`([^`\n]+)`", page.read_text("utf-8")),
                     *(each.text for each in blocks(page)))
        for name in re.findall(r"(?m)^make ([a-z-]+)", code)
    }  # fmt: skip
    assert "demo" in shown
    assert shown <= targets
