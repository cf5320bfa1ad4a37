"""The numbers of classes: what a manifest says of them, and files that are added to a result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsort import api
from dsort.errors import InputError
from dsort.options import RunOptions
from tests.support.commands import CommandLine
from tests.support.engine import run_local
from tests.support.internals import JobReport, manifest_name
from tests.support.loose_files import contents_out, ingest_spec, write_tree

pytestmark = pytest.mark.usefixtures("workers_here")

SHUFFLE = {"kind": "shuffle", "seed": 1}
PETS = {
    f"{kind}/{number:02d}.jpg": f"{kind} {number}".encode() * number
    for kind in ("cat", "ant", "bee")
    for number in range(7)
}
WITH_CLASS = {
    name.replace(".jpg", ".cls"): b"%d" % ["ant", "bee", "cat"].index(name[:3]) for name in PETS
}


def verified(root: Path, job_id: str) -> list[str]:
    manifest = (root / "out" / manifest_name(job_id)).read_bytes()
    report = api.verify(manifest, options=RunOptions(root=root))
    return [str(problem) for problem in report.problems] + list(report.warnings)


def added_to(root: Path, tree: str) -> JobReport:
    manifest = max((root / "out").glob(".dsort/*/manifest.json")).read_bytes()
    return api.append(manifest, tree, place="out", options=RunOptions(root=root, workers=1))


def test_files_that_are_added_get_the_numbers_that_their_classes_have(
    tmp_path: Path, cli: CommandLine
) -> None:
    write_tree(tmp_path / "in", PETS)
    more = {"cat/70.jpg": b"one more", "bee/71.jpg": b"another"}
    write_tree(tmp_path / "more", more)
    spec = ingest_spec(ingest={"layout": "folders"}, algorithm=SHUFFLE)
    first = run_local(tmp_path, spec)
    report = added_to(tmp_path, "more")
    added = {"cat/70.cls": b"2", "bee/71.cls": b"1"}
    assert contents_out(tmp_path) == {**PETS, **WITH_CLASS, **more, **added}
    assert "3: ant 0, bee 1, cat 2" in cli("show", "out").out
    for job_id in (first.job_id, report.job_id):
        manifest = json.loads((tmp_path / "out" / manifest_name(job_id)).read_bytes())
        assert manifest["classes"] == {"ant": 0, "bee": 1, "cat": 2}
    assert verified(tmp_path, report.job_id) == []


def test_a_class_that_a_result_does_not_have_is_not_added_to_it(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", PETS)
    write_tree(tmp_path / "more", {"emu/70.jpg": b"one more"})
    run_local(tmp_path, ingest_spec(ingest={"layout": "folders"}, algorithm=SHUFFLE))
    with pytest.raises(
        InputError, match="1 class is not in the result that is added to: emu"
    ) as error:
        added_to(tmp_path, "more")
    assert "class_map" in error.value.hint


@pytest.mark.parametrize(
    ("class_map", "problem"),
    [
        ('{"ant": 0, "bee": 1, "cat": 2, "emu": 3}', ""),
        ('{"ant": 7, "emu": 3}', "gives the class ant the number 7.*has 0"),
        ('{"emu": 1}', "gives emu the number 1, which is that of bee"),
    ],
)
def test_a_class_map_gives_a_new_class_its_number(
    tmp_path: Path, class_map: str, problem: str
) -> None:
    write_tree(tmp_path / "in", PETS)
    write_tree(tmp_path / "more", {"emu/70.jpg": b"one more"})
    (tmp_path / "classes.json").write_text(class_map)
    spec = ingest_spec(ingest={"layout": "folders"}, algorithm=SHUFFLE)
    first = run_local(tmp_path, spec)
    rules = {"layout": "folders", "class_map": str(tmp_path / "classes.json")}
    more = {**spec, "input_bck": "more", "output_format": "more-%d", "ingest": rules}
    amending = {**more, "amend": {"job": first.job_id}}
    if problem:
        with pytest.raises(InputError, match=problem):
            run_local(tmp_path, amending)
        return
    report = run_local(tmp_path, amending)
    assert contents_out(tmp_path)["emu/70.cls"] == b"3"
    assert verified(tmp_path, report.job_id) == []


def test_verify_finds_classes_that_have_other_numbers_than_the_manifest_says(
    tmp_path: Path,
) -> None:
    write_tree(tmp_path / "in", PETS)
    spec = ingest_spec(ingest={"layout": "folders"}, algorithm=SHUFFLE)
    report = run_local(tmp_path, spec)
    path = tmp_path / "out" / manifest_name(report.job_id)
    path.write_text(path.read_text().replace('"ant": 0', '"ant": 1'))
    (problem,) = verified(tmp_path, report.job_id)
    assert "other numbers than their files have: ant" in problem
