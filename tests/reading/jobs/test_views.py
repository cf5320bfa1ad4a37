"""Views: everything reads them as it reads the shards for which they stand, or names what is
wrong with them."""

from __future__ import annotations

import itertools
import json
import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dsort
from dsort import api
from dsort.errors import (
    ChangedInputError,
    CorruptShardError,
    InputError,
    MissingShardError,
    NamesTakenError,
    SpecError,
    StorageError,
)
from dsort.loader import Loader
from dsort.options import open_with_settings
from dsort.spec.load import parse_spec
from tests.golden.jobs import JOBS
from tests.support.commands import CommandLine
from tests.support.datasets import small_dataset, write_shards
from tests.support.internals import ViewBucket, open_view, parse_manifest
from tests.support.refusals import raises
from tests.support.seaweedfs import S3Server

pytestmark = pytest.mark.usefixtures("workers_here")

SPEC: dict[str, Any] = {
    "input_bck": "in",
    "output_bck": "out",
    "output_format": "out-%03d",
    "output_shard_records": 10,
    "algorithm": {"kind": "shuffle", "seed": 4},
}
VIEW: dict[str, Any] = {**SPEC, "output": "view", "output_bck": "view"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with inputs, their shuffled shards, and a view of these."""
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "in", small_dataset(5))
    dsort.run(SPEC)
    dsort.run(VIEW)
    return tmp_path


def manifest_in(bucket: Path) -> Path:
    (found,) = bucket.glob(".dsort/*/manifest.json")
    return found


def test_a_view_is_files_without_payload_and_a_manifest(here: Path) -> None:
    files = sorted(path.name for path in (here / "view").glob("*.*") if path.is_file())
    assert files == [f"out-{number:03}.tar.view" for number in range(4)]
    manifest = json.loads(manifest_in(here / "view").read_bytes())
    sizes = [path.stat().st_size for path in sorted((here / "out").glob("*.tar"))]
    assert [each["decoded_bytes"] for each in manifest["outputs"]] == sizes
    assert all(each["etag"] for each in manifest["inputs"])


@pytest.mark.parametrize("where", ["manifest", "bucket", "file"])
def test_records_of_a_view_are_those_of_the_shards(where: str, here: Path) -> None:
    places: dict[str, tuple[Any, Any]] = {
        "manifest": (manifest_in(here / "view"), manifest_in(here / "out")),
        "bucket": ("view", "out"),
        "file": (["view/out-001.tar.view"], ["out/out-001.tar"]),
    }
    view, shards = places[where]
    assert list(dsort.read_shards(view)) == list(dsort.read_shards(shards))
    of_view, of_shards = dsort.Dataset(view, cache=""), dsort.Dataset(shards, cache="")
    assert len(of_view) == len(of_shards) > 5
    assert dict(of_view[5].members) == dict(of_shards[5].members)
    key = of_shards[5].key
    assert [each.key for each in of_view.where(key)] == [key]


def keys_of(where: str) -> list[str]:
    return [each.key for each in dsort.read_shards(where)]


def test_the_newest_result_of_a_bucket_is_read_if_it_is_a_view(here: Path) -> None:
    shards = keys_of("out")
    spec = {**VIEW, "output_bck": "out", "algorithm": {"kind": "shuffle", "seed": 5}}
    report = dsort.run(spec)
    assert keys_of("out") != shards
    assert keys_of("out") == [each.key for each in dsort.read_shards(report)]
    assert [each.key for each in dsort.Dataset("out", cache="")] == keys_of("out")
    loaded = Loader("out", batch_size=None, order="sequential", cache="")
    assert [each["__key__"] for each in loaded] == keys_of("out")
    dsort.run({**SPEC, "output_format": "later-%03d"})
    both = {each.shard for each in dsort.read_shards("out")}
    assert both == {path.name for path in (here / "out").glob("*.tar")}
    assert len(both) == 8


def test_files_of_a_view_without_a_manifest_are_no_result(here: Path) -> None:
    shards = keys_of("out")
    (here / "out" / "x.tar.view").write_bytes(b"no view")
    assert keys_of("out") == shards
    manifest_in(here / "out").unlink()
    assert keys_of("out") == shards
    manifest_in(here / "view").unlink()
    with pytest.raises(InputError):
        keys_of("view")


def test_a_damaged_manifest_of_the_newest_result_is_refused(here: Path) -> None:
    report = dsort.run({**VIEW, "output_bck": "out", "algorithm": {"kind": "shuffle", "seed": 5}})
    (here / "out" / f".dsort/{report.job_id}/manifest.json").write_bytes(b"{")
    with pytest.raises(InputError):
        keys_of("out")


def test_a_job_that_reads_a_view_gets_the_command_that_makes_its_shards(
    here: Path, cli: CommandLine
) -> None:
    ended = cli("shuffle", "view", "again")
    assert ended.code == MissingShardError.exit_code
    assert "dsort materialize" in ended.err
    with raises(MissingShardError, hint="dsort materialize"):
        dsort.run({**SPEC, "input_bck": "view", "output_bck": "again"})


def test_one_file_of_a_view_opens_as_its_shard(here: Path, cli: CommandLine) -> None:
    with dsort.open("view/out-002.tar.view") as view, dsort.open("out/out-002.tar") as shard:
        assert [each.key for each in view] == [each.key for each in shard]
    assert cli("cat", "view/out-002.tar.view", "-o", "whole").code == 0
    assert (here / "whole").read_bytes() == (here / "out" / "out-002.tar").read_bytes()
    key = next(iter(dsort.read_shards(["out/out-002.tar"]))).key
    assert cli("cat", "view/out-002.tar.view", f"{key}.cls").out
    assert "10" in cli("inspect", "view/out-002.tar.view").out


@pytest.mark.whole
@pytest.mark.parametrize(
    "suffix", [".zip", ".jsonl", ".txt", ".msgpack", ".cbor", ".tfrecord", ".mds"]
)
def test_a_view_of_any_container_is_read_and_verified(suffix: str, tmp_path: Path) -> None:
    job, options = JOBS[f"{suffix} shuffle"], dsort.RunOptions(root=tmp_path, workers=1)
    job.prepare(tmp_path)
    view = dsort.run({**job.spec, "output": "view", "output_bck": "view"}, options=options)
    shards = dsort.run({**job.spec, "output_bck": "out"}, options=options)
    read, wanted = (
        [(each.key, each.members) for each in dsort.read_shards(where, options=options)]
        for where in (view, shards)
    )
    assert read == wanted
    loaded = Loader(view, batch_size=None, order="sequential", cache="", options=options)
    assert [each["__key__"] for each in loaded] == [key for key, _ in wanted]
    assert api.verify(view, options=options).ok


def test_verify_compares_a_view_with_its_inputs(here: Path, cli: CommandLine) -> None:
    assert api.verify(manifest_in(here / "view").read_bytes(), output_uri="view").ok
    assert cli("verify", "view").code == 0


def test_the_shards_of_a_view_are_made_later(here: Path, cli: CommandLine) -> None:
    assert cli("materialize", "view", "made").code == 0
    for path in (here / "out").glob("*.tar"):
        assert (here / "made" / path.name).read_bytes() == path.read_bytes()
    assert cli("verify", "made").code == 0
    assert cli("materialize", "view", "made").code == NamesTakenError.exit_code
    assert cli("materialize", "made", "again").code == InputError.exit_code
    assert sorted(each.name for each in (here / "made" / ".dsort").iterdir()) == [
        manifest_in(here / "made").parent.name
    ]


def changed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("damage", "error"), [(Path.unlink, MissingShardError), (changed, ChangedInputError)]
)
def test_an_input_that_is_not_as_it_was_is_named_before_the_first_record(
    damage: Callable[[Path], None], error: type[InputError], here: Path
) -> None:
    damage(here / "in" / "in-1.tar")
    uses: tuple[Callable[[str], object], ...] = (
        dsort.read_shards,
        dsort.Dataset,
        Loader,
        lambda where: api.materialize(where, "made"),
    )
    for use in uses:
        with pytest.raises(error, match=r"in-1\.tar"):
            use("view")
    assert not (here / "made").exists()


def test_an_input_that_changes_later_is_named(here: Path) -> None:
    records = dsort.read_shards("view")
    changed(here / "in" / "in-1.tar")
    with pytest.raises(ChangedInputError, match=r"in-1\.tar"):
        list(records)


def test_other_modes_and_links_of_an_input_do_not_matter(here: Path) -> None:
    os.link(here / "in" / "in-1.tar", here / "link")
    (here / "in" / "in-0.tar").chmod(0o600)
    assert len(list(dsort.read_shards("view"))) == len(list(dsort.read_shards("out")))


def test_a_file_that_is_not_the_manifests_is_refused(here: Path) -> None:
    name = "out-000.tar.view"
    (here / "view" / name).write_bytes((here / "view" / "out-001.tar.view").read_bytes())
    with pytest.raises(ChangedInputError, match=name):
        list(dsort.read_shards("view"))


class StoreOf:
    """The files of a bucket as objects of a store, of which two are opened at the same time."""

    def __init__(self, inner: Any) -> None:
        self._inner, self._opened = inner, itertools.count()
        self._both = threading.Barrier(2, timeout=60)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def local_path(self, name: str) -> None:
        return None

    def open(self, name: str) -> Any:
        if next(self._opened) < 2:
            self._both.wait()
        return self._inner.open(name)


def test_inputs_of_a_view_are_opened_at_the_same_time(here: Path) -> None:
    options = dsort.RunOptions(root=here)
    manifest = parse_manifest(manifest_in(here / "view").read_bytes())
    files = open_with_settings("view", root=here, settings=options.settings)
    inputs: Any = StoreOf(open_with_settings("in", root=here, settings=options.settings))
    bucket = ViewBucket(manifest, files, inputs)
    assert bucket.read("out-000.tar") == (here / "out" / "out-000.tar").read_bytes()


class Counted:
    """A bucket that notes the names of its opened objects."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.opened: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, name: str) -> Any:
        self.opened.append(name)
        return self._inner.open(name)


@pytest.mark.parametrize("open_max", [2, 3])
def test_inputs_of_a_view_stay_open_up_to_a_number(
    open_max: int, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsort.reading.view.INPUTS_OPEN_MAX", open_max)
    options = dsort.RunOptions(root=here)
    manifest = parse_manifest(manifest_in(here / "view").read_bytes())
    files = open_with_settings("view", root=here, settings=options.settings)
    inputs: Any = Counted(open_with_settings("in", root=here, settings=options.settings))
    bucket = ViewBucket(manifest, files, inputs)
    for output in manifest.outputs:
        bucket.read(output.name.removesuffix(".view"))
    assert len(manifest.inputs) == 3
    assert (len(inputs.opened) == 3) == (open_max == 3)


def edited(here: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    path = manifest_in(here / "view")
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))
    return path


def shorter_input(document: dict[str, Any]) -> None:
    document["inputs"] = document["inputs"][:1]


def more_bytes(document: dict[str, Any]) -> None:
    document["outputs"][0]["decoded_bytes"] += 512


def fewer_records(document: dict[str, Any]) -> None:
    document["outputs"][0]["records"] = 1


@pytest.mark.parametrize("change", [shorter_input, more_bytes, fewer_records])
def test_a_manifest_that_does_not_fit_the_files_is_refused(
    change: Callable[[dict[str, Any]], None], here: Path
) -> None:
    with pytest.raises(CorruptShardError):
        list(dsort.read_shards(edited(here, change)))


def test_a_manifest_of_shards_is_no_view(here: Path) -> None:
    def renamed(document: dict[str, Any]) -> None:
        document["outputs"][0]["name"] = "out-000.tar"

    with pytest.raises(InputError):
        dsort.read_shards(edited(here, renamed))


def test_a_view_can_be_neither_appended_to_nor_rewritten(here: Path, cli: CommandLine) -> None:
    (here / "keys").write_text(next(iter(dsort.read_shards("out"))).key)
    assert cli("remove", "view", "--keys", "keys").code == InputError.exit_code
    assert cli("append", "view", "in").code == SpecError.exit_code
    assert api.verify(manifest_in(here / "view").read_bytes(), output_uri="view").ok


def names_outside(document: dict[str, Any]) -> None:
    document["inputs"][0]["name"] = "../out/out-000.tar"


def test_a_manifest_cannot_lead_out_of_the_buckets_of_its_inputs(here: Path) -> None:
    with pytest.raises(StorageError):
        dsort.read_shards(edited(here, names_outside))


def of_dsort(document: dict[str, Any]) -> None:
    document["outputs"][0]["name"] = ".dsort/20260131-235959-4f2a9c/manifest.json.view"


def no_bytes(document: dict[str, Any]) -> None:
    document["outputs"][0]["decoded_bytes"] = -1


@pytest.mark.parametrize("change", [of_dsort, no_bytes])
def test_a_view_of_what_no_job_writes_is_refused(
    change: Callable[[dict[str, Any]], None], here: Path
) -> None:
    manifest = edited(here, change)
    internal = here / "view" / ".dsort" / "20260131-235959-4f2a9c"
    internal.mkdir()
    (here / "view" / "out-000.tar.view").rename(internal / "manifest.json.view")
    with pytest.raises(InputError):
        api.materialize(manifest, "made")
    assert not (here / "made").exists()


def test_a_window_of_many_short_ranges_takes_little_memory(here: Path) -> None:
    (here / "in" / "short.txt").write_bytes(b"\n".join(b"%d" % (n % 10) for n in range(200_000)))
    spec = {**VIEW, "input_extension": ".txt", "output_bck": "short", "output_shard_records": 10**6}
    report = dsort.run(spec)
    options = dsort.RunOptions(root=here)
    manifest = parse_manifest(manifest_in(here / "short").read_bytes())
    files = open_with_settings("short", root=here, settings=options.settings)
    with open_view(manifest, files, options)[1].open("out-000.txt") as shard:
        window = memoryview(bytearray(shard.info.size_bytes))
        tracemalloc.start()
        shard.read_into(window, 0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert bytes(window).count(b"\n") == report.totals.records == 200_000
    assert peak < 48 << 20


def test_the_number_of_workers_does_not_change_a_view(here: Path) -> None:
    options = dsort.RunOptions(root=here, workers=3, move="spill")
    dsort.run({**VIEW, "output_bck": "other"}, options=options)
    for path in (here / "view").glob("*.view"):
        assert (here / "other" / path.name).read_bytes() == path.read_bytes()


def test_shards_that_only_their_names_show_to_be_compressed_are_refused(here: Path) -> None:
    (here / "in" / "in-9.tar.gz").write_bytes(b"\x1f\x8b")
    spec = {**VIEW, "input_format": {"objnames": ["in-9.tar.gz"]}, "overwrite": True}
    with pytest.raises(SpecError):
        dsort.run(spec)


@pytest.mark.parametrize("suffix", [".jsonl", ".tfrecord", ".mds", ".cbor"])
def test_a_view_of_a_join_that_converts_its_records_is_refused(suffix: str) -> None:
    sides = [
        {"name": name, "input_bck": name, "input_extension": suffix} for name in ("left", "right")
    ]
    join = {"by": "key", "nonmatch": "none"}
    spec = {**VIEW, "inputs": sides, "join": join, "key_field": "id"}
    del spec["input_bck"]
    with pytest.raises(SpecError) as caught:
        parse_spec(spec)
    assert [problem.path for problem in caught.value.problems] == ["output"]


def test_a_view_in_a_store_points_into_a_store(
    here: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    bucket = f"s3://{s3.new_bucket_name()}"
    dsort.run({**SPEC, "output_bck": f"{bucket}/in"})
    spec = {**VIEW, "input_bck": f"{bucket}/in", "algorithm": {"kind": "shuffle", "seed": 6}}
    report = dsort.run({**spec, "output_bck": f"{bucket}/view"})
    dsort.run({**spec, "output": "shards", "output_bck": "direct"})
    read = [(each.key, each.members) for each in dsort.read_shards(report)]
    assert read == [(each.key, each.members) for each in dsort.read_shards("direct")]
    api.materialize(report, f"{bucket}/made")
    assert list(dsort.read_shards(f"{bucket}/made")) == list(dsort.read_shards("direct"))
