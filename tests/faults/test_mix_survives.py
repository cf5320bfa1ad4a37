"""A job with exact numbers of records of each input, whose coordinator dies while it writes: the
choice that the first attempt made is kept, for its spill has those records."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.support.coordinators import Coordinators
from tests.support.datasets import small_dataset, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.fault_points import PointFault, arm, struck
from tests.support.surviving import job_in

SPEC = {
    **{name: value for name, value in spec_of().items() if name != "input_bck"},
    "inputs": [
        {"name": "web", "input_bck": "in", "records": 50},
        {"name": "code", "input_bck": "code", "weight": 0.5},
    ],
    "algorithm": {"kind": "shuffle", "seed": 3},
    "duplicate_keys": "ignore",
}


def test_a_resumed_job_has_the_records_that_the_first_attempt_chose(
    begun: Coordinators, tmp_path: Path
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for root in (there, here):
        write_shards(root / "in", small_dataset("web", shards=3, records=7))
        write_shards(root / "code", small_dataset("code", shards=2, records=9))
    run_local(there, SPEC, move="map")
    points = arm(here / "points", PointFault("create:end", 2, "kill parent"))
    arguments = ["start", "-f", json.dumps(SPEC), "--workers", "1", "--move", "spill"]
    ended = begun.run(here, *arguments, points=points, flush_s=0.0)
    assert ended.code == -signal.SIGKILL, ended.err
    assert struck(points) == ["create:end"]
    job_id = job_in(here / "out")
    assert [*here.glob(f"out/.dsort/{job_id}/**/*mix.json")]
    ended = begun.run(here, "resume", job_id, "--bucket", "out")
    assert ended.code == 0, ended.err
    made, expected = (
        {path.name: path.read_bytes() for path in (root / "out").glob("*.tar")}
        for root in (here, there)
    )
    assert made == expected
    assert len(made) > 10
