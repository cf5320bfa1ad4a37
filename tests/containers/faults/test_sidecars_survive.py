"""A job that dies while it names its sidecars: what they replaced comes back, or they are all there
once it is gone on with."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from dsort import api
from dsort.options import RunOptions
from tests.support.coordinators import Coordinators
from tests.support.datasets import small_dataset, tree_of, write_shards
from tests.support.engine import spec_of
from tests.support.fault_points import PointFault, arm, struck
from tests.support.surviving import job_in

OLD = {"README.md": b"mine", "sizes.json": b"{}", "out-0.tar": b"old", "out-1.idx": b"old"}
KINDS = ["dali", "huggingface", "sizes"]
SPEC = spec_of(index=KINDS, overwrite=True, output_shard_records=6)
FAULTS = [
    PointFault("journal:append", about="Committing"),
    PointFault("publish:start", about="out-1.idx"),
    PointFault("publish:end", about="README"),
    PointFault("publish:start", about="manifest"),
]


def begin(begun: Coordinators, root: Path, fault: PointFault) -> None:
    write_shards(root / "in", small_dataset("sidecars", shards=2, records=6))
    write_shards(root / "out", OLD)
    points = arm(root / "points", fault)
    ended = begun.run(root, "start", "-f", json.dumps(SPEC), "--workers", "1", points=points)
    assert ended.code == -signal.SIGKILL, ended.err
    assert struck(points) == [fault.point]


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: f"{each.point} {each.about}")
def test_gc_gives_back_what_sidecars_replaced(
    fault: PointFault, begun: Coordinators, tmp_path: Path
) -> None:
    begin(begun, tmp_path, fault)
    removed = begun.run(tmp_path, "gc", "out", "--remove", "--older-than", "0s")
    assert removed.code == 0, removed.err
    assert {name: data for name, (_, data) in tree_of(tmp_path / "out").items()} == OLD


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: f"{each.point} {each.about}")
def test_a_resumed_job_names_them_all(
    fault: PointFault, begun: Coordinators, tmp_path: Path
) -> None:
    begin(begun, tmp_path, fault)
    job_id = job_in(tmp_path / "out")
    ended = begun.run(tmp_path, "resume", job_id, "--bucket", "out")
    assert ended.code == 0, ended.err
    manifest = tmp_path / "out" / ".dsort" / job_id / "manifest.json"
    checked = api.verify(
        manifest.read_bytes(),
        output_uri=(tmp_path / "out").as_uri(),
        options=RunOptions(root=tmp_path),
    )
    assert checked.problems == ()
    kept = {path.name for path in (tmp_path / "out" / ".dsort" / job_id).iterdir()}
    assert kept == {"manifest.json"}
