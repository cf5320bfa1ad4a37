"""Jobs that read loose files: what becomes of each, verifying, and what is refused."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.errors import (
    ChangedInputError,
    DuplicateError,
    InputError,
    MissingShardError,
    ObjectNotFoundError,
    SpecError,
    StorageAccessError,
)
from dsort.loose_files.listing import Places
from dsort.options import RunOptions, open_with_settings
from dsort.settings import load_settings
from dsort.spec.load import parse_spec
from dsort.storage.network_policy import FetchPolicy
from tests.support.commands import CommandLine
from tests.support.datasets import files_of
from tests.support.engine import plan_local, refused, run_local
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import Event, PhaseDone, manifest_name
from tests.support.loose_files import (
    PETS,
    WITH_CLASS,
    contents_out,
    ingest_spec,
    verified,
    write_tree,
)
from tests.support.refusals import raises
from tests.support.seaweedfs import S3Server

pytestmark = pytest.mark.usefixtures("workers_here")

SHUFFLE = {"kind": "shuffle", "seed": 1}


def test_an_image_folder_becomes_records_with_the_number_of_their_class(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", PETS)
    spec = ingest_spec(ingest={"layout": "folders"}, algorithm=SHUFFLE)
    report = run_local(tmp_path, spec)
    assert (report.records, report.totals.members, report.totals.input_shards) == (21, 42, 1)
    manifest = json.loads((tmp_path / "out" / manifest_name(report.job_id)).read_bytes())
    assert "loose files" in manifest["move"]["reason"]
    assert contents_out(tmp_path) == {**PETS, **WITH_CLASS}
    assert verified(tmp_path, report.job_id) == []


def test_the_bytes_are_the_same_however_records_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsort.loose_files.listing.SHARD_BYTES", 2000)  # several runs of files
    write_tree(tmp_path / "in", PETS | {"bee/large.jpg": os.urandom(9000)})
    spec = ingest_spec(ingest={"layout": "folders"}, algorithm=SHUFFLE, verify="content")
    outputs = []
    for number, moved in enumerate(
        [
            Moved(movement="spill", workers=1),
            Moved(movement="spill", workers=3, partitions=5, buffer_bytes=5000, order_seed=1),
            Moved(movement="spill", workers=2, nodes=2, partitions=3, losses=1, order_seed=2),
        ]
    ):
        report = run_inline({**spec, "output_bck": f"out{number}"}, tmp_path, moved)
        assert report.totals.input_shards > 3
        outputs.append(files_of(tmp_path / f"out{number}"))
    assert outputs[1:] == outputs[:1] * 2


def test_trees_are_joined_by_key(tmp_path: Path) -> None:
    write_tree(tmp_path / "images", {"a/1.png": b"i1", "a/2.png": b"i2"})
    write_tree(tmp_path / "masks", {"a/1.png": b"m1", "a/3.png": b"m3"})
    write_tree(tmp_path / "labels", {"a/1.txt": b"l1", "a/2.txt": b"l2"})
    trees = ("images", "masks", "labels")
    spec = ingest_spec(*trees, ingest={"members": {"masks": "mask"}})
    report = run_local(tmp_path, spec)
    assert contents_out(tmp_path) == {
        "a/1.png": b"i1", "a/1.mask.png": b"m1", "a/1.txt": b"l1",
        "a/2.png": b"i2", "a/2.txt": b"l2", "a/3.mask.png": b"m3",
    }  # fmt: skip
    assert (report.records, verified(tmp_path, report.job_id)) == (3, [])
    whole = {"require": {"extensions": ["png", "mask.png"], "on_missing": "exclude"}}
    report = run_local(tmp_path, {**spec, **whole, "overwrite": True})
    assert sorted(contents_out(tmp_path)) == ["a/1.mask.png", "a/1.png", "a/1.txt"]
    with refused(tmp_path, DuplicateError, "a/1.png"):
        run_local(tmp_path, ingest_spec(*trees, output_format="other-%d"))


def test_a_directory_between_the_files_of_a_key_does_not_part_them(tmp_path: Path) -> None:
    files = {"a.cls": b"1", "a.d/b.txt": b"2", "a.jpg": b"3", "a-b.jpg": b"4"}
    write_tree(tmp_path / "in", files)
    report = run_local(tmp_path, ingest_spec())
    assert (report.records, contents_out(tmp_path)) == (3, files)


def test_odd_names_come_out_as_they_are(tmp_path: Path) -> None:
    files = {
        "new\nline.txt": b"1",
        "caf\N{LATIN SMALL LETTER E WITH ACUTE}.txt": b"2",
        os.fsdecode(b"\xff\xfe.bin"): b"3",
        f"{'d' * 120}/{'n' * 200}.txt": b"4",
        f"{'n' * 100}.txt": b"5",
        "A.txt": b"6",
        "a.txt": b"",
        " .txt": b"8",
    }
    write_tree(tmp_path / "in", files)
    report = run_local(tmp_path, ingest_spec(algorithm=SHUFFLE))
    assert contents_out(tmp_path) == files
    assert verified(tmp_path, report.job_id) == []


def test_what_is_left_out_is_counted_and_named(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", {"a.txt": b"1", ".x.txt": b"", ".d/b.txt": b"", "README": b""})
    os.mkfifo(tmp_path / "in" / "pipe.txt")
    (tmp_path / "in" / "gone.txt").symlink_to("nowhere")
    with raises(InputError, "3 files", "README", "gone.txt, pipe.txt"):
        run_local(tmp_path, ingest_spec())
    with raises(InputError, "2 files", ".d/b.txt, .x.txt"):
        run_local(tmp_path, ingest_spec(ingest={"unusable": "drop", "hidden": "abort"}))
    spec = ingest_spec(ingest={"unusable": "drop", "extensions": ["txt"]})
    report = run_local(tmp_path, spec)
    counted = {each.kind: (each.count, each.samples) for each in report.reactions}
    assert counted == {
        "hidden_files": (2, (".d/b.txt", ".x.txt")),
        "other_files": (1, ("README",)),
        "unusable_files": (2, ("gone.txt", "pipe.txt")),
    }
    assert ["2 files were left out" in each for each in report.warnings] == [True]


def test_clutter_is_no_sample_and_is_counted(cli: CommandLine, tmp_path: Path) -> None:
    clutter = ["README.txt", "x/readme.MD", "x/Thumbs.db", "desktop.ini", "__MACOSX/x/a.jpg"]
    samples = {"x/a.jpg": b"1", "x/README2.txt": b"2", "x/thumbs.jpg": b"3"}
    write_tree(tmp_path / "in", {**samples, **dict.fromkeys([*clutter, ".DS_Store"], b"c")})
    ended = cli("ingest", "in", "out", "--shard-records", "5", "--workers", "1")
    assert ended.code == 0, ended.err
    assert contents_out(tmp_path) == samples
    (line,) = [each for each in ended.out.splitlines() if each.startswith("skipped")]
    assert line.split(maxsplit=1)[1].startswith("6 files: 5 for people or file managers")
    assert "1 hidden" in line


def test_an_extension_that_is_asked_for_takes_no_clutter(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", {"a.txt": b"1", "README.txt": b"2", "b.jpg": b"3"})
    report = run_local(tmp_path, ingest_spec(ingest={"extensions": ["txt"]}))
    assert contents_out(tmp_path) == {"a.txt": b"1"}
    counted = {each.kind: (each.count, each.samples) for each in report.reactions}
    assert counted == {"clutter_files": (1, ("README.txt",)), "other_files": (1, ("b.jpg",))}


def test_links_are_read_as_what_they_lead_to(tmp_path: Path) -> None:
    write_tree(tmp_path / "elsewhere", {"b.txt": b"there"})
    write_tree(tmp_path / "in", {"a.txt": b"here"})
    (tmp_path / "in" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "round").symlink_to(tmp_path / "in")
    run_local(tmp_path, ingest_spec())
    assert contents_out(tmp_path) == {"a.txt": b"here", "link/b.txt": b"there"}


@pytest.mark.parametrize(
    ("files", "ingest", "words"),
    [
        ({"a.JPG": b"", "a.jpg": b""}, {}, "a.jpg"),
        ({"x/a.jpg": b"", "y/a.jpg": b""}, {"key": "name"}, "x/a.jpg and y/a.jpg"),
        ({"a.b.jpg": b"", "a_b.jpg": b""}, {"dots": "last"}, "a.b.jpg and a_b.jpg"),
        ({"x/a.jpg": b"", "y/a.png": b""}, {"layout": "folders", "key": "name"}, "key a"),
        ({"x/a.cls": b""}, {"layout": "folders"}, "x/a.cls"),
    ],
)
def test_two_files_are_never_one_member(
    files: dict[str, bytes], ingest: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_tree(tmp_path / "in", files)
    with refused(tmp_path, DuplicateError, words):
        run_local(tmp_path, ingest_spec(ingest=ingest))


def test_inputs_say_which_files_go_in(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", PETS | {"README.md": b""})
    for chosen, count in (
        ({"prefix": "cat/"}, 7), ({"glob": "*/0[0-4].jpg"}, 15), ({"objnames": ["cat/01.jpg"]}, 1)
    ):  # fmt: skip
        assert plan_local(tmp_path, ingest_spec(input_format=chosen)).totals.members == count
    for chosen, words in (
        ({"prefix": "dog/"}, "become a member"), ({"objnames": ["dog/1.jpg"]}, "dog/1.jpg")
    ):  # fmt: skip
        with refused(tmp_path, MissingShardError, words):
            run_local(tmp_path, ingest_spec(input_format=chosen))


@pytest.mark.parametrize("phase", ["resolve", "create"])
def test_a_file_that_changes_meanwhile_is_named(tmp_path: Path, phase: str) -> None:
    write_tree(tmp_path / "in", PETS)

    def change(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == phase:
            (tmp_path / "in" / "cat" / "03.jpg").write_bytes(b"new")

    with raises(ChangedInputError, "cat/03.jpg"):
        run_local(tmp_path, ingest_spec(), on_event=change)
    assert contents_out(tmp_path) == {}


def test_outputs_are_never_among_the_files(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", PETS)
    for where in ("in", "in/shards"):
        with raises(SpecError, paths=["output_bck"]):
            run_local(tmp_path, ingest_spec(output_bck=where))
    spec = ingest_spec(input_format={"prefix": "cat/"}, output_bck="in")
    run_local(tmp_path, spec)
    assert len(contents_out(tmp_path, "in")) == 7


def test_a_spec_that_cannot_work_is_refused() -> None:
    fields: dict[str, Any] = {
        "inputs": [{"name": "a", "input_bck": "a", "repeat": 2}],
        "input_extension": ".zip",
        "ingest": {"members": {"b": "x"}, "key_pattern": "a.*"},
    }
    with pytest.raises(SpecError) as caught:
        parse_spec({"output_format": "o-%d", "output_shard_records": 1, **fields})
    assert [problem.path for problem in caught.value.problems] == [
        "ingest.key_pattern",
        "output_bck",
    ]
    fields["ingest"] = {"members": {"b": "x"}}
    fields["inputs"][0]["input_format"] = {"template": "a-{0..9}"}
    with pytest.raises(SpecError) as caught:
        parse_spec({"output_format": "o-%d", "output_shard_records": 1, **fields})
    assert {problem.path for problem in caught.value.problems} >= {
        "output_bck",
        "input_extension",
        "inputs[0].input_format.template",
        "inputs",
        "ingest.members.b",
    }


def test_verify_says_that_files_came_or_went(tmp_path: Path) -> None:
    write_tree(tmp_path / "in", PETS)
    report = run_local(tmp_path, ingest_spec())
    (tmp_path / "in" / "cat" / "99.jpg").write_bytes(b"more")
    (said,) = verified(tmp_path, report.job_id)
    assert "have another size than at the time of the job" in said
    for path in sorted((tmp_path / "in").glob("*/*")):
        path.unlink()
    assert any("are gone" in each for each in verified(tmp_path, report.job_id))


def test_the_canonical_spec_is_the_spec() -> None:
    spec = parse_spec(ingest_spec(ingest={"layout": "folders", "extensions": ["jpg"]})).spec
    assert parse_spec(json.loads(json.dumps(spec.canonical()))).spec == spec


def test_a_job_from_the_network_reads_nothing_outside_its_roots(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_tree(root / "in", {"a/1.jpg": b""})
    write_tree(tmp_path, {"secret.txt": b"a,0\n", "out/x.jpg": b""})
    fetch = FetchPolicy(roots=(str(root),))
    secret = str(tmp_path / "secret.txt")
    for ingest in (
        {"layout": "folders", "class_map": secret}, {"labels": secret}, {"recipe": secret},
        {"table": {"file": secret}}, {"recipe": "s3://bucket/recipe.txt"},
    ):  # fmt: skip
        with pytest.raises(InputError) as caught:
            run_local(root, ingest_spec(ingest=ingest), fetch=fetch)
        assert "a,0" not in str(caught.value)
    for link, target in (("file.jpg", tmp_path / "out" / "x.jpg"), ("tree", tmp_path / "out")):
        (root / "in" / link).symlink_to(target)
        with raises(StorageAccessError, link):
            run_local(root, ingest_spec(), fetch=fetch)
        (root / "in" / link).unlink()
    run_local(root, ingest_spec(), fetch=fetch)


def test_one_command_makes_shards_of_trees(cli: CommandLine, tmp_path: Path) -> None:
    write_tree(tmp_path / "in", PETS)
    write_tree(tmp_path / "in2", {"cat/01.txt": b"tom", "cat/01.md": b"left out"})
    args: tuple[object, ...] = (
        "--dots",
        "last",
        "--ext",
        ".jpg",
        "--ext",
        "txt",
        "--seed",
        7,
        "--workers",
        1,
    )
    args = ("--shard-records", 10, *args)
    ended = cli("ingest", "in", "text=in2", "out", "--names", "pets-%03d", *args)
    assert ended.code == 0, ended.err
    assert sorted(files_of(tmp_path / "out")) == [f"pets-00{at}.tar" for at in range(3)]
    assert contents_out(tmp_path) == {**PETS, "cat/01.txt": b"tom"}
    write_tree(tmp_path, {"recipe.txt": b"1.jpg cat/01.jpg\n1.cls text:4\n"})
    ended = cli("ingest", "in", "made", "--recipe", "recipe.txt", "--workers", 1)
    assert ended.code == 0, ended.err
    assert contents_out(tmp_path, "made") == {"1.jpg": PETS["cat/01.jpg"], "1.cls": b"4"}
    ended = cli("ingest", "in", "sorted", "--sort", "--layout", "folders", "--workers", 1)
    assert ended.code == 0, ended.err
    names = [*contents_out(tmp_path, "sorted")]
    assert names == sorted({**PETS, **WITH_CLASS})


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("in",), "no DST"),
        (("in", "x-%d.tar"), "--names"),
        (("none", "out"), "the input bucket none does not exist"),
        (("in", "in/out"), "is inside the input in"),
    ],
)
def test_a_command_that_cannot_work_is_refused(
    args: tuple[str, ...], words: str, cli: CommandLine, tmp_path: Path
) -> None:
    write_tree(tmp_path / "in", {"a.txt": b"1"})
    ended = cli("ingest", *args)
    assert ended.code != 0
    assert words in ended.err
    assert "Traceback" not in ended.err


def test_objects_of_a_store_become_records(
    tmp_path: Path, s3: S3Server, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsort.loose_files.listing.SHARD_BYTES", 4000)
    (tmp_path / "dsort.toml").write_text(f'[stores.s3]\nendpoint_url = "{s3.endpoint_url}"\n')
    where = f"s3://{s3.new_bucket_name()}"
    options = RunOptions(root=tmp_path, settings=load_settings({}, tmp_path, tmp_path))
    bucket = open_with_settings(where, root=tmp_path, settings=options.settings)
    bucket.create()
    files = {f"train/{name}": data for name, data in PETS.items() if name[0] != "b"}
    for name, data in (files | {"README": b"", "train/cat/x.bin": bytes(20_000)}).items():
        bucket.write(name, data)
    fields = {
        "input_bck": where,
        "input_format": {"prefix": "train/"},
        "output_bck": f"{where}/shards",
        "output_format": "s-%d",
        "output_shard_count": 2,
        "algorithm": SHUFFLE,
        "ingest": {"layout": "folders"},
    }
    report = api.run(fields, options=options)
    stored = {name: bucket.read(f"shards/s-{name}.tar") for name in range(2)}
    write_tree(tmp_path / "out", {f"{name}.tar": data for name, data in stored.items()})
    found = contents_out(tmp_path)
    assert {
        name: data for name, data in found.items() if not name.endswith((".cls", ".bin"))
    } == files
    assert (found["train/ant/00.cls"], found["train/cat/x.cls"]) == (b"0", b"1")
    manifest = bucket.read(f"shards/{manifest_name(report.job_id)}")
    verified_report = api.verify(manifest, options=options)
    assert (verified_report.problems, verified_report.warnings) == ((), ())


def test_a_command_says_why_a_file_is_no_member_and_which_option_leaves_it_out(
    tmp_path: Path, cli: CommandLine
) -> None:
    write_tree(tmp_path / "in", PETS | {"notes.txt": b"", "cat/README": b""})
    ended = cli("ingest", "in", "out", "--layout", "folders")
    assert ended.code == 3
    assert "notes.txt (in no directory of a class)" in ended.err
    assert "cat/README (no extension)" in ended.err
    assert "hint: --unusable drop leaves them out" in ended.err
    assert cli("ingest", "in", "out", "--layout", "folders", "--unusable", "drop").code == 0
    ended = cli("ingest", "in", "none", "--ext", "png", "--unusable", "drop")
    assert ended.code == 3
    assert "23 files have another extension" in ended.err
    assert "--ext" in ended.err


@pytest.mark.parametrize(
    ("order", "times"),
    [
        ({"kind": "alphanumeric"}, 1),
        ({"kind": "content", "extension": ".cls", "content_key_type": "string"}, 2),
    ],
)
def test_a_sort_by_names_reads_each_file_once(
    order: dict[str, Any], times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its survey looks at names alone, and they are known."""
    files = {f"{at:03d}.{e}": b"%d" % at * 500 for at in range(60) for e in ("cls", "jpg")}
    write_tree(tmp_path / "in", files)
    read: Counter[bytes] = Counter()
    real = Places.read_into

    def read_into(places: Places, target: memoryview, number: int, path: bytes, *more: int) -> None:
        read[path] += 1
        real(places, target, number, path, *more)

    monkeypatch.setattr(Places, "read_into", read_into)
    monkeypatch.setattr("dsort.loose_files.listing.SHARD_MEMBERS", 20)
    spec = ingest_spec(algorithm=order, duplicate_keys="rename")  # needs a survey, however small
    report = run_local(tmp_path, spec, move="spill")
    assert contents_out(tmp_path) == files
    assert set(read.values()) == {times}
    assert verified(tmp_path, report.job_id) == []


@pytest.mark.parametrize(
    ("source", "apart"),
    [
        ("photos/train,val", "photos/train photos/val"),
        ("./photos/train,photos/val", "./photos/train photos/val"),
        ("train,val,test", "train val test"),
    ],
)
def test_trees_with_a_comma_between_them_are_answered_with_the_right_form(
    cli: CommandLine, source: str, apart: str
) -> None:
    ended = cli("ingest", source, "out")
    assert ended.code == ObjectNotFoundError.exit_code
    assert f"write {apart}\n" in ended.err


def test_a_comma_in_the_name_of_a_tree_is_a_part_of_it(cli: CommandLine, tmp_path: Path) -> None:
    write_tree(tmp_path, {"a,b/1.txt": b"one"})
    assert cli("ingest", "a,b", "out", "--workers", 1).code == 0
