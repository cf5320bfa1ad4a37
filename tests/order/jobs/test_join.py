"""Jobs that join records of several inputs: errors, other features, resuming, what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.errors import DuplicateError, JoinError, SpecError, TransformError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.order.laws.test_join_laws import WAYS, found_in, problems, spec_of
from tests.support.datasets import Member, Shard, files_of, write_shards
from tests.support.engine import count_of, run_local
from tests.support.inline_runtime import run_inline
from tests.support.internals import lineage_name, manifest_name

pytestmark = pytest.mark.usefixtures("workers_here")

SHUFFLE = {"kind": "shuffle", "seed": 1}


def write(
    root: Path, place: str, members: dict[str, bytes], shards: int = 2, called: str = "s"
) -> None:
    items = [Member(name, data) for name, data in members.items()]
    parts = {f"{called}-{at}.tar": Shard(tuple(items[at::shards])) for at in range(shards)}
    write_shards(root / place, parts)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Twelve images, and as many labels in another order."""
    write(tmp_path, "images", {f"{n:02d}.jpg": b"image %d" % n for n in range(12)})
    write(tmp_path, "labels", {f"{n:02d}.cls": b"%d" % n for n in range(11, -1, -1)}, 3)
    return tmp_path


BOTH = {"images": "error", "labels": "error"}


def test_a_join_is_a_job_like_any_other(root: Path) -> None:
    spec = spec_of(BOTH, algorithm=SHUFFLE, index="wids", verify="content", lineage="jsonl")
    results = []
    for number, move in enumerate(("map", "spill")):
        report = run_local(root, {**spec, "output_bck": f"out{number}"}, move=move)
        assert (report.records, report.totals.members, report.warnings) == (12, 24, ())
        assert problems(root, report.job_id, f"out{number}") == []
        results.append(files_of(root / f"out{number}"))
    assert results[0] == results[1]
    manifest = json.loads((root / "out1" / manifest_name(report.job_id)).read_text())
    assert manifest["spec"]["join"] == {"by": "key", "nonmatch": "error", "conflict": "error"}
    assert parse_spec(manifest["spec"]).spec.canonical() == manifest["spec"]
    index = json.loads((next((root / "out1").glob("*.json"))).read_text())
    assert [each["nsamples"] for each in index["shardlist"]] == [7, 5]


def test_the_lineage_has_a_row_for_each_part_of_a_record(root: Path) -> None:
    report = run_local(root, spec_of(BOTH, algorithm=SHUFFLE, lineage="jsonl"))
    text = (root / "out" / lineage_name(report.job_id, "jsonl")).read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert len(rows) == 24
    own = [row for row in rows if row["key"] == "05"]
    assert [row["input_shard"].split("/")[0] for row in own] == ["images", "labels"]
    for row in own:
        read = (root / row["input_shard"]).read_bytes()[row["input_offset"] :][: row["input_bytes"]]
        wrote = (root / "out" / row["output_shard"]).read_bytes()[row["output_offset"] :]
        assert wrote[: row["output_bytes"]].startswith(read)


@pytest.mark.parametrize("at", ["images", "labels"])
def test_a_record_that_an_input_lacks_is_named(root: Path, at: str) -> None:
    other = {"images": "labels", "labels": "images"}[at]
    write(root, other, {"99.txt": b""}, 1, "more")
    text = rf"none of its key in the input {at}: {other}/more-0\.tar: 99"
    with pytest.raises(JoinError, match=text):
        run_local(root, spec_of(BOTH, algorithm=SHUFFLE))
    assert not list((root / "out").glob("*.tar"))
    some = {**BOTH, at: "skip"}
    report = run_local(root, spec_of(some, algorithm=SHUFFLE))
    assert report.warnings == ()
    assert count_of(report, "left_out_by_join") == (1, (f"{other}/more-0.tar: 99",))
    assert problems(root, report.job_id) == []


def test_a_second_record_of_one_input_is_an_error_unless_it_is_dropped(root: Path) -> None:
    write(root, "labels", {"03.cls": b"x"}, 1, "z")
    with pytest.raises(DuplicateError, match=r"key of an earlier .* input: labels/z-0\.tar: 03"):
        run_local(root, spec_of(BOTH, algorithm=SHUFFLE))
    report = run_local(root, spec_of(BOTH, algorithm=SHUFFLE, duplicate_keys="drop"))
    assert report.records == 12
    assert count_of(report, "duplicate_keys_dropped") == (1, ("labels/z-0.tar: 03",))
    assert ("03.cls", b"3") in [each for record in found_in(root) for each in record]
    assert problems(root, report.job_id) == []


@pytest.mark.parametrize("kind", ["shuffle", "alphanumeric", "md5"])
@pytest.mark.parametrize("conflict", ["error", "last"])
def test_two_records_of_one_shard_with_one_key_are_no_two_records(
    kind: str, conflict: str, root: Path
) -> None:
    write(root, "more", {f"{place}/{n:02d}.txt": b"" for n in range(12) for place in "ab"}, 1)
    spec = spec_of({**BOTH, "more": "error"}, "stem", algorithm={"kind": kind})
    spec["join"]["conflict"] = conflict
    with pytest.raises(DuplicateError, match="12 records have the key of an earlier record"):
        run_local(root, spec)
    report = run_local(root, {**spec, "duplicate_keys": "drop"})
    assert (report.records, report.totals.members) == (12, 36)
    assert count_of(report, "duplicate_keys_dropped")[0] == 12
    assert problems(root, report.job_id) == []


def test_members_of_one_extension_are_refused_by_name(root: Path) -> None:
    write(root, "more", {f"{n:02d}.jpg": b"" for n in range(12)})
    with pytest.raises(JoinError, match=r"12 records .* one extension .*: \.jpg of im"):
        run_local(root, spec_of({**BOTH, "more": "none"}, algorithm=SHUFFLE))


def test_strays_are_records_of_their_own(root: Path) -> None:
    for place in ("images", "labels"):
        write(root, place, {"05": place.encode()}, 1, "stray")
    with pytest.raises(JoinError, match="members of one extension"):
        run_local(root, spec_of(BOTH, algorithm={"kind": "alphanumeric"}))
    (root / "labels" / "stray-0.tar").unlink()
    spec = spec_of({"images": "none", "labels": "none"}, algorithm={"kind": "alphanumeric"})
    report = run_local(root, spec)
    assert report.records == 13
    assert problems(root, report.job_id) == []


def test_records_are_joined_by_what_their_members_say(root: Path) -> None:
    members = {f"caption-{n}.json": b'{"image": "%02d", "text": "t"}' % n for n in range(12)}
    write(root, "captions", members)
    spec = spec_of({**BOTH, "captions": "error"}, algorithm={"kind": "alphanumeric"})
    spec["inputs"][2]["join"]["by"] = "json.image"
    for move in ("map", "spill"):
        report = run_local(root, {**spec, "overwrite": True}, move=move)
        names = [[name for name, _ in record] for record in found_in(root)]
        assert names == [[f"{n:02d}.{e}" for e in ("jpg", "cls", "json")] for n in range(12)]
        assert problems(root, report.job_id) == []
    spec["inputs"][2]["join"]["by"] = 'ext("json").image == "01"'
    with pytest.raises(TransformError, match=r"captions.*is no text and no whole number"):
        run_local(root, {**spec, "overwrite": True})


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("a\\u0000b", "has a zero byte in it"),
        ("../a", "leads out of the directory"),
        ("a.b", "has a dot"),
        ("", "has no name behind its last slash"),
        ("a" * 5000, "has 5,000 bytes"),
    ],
)
def test_a_member_cannot_say_any_key(said: str, problem: str, root: Path) -> None:
    write(root, "captions", {"c.json": f'{{"image": "{said}"}}'.encode()}, 1)
    spec = spec_of({**BOTH, "captions": "none"}, algorithm=SHUFFLE)
    spec["inputs"][2]["join"]["by"] = "json.image"
    with pytest.raises(TransformError, match=problem):
        run_local(root, spec)


def test_steps_come_before_the_join(root: Path) -> None:
    steps = [{"filter": 'key != "03"'}, {"fields": {"rename": {"cls": "label.cls"}}}]
    spec = spec_of(BOTH, algorithm=SHUFFLE, transform={"steps": steps})
    report = run_local(root, spec)
    names = {name for record in found_in(root) for name, _ in record}
    assert names == {f"{n:02d}.{e}" for e in ("jpg", "label.cls") for n in range(12) if n != 3}
    assert problems(root, report.job_id) == []


def test_outputs_and_key_maps_get_whole_records(root: Path) -> None:
    outputs = [{"name": "train", "fraction": 0.6}, {"name": "val", "fraction": 0.4}]
    spec = spec_of(BOTH, algorithm=SHUFFLE, outputs=outputs, output_format="{split}-%d")
    for number, moved in enumerate(WAYS[:2]):
        report = run_inline({**spec, "output_bck": f"out{number}"}, root, moved)
        assert sum(each.records for each in report.outputs) == 12
        assert problems(root, report.job_id, f"out{number}") == []
    assert files_of(root / "out0") == files_of(root / "out1")
    spec = spec_of(BOTH, algorithm=SHUFFLE, ekm={"low-%d": ["^0[0-5]"], "high-%d": ["^"]})
    spec["ekm"] = {"low-%d": ["^0"], "high-%d": ["^1"]}
    del spec["output_format"]
    report = run_inline({**spec, "output_bck": "mapped"}, root, WAYS[1])
    assert problems(root, report.job_id, "mapped") == []
    shards = files_of(root / "mapped")
    assert sum(name.startswith("low") for name in shards) == 2


def test_zips_are_joined_with_their_directories(root: Path) -> None:
    for place in ("images", "labels"):
        spec = {"input_bck": place, "output_bck": f"zip-{place}", "output_format": "s-%d.zip"}
        run_local(root, {**spec, "output_shard_records": 5, "algorithm": {"kind": "none"}})
    spec = spec_of({"zip-images": "error", "zip-labels": "error"}, algorithm=SHUFFLE)
    for extension in (".zip", ".tar"):
        spec |= {"input_extension": ".zip", "output_extension": extension, "overwrite": True}
        report = run_local(root, {**spec, "output_bck": f"out{extension[1:]}"}, move="spill")
        assert (report.records, report.totals.members) == (12, 24)
        assert problems(root, report.job_id, f"out{extension[1:]}") == []


def test_lines_with_keys_are_joined_into_tars(tmp_path: Path) -> None:
    for place, field in (("texts", "text"), ("scores", "score")):
        (tmp_path / place).mkdir()
        lines = [json.dumps({"id": f"r{n}", field: n}) + "\n" for n in range(5)]
        (tmp_path / place / "a.jsonl").write_text("".join(lines))
    spec = spec_of({"texts": "error", "scores": "error"}, algorithm=SHUFFLE, key_field="/id")
    spec |= {"input_extension": ".jsonl", "output_extension": ".tar"}
    with pytest.raises(JoinError, match=r"members of one extension .*\.json of"):
        run_local(tmp_path, spec)
    del spec["key_field"]
    with pytest.raises(SpecError, match="records have no keys"):
        parse_spec(spec)


@pytest.mark.parametrize("extension", [".tar", ".zip"])
def test_inputs_of_several_containers_are_joined(extension: str, root: Path) -> None:
    zip_labels(root)
    (root / "texts").mkdir()
    lines = [json.dumps({"id": f"{n:02d}", "text": "t" * n}) + "\n" for n in range(12)]
    (root / "texts" / "all.jsonl").write_text("".join(lines))
    inputs = dict.fromkeys(("images", "zipped", "texts"), "error")
    spec = spec_of(inputs, algorithm=SHUFFLE, key_field="/id", output_extension=extension)
    spec["inputs"][1]["input_format"] = {"template": "s-{0..1}.zip"}
    spec["inputs"][2]["input_extension"] = ".jsonl"
    spec["input_extension"] = ".tar"
    results = []
    for number, moved in enumerate(WAYS[:3]):
        report = run_inline({**spec, "output_bck": f"out{number}"}, root, moved)
        assert (report.records, report.totals.members) == (12, 36)
        assert problems(root, report.job_id, f"out{number}") == []
        results.append(files_of(root / f"out{number}"))
    assert results[1:] == results[:1] * 2
    if extension == ".tar":
        for members in found_in(root, "out0"):
            key = members[0][0].split(".")[0]
            assert [name for name, _ in members] == [f"{key}.{e}" for e in ("jpg", "cls", "json")]
            assert members[2][1] == lines[int(key)].encode().strip()
    written = parse_spec(spec).spec.canonical()
    assert parse_spec(written).spec.canonical() == written
    assert written["inputs"][1]["input_extension"] == ".zip"


def zip_labels(root: Path) -> None:
    """The bucket ``zipped``: the labels, in zips."""
    spec = {"input_bck": "labels", "output_bck": "zipped", "output_format": "s-%d.zip"}
    run_local(root, {**spec, "output_shard_count": 2, "algorithm": {"kind": "none"}})


def test_inputs_of_several_containers_need_no_join(root: Path) -> None:
    zip_labels(root)
    spec = spec_of(dict.fromkeys(("images", "zipped"), "none"), algorithm={"kind": "none"})
    del spec["join"], spec["inputs"][0]["join"], spec["inputs"][1]["join"]
    spec["inputs"][1]["input_extension"] = ".zip"
    report = run_local(root, {**spec, "duplicate_keys": "ignore"})
    assert report.records == 24
    assert problems(root, report.job_id) == []
    for extension in (".parquet", ".mds"):
        spec["inputs"][1]["input_extension"] = extension
        with pytest.raises(
            SpecError, match=r"inputs cannot be combined with inputs of another container"
        ):
            parse_spec(spec)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"algorithm": {"kind": "keys", "keys": [{"kind": "md5"}, {"kind": "shuffle"}]}},
            "keys cannot be combined with join",
        ),
        (
            {"algorithm": {"kind": "shuffle", "interleave": {"by": "cls"}}},
            "cannot be combined with join: places are given before",
        ),
        ({"mix": {"stop": "all_exhausted"}}, "weights cannot be combined with join"),
        ({"deduplicate": {"by": "key"}}, "deduplicate: cannot be combined with join"),
        ({"duplicate_keys": "rename"}, "rename cannot be combined with join"),
        (
            {"output_extension": ".mds", "member_defaults": {"cls": "0"}},
            "member_defaults: cannot be combined with join into .mds",
        ),
        ({"output_extension": ".mds.zstd"}, r"cannot be combined with join into .mds.zstd"),
        ({"join": {"by": "1 +"}}, "join.by"),
        ({"join": {"nonmatch": "drop"}}, "join.nonmatch"),
        ({"inputs": [{"name": "a", "input_bck": "a"}]}, "join: needs several inputs"),
        (
            {
                "outputs": [
                    {"name": "a", "when": 'has("cls")'},
                    {"name": "b", "when": True},
                ],
                "output_format": "{split}-%d",
            },
            "asks for more than the key",
        ),
    ],
    ids=str,
)
def test_what_does_not_go_with_a_join_is_said_early(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        parse_spec({**spec_of(BOTH), **fields})


def test_what_an_input_says_of_a_join_needs_one() -> None:
    spec = spec_of(BOTH)
    del spec["join"]
    with pytest.raises(SpecError, match=r"inputs\[0\].join: says how a join differs"):
        parse_spec(spec)


def test_a_result_that_lacks_a_part_of_a_record_does_not_verify(root: Path) -> None:
    report = run_local(root, spec_of(BOTH, algorithm=SHUFFLE))
    path = next((root / "labels").glob("*.tar"))
    write(root, "labels", {f"{n:02d}.cls": b"%d" % (n + 1) for n in range(11, -1, -1)}, 3)
    assert path.exists()
    manifest = (root / "out" / manifest_name(report.job_id)).read_bytes()
    found = api.verify(manifest, options=RunOptions(root=root))
    assert {each.kind for each in found.problems} == {"changed_bytes"}
    assert "has other bytes than" in str(found.problems[0])
