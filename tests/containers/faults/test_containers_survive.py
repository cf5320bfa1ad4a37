"""A job on shards of any container survives the death of its command, and of a worker: its shards,
and what stands beside them, have the bytes of a job that nothing happened to, in an object
store as well. What its sidecars replaced comes back, or they are all there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dsort
from dsort import api
from dsort.options import RunOptions, open_with_settings
from dsort.settings import Settings, StoreSettings
from dsort.spec.load import parse_spec
from tests.support.container_kinds import KINDS, Kind, kind_named, some_records
from tests.support.coordinators import Coordinators
from tests.support.datasets import small_dataset, tree_of, write_shards
from tests.support.engine import spec_of
from tests.support.fault_points import PointFault, arm, struck
from tests.support.seaweedfs import S3Server
from tests.support.surviving import job_in, resume_here

WORKERS = 2
SHARDS, RECORDS = 4, 12
POINTS = (("spill:append", 5), ("index:write", 3), ("create:end", 1))


def spec_for(kind: Kind, **fields: Any) -> dict[str, Any]:
    keyed = {"key_field": kind.key_field} if kind.key_field not in ("", "__key__") else {}
    return spec_of(
        input_format={"template": f"s-{{0..{SHARDS - 1}}}"},
        input_extension=kind.suffix,
        output_extension=kind.output_suffix,
        output_shard_records=7,
        algorithm={"kind": "shuffle", "seed": "survive"},
        **keyed,
        **fields,
    )


def prepare(kind: Kind, root: Path) -> None:
    """The bucket ``in``, full, and the bucket ``out``, empty."""
    (root / "in").mkdir(parents=True)
    (root / "out").mkdir()
    for number in range(SHARDS):
        data = kind.write(some_records(f"survive {number}", RECORDS))
        (root / "in" / f"s-{number}{kind.suffix}").write_bytes(data)
    if kind.beside:
        (root / "in" / kind.beside[0]).write_bytes(kind.beside[1])


def result_in(bucket: Path) -> dict[str, bytes]:
    """All that a job left, but for what is its own: by name."""
    return {
        name: (bucket / name).read_bytes()
        for name in tree_of(bucket)
        if not name.endswith("/") and ".dsort" not in name and "-index" not in name
    }


def undisturbed(kind: Kind, root: Path, **fields: Any) -> dict[str, bytes]:
    prepare(kind, root)
    options = RunOptions(root=root, workers=WORKERS, move="spill")
    dsort.run(parse_spec(spec_for(kind, **fields)).spec, options=options)
    return result_in(root / "out")


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("victim", ["command", "worker"])
@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_the_bytes_are_those_of_an_undisturbed_job(
    kind: Kind,
    victim: str,
    begun: Coordinators,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers_here: None,
) -> None:
    expected = undisturbed(kind, tmp_path / "undisturbed")
    root = tmp_path / "disturbed"
    prepare(kind, root)
    # One point a kind: a matrix of both would take three times as long.
    point, nth = POINTS[KINDS.index(kind) % len(POINTS)]
    fault = PointFault(point, nth, "kill parent" if victim == "command" else "kill")
    points = arm(root / "points", fault)
    given = ["-f", json.dumps(spec_for(kind)), "--workers", str(WORKERS), "--move", "spill"]
    ended = begun.run(root, "start", *given, "--progress", "none", points=points)
    assert struck(points) == [point]
    if victim == "command":
        assert ended.code == -9, ended.err
        assert result_in(root / "out") == {}
        assert resume_here(root, monkeypatch).error is None
    else:
        assert ended.code == 0, ended.err
    assert result_in(root / "out") == expected


@pytest.mark.parametrize("suffix", [".mds", ".parquet"])
def test_files_beside_shards_survive_a_death_between_two_names(
    suffix: str,
    begun: Coordinators,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers_here: None,
) -> None:
    kind, root = kind_named(suffix), tmp_path / "disturbed"
    index = {} if suffix == ".mds" else {"index": ["sizes"]}
    expected = undisturbed(kind, tmp_path / "undisturbed", **index)
    assert len([name for name in expected if not name.startswith("out-")]) == 1
    prepare(kind, root)
    given = ["-f", json.dumps(spec_for(kind, **index)), "--workers", str(WORKERS)]
    begun.killed(root, "start", *given, "--move", "spill", by=PointFault("publish:end", 2))
    assert resume_here(root, monkeypatch).error is None
    assert result_in(root / "out") == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_an_object_store_gets_the_same_bytes(
    kind: Kind, s3: S3Server, tmp_path: Path, workers_here: None
) -> None:
    index = {"index": ["sizes"]} if kind.output_suffix not in (".mds", ".bin") else {}
    expected = undisturbed(kind, tmp_path, **index)
    settings = Settings(stores=(("s3", StoreSettings(endpoint_url=s3.endpoint_url)),))
    place = f"s3://survive/{kind.suffix.strip('.').replace('.', '-')}"
    for bucket in ("in", "out"):
        open_with_settings(f"{place}/{bucket}", root=tmp_path, settings=settings).create()
    source = open_with_settings(f"{place}/in", root=tmp_path, settings=settings)
    for path in (tmp_path / "in").iterdir():
        source.write(path.name, path.read_bytes())
    spec = {**spec_for(kind, **index), "input_bck": f"{place}/in", "output_bck": f"{place}/out"}
    options = RunOptions(root=tmp_path, workers=WORKERS, settings=settings)
    dsort.run(parse_spec(spec).spec, options=options)
    target = open_with_settings(f"{place}/out", root=tmp_path, settings=settings)
    found = [each.name for each in target.list() if ".dsort" not in each.name]
    assert {name: target.read(name) for name in found if "-index" not in name} == expected


OLD = {"README.md": b"mine", "sizes.json": b"{}", "out-0.tar": b"old", "out-1.idx": b"old"}
SIDECARS = ["dali", "huggingface", "sizes"]
SPEC = spec_of(index=SIDECARS, overwrite=True, output_shard_records=6)
FAULTS = [
    PointFault("journal:append", about="Committing"),
    PointFault("publish:start", about="out-1.idx"),
    PointFault("publish:end", about="README"),
    PointFault("publish:start", about="manifest"),
]


def begin(begun: Coordinators, root: Path, fault: PointFault) -> None:
    write_shards(root / "in", small_dataset("sidecars", shards=2, records=6))
    write_shards(root / "out", OLD)
    begun.killed(root, "start", "-f", json.dumps(SPEC), "--workers", "1", by=fault)


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: f"{each.point} {each.about}")
def test_gc_gives_back_what_sidecars_replaced(
    fault: PointFault, begun: Coordinators, tmp_path: Path
) -> None:
    begin(begun, tmp_path, fault)
    begun.done(tmp_path, "gc", "out", "--remove", "--older-than", "0s")
    assert {name: data for name, (_, data) in tree_of(tmp_path / "out").items()} == OLD


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: f"{each.point} {each.about}")
def test_a_resumed_job_names_them_all(
    fault: PointFault, begun: Coordinators, tmp_path: Path
) -> None:
    begin(begun, tmp_path, fault)
    job_id = job_in(tmp_path / "out")
    begun.done(tmp_path, "resume", job_id, "--bucket", "out")
    manifest = tmp_path / "out" / ".dsort" / job_id / "manifest.json"
    checked = api.verify(
        manifest.read_bytes(),
        output_uri=(tmp_path / "out").as_uri(),
        options=RunOptions(root=tmp_path),
    )
    assert checked.problems == ()
    kept = {path.name for path in (tmp_path / "out" / ".dsort" / job_id).iterdir()}
    assert kept == {"manifest.json"}
