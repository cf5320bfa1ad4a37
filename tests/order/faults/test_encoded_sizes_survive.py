"""A job whose shards end by their compressed size, and whose coordinator dies while it writes them:
what was measured is kept, for part of the records is gone from scratch by then."""

from __future__ import annotations

from pathlib import Path

from tests.support.coordinators import Coordinators
from tests.support.datasets import small_dataset
from tests.support.engine import spec_of
from tests.support.surviving import assert_resumed_alike

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
    inputs = {"in": small_dataset("encoded", shards=3, records=12)}
    made = assert_resumed_alike(
        begun, tmp_path, SPEC, inputs, kept="encoded-sizes.json", shards="*.tgz"
    )
    assert made > 2
