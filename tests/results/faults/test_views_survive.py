"""A job that writes a view, whose coordinator dies, and a view that is only half materialized."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from dsort import api
from dsort.errors import StorageError
from dsort.options import RunOptions
from tests.support.coordinators import Coordinators
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import run_local
from tests.support.fault_points import PointFault, arm, struck
from tests.support.surviving import job_in

SPEC = {
    "input_bck": "in",
    "output_bck": "out",
    "output": "view",
    "output_format": "out-%d",
    "output_shard_records": 4,
    "algorithm": {"kind": "shuffle", "seed": 3},
}


@pytest.mark.parametrize("point", ["publish:end", "journal:append"])
def test_a_resumed_job_writes_the_same_view(
    point: str, begun: Coordinators, tmp_path: Path
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for root in (there, here):
        write_shards(root / "in", small_dataset("view", shards=3, records=12))
    run_local(there, SPEC)
    fault = PointFault(point, 5)
    points = arm(here / "points", fault)
    arguments = ["start", "-f", json.dumps(SPEC), "--workers", "1"]
    ended = begun.run(here, *arguments, points=points, flush_s=0.0)
    assert ended.code == -signal.SIGKILL, ended.err
    assert struck(points) == [fault.point]
    ended = begun.run(here, "resume", job_in(here / "out"), "--bucket", "out")
    assert ended.code == 0, ended.err
    assert files_of(here / "out") == files_of(there / "out")


def test_shards_of_a_view_get_their_names_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "in", small_dataset("view", shards=3, records=12))
    options = RunOptions(root=tmp_path)
    report = api.run(SPEC, options=options)

    def full(*args: object, **options: object) -> None:
        raise StorageError("there is no room")

    monkeypatch.setattr("dsort.materialization.write_manifest", full)
    with pytest.raises(StorageError):
        api.materialize(report, "made", options=options)
    assert not [each for each in (tmp_path / "made").rglob("*") if each.is_file()]
