"""A job whose keys are numbers of records, and whose coordinator dies while it writes: what the
first attempt counted is kept, and refused where it is damaged."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsort.errors import StorageError
from dsort.job.positions import count_positions
from dsort.transforms.rekey import Rekey
from dsort.transforms.sample import Sample
from tests.support.coordinators import Coordinators
from tests.support.datasets import small_dataset, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.fault_points import PointFault, arm, struck
from tests.support.surviving import job_in

SPEC = spec_of(
    algorithm={"kind": "shuffle", "seed": 3},
    transform={
        "steps": [
            {"slice": "2:60"},
            {"sample": {"fraction": 0.8}},
            {"rekey": "%05d"},
        ]
    },
)


def test_a_resumed_job_numbers_records_as_the_first_attempt_counted_them(
    begun: Coordinators, tmp_path: Path
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for root in (there, here):
        write_shards(root / "in", small_dataset("in", shards=4, records=20))
    run_local(there, SPEC, move="map")
    points = arm(here / "points", PointFault("create:end", 2, "kill parent"))
    arguments = ["start", "-f", json.dumps(SPEC), "--workers", "1", "--move", "spill"]
    ended = begun.run(here, *arguments, points=points, flush_s=0.0)
    assert ended.code == -signal.SIGKILL, ended.err
    assert struck(points) == ["create:end"]
    job_id = job_in(here / "out")
    assert [*here.glob(f"out/.dsort/{job_id}/**/*positions.json")]
    ended = begun.run(here, "resume", job_id, "--bucket", "out")
    assert ended.code == 0, ended.err
    made, expected = (
        {path.name: path.read_bytes() for path in (root / "out").glob("*.tar")}
        for root in (here, there)
    )
    assert made == expected
    assert len(made) > 10


@pytest.mark.parametrize(
    "data",
    [b"[[1,2]]", b"[[1,1,1]]", b'[["1",2],[1,2]]', b"[[-1,2],[1,2]]", b"{}", b"[[1", b"[1,2]"],
)
def test_counts_that_somebody_damaged_are_refused(data: bytes) -> None:
    steps = [Rekey.of("%d"), Sample.of({"fraction": 0.5}), Rekey.of("%d")]
    job: Any = SimpleNamespace(
        job_id="some-job", steps=steps, inputs=[None, None], retained=lambda name: data
    )
    with pytest.raises(StorageError, match=r"positions\.json of job some-job"):
        count_positions(job)
