"""A job whose shards end by their compressed size, and whose coordinator dies while it writes them:
what was measured is kept, for part of the records is gone from scratch by then."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.support.coordinators import Coordinators
from tests.support.datasets import small_dataset, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.fault_points import PointFault, arm, struck
from tests.support.surviving import job_in

SPEC = spec_of(
    algorithm={"kind": "shuffle", "seed": 3},
    output_extension=".tgz",
    output_shard_records=None,
    output_shard_size=3000,
    output_shard_size_counts="file",
)


def test_a_resumed_job_ends_its_shards_where_the_first_attempt_did(
    begun: Coordinators, tmp_path: Path
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for root in (there, here):
        write_shards(root / "in", small_dataset("encoded", shards=3, records=12))
    run_local(there, SPEC, move="map")
    points = arm(here / "points", PointFault("create:end", 2, "kill parent"))
    arguments = ["start", "-f", json.dumps(SPEC), "--workers", "1", "--move", "spill"]
    ended = begun.run(here, *arguments, points=points, flush_s=0.0)
    assert ended.code == -signal.SIGKILL, ended.err
    assert struck(points) == ["create:end"]
    job_id = job_in(here / "out")
    assert [*here.glob(f"out/.dsort/{job_id}/**/*encoded-sizes.json")]
    ended = begun.run(here, "resume", job_id, "--bucket", "out")
    assert ended.code == 0, ended.err
    made, expected = (
        {path.name: path.read_bytes() for path in (root / "out").glob("*.tgz")}
        for root in (here, there)
    )
    assert made == expected
    assert len(made) > 2
