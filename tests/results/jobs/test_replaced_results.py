"""Several results of one bucket: which is the newest, and what is said of one that a later job
replaced."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

import dsort
from dsort import api
from dsort.cli.find import find_job
from dsort.errors import VerifyError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.support.commands import CommandLine
from tests.support.datasets import files_of, write_shards
from tests.support.engine import shard_of, spec_of
from tests.support.internals import JobReport, moment_of_id, new_job_id

pytestmark = pytest.mark.usefixtures("workers_here")

SECOND = "20260131-235959"
LATE_ID, EARLY_ID = f"{SECOND}-ffffff", f"{SECOND}-000001"


def run(root: Path, job_id: str, seed: int, **fields: Any) -> JobReport:
    if not (root / "in").exists():
        write_shards(root / "in", {"a.tar": shard_of(*"abcdef"), "b.tar": shard_of(*"ghijkl")})
    order = {"kind": "shuffle", "seed": seed}
    spec = spec_of(output_shard_records=4, algorithm=order, overwrite=True, **fields)
    options = RunOptions(root=root, workers=1)
    return dsort.run(parse_spec(spec).spec, options=options, job_id=job_id)


def manifest_of(root: Path, job_id: str) -> Path:
    return root / "out" / ".dsort" / job_id / "manifest.json"


def set_created(path: Path, created: str) -> None:
    """As if the job had been committed then; the object itself is the newest of the bucket."""
    content = json.loads(path.read_bytes())
    path.write_text(json.dumps({**content, "created": created}))


def two_of_one_second(root: Path) -> None:
    """The job whose id sorts first is committed last."""
    run(root, LATE_ID, seed=1)
    run(root, EARLY_ID, seed=2)


def test_ids_sort_by_the_time_at_which_jobs_begin() -> None:
    ids = []
    for _ in range(200):
        ids.append(new_job_id())
        began_ns = time.monotonic_ns()
        while time.monotonic_ns() - began_ns < 40_000:  # two and a half of the least parts
            pass
    assert ids == sorted(ids)
    assert len({*ids}) == 200
    moments = [moment_of_id(job_id) for job_id in ids]
    assert moments == sorted(moments)


def test_the_newest_result_is_that_of_the_last_commit(cli: CommandLine, tmp_path: Path) -> None:
    two_of_one_second(tmp_path)
    assert find_job("out", bucket=None, root=tmp_path).job_id == EARLY_ID
    assert json.loads(cli("verify", "out", "--json").out)["ok"] is True
    assert EARLY_ID in cli("show", "out").out


def test_when_an_object_was_stored_says_nothing_of_the_commit(tmp_path: Path) -> None:
    two_of_one_second(tmp_path)
    os.utime(manifest_of(tmp_path, EARLY_ID), ns=(10**18, 10**18))
    assert find_job("out", bucket=None, root=tmp_path).job_id == EARLY_ID


@pytest.mark.parametrize("which", [EARLY_ID, LATE_ID])
def test_manifests_that_say_seconds_are_compared_by_them(which: str, tmp_path: Path) -> None:
    two_of_one_second(tmp_path)
    for job_id in (EARLY_ID, LATE_ID):
        second = 1 if job_id == which else 0
        set_created(manifest_of(tmp_path, job_id), f"2026-01-31T23:59:0{second}+00:00")
    assert find_job("out", bucket=None, root=tmp_path).job_id == which


def test_a_commit_is_later_than_what_it_replaces_by_any_clock(tmp_path: Path) -> None:
    run(tmp_path, LATE_ID, seed=1)
    ahead = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 3600))
    set_created(manifest_of(tmp_path, LATE_ID), f"{ahead}+00:00")
    run(tmp_path, EARLY_ID, seed=2)
    created = json.loads(manifest_of(tmp_path, EARLY_ID).read_bytes())["created"]
    assert created == f"{ahead}.000001+00:00"
    assert find_job("out", bucket=None, root=tmp_path).job_id == EARLY_ID


def test_an_impossible_time_in_a_manifest_does_no_harm(tmp_path: Path) -> None:
    run(tmp_path, LATE_ID, seed=1)
    for job_id, created in (("20269999-999999-000000", "never"), ("x", "0001-01-01T00:00:00")):
        manifest_of(tmp_path, job_id).parent.mkdir()
        manifest_of(tmp_path, job_id).write_text(json.dumps({"created": created}))
    set_created(manifest_of(tmp_path, LATE_ID), "9999-12-31T23:59:59+00:00")
    run(tmp_path, EARLY_ID, seed=2)
    created = json.loads(manifest_of(tmp_path, EARLY_ID).read_bytes())["created"]
    assert created < "9999"


def test_a_result_that_was_replaced_is_called_so(cli: CommandLine, tmp_path: Path) -> None:
    two_of_one_second(tmp_path)
    ended = cli("verify", LATE_ID, "--json")
    assert ended.code == VerifyError.exit_code
    found = json.loads(ended.out)
    (problem,) = found["problems"]
    assert (found["problem_count"], problem["kind"], problem["shard"]) == (
        1, "replaced", "out-0.tar",
    )  # fmt: skip
    text = f"all 3 output shards were replaced by job {EARLY_ID}"
    assert problem["text"] == text
    assert text in cli("show", LATE_ID).out
    assert json.loads(cli("show", LATE_ID, "--json").out)["replaced"] == [text]
    resumed = cli("resume", LATE_ID)
    assert text in resumed.out
    assert text in resumed.err


def test_shards_that_are_replaced_in_part_are_counted(cli: CommandLine, tmp_path: Path) -> None:
    run(tmp_path, LATE_ID, seed=1)
    run(tmp_path, EARLY_ID, seed=2, input_format={"template": "a"})
    text = f"2 of 3 output shards were replaced by job {EARLY_ID}"
    assert text in cli("show", LATE_ID).out


def test_the_same_bytes_again_are_no_replacement(cli: CommandLine, tmp_path: Path) -> None:
    run(tmp_path, LATE_ID, seed=1)
    run(tmp_path, EARLY_ID, seed=1)
    for job_id in (LATE_ID, EARLY_ID):
        assert json.loads(cli("verify", job_id, "--json").out)["ok"] is True
        assert "replaced" not in cli("show", job_id).out


def test_a_result_with_removed_records_is_an_input_again(tmp_path: Path) -> None:
    """The manifest of the job that made it is written again, without names: by what the store
    says, it is the newest then."""
    run(tmp_path, LATE_ID, seed=1)
    manifest = manifest_of(tmp_path, LATE_ID)
    (tmp_path / "keys.txt").write_text("c\n")
    options = RunOptions(root=tmp_path, workers=1)
    api.remove(manifest.read_bytes(), tmp_path / "keys.txt", place="out", options=options)
    os.utime(manifest)
    spec = spec_of(input_bck="out", output_bck="again", input_format={"prefix": "out"})
    report = dsort.run(parse_spec(spec).spec, options=options)
    assert report.records == 11
    assert len(files_of(tmp_path / "again")) == 3
