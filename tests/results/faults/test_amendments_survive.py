"""Jobs that amend a result, whose coordinator dies while shards get their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.coordinators import Coordinators
from tests.support.datasets import files_of, write_shards
from tests.support.engine import run_local, shard_of, spec_of
from tests.support.fault_points import PointFault

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
    begun.done(there, *VERBS[verb])
    for after_it in ("resume", "gc"):
        here = tmp_path / after_it
        prepare(here)
        begun.killed(here, *VERBS[verb], by=PointFault("publish:end", 2))
        if after_it == "resume":
            begun.done(here, "resume", amending_job(here / "out"), "--bucket", "out")
        else:
            begun.done(here, "gc", "out", "--remove", "--older-than", "0s")
            assert files_of(here / "out", ALL) == before
            begun.done(here, *VERBS[verb])  # what died has no claim any more
        assert files_of(here / "out", ALL) == files_of(there / "out", ALL)
        begun.done(here, "verify", "out")
