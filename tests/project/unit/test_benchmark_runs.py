"""Running contenders: each is timed, checked and ended whole, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import machine, process
from benchmarks.__main__ import main, settings_of, size_bytes
from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.data import PROFILES, NoRoomError, Request, make_data
from benchmarks.measure import Bench, round_robin
from benchmarks.memory import (
    LimitedSampler,
    MemoryLimit,
    NotPermittedError,
    TreeSampler,
    group_parent,
)
from benchmarks.planning import make_index, plan_index
from benchmarks.process import run_tree
from benchmarks.results import Run
from benchmarks.settings import Measured, Settings
from benchmarks.suites import SUITES, warm_entries
from tests.support.internals import IndexStore, Scratch

SMALL = Request("100k", 2_000_000, 2)
RUN = Run("small", "100k", "dsort", 0, 10**7, 0.25, 0.5)


@pytest.mark.parametrize("name", ["cp", "tarfile", "webdataset"])
def test_a_run_is_timed_checked_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    if CONTENDERS[name].missing:
        pytest.skip(CONTENDERS[name].missing)
    data = make_data(tmp_path, SMALL)
    bench = Bench(workers=2, timeout_seconds=60, cp=("cp",))
    run = bench.run(CONTENDERS[name], data, suite="warm", number=0)
    assert run.failure == ""
    assert run.details["output_bytes"] >= data.member_bytes_min
    assert run.details.get("records", data.records) == data.records
    assert 0 < run.work_seconds <= run.whole_seconds
    assert run.megabytes_per_second > 0
    assert sorted(path.name for path in data.root.iterdir()) == ["data.json", "shards"]


def test_a_contender_that_loses_data_has_failed(tmp_path: Path) -> None:
    cp = CONTENDERS["cp"]
    lossy = Contender("lossy", lambda task: ["true"], cp.account)
    said = "echo lib.MemoryError: no >&2; echo see the guide >&2; exit 3"
    broken = Contender("broken", lambda task: ["sh", "-c", said], cp.account)
    data = make_data(tmp_path, SMALL)
    bench = Bench(workers=1, timeout_seconds=60, cp=("cp",))
    run = bench.run(lossy, data, suite="warm", number=0)
    assert run.failure == f"wrote 0 of {data.member_bytes_min} bytes"
    run = bench.run(broken, data, suite="warm", number=0)
    assert run.failure == "exit code 3: lib.MemoryError: no"


def test_contenders_take_turns_and_one_that_failed_is_left_out() -> None:
    names: list[str] = []

    def one(contender: Contender, number: int) -> Run:
        names.append(f"{contender.name}{number}")
        failure = "no" if contender.name == "ray" else ""
        return Run("warm", "100k", contender.name, number, 10**8, 1.0, failure=failure)

    entries = [(CONTENDERS[name], rounds) for name, rounds in [("cp", 3), ("ray", 3), ("dsort", 2)]]
    assert len(list(round_robin(entries, one))) == 6
    assert names == ["cp0", "ray0", "dsort0", "cp1", "dsort1", "cp2"]


def test_no_further_round_begins_when_time_is_over() -> None:
    def one(contender: Contender, number: int) -> Run:
        return Run("warm", "100k", contender.name, number, 10**8, 1.0)

    entries = [(CONTENDERS["cp"], 3), (CONTENDERS["dsort"], 3)]
    found = list(round_robin(entries, one, until_s=0.0))
    assert [(run.contender, run.round) for run in found] == [("cp", 0), ("dsort", 0)]


def test_slow_contenders_only_meet_100_kb_records(tmp_path: Path) -> None:
    settings, _, _ = settings_of(["--data", str(tmp_path)])
    names = {p: [each.name for each, _ in warm_entries(settings, p)] for p in PROFILES}
    ours = ["dsort-map", "dsort-range", "dsort-spill"]
    assert names["1k"] == names["4m"] == ["cp", "rsync", *ours]
    assert names["100k"][5:] == ["tarfile", "webdataset", "ray", "ray-tuned"]


def test_the_command_line_measures_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "result.json"
    line = f"--data {tmp_path}/data --total 2MB --shards 2 --rounds 2 --only warm,small"
    line += f" --results {tmp_path}/results"
    code = main([*line.split(), "--profiles", "1k", "--contenders", "cp", "--json", str(result)])
    assert code == 0
    assert "warm page cache: 1k records" in capsys.readouterr().out
    written = json.loads(result.read_text())
    assert [run["suite"] for run in written["runs"]] == ["warm", "warm", "small", "small"]
    of_one = json.loads((tmp_path / "results" / "small.json").read_text())
    assert [run["suite"] for run in of_one["runs"]] == ["small", "small"]
    assert str(tmp_path) not in result.read_text()


def test_what_was_measured_is_kept_when_a_later_suite_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(bench: Bench, settings: Settings) -> Measured:
        raise KeyboardInterrupt

    monkeypatch.setitem(SUITES, "small", lambda *_: Measured([RUN], []))
    monkeypatch.setitem(SUITES, "s3", stopped)
    line = f"--data {tmp_path}/data --results {tmp_path}/results --suites small,s3"
    assert main(line.split()) == 130
    (path,) = (tmp_path / "results").iterdir()
    assert path.name == "small.json"
    assert [run["work_seconds"] for run in json.loads(path.read_text())["runs"]] == [0.25]


def test_a_suite_without_room_is_left_out_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(bench: Bench, settings: Settings) -> Measured:
        raise NoRoomError(f"{settings.directory} has no room")

    monkeypatch.setitem(SUITES, "s3-flat", full)
    monkeypatch.setitem(SUITES, "small", lambda *_: Measured([RUN], []))
    line = f"--data {tmp_path}/data --results {tmp_path}/results --suites s3-flat,small"
    assert main(line.split()) == 2
    assert "small job" in capsys.readouterr().out
    results = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("results/*")}
    skipped = {"suite": "s3-flat", "what": "all", "reason": "DATA has no room"}
    assert results["s3-flat"]["skipped"] == [skipped]
    assert (results["s3-flat"]["runs"], len(results["small"]["runs"])) == ([], 1)


def test_a_suite_that_cannot_go_on_is_said_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(bench: Bench, settings: Settings) -> Measured:
        raise RuntimeError("the server did not start")

    monkeypatch.setitem(SUITES, "s3-flat", broken)
    monkeypatch.setitem(SUITES, "small", lambda *_: Measured([RUN], []))
    line = f"--data {tmp_path}/data --results {tmp_path}/results --suites s3-flat,small"
    assert main(line.split()) == 1
    results = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("results/*")}
    assert [run["failure"] for run in results["s3-flat"]["runs"]] == ["failed: RuntimeError"]
    assert len(results["small"]["runs"]) == 1


def test_only_the_rows_asked_for_are_measured(tmp_path: Path) -> None:
    rows = "warm/100k/cp,warm/1k,small"
    settings, suites, _ = settings_of(["--data", str(tmp_path), "--only", rows])
    assert suites == ("warm", "small")
    names = {p: [each.name for each, _ in warm_entries(settings, p)] for p in PROFILES}
    one_k = ["cp", "rsync", "dsort-map", "dsort-range", "dsort-spill"]
    assert names == {"100k": ["cp"], "1k": one_k, "4m": [], "32k": []}
    with pytest.raises(SystemExit):
        settings_of(["--only", "warm,hot/1k"])


def test_a_machine_that_has_to_be_quiet_and_is_not_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "busy_cores", lambda: 1.5)
    assert main(["--data", str(tmp_path / "data"), "--require-quiet"]) == 3
    assert "1.50 cores" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_sizes_are_powers_of_ten() -> None:
    assert [size_bytes(text) for text in ("1.1GB", "300mb", "20KB", "7")] == [
        1_100_000_000,
        300_000_000,
        20_000,
        7,
    ]
    with pytest.raises(SystemExit):
        settings_of(["--total", "much"])
    with pytest.raises(SystemExit):
        settings_of(["--suites", "warm,hot"])


def test_planning_cuts_every_row_of_a_seeded_index(tmp_path: Path) -> None:
    rows, shard_bytes = 25_000, 1 << 40
    store = IndexStore(Scratch(tmp_path))
    assert make_index(store, rows, seed=1) == 3
    assert plan_index(store, 3, shard_bytes) == 1
    ordered = [len(store.ordered(bucket).rows) for bucket in range(4)]
    assert sum(ordered) == rows
    assert plan_index(store, 3, 64 << 20) == 38  # seeded: 25,000 records of about 98 KB


# --- process trees and memory


def test_a_tree_that_does_not_end_is_ended_whole(tmp_path: Path) -> None:
    command = ["sh", "-c", "tail -f /dev/null & echo $!; wait"]
    finished = run_tree(command, cwd=tmp_path, timeout_seconds=0.3)
    assert finished.timed_out
    assert finished.exit_code == -9
    assert not psutil.pid_exists(int(finished.stdout))


def test_a_daemon_left_behind_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STAY_SECONDS_MAX", 0.1)
    command = ["sh", "-c", "setsid tail -f /dev/null >/dev/null 2>&1 & echo $!"]
    finished = run_tree(command, cwd=tmp_path, timeout_seconds=60)
    assert (finished.exit_code, finished.timed_out) == (0, False)
    assert not psutil.pid_exists(int(finished.stdout))


@pytest.mark.disk
def test_what_a_tree_wrote_to_disk_is_counted_with_its_children(tmp_path: Path) -> None:
    kinds = ("tmpfs", "overlay", "unknown")
    if machine.file_system(tmp_path) in kinds or not Path("/proc/self/io").exists():
        pytest.skip("what is written here is not counted")
    command = ["sh", "-c", f"sh -c 'head -c 3000000 /dev/zero > {tmp_path}/file'; true"]
    finished = run_tree(command, cwd=tmp_path, timeout_seconds=60)
    assert finished.disk is not None
    assert 3_000_000 <= finished.disk.written_bytes < 4_000_000


def test_children_that_were_there_before_are_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        assert run_tree(["true"], cwd=tmp_path, timeout_seconds=60).exit_code == 0
        assert other.poll() is None
        other.communicate()
    assert other.returncode == 0


def test_memory_of_workers_is_distinguished_from_that_of_the_first_process() -> None:
    code = (
        "import subprocess, sys\n"
        "hold = 'import sys; b = bytearray(b\"x\") * 60_000_000; print(1, flush=True); input()'\n"
        "child = subprocess.Popen([sys.executable, '-c', hold], stdin=0)\n"
        "child.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as root:
        assert root.stdout is not None
        assert root.stdout.readline() == b"1\n"
        sampler = TreeSampler()
        sampler.sample(root.pid)
        root.communicate(b"\n")
    worker, first = sampler.worker, sampler.first
    assert 60_000_000 <= worker.own_bytes <= worker.pss_bytes <= worker.rss_bytes < 120_000_000
    assert 0 < first.own_bytes < 50_000_000


def test_the_place_of_a_memory_group_follows_the_cgroup_version(tmp_path: Path) -> None:
    (tmp_path / "memory/a/b").mkdir(parents=True)
    (tmp_path / "user/session").mkdir(parents=True)
    old = "8:pids:/x\n4:cpu,memory:/a/b\n0::/\n"
    assert group_parent(old, tmp_path) == (tmp_path / "memory/a/b", 1)
    in_container = "4:memory:/docker/123\n0::/\n"
    assert group_parent(in_container, tmp_path) == (tmp_path / "memory", 1)
    assert group_parent("0::/user/session\n", tmp_path) == (tmp_path / "user", 2)
    assert group_parent("0::/\n", tmp_path) == (tmp_path, 2)
    with pytest.raises(NotPermittedError):
        group_parent("3:cpuset:/\n", tmp_path)


def test_a_memory_limit_holds_and_is_removed(tmp_path: Path) -> None:
    try:
        with MemoryLimit(64 * 1024**2) as limit:
            sampler = LimitedSampler(limit)
            code = "x = bytearray(b'x') * 300_000_000"
            command = limit.wrap([sys.executable, "-c", code])
            finished = run_tree(command, cwd=tmp_path, timeout_seconds=60, sampler=sampler)
            assert finished.exit_code == -9
            assert limit.kill_count >= 1
            assert 0 < limit.peak_bytes <= limit.limit_bytes
    except NotPermittedError as error:
        pytest.skip(str(error))
    assert not limit.path.exists()
