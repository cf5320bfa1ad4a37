"""The report says where all records came from and went: those read, less those dropped and with
those added, are those that came out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dsort
from dsort.options import RunOptions
from tests.support.commands import CommandLine
from tests.support.datasets import Shard, write_shards
from tests.support.engine import record, run_local, shard_of, spec_of
from tests.support.internals import Event, PhaseDone, RecordFlow

TWO = {
    "input_bck": ...,
    "inputs": [{"name": "a", "input_bck": "in"}, {"name": "b", "input_bck": "more"}],
}
STEPS = {"steps": [{"filter": "int(key) % 2 == 0"}, {"filter": "int(key) < 20"}]}
CODE = "tests.support.user_functions"
DROP = {"duplicate_keys": "drop"}
CASES: dict[str, tuple[dict[str, Any], RecordFlow]] = {
    "nothing": ({}, RecordFlow({"": 40})),
    "filters": (
        {"transform": STEPS},
        RecordFlow({"": 40}, {"step 1 filter": 20, "step 2 filter": 10}),
    ),
    "two inputs": ({**TWO, **DROP}, RecordFlow({"a": 40, "b": 10}, {"duplicate_keys_dropped": 5})),
    "a key map": (
        {
            "ekm": {"low-%d": ["^0"]},
            "ekm_missing_key": "ignore",
            "output_format": None,
            "algorithm": {"kind": "md5"},
        },
        RecordFlow({"": 40}, {"no place in an output": 30}),
    ),
    "required members": (
        {"require": {"extensions": ["jpg"], "on_missing": "exclude"}, **TWO, **DROP},
        RecordFlow({"a": 40, "b": 10}, {"step 1 require": 10}),
    ),
    "a join": (
        {**TWO, "join": {"nonmatch": "skip"}, "algorithm": {"kind": "alphanumeric"}},
        RecordFlow({"a": 40, "b": 10}, {"join": 40, "joined into one record": 5}),
    ),
    "equal shards": (
        {"equalize": "drop", "output_shard_records": None, "output_shard_count": 3},
        RecordFlow({"": 40}, {"left_out_to_equalize": 1}),
    ),
    "a mix": (
        {
            "inputs": [
                {"name": "a", "input_bck": "in", "records": 20},
                {"name": "b", "input_bck": "more", "repeat": 3},
            ],
            "input_bck": ...,
            "duplicate_keys": "ignore",
        },
        RecordFlow({"a": 40, "b": 10}, {"mix": 20}, {"mix": 20}),
    ),
    "code": (
        {
            "transform": {
                "steps": [
                    {"filter": "int(key) != 7"},
                    {"map": {"python": f"{CODE}:broken", "args": {"how": "raises", "key": "03"}}},
                    {"flat_map": {"python": f"{CODE}:numbered", "keys": "{key}-{i}"}},
                ],
                "on_error": "skip",
            }
        },
        RecordFlow({"": 40}, {"step 1 filter": 1, "step 2 map": 1}, {"step 3 flat_map": 38}),
    ),
    "duplicates by content": (
        {**TWO, "deduplicate": {"by": "key"}},
        RecordFlow({"a": 40, "b": 10}, {"deduplicated": 5}),
    ),
}


def buckets(root: Path) -> None:
    keys = [f"{number:02d}" for number in range(40)]
    write_shards(root / "in", {f"in-{at}.tar": shard_of(*keys[at::4]) for at in range(4)})
    more = [*keys[35:], *(f"x{number}" for number in range(5))]
    extra = tuple(member for key in more for member in record(key, "txt"))
    write_shards(root / "more", {"more-0.tar": Shard(extra)})


def job_of(case: str) -> dict[str, Any]:
    spec = spec_of(algorithm={"kind": "shuffle", "seed": 1}) | CASES[case][0]
    return {name: value for name, value in spec.items() if value is not ... and value is not None}


@pytest.mark.parametrize("case", sorted(CASES))
def test_no_record_is_unaccounted_for(case: str, tmp_path: Path) -> None:
    buckets(tmp_path)
    report = run_local(tmp_path, job_of(case))
    assert report.order.flow == CASES[case][1]
    assert report.order.flow.out == report.records


def test_tables_account_for_their_rows(tmp_path: Path, cli: CommandLine) -> None:
    buckets(tmp_path)
    made = cli("convert", "in", "rows", "--to", "parquet", "--progress", "none")
    assert made.code == 0, made.err
    spec = job_of("filters") | {"input_bck": "rows", "input_extension": ".parquet"}
    report = run_local(tmp_path, {**spec, "output_extension": ".parquet"})
    assert report.order.flow == CASES["filters"][1]
    assert report.records == 10


def test_the_summary_has_records_in_dropped_and_out(tmp_path: Path, cli: CommandLine) -> None:
    buckets(tmp_path)
    ended = cli("start", "-f", json.dumps(job_of("filters")), "--workers", "1")
    assert ended.code == 0, ended.err
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    at = lines.index("in 40")
    assert lines[at + 1 : at + 4] == ["- 20 step 1 filter", "- 10 step 2 filter", "out 10"]
    manifest = next((tmp_path / "out").glob(".dsort/*/manifest.json")).read_text()
    assert "flow" not in manifest


@pytest.mark.parametrize("phase", ["extract", "create"])
def test_a_resumed_job_accounts_for_all_records(phase: str, tmp_path: Path) -> None:
    buckets(tmp_path)

    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == phase:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_local(tmp_path, job_of("filters"), on_event=listen)
    (job,) = (tmp_path / "out" / ".dsort").iterdir()
    report = dsort.resume(job.name, "out", options=RunOptions(root=tmp_path, workers=1))
    assert report.order.flow == CASES["filters"][1]
