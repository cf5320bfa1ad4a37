"""Weighed inputs beside all else that jobs do: other containers, key maps, new keys, plans."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.options import RunOptions
from tests.support.datasets import Member, Shard, files_of, write_shards
from tests.support.engine import (
    count_of,
    keys_in,
    plan_local,
    record,
    records_out,
    run_local,
    shard_of,
    spec_of,
)
from tests.support.internals import manifest_name

pytestmark = pytest.mark.usefixtures("workers_here")


def of_one(**fields: Any) -> dict[str, Any]:
    """A spec whose one input, ``in``, has these fields that an input has."""
    given = {name: fields.pop(name) for name in ("weight", "repeat", "records") if name in fields}
    spec = {name: value for name, value in spec_of(**fields).items() if name != "input_bck"}
    return {**spec, "inputs": [{"name": "it", "input_bck": "in", **given}]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_shards(tmp_path / "in", {"s.tar": shard_of("a", "d/b", "c")})
    return tmp_path


def problems(root: Path, job_id: str) -> tuple[object, ...]:
    manifest = (root / "out" / manifest_name(job_id)).read_bytes()
    return api.verify(manifest, options=RunOptions(root=root)).problems


def test_copies_follow_their_record_and_are_named_after_it(root: Path) -> None:
    report = run_local(root, of_one(repeat=3))
    names = ["a.jpg", "a~1.jpg", "a~2.jpg", "d/b.jpg", "d/b~1.jpg", "d/b~2.jpg"]
    assert records_out(root) == [*names, "c.jpg", "c~1.jpg", "c~2.jpg"]
    assert count_of(report, "copied_by_mix")[0] == 6
    assert report.warnings == ()
    assert problems(root, report.job_id) == ()


def test_copies_of_strays_are_shuffled_by_their_names(root: Path) -> None:
    names = ("readme", "notes", "LICENSE", "d/list", "a")
    members = tuple(Member(name, b"text") for name in (*names, "readme.txt"))
    write_shards(root / "in", {"s.tar": Shard(members)})
    algorithm = {"kind": "shuffle", "seed": 1}
    report = run_local(root, of_one(repeat=3, algorithm=algorithm, output_shard_records=4))
    assert report.records == 18
    assert problems(root, report.job_id) == ()


def test_what_is_left_out_is_counted(root: Path) -> None:
    report = run_local(root, of_one(records=1))
    assert report.records == 1
    assert count_of(report, "left_out_by_mix") == (2, ("2 in it/s.tar",))
    plan = plan_local(root, of_one(records=2, output_format="plan-%d"))
    assert plan.records == 2


@pytest.mark.parametrize("output", [".zip", ".tar.gz"])
def test_copies_go_into_other_containers(root: Path, output: str) -> None:
    report = run_local(root, of_one(repeat=2, output_extension=output))
    assert report.records == 6
    assert problems(root, report.job_id) == ()


def test_entries_of_a_zip_are_copied_with_their_own_names(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with zipfile.ZipFile(tmp_path / "in" / "s.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a.txt", "b.txt"):
            archive.writestr(name, name * 50)
    report = run_local(tmp_path, of_one(repeat=2, input_extension=".zip"))
    (path,) = (tmp_path / "out").glob("*.zip")
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["a.txt", "a~1.txt", "b.txt", "b~1.txt"]
        assert archive.read("b~1.txt") == b"b.txt" * 50
    assert problems(tmp_path, report.job_id) == ()


@pytest.mark.parametrize("kind", ["none", "shuffle"])
def test_lines_are_copied_as_they_are(tmp_path: Path, kind: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "s.txt").write_text("one\ntwo\nthree\n")
    algorithm = {"kind": kind} | ({"seed": 1} if kind == "shuffle" else {})
    spec = of_one(repeat=2, input_extension=".txt", algorithm=algorithm, output_shard_records=9)
    report = run_local(tmp_path, spec)
    (path,) = (tmp_path / "out").glob("*.txt")
    assert sorted(path.read_text().split()) == sorted(["one", "two", "three"] * 2)
    assert problems(tmp_path, report.job_id) == ()


def test_a_key_map_places_copies_with_their_record(root: Path) -> None:
    spec = of_one(repeat=2, ekm={"a-%d": ["a"], "rest-%d": ["d/b", "c"]}, output_format=None)
    report = run_local(root, {name: value for name, value in spec.items() if value is not None})
    found = files_of(root / "out")
    assert keys_in(found["a-0.tar"]) == ["a.jpg", "a~1.jpg"]
    assert problems(root, report.job_id) == ()


def test_new_keys_are_for_what_comes_out(tmp_path: Path) -> None:
    shards = {f"s-{number}.tar": shard_of("a", "b") for number in range(2)}
    write_shards(tmp_path / "in", shards)
    report = run_local(tmp_path, of_one(repeat=2, duplicate_keys="rename"))
    assert records_out(tmp_path) == [
        *("a.jpg", "a~1.jpg", "b.jpg", "b~1.jpg"),
        *("a-1.jpg", "a~1-1.jpg", "b-1.jpg", "b~1-1.jpg"),
    ]
    assert problems(tmp_path, report.job_id) == ()


def test_steps_come_first(root: Path) -> None:
    write_shards(root / "in", {"t.tar": shard_of(*"efgh")})
    steps = {"steps": [{"keep_keys": {"keys": ["e", "f", "c"]}}, {"rekey": "x-{base}"}]}
    run_local(root, of_one(records=6, transform=steps, output_shard_records=10))
    names = [f"x-{key}{copy}.jpg" for key in "cef" for copy in ("", "~1")]
    assert records_out(root) == names


def test_a_record_of_several_members_is_copied_whole(tmp_path: Path) -> None:
    members = tuple(record("a", "jpg", "cls", "seg.png"))
    write_shards(tmp_path / "in", {"s.tar": type(shard_of("x"))(members)})
    run_local(tmp_path, of_one(repeat=2))
    names = ["a.jpg", "a.cls", "a.seg.png"]
    assert records_out(tmp_path) == [*names, *(name.replace("a.", "a~1.", 1) for name in names)]


@pytest.mark.parametrize("move", ["auto", "spill"])
def test_what_a_function_makes_is_weighed_and_compared(tmp_path: Path, move: str) -> None:
    write_shards(tmp_path / "in", {"s.tar": shard_of("a1", "b22", "c3", "d4")})
    code = {"map": {"python": "tests.support.user_functions:longer", "drop": ["jpg"]}}
    steps = {"steps": [code]}
    report = run_local(tmp_path, of_one(records=6, transform=steps), move=move)
    assert report.records == 6
    names = {name.partition("~")[0].partition(".")[0] for name in records_out(tmp_path)}
    assert names == {"b22", "c3", "d4"}
    assert [*problems(tmp_path, report.job_id)] == []
    spec = spec_of(transform=steps, deduplicate={"by": "content"}, output_format="one-%d")
    assert run_local(tmp_path, spec, move=move).records == 1


@pytest.mark.parametrize(
    "more",
    [
        {"outputs": [{"name": "a", "fraction": 0.75}, {"name": "b", "fraction": 0.25}]},
        {
            "outputs": [{"name": "a", "fraction": 0.75}, {"name": "b", "fraction": 0.25}],
            "exact": True,
            "stratify": "label",
        },
        {"algorithm": {"kind": "shuffle", "seed": 1, "interleave": {"by": "label"}}},
        {"algorithm": {"kind": "value", "value": "text"}},
        {"lineage": "jsonl", "verify": "content"},
    ],
    ids=str,
)
@pytest.mark.parametrize("mixed", [None, {"stop": "first_exhausted"}], ids=["weights", "mix"])
def test_equal_records_of_weighed_inputs_are_left_out_beside_all_else(
    tmp_path: Path, mixed: dict[str, Any] | None, more: dict[str, Any]
) -> None:
    """The bytes are the same with one, two and four workers, and the result is verified."""
    for name, least in (("web", 0), ("books", 30)):
        (tmp_path / name).mkdir()
        for shard in range(3):
            numbers = range(least + shard * 9, least + shard * 9 + 20)
            rows = [{"text": f"text {n}", "label": "ab"[n % 2], "of": name} for n in numbers]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (tmp_path / name / f"s-{shard}.jsonl").write_text(lines)
    spec = {
        **spec_of(output_format="{split}-{n}" if "outputs" in more else "out-%d", overwrite=True),
        "inputs": [
            {"name": "web", "input_bck": "web", "weight": 0.8},
            {"name": "books", "input_bck": "books", "weight": 0.5},
        ],
        "input_extension": ".jsonl",
        "deduplicate": {"by": {"field": "text"}, "keep": "last"},
        **({"mix": mixed} if mixed else {}),
        **more,
    }
    del spec["input_bck"]
    found = []
    for workers in (1, 2, 4):
        report = run_local(
            tmp_path, spec, workers=workers, move="spill" if workers == 2 else "auto"
        )
        assert problems(tmp_path, report.job_id) == ()
        found.append(files_of(tmp_path / "out", "*.jsonl"))
    assert found[0] == found[1] == found[2]
    texts = [json.loads(line)["text"] for each in found[0].values() for line in each.splitlines()]
    assert len(texts) == len({*texts}) == report.records > 9
    assert count_of(report, "deduplicated")[0] == 120 - 68


@pytest.mark.parametrize("deduplicate", [None, {"by": "content"}])
@pytest.mark.parametrize("given", [{"records": 3}, {"weight": 0.6}], ids=str)
def test_records_are_weighed_that_have_a_place_in_the_key_map(
    tmp_path: Path, given: dict[str, Any], deduplicate: dict[str, Any] | None
) -> None:
    keys = [f"k{number:02}" for number in range(20)]
    for at in range(2):
        own = [Member(f"{key}.x", b"%d" % (int(key[1:]) % 9)) for key in keys[at::2]]
        write_shards(tmp_path / "in", {f"s-{at}.tar": Shard(tuple(own))})
    key_map = {"ekm": {"o-%d.tar": keys[4:16]}, "ekm_missing_key": "ignore"}
    spec = of_one(**given, **key_map, output_format=None, deduplicate=deduplicate)
    report = run_local(tmp_path, spec, workers=2)
    assert report.records == 3 or "weight" in given
    assert problems(tmp_path, report.job_id) == ()
