"""A job that joins records of two inputs, whose coordinator dies while it writes them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinators import Coordinators
from tests.support.datasets import Member, Shard, files_of, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.fault_points import PointFault, arm, struck
from tests.support.surviving import job_in

SPEC = spec_of(
    algorithm={"kind": "shuffle", "seed": 3},
    output_format="out-%d",
    output_shard_records=4,
    join={"nonmatch": "skip", "conflict": "first"},
    inputs=[{"name": name, "input_bck": name} for name in ("old", "labels")],
)
del SPEC["input_bck"]


BY_CONTENT = {
    "algorithm": {
        "kind": "content",
        "extension": ".c",
        "content_key_type": "string",
        "content_key_missing": "last",
    },
    "output_extension": ".msgpack",
}


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize(
    ("point", "fields"),
    [
        ("extract:end", {}),
        ("create:end", {}),
        ("extract:end", {"algorithm": {"kind": "none"}}),
        ("create:end", BY_CONTENT),
    ],
)
def test_a_resumed_job_joins_what_the_first_attempt_would_have(
    point: str, fields: dict[str, Any], begun: Coordinators, tmp_path: Path
) -> None:
    spec = {**SPEC, **fields}
    there, here = tmp_path / "there", tmp_path / "here"
    for root in (there, here):
        for name, extensions, keys in (("old", "ab", range(20)), ("labels", "bc", range(4, 23))):
            members = [Member(f"{n:02d}.{e}", name.encode()) for n in keys for e in extensions]
            parts = {"s-0.tar": Shard(tuple(members[:16])), "s-1.tar": Shard(tuple(members[16:]))}
            write_shards(root / name, parts)
    report = run_local(there, spec, move="map")
    assert (report.records, report.totals.members) == (16, 48)
    points = arm(here / "points", PointFault(point, 3, "kill parent"))
    arguments = ["start", "-f", json.dumps(spec), "--workers", "1", "--move", "spill"]
    ended = begun.run(here, *arguments, points=points, flush_s=0.0)
    assert ended.code == -signal.SIGKILL, ended.err
    assert struck(points) == [point]
    ended = begun.run(here, "resume", job_in(here / "out"), "--bucket", "out", "--json")
    assert ended.code == 0, ended.err
    made, expected = (files_of(root / "out", "out-*") for root in (here, there))
    assert made == expected
    counted = {each["kind"]: each["count"] for each in json.loads(ended.out)["reactions"]}
    assert counted == {each.kind: each.count for each in report.reactions}
    assert counted == {"conflicts_left_out": 16, "left_out_by_join": 7}
