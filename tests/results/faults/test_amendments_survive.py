"""Jobs that amend a result, whose coordinator dies while shards get their names."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.coordinators import Coordinators
from tests.support.datasets import files_of, write_shards
from tests.support.engine import run_local, shard_of, spec_of
from tests.support.fault_points import PointFault, arm, struck

SHUFFLE = {"kind": "shuffle", "seed": 3}
VERBS = {
    "append": ["append", "out", "more", "--workers", "1"],
    "remove": ["remove", "out", "--keys", "keys.txt", "--workers", "1"],
}
"""Each gives names to at least two shards."""
ALL = "**/*.*"
"""Shards, and what stands beside them."""


def prepare(root: Path) -> None:
    write_shards(root / "in", {"a.tar": shard_of(*"abcdefghijkl")})
    write_shards(root / "more", {"m.tar": shard_of(*"uvwxyz")})
    (root / "keys.txt").write_text("a\nb\nc\nd\ne\nf\n")
    beside = {"index": ["dali", "sizes"], "lineage": "jsonl"}
    run_local(root, spec_of(output_shard_records=4, algorithm=SHUFFLE, **beside), workers=1)


def amending_job(bucket: Path) -> str:
    (claim,) = bucket.glob(".dsort/*/amended.json")
    return str(json.loads(claim.read_text())["job_id"])


@pytest.mark.sample(keep=1)
@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("verb", VERBS)
def test_an_amendment_that_died_is_finished_or_undone(
    verb: str, begun: Coordinators, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    prepare(there)
    before = files_of(there / "out", ALL)
    done = begun.run(there, *VERBS[verb])
    assert done.code == 0, done.err
    for after_it in ("resume", "gc"):
        here = tmp_path / after_it
        prepare(here)
        points = arm(here / "points", PointFault("publish:end", 2))
        ended = begun.run(here, *VERBS[verb], points=points, flush_s=0.0)
        assert ended.code == -signal.SIGKILL, ended.err
        assert struck(points) == ["publish:end"]
        if after_it == "resume":
            ended = begun.run(here, "resume", amending_job(here / "out"), "--bucket", "out")
            assert ended.code == 0, ended.err
            assert files_of(here / "out", ALL) == files_of(there / "out", ALL)
        else:
            ended = begun.run(here, "gc", "out", "--remove", "--older-than", "0s")
            assert ended.code == 0, ended.err
            assert files_of(here / "out", ALL) == before
            ended = begun.run(here, *VERBS[verb])  # what died has no claim any more
            assert ended.code == 0, ended.err
            assert files_of(here / "out", ALL) == files_of(there / "out", ALL)
        assert begun.run(here, "verify", "out").code == 0
