"""Sidecars: what other readers make of them, and that they come, go and are checked with their
result."""

from __future__ import annotations

import re
import sqlite3
import struct
import tarfile
import uuid
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsort import api
from dsort.errors import InputError, NamesTakenError, SpecError
from dsort.options import RunOptions, open_with_settings
from dsort.settings import Settings, StoreSettings
from dsort.spec.load import parse_spec
from tests.support.datasets import Member, Shard, tree_of, write_shards
from tests.support.engine import refused, run_local, spec_of, verify_local
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import JobReport, VerifyReport
from tests.support.refusals import raises
from tests.support.seaweedfs import S3Server

pytestmark = pytest.mark.usefixtures("workers_here")

RECORDS = 7
_JOB_ID = r"\d{8}-\d{6}-[0-9a-f]{6}"
KINDS = ["dali", "energon", "huggingface", "sizes"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(2):
        members = [
            Member(f"d/{number}{i}.{extension}", b"%d %d" % (number, i) * 300, form=form)
            for i in range(RECORDS)
            for extension, form in (("json", "gnu"), ("seg.png", "pax"))
        ]
        write_shards(tmp_path / "in", {f"in-{number}.tar": Shard(tuple(members))})
    return tmp_path


def spec_with(*kinds: str, **fields: Any) -> dict[str, Any]:
    return spec_of(index=list(kinds), algorithm={"kind": "shuffle", "seed": 1}, **fields)


def verified(root: Path, report: JobReport) -> VerifyReport:
    return verify_local(root, report)


def samples_in(path: Path) -> list[tuple[str, list[tarfile.TarInfo]]]:
    """Key and members of each sample of a tar."""
    found: list[tuple[str, list[tarfile.TarInfo]]] = []
    with tarfile.open(path) as archive:
        for info in archive:
            key = info.name[: info.name.index(".", info.name.rfind("/"))]
            if not found or found[-1][0] != key:
                found.append((key, []))
            found[-1][1].append(info)
    return found


@pytest.mark.parametrize("move", ["map", "spill"])
def test_dali_finds_each_member(root: Path, move: str) -> None:
    run_local(root, spec_with("dali"), move=move)
    for path in (root / "out").glob("*.tar"):
        lines = path.with_suffix(".idx").read_text().splitlines()
        samples = samples_in(path)
        assert lines[0] == f"v1.2 {len(samples)}"
        assert lines[1:] == [
            " ".join(
                f"{info.name.partition('.')[2]} {info.offset_data} {info.size} {info.name}"
                for info in infos
            )
            for _, infos in samples
        ]


def test_dali_finds_each_record_of_tfrecords(root: Path) -> None:
    report = run_local(root, spec_with("dali", "sizes", output_extension=".tfrecord"))
    for path in (root / "out").glob("*.tfrecord"):
        data, at, lines = path.read_bytes(), 0, []
        while at < len(data):
            size = 16 + struct.unpack_from("<Q", data, at)[0]
            lines.append(f"{at} {size}")
            at += size
        assert path.with_suffix(".idx").read_text().splitlines() == lines
    assert verified(root, report).problems == ()


@pytest.mark.parametrize("suffix", [".jsonl", ".txt"])
@pytest.mark.parametrize("move", ["map", "spill"])
def test_each_line_is_found(tmp_path: Path, suffix: str, move: str) -> None:
    lines = [b'{"n": %d, "t": "%s"}\n' % (n, b"w" * (n * 7 % 300)) for n in range(50)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"a{suffix}").write_bytes(b"".join(lines[:20]))
    (tmp_path / "in" / f"b{suffix}").write_bytes(b"\n".join([b"", *lines[20:]]))
    moved = Moved(move, partitions=3)
    run_inline(spec_with("lines", input_extension=suffix, output_shard_records=17), tmp_path, moved)
    found = []
    for number in range(3):
        data = (tmp_path / "out" / f"out-{number}{suffix}").read_bytes()
        index = np.fromfile(tmp_path / "out" / f"out-{number}{suffix}.idx", "<u8").tolist()
        assert (index[0], index[-1]) == (0, len(data))
        found += [data[start:stop] for start, stop in pairwise(index)]
    assert sorted(found) == sorted(lines)
    (manifest,) = (tmp_path / "out" / ".dsort").glob("*/manifest.json")
    check = partial(api.verify, manifest.read_bytes(), options=RunOptions(root=tmp_path))
    assert check().problems == ()
    index_file = tmp_path / "out" / f"out-1{suffix}.idx"
    index_file.write_bytes(index_file.read_bytes()[:-8] + bytes(8))
    assert {each.kind for each in check().problems} == {"index"}


def test_lines_of_compressed_shards_have_no_index() -> None:
    with raises(SpecError, "lines", ".jsonl.gz", paths=["index"]):
        parse_spec(spec_with("lines", output_extension=".jsonl.gz"))


def test_energon_finds_samples_and_members(root: Path) -> None:
    run_local(root, spec_with("energon", split="val"))
    out = root / "out"
    database = sqlite3.connect(out / ".nv-meta" / "index.sqlite")
    for number, path in enumerate(sorted(out.glob("*.tar"))):
        samples = samples_in(path)
        starts = [infos[0].offset for _, infos in samples]
        last = samples[-1][1][-1]
        end = last.offset_data + -(-last.size // 512) * 512
        data = (out / f"{path.name}.idx").read_bytes()
        assert struct.unpack(f"<{len(starts) + 1}Q", data) == (*starts, end)
        stops = [*starts[1:], end]
        assert database.execute(
            "SELECT sample_key, sample_index, byte_offset, byte_size FROM samples "
            "WHERE tar_file_id = ? ORDER BY sample_index",
            (number,),
        ).fetchall() == [
            (key, index, starts[index], stops[index] - starts[index])
            for index, (key, _) in enumerate(samples)
        ]
        assert database.execute(
            "SELECT part_name, content_byte_offset, content_byte_size FROM sample_parts "
            "WHERE tar_file_id = ? ORDER BY sample_index, content_byte_offset",
            (number,),
        ).fetchall() == [
            (info.name.partition(".")[2], info.offset_data, info.size)
            for _, infos in samples
            for info in infos
        ]
    identity = (out / ".nv-meta" / "index.uuid").read_text()
    assert str(uuid.UUID(identity)) == identity
    assert '"val":\n  - "out-0.tar"' in (out / ".nv-meta" / "split.yaml").read_text()


def test_lhotse_finds_pairs(root: Path) -> None:
    run_local(root, spec_with("lhotse"))
    for path in (root / "out").glob("*.tar"):
        with tarfile.open(path) as archive:
            starts = [info.offset for info in archive][::2]
        data = (root / "out" / f"{path.name}.idx").read_bytes()
        assert struct.unpack(f"<{len(starts) + 1}Q", data) == (*starts, path.stat().st_size)


def test_load_dataset_reads_the_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(root / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    import datasets

    write_shards(root / "plain", {f"p-{n}.tar": texts(n) for n in range(2)})
    names = {"output_format": "data/{split}-{n:05d}-of-{total:05d}", "split": "test"}
    run_local(root, spec_with("huggingface", input_bck="plain", **names))
    write_shards(root / "out" / "data", {"train-00000-of-00001.tar": texts(7)})  # another program's
    datasets.disable_progress_bars()
    loaded = datasets.load_dataset(str(root / "out"), cache_dir=str(root / "cache"))
    assert list(loaded) == ["test"]
    assert sorted(row["__key__"] for row in loaded["test"]) == [
        f"{n}{i}" for n in range(2) for i in range(RECORDS)
    ]
    assert {row["txt"] for row in loaded["test"]} == {"text 0", "text 1"}


def texts(number: int) -> Shard:
    return Shard(tuple(Member(f"{number}{i}.txt", b"text %d" % number) for i in range(RECORDS)))


@pytest.mark.usefixtures("worker_processes")
def test_a_result_with_all_of_them_is_the_same_on_each_way_and_as_it_should_be(root: Path) -> None:
    trees = []
    for move, workers in (("map", 1), ("spill", 2)):
        report = run_local(root, spec_with(*KINDS), move=move, workers=workers, overwrite=True)
        assert verified(root, report).problems == ()
        tree = tree_of(root / "out")
        trees.append({name: each[1] for name, each in tree.items() if name[:6] != ".dsort"})
    assert trees[0] == trees[1]
    assert not list((root / "out" / ".dsort").glob("*/sidecars"))


@pytest.mark.parametrize(
    "name", ["out-0.idx", "out-1.tar.idx", "README.md", "sizes.json", ".nv-meta/index.sqlite"]
)
def test_verify_finds_what_was_changed_or_removed(name: str, root: Path) -> None:
    report = run_local(root, spec_with(*KINDS))
    path = root / "out" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert {(each.kind, each.shard) for each in verified(root, report).problems} == {
        ("index", name)
    }
    path.unlink()
    assert {(each.kind, each.text) for each in verified(root, report).problems} == {
        ("index", "is not there")
    }


def test_a_name_that_is_taken_is_refused_and_replaced_if_asked(root: Path) -> None:
    (root / "out").mkdir()
    (root / "out" / "README.md").write_text("mine")
    with refused(root, NamesTakenError, "README.md"):
        run_local(root, spec_with("huggingface"))
    assert (root / "out" / "README.md").read_text() == "mine"
    run_local(root, spec_with("huggingface"), overwrite=True)
    assert "configs:" in (root / "out" / "README.md").read_text()


def without_ids(files: dict[str, bytes]) -> dict[str, bytes]:
    """All but what is dsort's own; an index of wids is called, and calls itself, by its job."""
    return {
        re.sub(_JOB_ID, "", name): re.sub(_JOB_ID.encode(), b"", data)
        for name, data in files.items()
        if not name.startswith(".dsort/")
    }


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(
    ("kinds", "suffix"),
    [(("wids", *KINDS), ".tar"), (("lhotse", "sizes"), ".tar"), (("lines",), ".jsonl")],
    ids=["most", "lhotse", "lines"],
)
def test_an_object_store_gets_the_same(
    root: Path, kinds: tuple[str, ...], suffix: str, s3: S3Server
) -> None:
    if suffix == ".jsonl":
        (root / "in" / "in-0.jsonl").write_bytes(b"".join(b'{"n": %d}\n' % n for n in range(20)))
    settings = Settings(stores=(("s3", StoreSettings(endpoint_url=s3.endpoint_url)),))
    options = RunOptions(root=root, settings=settings)
    place = f"s3://{s3.new_bucket_name()}/results"
    held = open_with_settings(place, root=root, settings=settings)
    held.create()
    name = "s-%d" if suffix == ".jsonl" else "d/s-%d"
    spec = spec_with(*kinds, output_format=name, output_extension=suffix, input_extension=suffix)
    for bucket in ("out", place):
        run_local(root, spec | {"output_bck": bucket}, settings=settings)
    names = [info.name for info in held.list("") if not info.name.startswith(".dsort/")]
    found = {name: held.read(name) for name in names}
    here = {name: data for name, (_, data) in tree_of(root / "out").items() if name[-1] != "/"}
    assert without_ids(found) == without_ids(here)
    (manifest,) = (each.name for each in held.list(".dsort/") if "manifest" in each.name)
    assert api.verify(held.read(manifest), options=options).problems == ()
    name = min(name for name in names if not name.endswith(suffix))
    held.write(name, held.read(name)[:-1])
    problems = api.verify(held.read(manifest), options=options).problems
    assert {(each.kind, each.shard) for each in problems} == {("index", name)}


def test_names_of_sidecars_that_are_taken_are_refused_before_anything_is_read(root: Path) -> None:
    for path in (root / "in").iterdir():
        path.write_bytes(b"no tar: a reader of it fails")
    (root / "out" / "data").mkdir(parents=True)
    for name, kind in (
        ("data/sizes.json", "sizes"),
        ("README.md", "huggingface"),
        (".nv-meta/split.yaml", "energon"),
        ("data/out-0.idx", "dali"),
    ):
        path = root / "out" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        with refused(root, NamesTakenError, name, "sidecars"):
            run_inline(spec_with(kind, output_format="data/out-%d"), root)
        path.unlink()


def test_shards_whose_sidecars_would_have_one_name_are_refused_early(root: Path) -> None:
    spec = spec_with("dali", output_format="v1.%d")
    with refused(root, SpecError, "v1.idx"):
        run_inline(spec, root)
    run_inline({**spec, "output_shard_records": None, "output_shard_count": 1}, root)
    assert (root / "out" / "v1.idx").exists()


@pytest.mark.parametrize(("kind", "name"), [("dali", "a b.txt"), ("lhotse", "a.txt")])
def test_what_an_index_cannot_say_ends_the_job(kind: str, name: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in-0.tar": Shard((Member(name, b""),))})
    with refused(tmp_path, InputError, "out-0.tar"):
        run_local(tmp_path, spec_with(kind))
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".dsort"]
