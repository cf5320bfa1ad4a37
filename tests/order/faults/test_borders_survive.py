"""A job whose outputs get exact numbers of records, whose coordinator dies while it writes: what
the first attempt counted is kept, for its spill is dealt out by that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.coordinators import Coordinators
from tests.support.datasets import small_dataset
from tests.support.engine import spec_of
from tests.support.surviving import assert_resumed_alike

SPEC = {
    **spec_of(output_format="{split}-%d", algorithm={"kind": "shuffle", "seed": 3}),
    "outputs": [{"name": "train", "fraction": 0.7}, {"name": "val", "fraction": 0.3}],
    "exact": True,
    "stratify": "size() % 3",
}


@pytest.mark.exhaustive
def test_a_resumed_job_deals_out_what_the_first_attempt_counted(
    begun: Coordinators, tmp_path: Path
) -> None:
    inputs = {"in": small_dataset("in", shards=4, records=12)}
    made = assert_resumed_alike(begun, tmp_path, SPEC, inputs, kept="borders.col")
    assert made > 5
