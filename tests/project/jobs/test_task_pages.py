"""The pages of tasks that need a store, or a process of their own, work from their own words. (The
others are in ``test_docs_commands.py``.)"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ROOT, CommandLine
from tests.support.doc_pages import Block, blocks, commands, masked
from tests.support.hub_server import Hub
from tests.support.seaweedfs import S3Server

pytestmark = pytest.mark.usefixtures("workers_here")

TASKS = ROOT / "docs" / "tasks"


def run(command: str, cli: CommandLine) -> str:
    words = shlex.split(command, comments=True)[1:]
    quiet = [] if words[0] in ("ls", "inspect", "gc", "show") else ["--progress", "none"]
    ended = cli(*words, *quiet)
    assert ended.code == 0, ended.err
    return ended.out or ended.err


def until_output(page: Path) -> tuple[list[Block], Block]:
    """The blocks of a page up to its first output, and the output."""
    found = blocks(page)
    at = next(number for number, block in enumerate(found) if block.tag == "text")
    return found[:at], found[at]


@pytest.mark.parametrize("count", [25, pytest.param(500, marks=pytest.mark.exhaustive)])
def test_500_shards_are_shuffled_in_s3(
    count: int, cli: CommandLine, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    (task, *others), output = until_output(TASKS / "s3.md")
    assert others == []
    places = {
        "s3://raw": f"s3://{s3.new_bucket_name()}",
        "s3://train": f"s3://{s3.new_bucket_name()}",
    }
    shards = f"{places['s3://raw']}/imagenet/shard-{{000..{count - 1}}}.tar"
    run(f"dsort gen-shards '{shards}' --fcount {1000 // count} --fsize 20KB", cli)
    printed = []
    for command in commands(task.text):
        if command.startswith("dsort "):
            for shown, real in places.items():
                command = command.replace(shown, real)
            printed.append(run(command, cli))
    found = "".join(printed[-2:])
    for shown, real in places.items():
        found = found.replace(real, shown)
    expected = output.text
    if count != 500:  # then only the numbers of shards and bytes differ from the page
        found, expected = (re.sub(r"\d+ in,|[\d.]+ MiB", "N", text) for text in (found, expected))
    assert masked(found) == masked(expected)
    last = next(block for block in blocks(TASKS / "s3.md") if "dsort resume" in block.text)
    for command in commands(last.text):
        run(command.replace("s3://train", places["s3://train"]), cli)


def test_a_dataset_of_the_hub_is_shuffled_and_read(
    cli: CommandLine, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("dsort gen-shards 'made/train-{00..07}.tar' --fcount 50 --fsize 20KB --fext jpg,cls", cli)
    shards = {f"data/{path.name}": path.read_bytes() for path in Path("made").iterdir()}
    commit = hub.commit("lab/flowers", {"README.md": b"---\n---\n", **shards})
    for name, value in hub.environment().items():
        monkeypatch.setenv(name, value)
    page = TASKS / "hub.md"
    found, output = until_output(page)
    own = [each for each in commands(found[0].text) if each.startswith("dsort ")]
    printed = [run(command, cli) for command in own]
    assert masked("".join(printed[-2:]).replace(f"{tmp_path}/", "")) == masked(output.text)
    script = next(block for block in blocks(page) if block.title == "train.py").write(tmp_path)
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "16 ['__key__', '__url__', 'cls', 'jpg']\n"
    (view,) = (each for each in blocks(page) if "--view" in each.text)
    for command in commands(view.text):
        run(re.sub(r"@[0-9a-f]{40}", f"@{commit}", command), cli)


def test_the_script_of_the_pytorch_page_resumes_from_its_checkpoint(
    cli: CommandLine, tmp_path: Path
) -> None:
    for block in blocks(TASKS / "pytorch.md"):
        if block.title == "train.py":
            block.write(tmp_path)
        elif block.tag == "sh":
            for command in commands(block.text):
                run(command, cli)

    def train(rank: int = 0, ranks: int = 1) -> list[str]:
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks)}
        words = [sys.executable, "train.py"]
        return subprocess.check_output(words, cwd=tmp_path, env=environment, text=True).splitlines()

    assert train() == ["rank 0: epoch 0 is done", "rank 0: epoch 1 is done"]
    for rank in range(2):
        resumed, done = train(rank, 2)
        assert resumed.startswith(f"rank {rank}: resumed at {{'manifest': ")
        assert "'epoch': 1, 'records_seen': 480" in resumed
        assert done == f"rank {rank}: epoch 1 is done"
