"""A job of many small input shards, whose coordinator dies when its journal has a run of them in
part: no record of the others comes twice, and none is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.coordinators import Coordinators
from tests.support.datasets import write_shards
from tests.support.engine import run_local, shard_of, spec_of
from tests.support.fault_points import PointFault
from tests.support.surviving import facts_of, job_in, known_of

SHARDS = 64
SPEC = spec_of(algorithm={"kind": "shuffle", "seed": 4}, output_shard_records=20)


@pytest.mark.usefixtures("workers_here")
def test_a_run_that_is_known_in_part_is_extracted_again(
    begun: Coordinators, tmp_path: Path
) -> None:
    for place in ("there", "here"):
        shards = {f"in-{n:02d}.tar": shard_of("0", "1", f"own-{n}") for n in range(SHARDS)}
        write_shards(tmp_path / place / "in", shards)
    there, here = tmp_path / "there", tmp_path / "here"
    run_local(there, SPEC, move="map")
    arguments = ["start", "-f", json.dumps(SPEC), "--workers", "1", "--move", "spill"]
    begun.killed(here, *arguments, by=PointFault("journal:append", 21, about="ShardExtracted"))
    known = known_of(here / "out").extracted
    assert {facts.run_begin for facts in known.values()} == {0, 8, 16}
    assert sum(facts.run_begin == 16 for facts in known.values()) < 8
    begun.done(here, "resume", job_in(here / "out"), "--bucket", "out", "--workers", "1")
    assert facts_of(here / "out") == facts_of(there / "out")
