"""``dsort verify`` of a result that is right: nothing to complain about, whatever the spec and
however odd the inputs; and how it tells what it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.errors import InputError, JobStoppedError, KeyMapError
from dsort.options import RunOptions
from dsort.stop_flag import StopFlag
from tests.support.commands import CommandLine
from tests.support.datasets import END, Member, Shard, small_dataset
from tests.support.inline_runtime import Moved
from tests.support.internals import Event, PhaseDone, Progress
from tests.support.refusals import raises
from tests.support.results import (
    BY_KEY,
    SHUFFLE,
    finished_job,
    kinds,
    ordinary,
    swap_neighbours,
)

pytestmark = pytest.mark.usefixtures("workers_here")


def file(name: str, text: str = "x", **more: str) -> Member:
    return Member(name, text.encode(), **more)


def test_a_right_result_has_no_problem(tmp_path: Path) -> None:
    """So of any spec: tests/verification/laws."""
    job = ordinary(tmp_path, {**SHUFFLE, "verify": "content", "index": "wids"})
    report = job.verify()
    assert (report.problems, report.warnings) == ((), ())
    assert report.ok
    assert (report.records, report.members) == (job.report.records, job.report.totals.members)
    assert (report.input_shards, report.output_shards) == (3, len(job.names))
    inputs = sum(shard["bytes"] for shard in job.manifest["inputs"])
    assert report.bytes_read == inputs + job.manifest["totals"]["file_bytes"]
    assert report.output_uri == job.outputs.as_uri()


ODD = {
    "in-0.tar": Shard(
        (
            file("a.jpg", "one"),
            file("b.jpg", "two"),
            Member("a.cls", b"7"),
            file("b.jpg", "two, again"),
            Member("dir", kind="directory"),
            file("README", "stray"),
            Member("dir/.hidden", b"h", form="pax"),
            Member("soft.jpg", kind="symlink", target="a.jpg"),
            Member("hard.jpg", kind="hardlink", target="b.jpg"),
            Member("c.jpg", b"c" * 700, form="gnu"),
        ),
        end=b"",
    ),
    "in-1.tar": Shard(
        (
            file("a.jpg", "one"),
            file("a.cls", "7"),
            file("README", "another stray"),
            Member("c.txt", b"of another record"),
            Member("x" * 96 + ".jpg", b"long"),
            Member("x" * 96 + ".cls", b"3", form="pax"),
            Member("pipe", kind="fifo"),
        ),
        end=END + b"trailing".ljust(512, b"\0"),
    ),
    "in-2.tar": Shard(
        (
            file("a.jpg", "one"),
            Member("a.cls", b"7"),
            Member("x" * 96 + ".jpg", b"long, too", form="gnu"),
            file("c.jpg", "1"),
            file("README-1", "a name that a rename would give"),
            file("a-1.jpg", "and another"),
        )
    ),
    "in-3.tar": b"no tar at all",
    "in-4.tar": Shard(),
}
"""Everything that has to be settled by reactions: repeated, scattered, stray, linked, equal."""

ODD_SPECS: dict[str, dict[str, Any]] = {
    f"{kind}, {duplicates}": {
        "algorithm": {"kind": kind, **({"seed": "s"} if kind == "shuffle" else {})},
        "output_shard_records": 3,
        "Config": {
            "duplicate_keys": duplicates,
            "corrupt_shards": "skip",
            "incomplete_shards": "warn",
        },
    }
    for kind in ("alphanumeric", "shuffle", "none")
    for duplicates in ("ignore", "warn", "drop", "rename")
}
ODD_SPECS["without strays"] = {
    "output_shard_size": 10,
    "Config": {"stray_members": "drop", "corrupt_shards": "skip", "incomplete_shards": "ignore"},
}
ODD_SPECS["key map, renamed"] = {
    "ekm": {"a-%02d": ["^a$"], "c-%02d": ["^c"], "x-%02d": ["^x", "READ"]},
    "output_shard_records": 2,
    "Config": {
        "ekm_missing_key": "ignore",
        "duplicate_keys": "rename",
        "corrupt_shards": "skip",
        "incomplete_shards": "ignore",
    },
}


@pytest.mark.sample(keep=6)
@pytest.mark.parametrize("moved", [Moved(), Moved("spill", 2, 3, 4096)], ids=["map", "spill"])
@pytest.mark.parametrize("spec", ODD_SPECS.values(), ids=ODD_SPECS.keys())
def test_what_reactions_settle_is_no_problem(
    tmp_path: Path, spec: dict[str, Any], moved: Moved
) -> None:
    job = finished_job(tmp_path, ODD, spec, moved)
    report = job.verify()
    assert (report.problems, report.warnings) == ((), ())
    assert report.records == job.report.records


@pytest.mark.parametrize("buffer_bytes", [2048, 5000])
def test_shards_larger_than_the_buffer_are_verified_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffer_bytes: int
) -> None:
    shards = {**ODD, **small_dataset(8, payload_bytes_max=9000)}
    config = {"duplicate_keys": "rename", "corrupt_shards": "skip"}
    spec = {**SHUFFLE, "output_shard_records": 15, "index": "wids", "Config": config}
    job = finished_job(tmp_path, shards, spec)
    monkeypatch.setattr("dsort.verification.verify.BUFFER_BYTES_MAX", buffer_bytes)
    assert job.verify().problems == ()
    shard = job.outputs / job.names[1]
    data = bytearray(shard.read_bytes())
    data[-1024 - 512] ^= 1
    shard.write_bytes(data)
    assert kinds(job.verify()) == ["changed_bytes", "checksum", "index"]


def test_a_job_without_records_is_right(tmp_path: Path) -> None:
    job = finished_job(tmp_path, {"in-0.tar": Shard()}, {"output_shard_count": 3})
    assert job.verify().problems == ()
    assert job.verify().output_shards == 3


def test_progress_is_reported_shard_by_shard(tmp_path: Path) -> None:
    job = ordinary(tmp_path, {**SHUFFLE, "Config": {"duplicate_keys": "rename"}})
    events: list[Event] = []
    report = job.verify(on_event=events.append)
    reported = [event for event in events if isinstance(event, Progress)]
    steps = 2 * report.input_shards + report.output_shards
    assert [event.shards_done for event in reported] == list(range(steps + 1))
    assert {(event.phase, event.shards_total) for event in reported} == {("verify", steps)}
    assert all(event.bytes_done <= event.bytes_total for event in reported)
    assert reported[-1].bytes_done == reported[-1].bytes_total
    assert isinstance(events[-1], PhaseDone)
    assert (events[-1].phase, events[-1].shards) == ("verify", steps)


def test_verify_stops_when_it_is_asked_to(tmp_path: Path) -> None:
    job = ordinary(tmp_path, SHUFFLE)
    with StopFlag() as stop:
        stop.request()
        with pytest.raises(JobStoppedError):
            api.verify(job.manifest_path.read_bytes(), options=RunOptions(root=job.root), stop=stop)


def test_a_key_map_that_is_gone_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "map.txt").write_text("^0\tlow-%02d\n")
    spec = {"output_shard_size": "1MB", "ekm_file": str(tmp_path / "map.txt")}
    job = ordinary(tmp_path, spec)
    assert job.verify().ok
    (tmp_path / "map.txt").unlink()
    with pytest.raises(KeyMapError):
        job.verify()


def test_what_is_no_manifest_is_refused(tmp_path: Path) -> None:
    with raises(InputError):
        api.verify(b"{}", options=RunOptions(root=tmp_path))


def test_the_command_ends_with_3_and_says_what_is_wrong(cli: CommandLine, tmp_path: Path) -> None:
    job = ordinary(tmp_path, BY_KEY)
    good = cli("verify", "out", "--progress", "none")
    assert (good.code, good.err) == (0, "")
    assert good.out.startswith(f"job      {job.report.job_id}: correct")
    swap_neighbours(job)
    bad = cli("verify", job.manifest_path)
    assert bad.code == 3
    assert "order" in bad.out
    assert bad.err.splitlines()[-1].startswith("error: the result of job ")
    reported = json.loads(cli("verify", job.report.job_id, "--json").out)
    assert (reported["ok"], reported["problem_count"]) == (False, 1)
    assert reported["problems"][0]["shard"] == job.names[1]
