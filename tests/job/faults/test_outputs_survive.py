"""A job with several outputs, whose coordinator dies while it writes or publishes them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.coordinators import Coordinators
from tests.support.datasets import small_dataset, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.fault_points import PointFault, arm, struck
from tests.support.surviving import job_in

SPEC = spec_of(
    algorithm={"kind": "shuffle", "seed": 3},
    output_format="{split}-{n:02d}-of-{total:02d}",
    index=["huggingface"],
    outputs=[
        {"name": "low", "when": 'ext("cls") < 30'},
        {"name": "none", "when": "ordinal < 0", "output_shard_count": 2},
        {"name": "high", "when": True, "output_shard_count": 4},
    ],
)


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(
    "fault", [PointFault("create:end", 2, "kill parent"), PointFault("publish:end", 2)],
    ids=lambda fault: fault.point,
)  # fmt: skip
def test_a_resumed_job_deals_records_out_as_the_first_attempt_did(
    fault: PointFault, begun: Coordinators, tmp_path: Path
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for root in (there, here):
        write_shards(root / "in", small_dataset("outputs", shards=3, records=12))
    report = run_local(there, SPEC, move="map")
    points = arm(here / "points", fault)
    arguments = ["start", "-f", json.dumps(SPEC), "--workers", "1", "--move", "spill"]
    ended = begun.run(here, *arguments, points=points, flush_s=0.0)
    assert ended.code == -signal.SIGKILL, ended.err
    assert struck(points) == [fault.point]
    ended = begun.run(here, "resume", job_in(here / "out"), "--bucket", "out", "--json")
    assert ended.code == 0, ended.err
    made, expected = (
        {path.name: path.read_bytes() for path in (root / "out").glob("*") if path.is_file()}
        for root in (here, there)
    )
    assert made == expected
    assert len(made) > 8
    counted = {each["name"]: each["records"] for each in json.loads(ended.out)["outputs"]}
    assert counted == {each.name: each.records for each in report.outputs}
    assert counted["none"] == 0 < counted["low"] < counted["high"]
