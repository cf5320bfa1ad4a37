"""Where the members of loose files come from: tables that describe them, tars, recipes, labels,
classes; what a manifest says of classes, and files that are added to a result."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from dsort import api
from dsort.errors import (
    InputError,
)
from dsort.options import RunOptions
from tests.support.commands import CommandLine
from tests.support.engine import refused, run_local
from tests.support.internals import JobReport, manifest_name
from tests.support.loose_files import (
    PETS,
    WITH_CLASS,
    contents_out,
    ingest_spec,
    verified,
    write_tree,
)
from tests.support.refusals import raises
from tests.support.web_server import web_server

pytestmark = pytest.mark.usefixtures("workers_here")


SHUFFLE = {"kind": "shuffle", "seed": 1}


def test_metadata_describes_the_files_around_it(tmp_path: Path) -> None:
    rows = [
        {"file_name": "train/1.jpg", "text": "caf\u00e9", "mask_file_name": "masks/1.png"},
        {"file_name": "train/2.jpg", "text": "", "mask_file_name": None},
    ]
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    nested = b"n,file_name,text\r\n7,./3.jpg,three\r\n"
    files = {"train/1.jpg": b"1", "train/2.jpg": b"2", "masks/1.png": b"m", "deep/3.jpg": b"3"}
    write_tree(tmp_path / "in", files | {"metadata.jsonl": lines, "deep/metadata.csv": nested})
    spec = ingest_spec(ingest={"layout": "metadata"})
    report = run_local(tmp_path, spec)
    assert contents_out(tmp_path) == {
        "deep/3.jpg": b"3",
        "deep/3.json": b'{"n": "7", "text": "three"}',
        "train/1.jpg": b"1",
        "train/1.json": '{"text": "caf\u00e9"}'.encode(),
        "train/1.mask.png": b"m",
        "train/2.jpg": b"2",
        "train/2.json": b'{"text": ""}',
    }
    assert (report.records, verified(tmp_path, report.job_id)) == (3, [])
    (tmp_path / "in" / "more.jpg").write_bytes(b"")
    with refused(tmp_path, InputError, "more.jpg"):
        run_local(tmp_path, {**spec, "output_format": "other-%d"})


@pytest.mark.parametrize(
    ("table", "named"),
    [
        (b"file_name\n../out/x.jpg\n", ("line 2", "'../out/x.jpg'")),
        (b"file_name\n/etc/passwd\n", ("line 2", "'/etc/passwd'")),
        (b"file_name\ns3://a/b.jpg\n", ("line 2", "'s3://a/b.jpg'")),
        (b"file_name\nb.jpg\n", ("line 2", "b.jpg")),
        (b"file_name\na.jpg\n./a.jpg\n", ("line 3", "./a.jpg", "metadata.csv, line 2")),
        (b"name\na.jpg\n", ("line 2",)),
        (b"file_name,../x_file_name\na.jpg,c.jpg\n", ("../x_file_name",)),
    ],
)
def test_metadata_leads_nowhere_else(table: bytes, named: tuple[str, ...], tmp_path: Path) -> None:
    write_tree(tmp_path / "in", {"a.jpg": b"", "c.jpg": b"", "metadata.csv": table})
    with pytest.raises(InputError) as caught:
        run_local(tmp_path, ingest_spec(ingest={"layout": "metadata", "unusable": "drop"}))
    assert [name for name in named if name not in caught.value.message] == []


def test_hugging_face_reads_the_same_of_the_tree_and_of_the_shards(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    image = pytest.importorskip("PIL.Image")
    tree = tmp_path / "in"
    tree.mkdir()
    for at in range(4):
        image.new("RGB", (2, 2), (at * 60, 0, 0)).save(tree / f"{at}.png")
    rows = [{"file_name": f"{at}.png", "text": f"no. {at}"} for at in range(4)]
    (tree / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_local(tmp_path, ingest_spec(ingest={"layout": "metadata"}, algorithm=SHUFFLE))
    cache = str(tmp_path / "cache")
    there = datasets.load_dataset("imagefolder", data_dir=str(tree), split="train", cache_dir=cache)
    shards = sorted(map(str, (tmp_path / "out").glob("*.tar")))
    ours = datasets.load_dataset("webdataset", data_files=shards, split="train", cache_dir=cache)
    expected = sorted((row["text"], row["image"].tobytes()) for row in there)
    assert sorted((row["json"]["text"], row["png"].tobytes()) for row in ours) == expected


def tar_of(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    stored = io.BytesIO()
    with tarfile.open(fileobj=stored, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return stored.getvalue()


def test_tars_of_tars_are_looked_into(tmp_path: Path) -> None:
    inner = {
        f"{kind}.tar": tar_of({f"./{n[4:]}": d for n, d in PETS.items() if n.startswith(kind)})
        for kind in ("ant", "bee")
    }
    write_tree(tmp_path / "in", {"all.tar": tar_of(inner), "cat.tar": tar_of({"00.jpg": b""})})
    spec = ingest_spec(ingest={"layout": "folders", "archives": True}, algorithm=SHUFFLE)
    report = run_local(tmp_path, spec)
    expected = {**PETS, **WITH_CLASS}
    names = [name for name in expected if not name.startswith("cat") or "00" in name]
    assert contents_out(tmp_path) == {name: expected[name] for name in names}
    assert verified(tmp_path, report.job_id) == []


@pytest.mark.parametrize(
    ("archive", "named"),
    [
        (tar_of({"../../x.jpg": b""}), "a/../../x.jpg"),
        (tar_of({"/etc/x.jpg": b""}), "a//etc/x.jpg"),
        (tar_of({}, {"x.jpg": "/etc/passwd"}), "a/x.jpg"),
        (tar_of({"x.jpg": b"1" * 3000})[:2000], "a.tar"),
        (tar_of({"x.tar": b"1" * 3000}), "a.tar/x.tar"),
        (b"no tar at all" * 100, "a.tar"),
    ],
)
def test_no_archive_leads_out_of_itself(archive: bytes, named: str, tmp_path: Path) -> None:
    write_tree(tmp_path / "in", {"a.tar": archive, "b.jpg": b""})
    with pytest.raises(InputError) as caught:
        run_local(tmp_path, ingest_spec(ingest={"archives": True}))
    assert named in caught.value.message
    assert "Traceback" not in caught.value.message


def test_a_recipe_names_each_member_and_what_is_in_it(tmp_path: Path) -> None:
    write_tree(tmp_path / "a", {"x/1.jpg": b"one", "2": b"two words"})
    write_tree(tmp_path / "b", {"m.png": b"mask"})
    where = (tmp_path / "b").as_uri()
    lines = ["k/1.jpg a/x/1.jpg", "k/1.cls text:3", "k/1.png  b/m.png", "", "2.jpg\ta/x/1.jpg"]
    lines += ["2.txt a/2", "2.note.txt text: and so on "]
    write_tree(tmp_path, {"recipe.txt": "\n".join(lines).encode()})
    recipe = {"recipe": str(tmp_path / "recipe.txt")}
    report = run_local(tmp_path, ingest_spec("a", "b", ingest=recipe))
    assert contents_out(tmp_path) == {
        "2.jpg": b"one", "2.note.txt": b" and so on ", "2.txt": b"two words",
        "k/1.cls": b"3", "k/1.jpg": b"one", "k/1.png": b"mask",
    }  # fmt: skip
    assert (report.records, verified(tmp_path, report.job_id)) == (2, [])
    write_tree(tmp_path, {"recipe.txt": f"1.png {where}/m.png\n".encode()})
    spec = ingest_spec(ingest=recipe, input_bck=where, overwrite=True)
    assert run_local(tmp_path, spec).totals.members == 1


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("1.jpg", "line 1"),
        ("noextension a.jpg", "line 1: noextension"),
        ("../1.jpg a.jpg", "line 1: ../1.jpg"),
        ("1.jpg ../secret", "line 1: ../secret"),
        ("1.json .dsort/x/report.json", "line 1: .dsort/x/report.json"),
        ("1.jpg /etc/passwd", "line 1: /etc/passwd"),
        ("1.jpg http://10.0.0.1/x", "line 1: http://10.0.0.1/x"),
        ("1.jpg file:///etc/passwd", "file:///etc/passwd"),
        ("1.jpg pipe:touch /tmp/x", "line 1: pipe:"),
        ("1.jpg b.jpg", "1 file"),
        ("1.jpg a.jpg\n1.jpg a.jpg", "1.jpg"),
    ],
)
def test_a_recipe_leads_nowhere_else(line: str, named: str, tmp_path: Path) -> None:
    write_tree(tmp_path / "in", {"a.jpg": b""})
    write_tree(tmp_path, {"recipe.txt": line.encode()})
    with pytest.raises(InputError) as caught:
        run_local(tmp_path, ingest_spec(ingest={"recipe": str(tmp_path / "recipe.txt")}))
    assert named in caught.value.message


def test_a_recipe_takes_what_web_servers_have(tmp_path: Path) -> None:
    write_tree(tmp_path / "site", {"img/1.jpg": b"one", "img/2.jpg": b""})
    write_tree(tmp_path / "in", {"c.txt": b"text"})
    with web_server(tmp_path / "site") as server:
        web = f"http://{server.host}/img"
        lines = f"1.jpg {web}/1.jpg\n1.txt here/c.txt\n2.jpg web/2.jpg\n"
        write_tree(tmp_path, {"recipe.txt": lines.encode()})
        spec = ingest_spec(ingest={"recipe": str(tmp_path / "recipe.txt")})
        del spec["input_bck"]
        spec["inputs"] = [
            {"name": "here", "input_bck": "in"}, {"name": "web", "input_bck": web}
        ]  # fmt: skip
        report = run_local(tmp_path, spec)
        assert contents_out(tmp_path) == {"1.jpg": b"one", "1.txt": b"text", "2.jpg": b""}
        assert verified(tmp_path, report.job_id) == []


def test_class_maps_labels_and_tables_come_from_files(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", PETS)
    write_tree(tmp_path, {"map.json": b'{"ant": 5, "bee": 0, "cat": 2, "dog": 9}'})
    folders = {"layout": "folders", "class_map": str(tmp_path / "map.json")}
    report = run_local(tmp_path, ingest_spec(ingest=folders))
    found = contents_out(tmp_path)
    assert {found[f"{kind}/01.cls"] for kind in ("ant", "bee", "cat")} == {b"5", b"0", b"2"}
    assert verified(tmp_path, report.job_id) == []
    write_tree(tmp_path, {"map.json": b"[]", "labels.txt": b"1\n" * 20 + b"4\n"})
    with refused(tmp_path, InputError, "3 classes", "cat"):
        run_local(tmp_path, ingest_spec(ingest=folders, overwrite=True))
    table = b"id,text\n01,one\n02,two\n99,none\n"
    write_tree(tmp_path, {"table.csv": table})
    more = {
        "labels": str(tmp_path / "labels.txt"),
        "labels_from": 1,
        "table": {"file": str(tmp_path / "table.csv"), "key": "id", "match": "name"},
    }
    report = run_local(tmp_path, ingest_spec(ingest=more, overwrite=True))
    found = contents_out(tmp_path)
    assert (found["ant/00.cls"], found["cat/06.cls"]) == (b"0", b"3")
    assert {found[f"{kind}/02.json"] for kind in ("ant", "bee", "cat")} == {b'{"text": "two"}'}
    counted = {each.kind: each.count for each in report.reactions}
    assert counted == {"records_without_row": 15, "rows_without_record": 1}
    (tmp_path / "labels.txt").write_bytes(b"1\n")
    with refused(tmp_path, InputError, "has 1 labels, and there are 21 records"):
        run_local(tmp_path, ingest_spec(ingest=more, overwrite=True))


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
    with raises(InputError, "1 class", "emu", hint="class_map"):
        added_to(tmp_path, "more")


@pytest.mark.parametrize(
    ("class_map", "named"),
    [
        ('{"ant": 0, "bee": 1, "cat": 2, "emu": 3}', ""),
        ('{"ant": 7, "emu": 3}', "class ant"),
        ('{"emu": 1}', "emu"),
    ],
)
def test_a_class_map_gives_a_new_class_its_number(
    tmp_path: Path, class_map: str, named: str
) -> None:
    write_tree(tmp_path / "in", PETS)
    write_tree(tmp_path / "more", {"emu/70.jpg": b"one more"})
    (tmp_path / "classes.json").write_text(class_map)
    spec = ingest_spec(ingest={"layout": "folders"}, algorithm=SHUFFLE)
    first = run_local(tmp_path, spec)
    rules = {"layout": "folders", "class_map": str(tmp_path / "classes.json")}
    more = {**spec, "input_bck": "more", "output_format": "more-%d", "ingest": rules}
    amending = {**more, "amend": {"job": first.job_id}}
    if named:
        with raises(InputError, named):
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
