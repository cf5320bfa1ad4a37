"""A job with exact numbers of records of each input, whose coordinator dies while it writes: the
choice that the first attempt made is kept, for its spill has those records."""

from __future__ import annotations

from pathlib import Path

from tests.support.coordinators import Coordinators
from tests.support.datasets import small_dataset
from tests.support.engine import spec_of
from tests.support.surviving import assert_resumed_alike

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
    inputs = {
        "in": small_dataset("web", shards=3, records=7),
        "code": small_dataset("code", shards=2, records=9),
    }
    made = assert_resumed_alike(begun, tmp_path, SPEC, inputs, kept="mix.json")
    assert made > 10


def test_equal_records_are_left_out_as_in_the_first_attempt(
    begun: Coordinators, tmp_path: Path
) -> None:
    inputs = {
        "in": small_dataset("web", shards=3, records=7),
        "code": small_dataset("web", shards=2, records=9),
    }
    weighed = [
        {"name": "web", "input_bck": "in", "records": 17},
        {"name": "code", "input_bck": "code", "weight": 0.9},
    ]
    spec = {**SPEC, "inputs": weighed, "deduplicate": {"by": "content"}}
    made = assert_resumed_alike(begun, tmp_path, spec, inputs, kept="equal.col")
    assert made > 3
