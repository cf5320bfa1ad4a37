"""``keep_shards``: each input shard becomes one output shard of its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dsort
from dsort.api import plan, run, verify
from dsort.errors import NamesTakenError, SpecError
from dsort.options import RunOptions
from tests.support.datasets import Member, Shard, files_of, read_shard, write_shards
from tests.support.refusals import raises

pytestmark = pytest.mark.usefixtures("workers_here")

SIZES = {"b.tar": 3, "a/x.tar": 1, "c.tar": 4}
SHARDS = {
    name: Shard(
        tuple(
            Member(f"{name[0]}{i}.{extension}", b"%d" % i * (i + 1))
            for i in range(count)
            for extension in ("cls", "txt")
        )
    )
    for name, count in SIZES.items()
}


def done(tmp_path: Path, *, move: str = "auto", **fields: Any) -> dict[str, bytes]:
    """The output shards of a job that keeps its shards, which is verified."""
    write_shards(tmp_path / "in", SHARDS)
    spec = dsort.load_spec(
        {"input_bck": "in", "output_bck": "out", "keep_shards": True, "overwrite": True, **fields}
    )
    options = RunOptions(root=tmp_path, move=move, workers=2)
    report = run(spec, options=options)
    manifest = (tmp_path / "out" / (report.manifest_name or "")).read_bytes()
    checked = verify(manifest, options=options)
    assert checked.problems == ()
    assert checked.warnings == ()
    return files_of(tmp_path / "out")


@pytest.mark.parametrize("move", ["map", "spill"])
def test_shards_keep_their_names_and_records(tmp_path: Path, move: str) -> None:
    found = done(tmp_path, move=move)
    assert sorted(found) == sorted(SHARDS)
    for name, shard in SHARDS.items():
        assert [each.name for each in read_shard(found[name])] == [m.name for m in shard.members]


@pytest.mark.parametrize("move", ["map", "spill"])
def test_a_shard_of_which_nothing_is_left_stays_empty(tmp_path: Path, move: str) -> None:
    steps = [{"filter": 'key != "a0" && key != "c0"'}, {"fields": {"drop": ["txt"]}}]
    found = done(tmp_path, move=move, transform={"steps": steps})
    names = {name: [each.name for each in read_shard(data)] for name, data in found.items()}
    assert names == {
        "a/x.tar": [],
        "b.tar": ["b0.cls", "b1.cls", "b2.cls"],
        "c.tar": ["c1.cls", "c2.cls", "c3.cls"],
    }


def test_names_say_what_is_in_the_outputs(tmp_path: Path) -> None:
    done(tmp_path, output_extension=".tar.gz", input_format={"objnames": ["b.tar"]})
    assert [path.name for path in (tmp_path / "out").glob("*.tar*")] == ["b.tar.gz"]


def test_code_runs_once_for_each_record(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    (tmp_path / "code.py").write_text(
        "def noted(record):\n"
        f"    with open({str(calls)!r}, 'a') as file:\n"
        "        file.write(record['__key__'] + '\\n')\n"
        "    return record\n"
    )
    step = {"map": {"python": f"{tmp_path}/code.py:noted"}}
    write_shards(tmp_path / "in", SHARDS)
    spec = {"input_bck": "in", "output_bck": "out", "keep_shards": True}
    run({**spec, "transform": {"steps": [step]}}, options=RunOptions(root=tmp_path, workers=1))
    assert len(calls.read_text().split()) == sum(SIZES.values())


def test_names_that_are_taken_are_found_before_anything_is_read(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", SHARDS)
    write_shards(tmp_path / "out", {"c.tar": b"mine"})
    spec = {"input_bck": "in", "output_bck": "out", "keep_shards": True}
    options = RunOptions(root=tmp_path)
    with pytest.raises(NamesTakenError, match=r"c\.tar"):
        run(spec, options=options)
    with raises(SpecError, paths=["output_format"]):
        run({**spec, "output_bck": "in"}, options=options)
    report = plan({**spec, "output_bck": "other"}, options=options)
    assert [shard.name for shard in report.shards] == ["a/x.tar", "b.tar", "c.tar"]
