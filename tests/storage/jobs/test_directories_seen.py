"""A job whose workers would not see one of its directories ends before it begins and names it; a
bucket that does not exist ends every command with one exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsort.errors import StorageError
from tests.support.commands import SPEC, CommandLine
from tests.support.datasets import small_dataset, write_shards
from tests.support.inline_runtime import InlineRuntime, plan_inline, run_inline
from tests.support.refusals import raises


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_shards(tmp_path / "images", small_dataset(1))
    return tmp_path


def blind_for(monkeypatch: pytest.MonkeyPatch, directory: Path) -> list[str]:
    """Have a node not see what is in ``directory``; the directories that were asked for."""
    asked: list[str] = []

    def check(self: InlineRuntime, path: str, token: str) -> tuple[str, ...]:
        assert (Path(path) / token).is_file()
        asked.append(path)
        if Path(path) == directory or directory in Path(path).parents:
            raise StorageError("cannot be seen from node n1", hint="share it")
        return ()

    monkeypatch.setattr(InlineRuntime, "check_directory", check)
    return asked


@pytest.mark.parametrize(("bucket", "role"), [("images", "input"), ("shuffled", "output")])
def test_a_bucket_that_a_node_does_not_see_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, bucket: str, role: str
) -> None:
    blind_for(monkeypatch, root / bucket)
    uri = (root / bucket).as_uri()
    with raises(StorageError, f"{role} bucket {uri}", hint="share it"):
        run_inline(SPEC, root)
    left = [path.name for path in (root / "shuffled").rglob("*") if path.is_file()]
    assert left == ["report.json"]


def test_the_directories_of_a_job_are_asked_for_and_nothing_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = blind_for(monkeypatch, root / "elsewhere")
    run_inline(SPEC, root)
    assert asked == [f"{root}/images", f"{root}/shuffled"]  # scratch is every node's own
    left = [path.name for path in (root / "shuffled/.dsort").rglob("*") if path.is_file()]
    assert left == ["manifest.json"]


def test_a_plan_writes_nothing_to_find_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = blind_for(monkeypatch, root / "elsewhere")
    plan_inline(SPEC, root)
    assert asked == [f"{root}/images"]
    assert not (root / "shuffled").exists()


FIELDS = "{output_format: o-%d, output_shard_records: 5}"
COMMANDS = [
    ("start", "nope", "out", "-f", FIELDS),
    ("plan", "nope", "out", "-f", FIELDS),
    ("ingest", "nope", "out"),
    ("convert", "nope", "out", "--to", "zip"),
    ("transform", "nope", "out", "--python", "json:loads"),
    ("ls", "nope"),
    ("gc", "nope"),
    ("cat", "nope/a.tar"),
    ("inspect", "nope/a.tar"),
    ("show", "a-job", "--bucket", "nope"),
    ("resume", "a-job", "--bucket", "nope"),
    ("stop", "a-job", "--bucket", "nope"),
    ("verify", "a-job", "--bucket", "nope"),
    ("verify", "./nope"),
    ("where", "file:///nope", "a-key"),
    ("show", "nope/prefix"),
    ("resume", "./nope"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each[0])
def test_a_missing_bucket_has_one_exit_code(command: tuple[str, ...], cli: CommandLine) -> None:
    assert cli(*command).code == 4
