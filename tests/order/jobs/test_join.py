"""Jobs that join records of several inputs: errors, other features, resuming, what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsort.errors import DuplicateError, JoinError, TransformError
from dsort.spec.load import parse_spec
from tests.order.laws.test_join_laws import WAYS, found_in, problems, spec_of
from tests.support.datasets import Member, Shard, files_of, write_shards
from tests.support.engine import count_of, run_local
from tests.support.inline_runtime import run_inline
from tests.support.internals import lineage_name
from tests.support.refusals import raises
from tests.support.verified import verify_result

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
    with raises(JoinError, f"input {at}: {other}/more-0.tar: 99"):
        run_local(root, spec_of(BOTH, algorithm=SHUFFLE))
    assert not list((root / "out").glob("*.tar"))
    some = {**BOTH, at: "skip"}
    report = run_local(root, spec_of(some, algorithm=SHUFFLE))
    assert report.warnings == ()
    assert count_of(report, "left_out_by_join") == (1, (f"{other}/more-0.tar: 99",))
    assert problems(root, report.job_id) == []


def test_a_second_record_of_one_input_is_an_error_unless_it_is_dropped(root: Path) -> None:
    write(root, "labels", {"03.cls": b"x"}, 1, "z")
    with raises(DuplicateError, "labels/z-0.tar: 03"):
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
    with raises(DuplicateError, "12 records"):
        run_local(root, spec)
    report = run_local(root, {**spec, "duplicate_keys": "drop"})
    assert (report.records, report.totals.members) == (12, 36)
    assert count_of(report, "duplicate_keys_dropped")[0] == 12
    assert problems(root, report.job_id) == []


def test_members_of_one_extension_are_refused_by_name(root: Path) -> None:
    write(root, "more", {f"{n:02d}.jpg": b"" for n in range(12)})
    with raises(JoinError, "12 records", ".jpg"):
        run_local(root, spec_of({**BOTH, "more": "none"}, algorithm=SHUFFLE))


def test_strays_are_records_of_their_own(root: Path) -> None:
    for place in ("images", "labels"):
        write(root, place, {"05": place.encode()}, 1, "stray")
    with raises(JoinError, "stray-0.tar: 05"):
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
    with raises(TransformError, "captions"):
        run_local(root, {**spec, "overwrite": True})


@pytest.mark.parametrize(
    ("said", "named"),
    [("a\\u0000b", ""), ("../a", "../a"), ("a.b", "a.b"), ("", ""), ("a" * 5000, "5,000 bytes")],
)
def test_a_member_that_gives_an_impossible_key_is_refused(
    said: str, named: str, root: Path
) -> None:
    write(root, "captions", {"c.json": f'{{"image": "{said}"}}'.encode()}, 1)
    spec = spec_of({**BOTH, "captions": "none"}, algorithm=SHUFFLE)
    spec["inputs"][2]["join"]["by"] = "json.image"
    with raises(TransformError, "captions", named):
        run_local(root, spec)


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


def test_a_result_that_lacks_a_part_of_a_record_does_not_verify(root: Path) -> None:
    report = run_local(root, spec_of(BOTH, algorithm=SHUFFLE))
    path = next((root / "labels").glob("*.tar"))
    write(root, "labels", {f"{n:02d}.cls": b"%d" % (n + 1) for n in range(11, -1, -1)}, 3)
    assert path.exists()
    found = verify_result(root, report.job_id)
    assert {each.kind for each in found.problems} == {"changed_bytes"}
    assert "has other bytes than" in str(found.problems[0])
