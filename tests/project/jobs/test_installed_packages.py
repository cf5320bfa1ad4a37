"""An installed package adds one of each kind by its entry points: specs, commands, a service and
workers on Ray use them."""

from __future__ import annotations

import bz2
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsort.client import DsortClient
from tests.support.commands import ROOT
from tests.support.datasets import Shard, files_of, write_shards
from tests.support.engine import keys_in, record, spec_of
from tests.support.service_process import await_that

SIZES = {"a": 900, "b": 30, "c": 4000, "d": 30, "e": 2, "f": 1}
ENTRY_POINTS = """
[dsort.algorithms]
size = tests.support.by_size:BySize
[dsort.steps]
every_nth = tests.support.every_nth:EveryNth
[dsort.containers]
szip = tests.support.stored_zip:STORED_ZIP
[dsort.codecs]
bzx = tests.support.slow_codec:SLOW
[dsort.sidecars]
contents = tests.support.contents_list:ContentsList
[dsort.stores]
shelf = tests.support.added_store:ShelfStore
"""
BROKEN = "[dsort.steps]\nevery_nth = tests.support.every_nth:Nothing\n"
NAMES_IN_ZIPS = [f"{shard}{number}.bin" for shard in range(2) for number in range(4)]
METADATA = "Metadata-Version: 2.1\nName: shelves\nVersion: 1.0\n"


def environment(root: Path) -> dict[str, str]:
    """The environment where the package in ``root / "site"`` is installed, if it is there."""
    path = os.pathsep.join([str(ROOT), str(root / "site")])
    return {**os.environ, "PYTHONPATH": path, "SHELVES": str(root / "shelves")}


def dsort(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the command in that environment."""
    return subprocess.run(
        [sys.executable, "-m", "dsort", *args],
        cwd=root,
        env=environment(root),
        capture_output=True,
        text=True,
        check=False,
    )


def install(root: Path, entry_points: str) -> None:
    info = root / "site" / "shelves-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(entry_points)


def write_zips(root: Path) -> None:
    (root / "zips").mkdir()
    for shard in range(2):
        with zipfile.ZipFile(root / f"zips/s-{shard}.szip", "w") as archive:
            for number in range(4):
                archive.writestr(f"{shard}{number}.bin", bytes([shard, number]))


def names_in_zips(bucket: Path) -> list[str]:
    names: list[str] = []
    for path in sorted(bucket.glob("*.szip")):
        with zipfile.ZipFile(path) as archive:
            names += archive.namelist()
    return names


def names_in_packed(bucket: Path) -> list[str]:
    names: list[str] = []
    for path in sorted(bucket.glob("*.tar.bzx")):
        with tarfile.open(fileobj=io.BytesIO(bz2.decompress(path.read_bytes()))) as archive:
            names += archive.getnames()
    return names


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shards = {
        f"in-{at}.tar": Shard(
            [m for key in keys for m in record(key, "jpg", payload=b"x" * SIZES[key])]
        )
        for at, keys in enumerate(["abc", "def"])
    }
    write_shards(tmp_path / "in", shards)
    fields: dict[str, Any] = {
        "algorithm": {"kind": "size", "decreasing": True},
        "transform": {"steps": [{"every_nth": 2}]},
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec_of(**fields)))
    return tmp_path


def test_dsort_sort_sorts_by_an_algorithm_that_a_package_adds(root: Path) -> None:
    by = ("--by", "algorithm:size")
    unknown = dsort(root, "sort", "in", "out", *by)
    assert (unknown.returncode, "--by" in unknown.stderr) == (2, True)
    install(root, ENTRY_POINTS)
    run = dsort(root, "sort", "in", "out", *by, "--reverse", "--workers", "1")
    assert run.returncode == 0, run.stderr
    assert "size: sorted by size" in run.stdout
    (data,) = [data for name, data in files_of(root / "out").items() if name.endswith(".tar")]
    assert [name[0] for name in keys_in(data)] == ["c", "a", "b", "d", "e", "f"]


def run_by_command(root: Path, specs: list[dict[str, Any]], *options: str) -> None:
    for spec in specs:
        (root / "spec.json").write_text(json.dumps(spec))
        run = dsort(root, "start", "-f", "spec.json", *options, "--workers", "2")
        assert run.returncode == 0, run.stderr


def run_on_ray(root: Path, specs: list[dict[str, Any]]) -> None:
    run_by_command(root, specs, "--ray")


def run_by_service(root: Path, specs: list[dict[str, Any]]) -> None:
    place = ["--root", str(root), "--state-dir", str(root / "state"), "--no-auth"]
    place += ["--allow", "shelf://*"]
    serve = [*place, "--port", "0", "--url-file", str(root / "url"), "--workers", "1"]
    service = subprocess.Popen(
        [sys.executable, "-m", "dsort", "serve", *serve],
        cwd=root,
        env=environment(root),
        stderr=subprocess.DEVNULL,
    )
    try:
        url = await_that(lambda: (root / "url").exists() and (root / "url").read_text().strip())
        with DsortClient(url) as client:
            for spec in specs:
                job = client.wait(client.submit(spec).job_id)
                assert job.state == "finished", job
    finally:
        service.terminate()
        service.wait()


@pytest.mark.parametrize(
    "run",
    [
        run_by_command,
        pytest.param(run_by_service, marks=pytest.mark.slow),
        pytest.param(run_on_ray, marks=[pytest.mark.ray, pytest.mark.slow, pytest.mark.exhaustive]),
    ],
)
def test_jobs_use_each_kind_that_a_package_adds(root: Path, run: Callable[..., None]) -> None:
    """One of each: an algorithm, a step, sidecars, then a store, a codec and a container."""
    install(root, ENTRY_POINTS)
    spec = with_contents(root)
    packed = {"output_bck": "shelf://packed", "output_extension": ".tar.bzx", "index": "none"}
    unpacked = {"input_bck": "shelf://packed", "input_extension": ".tar.bzx"}
    unpacks = spec_of(**unpacked, output_bck="unpacked", output_extension=".tar")
    write_zips(root)
    zips = spec_of(input_bck="zips", input_extension=".szip", output_bck="shelf://zips")
    run(root, [spec, {**spec, **packed}, unpacks, zips])
    check_contents(root)
    names = names_in_packed(root / "shelves/packed")
    assert [name[0] for name in names] == ["c", "a", "d", "f"]
    assert keys_in((root / "unpacked/out-0.tar").read_bytes()) == names
    assert sorted(names_in_zips(root / "shelves/zips")) == NAMES_IN_ZIPS


def test_a_command_finds_shards_of_a_container_that_a_package_adds(root: Path) -> None:
    install(root, ENTRY_POINTS)
    write_zips(root)
    run = dsort(root, "shuffle", "zips", "mixed", "--shards", "2", "--seed", "7")
    assert run.returncode == 0, run.stderr
    assert sorted(names_in_zips(root / "mixed")) == NAMES_IN_ZIPS
    again = spec_of(input_bck="mixed", input_extension=".szip", output_bck="again")
    (root / "spec.json").write_text(json.dumps(again))
    run = dsort(root, "start", "-f", "spec.json", "--progress", "none")
    assert run.returncode == 0, run.stderr
    shown = dsort(root, "inspect", "mixed/shard-000000.szip")
    assert shown.returncode == 0, shown.stderr


def test_a_command_reads_and_writes_with_a_codec_that_a_package_adds(root: Path) -> None:
    install(root, ENTRY_POINTS)
    run = dsort(root, "convert", "in", "packed", "--to", ".tar.bzx")
    assert run.returncode == 0, run.stderr
    assert [name[0] for name in names_in_packed(root / "packed")] == list("abcdef")
    run = dsort(root, "shuffle", "packed", "mixed", "--seed", "7", "--workers", "2")
    assert run.returncode == 0, run.stderr
    assert [path.suffixes for path in (root / "mixed").glob("*.tar*")] == [[".tar", ".bzx"]]
    verified = dsort(root, "verify", "mixed")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def with_contents(root: Path) -> dict[str, Any]:
    spec = json.loads((root / "spec.json").read_text())
    return {**spec, "index": ["sizes", "contents"]}


def check_contents(root: Path) -> None:
    shards = sorted((root / "out").glob("*.tar"))
    for path in shards:
        listed = path.with_name(f"{path.name}.contents").read_text().splitlines()
        assert listed == keys_in(path.read_bytes())
    assert (root / "out/contents.total").read_text() == "4\n"
    assert len([*(root / "out").glob("*.contents")]) == len(shards) > 0


def test_a_job_writes_the_sidecars_that_a_package_adds(root: Path) -> None:
    install(root, ENTRY_POINTS)
    run_by_command(root, [with_contents(root)])
    check_contents(root)
    assert dsort(root, "verify", "out").returncode == 0
    (shard,) = (root / "out").glob("*.tar.contents")
    shard.write_text("nothing\n")
    verified = dsort(root, "verify", "out")
    assert verified.returncode != 0
    assert f"{shard.name}" in verified.stdout + verified.stderr


def test_without_the_package_its_names_are_unknown(root: Path) -> None:
    run = dsort(root, "spec", "check", "-f", "spec.json")
    assert run.returncode == 2
    assert "algorithm.kind" in run.stderr
    assert "every_nth" in run.stderr


def test_a_package_that_cannot_be_loaded_is_named(root: Path) -> None:
    install(root, BROKEN)
    run = dsort(root, "start", "-f", "spec.json")
    assert run.returncode == 1
    assert "tests.support.every_nth:Nothing, which a package adds to dsort.steps" in run.stderr
    assert "Traceback" not in run.stderr
