"""A job whose keys are numbers of records, and whose coordinator dies while it writes: what the
first attempt counted is kept, and refused where it is damaged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsort.errors import StorageError
from dsort.transforms.choose import Sample
from dsort.transforms.rekey import Rekey
from tests.support.coordinators import Coordinators
from tests.support.datasets import small_dataset
from tests.support.engine import spec_of
from tests.support.internals import Positions
from tests.support.surviving import assert_resumed_alike

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
    inputs = {"in": small_dataset("in", shards=4, records=20)}
    made = assert_resumed_alike(begun, tmp_path, SPEC, inputs, kept="positions.json")
    assert made > 10


@pytest.mark.parametrize(
    "value",
    [b"[[1,2]]", b"[[1,1,1]]", b'[["1",2],[1,2]]', b"[[-1,2],[1,2]]", b"{}", b"[[1", b"[1,2]"],
)
def test_counts_that_somebody_damaged_are_refused(value: bytes) -> None:
    data = b'{"value": ' + value + b', "files": {}}'
    steps = [Rekey.of("%d"), Sample.of({"fraction": 0.5}), Rekey.of("%d")]
    job: Any = SimpleNamespace(
        job_id="some-job",
        pipeline=SimpleNamespace(steps=steps),
        inputs=[None, None],
        attempt=SimpleNamespace(retained=lambda name: data),
    )
    with pytest.raises(StorageError, match=r"positions\.json of job some-job"):
        Positions(job)
