"""``dsort transform`` and ``dsort transforms``: a bucket's records change, its shards stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import CommandLine
from tests.support.datasets import Member, Shard, files_of, read_shard, write_shards

pytestmark = pytest.mark.usefixtures("workers_here")

SHARDS = {
    f"{name}.tar": Shard(
        tuple(Member(f"{name}{i}.{e}", b"%d" % i) for i in range(3) for e in ("cls", "txt"))
    )
    for name in "ab"
}
CODE = """\
def louder(sample):
    return {**sample, "txt": sample["txt"] + b"!"}
"""


def names_in(directory: Path) -> dict[str, list[str]]:
    found = files_of(directory)
    return {name: [each.name for each in read_shard(data)] for name, data in found.items()}


def manifest_in(directory: Path) -> dict[str, Any]:
    (path,) = directory.glob(".dsort/*/manifest.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_function_changes_all_records_and_shards_keep_their_names(
    cli: CommandLine, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", SHARDS)
    (tmp_path / "code.py").write_text(CODE)
    code = f"{tmp_path}/code.py:louder"
    done = cli(
        "transform", "in", "out", "--python", code, "--rename-ext", "txt:text", "--workers", 1
    )
    assert done.code == 0, done.err
    found = files_of(tmp_path / "out")
    assert sorted(found) == ["a.tar", "b.tar"]
    payloads = {each.name: each.payload for each in read_shard(found["a.tar"])}
    assert payloads["a1.text"] == b"1!"
    assert payloads["a1.cls"] == b"1"


def test_a_version_stays_what_it_is_and_a_result_says_which_one_it_used(
    cli: CommandLine, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", SHARDS)
    steps = tmp_path / "steps.yaml"
    steps.write_text("steps:\n- fields: {keep: [cls]}\non_error: skip\n")
    assert cli("transforms", "add", "slim", "-f", steps).out == "slim@1\n"
    assert cli("transforms", "add", "slim", "-f", steps).out == "slim@1\n"  # the same again
    steps.write_text("steps:\n- fields: {keep: [txt]}\n")
    assert cli("transforms", "add", "slim", "-f", steps).out == "slim@2\n"
    for use, kept in (("slim@1", "cls"), ("slim", "txt")):
        done = cli("transform", "in", kept, "--use", use, "--workers", 1)
        assert done.code == 0, done.err
        assert names_in(tmp_path / kept)["b.tar"] == [f"b{i}.{kept}" for i in range(3)]
    used = manifest_in(tmp_path / "cls")["spec"]["transform"]
    shown = json.loads(cli("transforms", "show", "slim@1").out)
    assert (used["use"], used["digest"]) == ("slim@1", shown["digest"])
    assert used["on_error"] == "skip"
    assert used["steps"] == shown["transform"]["steps"]
    assert manifest_in(tmp_path / "txt")["spec"]["transform"]["use"] == "slim@2"
    listed = cli("transforms", "ls").out.splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["slim@1", "slim@2"]
    assert cli("transforms", "rm", "slim").code == 0
    again = {**manifest_in(tmp_path / "cls")["spec"], "output_bck": "again"}
    assert cli("start", "-f", json.dumps(again), "--workers", 1).code == 0  # without the store
    assert files_of(tmp_path / "again") == files_of(tmp_path / "cls")


def test_a_number_is_not_given_again(cli: CommandLine, tmp_path: Path) -> None:
    steps = '{"steps": [{"sample": {"fraction": %s}}]}'
    for number in (1, 2):
        added = cli("transforms", "add", "half", "-f", steps % f"0.{number}")
        assert added.out == f"half@{number}\n"
    assert cli("transforms", "rm", "half").code == 0
    assert cli("transforms", "ls", "--json").out == "[]\n"
    gone = cli("transforms", "show", "half@2")
    assert gone.code == 2
    assert "half@2" in gone.err
    assert cli("transforms", "add", "half", "-f", steps % "0.5").out == "half@3\n"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("transform in x --use slom", ["slom"]),
        ("transform in x --use ../x", ["../x"]),
        ("transform in x", ["--use", "--python", "--steps"]),
        ("transform in --use a", ["DST"]),
        ("transform in x --use a --python a:b", ["--use", "--python"]),
        ("transform in x --python a:b --rename-ext jpg", ["--rename-ext", "jpg:npy"]),
        ("transform in x --use a --rename-ext a:b", ["--rename-ext", "--python"]),
        ("transform add x", ["dsort transforms add"]),
        ("transform - - --use a", ["dsort start - - -f SPEC"]),
        ("transforms add a/b -f {}", ["'a/b'"]),
        ("transforms add a -f {}", ["steps: "]),
        ('transforms add a -f {"steps":[{"sampel":1}]}', ["sample"]),
        ('transforms add a -f {"use":"b"}', ["use: "]),
        ("transforms rm a@7", ["a@7"]),
    ],
)
def test_what_makes_no_sense_is_reported(
    line: str, named: list[str], cli: CommandLine, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", SHARDS)
    ended = cli(*line.split())
    assert ended.code == 2, ended.err
    assert [name for name in named if name not in " ".join(ended.err.split())] == []
    assert not (tmp_path / "x").exists()


def test_a_damaged_transform_is_named(cli: CommandLine, tmp_path: Path) -> None:
    kept = tmp_path / ".unset" / "dsort" / "transforms"
    kept.mkdir(parents=True)
    (kept / "odd@1.json").write_text("[" * 10_000)
    ended = cli("transforms", "show", "odd")
    assert ended.code == 4
    assert "odd@1.json" in ended.err
