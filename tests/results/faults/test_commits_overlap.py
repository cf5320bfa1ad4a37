"""Two jobs that replace one result, of which one is held while it gives its shards their names."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import dsort
from dsort.cli.find import find_job
from dsort.options import RunOptions
from tests.support.coordinators import Coordinators
from tests.support.datasets import write_shards
from tests.support.engine import shard_of, spec_of
from tests.support.fault_points import PointFault, arm


def test_the_newest_result_is_that_of_the_commit_that_ended_last(
    begun: Coordinators, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", {"a.tar": shard_of(*"abcdefghij")})
    for seed in (0, 1, 2):
        order = {"kind": "shuffle", "seed": seed}
        spec = spec_of(algorithm=order, overwrite=True)
        (tmp_path / f"{seed}.json").write_text(json.dumps(spec))
    assert begun.run(tmp_path, "start", "-f", "0.json").code == 0
    (oldest,) = (tmp_path / "out" / ".dsort").iterdir()
    held = PointFault("publish:start", action="stop", about="out-0")
    points = arm(tmp_path / "points", held)
    first = begun.start(tmp_path, "start", "-f", "1.json", points=points)
    first.await_stop()
    (directory,) = (each for each in oldest.parent.iterdir() if each != oldest)
    assert begun.run(tmp_path, "start", "-f", "2.json").code == 0
    os.kill(first.pid, signal.SIGCONT)
    ended = first.wait()
    assert ended.code == 0, ended.err
    assert find_job("out", bucket=None, root=tmp_path).job_id == directory.name
    options = RunOptions(root=tmp_path)
    assert dsort.verify("out", options=options).ok
    others = [each.name for each in directory.parent.iterdir() if each != directory]
    assert len(others) == 2
    for job_id in others:
        (problem,) = dsort.verify(job_id, options=options).problems
        assert (problem.kind, directory.name in problem.text) == ("replaced", True)
