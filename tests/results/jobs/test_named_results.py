"""A result has the same names wherever one is asked for: its report, the path or URI of its
manifest or of its job's directory, its bucket, its job id."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dsort
from dsort import api
from dsort.errors import DsortError, InputError
from dsort.loader import Loader
from dsort.options import RunOptions
from tests.support.commands import CommandLine
from tests.support.datasets import write_shards
from tests.support.engine import run_local, shard_of, spec_of
from tests.support.seaweedfs import S3Server

pytestmark = pytest.mark.usefixtures("workers_here")

KEYS = list("abcdef")


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dsort.JobReport:
    """The data root is not the current directory."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    write_shards(tmp_path / "in", {"a.tar": shard_of(*KEYS)})
    write_shards(tmp_path / "more", {"m.tar": shard_of("y", "z")})
    (tmp_path / "keys.txt").write_text("b\n")
    return run_local(tmp_path, spec_of())


def names_of(report: dsort.JobReport, root: Path) -> list[Any]:
    manifest = f"out/{report.manifest_name}"
    path = root / manifest
    return [
        report,
        manifest,
        Path(manifest),
        path,
        path.as_uri(),
        path.parent,
        f"out/.dsort/{report.job_id}",
        report.job_id,
        "out",
        root / "out",
        (root / "out").as_uri(),
    ]


def test_a_result_is_verified_by_any_of_its_names(report: dsort.JobReport, tmp_path: Path) -> None:
    options = RunOptions(root=tmp_path)
    manifest = (tmp_path / f"out/{report.manifest_name}").read_bytes()
    for name in [*names_of(report, tmp_path), manifest]:
        found = dsort.verify(name, options=options)
        assert (found.job_id, found.ok, found.records) == (report.job_id, True, 6), name


def test_a_result_is_read_and_loaded_by_any_of_its_names(
    report: dsort.JobReport, tmp_path: Path
) -> None:
    options = RunOptions(root=tmp_path)
    takers: list[Callable[[Any], list[str]]] = [
        lambda name: [each.key for each in dsort.read_shards(name, options=options)],
        lambda name: [each.key for each in dsort.Dataset(name, options=options, cache="")],
        lambda name: sorted(
            str(each["__key__"])
            for each in Loader(name, batch_size=None, options=options, cache="")
        ),
    ]
    for name in names_of(report, tmp_path):
        for take in takers:
            assert take(name) == KEYS, name


def test_a_result_is_amended_by_any_of_its_names(report: dsort.JobReport, tmp_path: Path) -> None:
    options, records, newest = RunOptions(root=tmp_path, workers=1), 6, report
    for number in range(0, len(names_of(report, tmp_path)), 3):  # of each kind of name one
        name = names_of(newest, tmp_path)[number]
        newest = api.append(name, "more", duplicate_keys="ignore", options=options)
        records += 2
        assert dsort.verify(newest, options=options).records == records, name
    done = api.remove(str(tmp_path / "out"), str(tmp_path / "keys.txt"), options=options)
    assert done.found.records == 1
    assert dsort.verify("out", options=options).ok


def test_commands_take_the_same_names(
    report: dsort.JobReport, tmp_path: Path, cli: CommandLine
) -> None:
    for name in names_of(report, tmp_path)[3:]:
        for verb in ("verify", "show"):
            ended = cli(verb, name, "--root", tmp_path)
            assert (ended.code, report.job_id in ended.out) == (0, True), (verb, name, ended.err)


def test_what_is_no_result_is_refused(report: dsort.JobReport, tmp_path: Path) -> None:
    options = RunOptions(root=tmp_path)
    assert report.manifest_name is not None
    aborted = tmp_path / "out" / ".dsort" / "20260131-235959-4f2a9c"
    aborted.mkdir()
    (aborted / "report.json").write_text("{}")
    for name in (aborted, "20260131-235959-4f2a9c", "nowhere", "out/.dsort/x/manifest.json"):
        with pytest.raises(InputError):
            dsort.verify(name, options=options)


def test_a_directory_with_the_name_of_a_shard_is_a_bucket(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"a.tar": shard_of(*KEYS)})
    run_local(tmp_path, spec_of(output_bck="x.tar"))
    options = RunOptions(root=tmp_path)
    for where in ("x.tar", tmp_path / "x.tar", (tmp_path / "x.tar").as_uri()):
        assert [each.key for each in dsort.read_shards(where, options=options)] == KEYS
        assert [each.key for each in dsort.Dataset(where, options=options, cache="")] == KEYS
        assert len([*Loader(where, options=options, cache="")]) == 6
        assert dsort.verify(where, options=options).ok
        with pytest.raises(DsortError, match=r"x\.tar"):
            dsort.open(where, options=options)
    (shard,) = (tmp_path / "x.tar").glob("out-0.tar")
    assert tarfile.is_tarfile(shard)
    assert [each.key for each in dsort.open("x.tar/out-0.tar", options=options)] == KEYS[:5]


def test_a_prefix_of_a_store_with_the_name_of_a_shard_is_a_bucket(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "in", {"a.tar": shard_of(*KEYS)})
    bucket = f"s3://{s3.new_bucket_name()}/x.tar"
    report = dsort.run(dsort.load_spec(spec_of(output_bck=bucket)), options=None)
    job = f"{bucket}/.dsort/{report.job_id}"
    for where in (report, bucket, f"{bucket}/{report.manifest_name}", job):
        assert [each.key for each in dsort.read_shards(where)] == KEYS, where
        assert dsort.verify(where).ok, where
    assert [each.key for each in dsort.open(f"{bucket}/out-0.tar")] == KEYS[:5]
    with pytest.raises(DsortError):
        list(dsort.read_shards(f"{bucket}/out-9.tar"))


def test_options_take_texts_as_paths(report: dsort.JobReport, tmp_path: Path) -> None:
    options = RunOptions(root=str(tmp_path), scratch=str(tmp_path / "s"), workers=1)  # type: ignore[arg-type]
    assert (options.root, options.scratch) == (tmp_path, tmp_path / "s")
    assert dsort.verify("out", options=options).ok
    spec = dsort.load_spec(spec_of(output_bck="again"))
    assert dsort.run(spec, options=options).records == 6
