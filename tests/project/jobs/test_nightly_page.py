"""The page about the nightly reshuffle: its edits name places that are in the files, its output is
the output of the command, and each night has another order. (Its commands run in
``test_docs_commands.py``, ``tests/project/unit/test_cluster_*.py`` checks its manifests.)"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.cluster_files import of_kind, parse_command, walk
from tests.support.commands import ROOT, CommandLine
from tests.support.doc_pages import blocks, commands

PAGE = ROOT / "docs" / "tasks" / "nightly.md"
TEXT = PAGE.read_text("utf-8")
BLOCKS = blocks(PAGE)
FIRST, OUTPUT = BLOCKS[:2]


def seeded(date: str) -> list[list[str]]:
    """The first commands of the page, as the shell of that date runs them."""
    text = re.sub(r"\$\(date [^)]*\)", date, FIRST.text)
    return [shlex.split(command)[1:] for command in commands(text)]


@pytest.mark.usefixtures("workers_here")
def test_the_output_is_that_of_the_command(cli: CommandLine) -> None:
    make, shuffle = seeded("20261127")
    assert cli(*make).code == 0

    ended = cli(*shuffle)

    names = [line.split()[0] for line in ended.out.splitlines()]
    assert names == [line.split()[0] for line in OUTPUT.text.splitlines()]
    for name in ("shards", "records", "algorithm", "seed"):
        (shown,) = re.findall(rf"(?m)^{name} .*$", OUTPUT.text)
        assert shown in ended.out.splitlines()


@pytest.mark.usefixtures("workers_here")
def test_each_night_has_another_order_and_a_night_again_the_same(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli(*seeded("")[0]).code == 0
    nights = []
    for date in ("20261127", "20261128", "20261127"):
        assert cli(*seeded(date)[1]).code == 0
        shards = sorted((tmp_path / "train").glob("*.tar"))
        nights.append({path.name: path.read_bytes() for path in shards})

    first, second, again = nights
    assert first.keys() == second.keys()  # of the first night, none is left beside the second's
    assert first != second
    assert first == again


def test_a_line_of_cron_makes_its_seed_of_the_date() -> None:
    (line,) = re.findall(r"(?m)^0 2 \* \* \* dsort (.*)$", TEXT)
    assert not re.search(r"(?<!\\)%", line)  # cron ends the command at a plain one
    command = line.replace(r"\%", "%").partition(" >>")[0]
    printed = subprocess.run(
        ["/bin/sh", "-c", command.replace("/opt/dsort/bin/", "echo ")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    words = shlex.split(printed)

    parse_command(words)
    assert re.fullmatch(r"20\d{6}", words[words.index("--seed") + 1])


def test_the_commands_make_the_objects_that_the_cron_job_uses() -> None:
    (mounted,) = [each["configMap"]["name"] for each in walk(of_kind("CronJob"))
                  if "configMap" in each]  # fmt: skip

    assert f"kubectl create configmap {mounted} --from-file=rayjob.yaml\n" in TEXT
    assert f"--from=cronjob/{of_kind('CronJob')['metadata']['name']} " in TEXT
    files = re.findall(r"(?:-f|-f=) (\w+\.yaml)", "".join(each.text for each in BLOCKS))
    for name in set(files) - {"nightly.yaml"}:
        assert (ROOT / "cluster" / "kuberay" / name).is_file(), name
