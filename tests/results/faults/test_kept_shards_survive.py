"""A job that keeps the names of its shards, whose coordinator dies while it publishes them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.support.coordinators import Coordinators
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import run_local
from tests.support.fault_points import PointFault, arm, struck
from tests.support.surviving import job_in

SPEC = {
    "input_bck": "in",
    "output_bck": "out",
    "keep_shards": True,
    "transform": {"steps": [{"filter": 'ext("cls") < 20'}]},
}


def test_a_resumed_job_keeps_the_names_that_the_first_attempt_kept(
    begun: Coordinators, tmp_path: Path
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for root in (there, here):
        write_shards(root / "in", small_dataset("kept", shards=3, records=12))
    run_local(there, SPEC, move="map")
    fault = PointFault("publish:end", 2)
    points = arm(here / "points", fault)
    arguments = ["start", "-f", json.dumps(SPEC), "--workers", "1", "--move", "spill"]
    ended = begun.run(here, *arguments, points=points, flush_s=0.0)
    assert ended.code == -signal.SIGKILL, ended.err
    assert struck(points) == [fault.point]
    ended = begun.run(here, "resume", job_in(here / "out"), "--bucket", "out")
    assert ended.code == 0, ended.err
    assert files_of(here / "out") == files_of(there / "out")
    assert sorted(files_of(here / "out")) == sorted(files_of(here / "in"))
