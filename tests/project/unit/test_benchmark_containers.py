"""Benchmarks of containers: the same records for all, and rivals that shuffle."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.__main__ import main
from benchmarks.container_contenders import dsort_on, part
from benchmarks.container_data import ContainerData, ContainerRequest, make_containers
from benchmarks.contenders import Task
from benchmarks.data import Data
from benchmarks.ingest import make_files
from benchmarks.measure import Bench
from benchmarks.results import Run
from benchmarks.settings import Measured
from benchmarks.step_suites import steps
from dsort.spec.load import parse_spec

TOTAL_BYTES = 400_000


def data_of(directory: Path, kind: str, suffix: str) -> ContainerData:
    return make_containers(directory, ContainerRequest(kind, suffix, TOTAL_BYTES, 2))


def test_the_same_records_are_in_each_container(tmp_path: Path) -> None:
    tars, lines = data_of(tmp_path, "3k", ".tar"), data_of(tmp_path, "3k", ".jsonl")
    rows = data_of(tmp_path, "3k", ".parquet")
    assert tars.total_bytes == lines.total_bytes == rows.total_bytes >= TOTAL_BYTES
    for tar, jsonl, parquet in zip(tars.paths, lines.paths, rows.paths, strict=True):
        with tarfile.open(tar) as archive:
            members = {
                member.name: archive.extractfile(member).read()  # type: ignore[union-attr]
                for member in archive
            }
        assert list(members.values()) == jsonl.read_bytes().splitlines()
        parsed = [json.loads(payload) for payload in members.values()]
        assert list(members) == [f"{each['id']}.json" for each in parsed]
        assert pq.read_table(parquet).to_pylist() == parsed


def test_compressed_tars_hold_the_tars(tmp_path: Path) -> None:
    plain, zipped = data_of(tmp_path, "half", ".tar"), data_of(tmp_path, "half", ".tgz")
    for tar, tgz in zip(plain.paths, zipped.paths, strict=True):
        assert gzip.decompress(tgz.read_bytes()) == tar.read_bytes()
    assert zipped.member_bytes_min < zipped.total_bytes == plain.total_bytes


def test_pictures_are_as_hugging_face_keeps_them(tmp_path: Path) -> None:
    data = data_of(tmp_path, "100k", ".parquet")
    table = pq.read_table(data.paths[0])
    assert b"Image" in table.schema.metadata[b"huggingface"]
    row = table.to_pylist()[0]
    assert row["image"]["path"] == f"{row['id']}.jpg"
    assert len(row["image"]["bytes"]) >= 90_000


def test_data_that_is_whole_is_reused(tmp_path: Path) -> None:
    data = data_of(tmp_path, "3k", ".jsonl")
    before = data.paths[0].stat().st_mtime_ns
    assert data_of(tmp_path, "3k", ".jsonl") == data
    assert data.paths[0].stat().st_mtime_ns == before
    data.paths[0].write_bytes(b"")
    assert data_of(tmp_path, "3k", ".jsonl") == data
    assert data.paths[0].stat().st_size > 0


@pytest.mark.parametrize(
    ("suffix", "output_suffix"),
    [(".tar", ""), (".tar", ".mds"), (".jsonl", ""), (".parquet", ""), (".tgz", "")],
)
def test_dsort_is_given_a_job_that_there_is(
    tmp_path: Path, suffix: str, output_suffix: str
) -> None:
    data: Data = ContainerData(tmp_path, "3k", suffix, 4, 1000, 1000)
    contender = dsort_on("x", 4, move="map", output_suffix=output_suffix)
    line = contender.command(Task(data, tmp_path / "out", tmp_path, 2, 2))
    spec = parse_spec(json.loads(Path(line[line.index("-f") + 1]).read_text())).spec
    assert spec.output_shard_count == 4
    assert line[-2:] == ["--move", "map"]


@pytest.mark.exhaustive
def test_rivals_and_parts_run_and_leave_a_result_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("duckdb")
    pytest.importorskip("polars")
    rows = [f"containers/3k/{name}" for name in ("terashuf", "python", "duckdb", "polars")]
    line = f"--data {tmp_path}/data --total 400KB --shards 2 --rounds 1 --only {','.join(rows)}"
    assert main([*line.split(), "--results", str(tmp_path / "results")]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    result = json.loads((tmp_path / "results" / "containers.json").read_text())
    assert [run["contender"] for run in result["runs"]] == [
        "terashuf",
        "python",
        "duckdb",
        "polars",
    ]
    for run in result["runs"]:
        assert run["details"]["output_bytes"] >= run["input_bytes"]
        assert run["cpu_seconds"] > 0
    tgz = data_of(tmp_path, "half", ".tgz")
    decoded = Bench(1, 60, ("cp",)).run(part("decode", ".tgz", ""), tgz, suite="codecs", number=0)
    assert decoded.failure == ""
    assert 0 < decoded.details["work_cpu_seconds"] < decoded.cpu_seconds


def run_of(row: str, rate: float, cpu_seconds: float, **details: object) -> Run:
    """A run of 1 GiB at ``rate`` MiB/s."""
    suite, profile, contender = row.split("/")
    return Run(
        suite,
        profile,
        contender,
        0,
        2**30,
        1024 / rate,
        1024 / rate,
        cpu_seconds=cpu_seconds,
        details=details,
    )


def test_every_step_is_measured_on_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[str] = []

    def compared(bench: Bench, settings: object, suite: str, profile: str, entries: Any) -> Any:
        rows.extend(f"{suite}/{profile}/{each.contender.name}" for each in entries)
        return Measured([], [])

    monkeypatch.setattr("benchmarks.step_suites.compare", compared)
    settings = SimpleNamespace(shards=2)
    steps(Bench(1, 60, ("cp",)), settings)  # type: ignore[arg-type]
    assert "steps/3k-files-spill/plain" in rows
    assert "steps/classed-3k-spill/interleave" in rows


def test_files_of_classes_are_made_once_for_each_number(tmp_path: Path) -> None:
    data = make_files(tmp_path, 200)
    assert sorted(tmp_path.rglob("*.jpg")) == data.paths
    assert {path.stat().st_size for path in data.paths} == {3000}
