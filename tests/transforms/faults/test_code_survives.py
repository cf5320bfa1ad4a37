"""A job whose steps run code, whose coordinator dies: what is extracted is not done again, and code
that has changed is refused."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.coordinators import Coordinators
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.fault_points import PointFault
from tests.support.surviving import job_in

CODE = """
import pathlib

def noted(sample):
    with pathlib.Path(__file__).with_name("done.txt").open("a") as file:
        file.write(sample["__key__"] + "\\n")
    return {**sample, "n.txt": str(len(sample))}
"""


def test_a_resumed_job_runs_code_only_if_asked_and_as_it_was(
    begun: Coordinators, tmp_path: Path
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for root in (there, here):
        write_shards(root / "in", small_dataset("web", shards=3, records=4))
        (root / "code.py").write_text(CODE)
    spec = {
        root: spec_of(
            transform={"steps": [{"map": {"python": f"{root}/code.py:noted"}}]},
            algorithm={"kind": "shuffle", "seed": 3},
            duplicate_keys="ignore",
        )
        for root in (there, here)
    }
    run_local(there, spec[there])
    arguments = ["start", "-f", json.dumps(spec[here]), "--workers", "1"]
    begun.killed(here, *arguments, by=PointFault("create:end", 2, "kill parent"))
    job_id = job_in(here / "out")
    ended = begun.run(here, "resume", job_id, "--bucket", "out")
    assert "--run-code" in ended.err
    done = (here / "done.txt").read_text()
    begun.done(here, "resume", job_id, "--bucket", "out", "--run-code")
    assert (here / "done.txt").read_text() == done
    assert sorted(done.split()) == sorted((there / "done.txt").read_text().split())
    assert files_of(here / "out") == files_of(there / "out")
    again = ["-f", json.dumps({**spec[here], "output_bck": "other"})]
    begun.killed(here, "start", *again, by=PointFault("create:end", 1, "kill parent"))
    (here / "code.py").write_text(CODE + "# changed\n")
    job_id = job_in(here / "other")
    ended = begun.run(here, "resume", job_id, "--bucket", "other", "--run-code")
    assert "changed since the job began" in ended.err
