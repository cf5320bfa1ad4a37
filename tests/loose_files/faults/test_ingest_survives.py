"""A job over loose files that dies continues from the same files, or says which one is another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.coordinators import Coordinators
from tests.support.datasets import files_of
from tests.support.fault_points import PointFault
from tests.support.loose_files import ingest_spec, write_tree
from tests.support.surviving import job_in

FILES = {f"{kind}/{at}.jpg": kind.encode() * at for kind in ("ant", "bee") for at in range(1, 9)}
SPEC = ingest_spec(
    ingest={"layout": "folders"}, algorithm={"kind": "shuffle", "seed": 3}, overwrite=True
)


def begin(begun: Coordinators, root: Path, fault: PointFault) -> str:
    write_tree(root / "in", FILES)
    begun.killed(root, "start", "-f", json.dumps(SPEC), "--workers", "1", by=fault)
    return job_in(root / "out")


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(
    "fault",
    [
        PointFault("journal:append", about="MovementChosen"),
        PointFault("publish:start", about="out-1"),
    ],
    ids=lambda each: each.about,
)
def test_a_job_continues_from_the_same_files(
    fault: PointFault, begun: Coordinators, tmp_path: Path
) -> None:
    job_id = begin(begun, tmp_path, fault)
    begun.done(tmp_path, "resume", job_id, "--bucket", "out")
    died = files_of(tmp_path / "out")
    begun.done(tmp_path, "start", "-f", json.dumps(SPEC | {"output_bck": "other"}))
    assert died == files_of(tmp_path / "other")
    assert {path.name for path in (tmp_path / "out" / ".dsort" / job_id).iterdir()} == {
        "manifest.json"
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [("ant/3.jpg", "file ant/3.jpg changed since the job began"), ("ant/x.jpg", "files of the")],
)
def test_a_job_does_not_continue_from_other_files(
    name: str, said: str, begun: Coordinators, tmp_path: Path
) -> None:
    job_id = begin(begun, tmp_path, PointFault("journal:append", about="MovementChosen"))
    (tmp_path / "in" / name).write_bytes(b"other")
    ended = begun.run(tmp_path, "resume", job_id, "--bucket", "out")
    assert ended.code != 0
    assert said in ended.err
    assert files_of(tmp_path / "out") == {}
