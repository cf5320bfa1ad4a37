"""Benchmarks between buckets: the floor copies every byte, ratios pair rounds, failures count."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.data import Request, make_data
from benchmarks.object_store import (
    STORE_CONTENDERS,
    StoreTask,
    account_of,
    open_store,
    run_on_store,
    spec_of,
)
from benchmarks.process import Finished
from benchmarks.results import Run, cpu_per_gib
from benchmarks.scripts.copy_shards import Copier
from benchmarks.store_suites import turns
from benchmarks.tables import render
from dsort.spec.load import parse_spec
from tests.support.memory_bucket import MemoryBucket

SMALL = Request("100k", 2_000_000, 2)
PHASES = {"resolve": 0.1, "extract": 1.0, "plan": 0.1, "create": 2.0, "commit": 0.2}


def store_run(contender: str, number: int, seconds: float, cpu_seconds: float) -> Run:
    details = {
        "server_cpu_seconds": 9.0,
        "worker": {"own_bytes": 100_000_000},
        "own_bytes_sum": 200_000_000,
        "phase_seconds": PHASES,
    }
    return Run(
        "s3", "100k", contender, number, 1 << 30, seconds, seconds, 0.0, cpu_seconds, 0.0, details
    )


def test_the_floor_puts_the_same_bytes_under_the_same_names() -> None:
    source, target = MemoryBucket("memory://in"), MemoryBucket("memory://out")
    shards = {"a.tar": b"a" * 1000, "b.tar": b"b" * 10, "empty.tar": b""}
    for name, data in shards.items():
        source.write(name, data)
    copier = Copier(source, target)
    assert [copier.copy(name) for name in shards] == [1000, 10, 0]
    assert {info.name: target.read(info.name) for info in target.list()} == shards


def test_floor_and_dsort_are_asked_for_the_same_shards(tmp_path: Path) -> None:
    data = make_data(tmp_path, SMALL)
    task = StoreTask(data, "http://127.0.0.1:1", "inputs", "outputs", tmp_path, workers=3)
    line = STORE_CONTENDERS["floor"].command(task)
    assert tuple(line[line.index("--") + 1 :]) == data.names
    assert line[line.index("--workers") + 1] == "3"
    spec = parse_spec(spec_of(task)).spec
    assert spec.input_bck.uri == "s3://inputs"
    assert spec.input_bck.endpoint_url == json.loads(line[4])["endpoint_url"] == task.endpoint_url
    assert spec.input_format.template == data.template


def test_a_run_that_lost_bytes_does_not_count(tmp_path: Path) -> None:
    data = make_data(tmp_path, SMALL)
    contender = STORE_CONTENDERS["dsort"]
    report = json.dumps({"phase_seconds": PHASES, "move": "spill"})
    whole = {"out-0.tar": data.total_bytes}

    def failure(finished: Finished, sizes: dict[str, int]) -> str:
        return account_of(contender, finished, data, sizes)[1]

    assert failure(Finished(0, 1.0, 1.0, 0.0, report, "", False), whole) == ""
    assert failure(Finished(0, 1.0, 1.0, 0.0, report, "", False), {}).startswith("wrote 0 of")
    assert failure(Finished(0, 1.0, 1.0, 0.0, "", "", False), whole).startswith("gave no account")
    assert failure(Finished(4, 1.0, 1.0, 0.0, "", "x\nno", False), whole) == "exit code 4: x no"
    assert failure(Finished(0, 7.0, 1.0, 0.0, "", "", True), whole) == "did not end in 7 s"


def test_whoever_came_first_comes_last_in_the_next_round() -> None:
    assert [(number, contender.name) for number, contender in turns(2)] == [
        (0, "floor"),
        (0, "dsort"),
        (1, "dsort"),
        (1, "floor"),
    ]


def test_processor_time_is_that_of_a_run_less_that_of_its_start() -> None:
    runs = []
    for number, floor_s in enumerate((4.0, 8.0, 16.0)):
        runs += [store_run("floor", number, floor_s, 1.5)]
        runs += [store_run("dsort", number, floor_s / 0.9, 2.0 + number)]
    assert cpu_per_gib(runs, "dsort") == 3.0
    assert cpu_per_gib(runs, "dsort", less_start=True) is None
    assert cpu_per_gib([], "dsort") is None
    start = replace(store_run("dsort", 0, 1.0, 1.75), suite="s3-start", input_bytes=0)
    assert cpu_per_gib([*runs, start], "dsort", less_start=True) == 1.25


def test_runs_of_all_kinds_are_a_table_of_at_most_100_columns() -> None:
    runs = [store_run("floor", 0, 8.0, 1.5), store_run("dsort", 0, 10.0, 2.0)]
    text = render({"cpu": "a processor"}, runs, [])
    assert max(map(len, text.splitlines())) <= 100
    for wanted in ("s3: dsort, 1.1 GB", "0.80"):
        assert wanted in text


@pytest.mark.exhaustive
@pytest.mark.slow
def test_contenders_run_against_a_real_server_and_leave_nothing(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", SMALL)
    with open_store(tmp_path / "store") as store:
        for contender in STORE_CONTENDERS.values():
            run = run_on_store(
                store, contender, data, suite="s3", number=0, workers=2, timeout_seconds=60
            )
            assert run.failure == ""
            assert run.details["output_bytes"] >= data.member_bytes_min
            assert 0 < run.details["worker"]["own_bytes"] < run.details["own_bytes_sum"]
            assert len(store.server.client().list_buckets()["Buckets"]) == 1  # the inputs
    assert list((tmp_path / "store").iterdir()) == []
