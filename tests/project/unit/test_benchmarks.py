"""The benchmarks measure what they say: seeded data, honest ratios, the same job for all."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from benchmarks.contenders import (
    CONTENDERS,
    SHARD_BYTES,
    Contender,
    Task,
    cp_script,
    read_report,
)
from benchmarks.data import (
    PROFILES,
    DataSet,
    NoRoomError,
    Request,
    make_data,
    make_shard,
    require_room,
)
from benchmarks.process import Finished
from benchmarks.results import (
    Run,
    Skip,
    ratio_of,
    summarise,
    to_json,
)
from benchmarks.tables import render

SMALL = Request("100k", 2_000_000, 2)
# The first shard of SMALL; it changes only together with MAKER_VERSION.
SMALL_SHARD_SHA256 = "f4a982a536e27ced3389579e54d62fa1fe64c2c1093cc074a57f6dcbb66726bc"


def rate_run(contender: str, number: int, rate: float, **more: object) -> Run:
    """A warm run of 100 MB at ``rate`` MB/s, a quarter of its time in sync."""
    seconds = 100 / rate
    work, sync = seconds * 0.75, seconds * 0.25
    fields = {"work_seconds": work, "sync_seconds": sync, "whole_seconds": seconds} | more
    return Run("warm", "100k", contender, number, 100_000_000, **fields)  # type: ignore[arg-type]


# --- data


def test_a_seed_means_the_same_bytes_everywhere() -> None:
    first = make_shard(SMALL, 0)
    assert hashlib.sha256(first.data).hexdigest() == SMALL_SHARD_SHA256
    assert make_shard(SMALL, 1).tobytes() != first.tobytes()
    assert make_shard(Request("100k", 2_000_000, 2, seed=2), 0).tobytes() != first.tobytes()


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_shards_are_plain_ustar_with_two_members_a_record(profile: str, tmp_path: Path) -> None:
    request = Request(
        profile, {"1k": 300_000, "100k": 2_000_000, "4m": 24_000_000, "32k": 600_000}[profile], 2
    )
    data = make_data(tmp_path, request)
    keys: list[str] = []
    for path in data.paths:
        with tarfile.open(path) as archive:
            members = archive.getmembers()
            keys += [member.name.removesuffix(".jpg") for member in members[::2]]
            for image, label in zip(members[::2], members[1::2], strict=True):
                assert label.name == image.name.removesuffix(".jpg") + ".cls"
                low, high = PROFILES[profile].payload_bytes_min, PROFILES[profile].payload_bytes_max
                assert low <= image.size <= high
                text = archive.extractfile(label)
                assert text is not None
                assert 0 <= int(text.read()) < 1000
            assert not any(member.pax_headers for member in members)
        assert path.read_bytes()[-1024:] == bytes(1024)
        assert path.stat().st_size % 10_240 == 0
    assert len(set(keys)) == len(keys) == data.records
    assert abs(data.total_bytes - request.total_bytes) < 0.15 * request.total_bytes
    assert data.member_bytes_min < data.total_bytes == sum(p.stat().st_size for p in data.paths)


def test_padding_of_a_payload_is_zero(tmp_path: Path) -> None:
    data = make_data(tmp_path, Request("1k", 30_000, 1))
    raw = data.paths[0].read_bytes()
    with tarfile.open(data.paths[0]) as archive:
        for member in archive:
            end = member.offset_data + member.size
            assert raw[end : end + -member.size % 512].strip(b"\0") == b""


def test_data_that_is_whole_is_reused_and_other_data_is_remade(tmp_path: Path) -> None:
    data = make_data(tmp_path, SMALL)
    before = data.paths[0].stat().st_mtime_ns
    assert make_data(tmp_path, SMALL) == data
    assert data.paths[0].stat().st_mtime_ns == before

    data.paths[1].write_bytes(b"cut short")
    assert make_data(tmp_path, SMALL) == data
    assert data.paths[1].stat().st_size == data.sizes[1]

    (data.root / "data.json").unlink()
    data.paths[0].write_bytes(b"\0" * data.sizes[0])
    make_data(tmp_path, SMALL)
    assert hashlib.sha256(data.paths[0].read_bytes()).hexdigest() == SMALL_SHARD_SHA256


def test_a_full_disk_is_reported_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(NoRoomError, match="smaller --total"):
        require_room(tmp_path, 2**62)
    with pytest.raises(NoRoomError):
        make_data(tmp_path, Request("100k", 2**62, 1))
    assert list(tmp_path.iterdir()) == []


# --- ratios


def test_a_rate_counts_the_sync_and_a_failed_run_has_none() -> None:
    run = rate_run("cp", 0, 400)
    assert run.megabytes_per_second == pytest.approx(400)
    assert rate_run("cp", 0, 400, failure="no").megabytes_per_second == 0


def test_a_ratio_pairs_the_runs_of_a_round() -> None:
    # The machine slows down fourfold; within each round dsort is 1.2, 1.5 and 1.0 times as fast.
    runs = []
    for number, (cp, dsort) in enumerate([(1000, 1200), (500, 750), (250, 250)]):
        runs += [rate_run("cp", number, cp), rate_run("dsort-map", number, dsort)]
    assert ratio_of(runs, "warm", "100k", "dsort-map", "cp") == pytest.approx(1.2)
    assert ratio_of(runs, "warm", "1k", "dsort-map", "cp") is None
    assert ratio_of(runs, "warm", "100k", "dsort-map", "ray") is None
    # A round that only one of them has does not count.
    more = [*runs, rate_run("dsort-map", 3, 9000)]
    assert ratio_of(more, "warm", "100k", "dsort-map", "cp") == pytest.approx(1.2)


def test_rows_are_medians_of_the_runs_that_did_not_fail() -> None:
    runs = [rate_run("cp", number, rate) for number, rate in enumerate((100, 300, 200))]
    runs.append(rate_run("ray", 0, 50, failure="exit code 1: lost"))
    cp, ray = summarise(runs)
    assert (cp.rounds, cp.failure) == (3, "")
    rates = (cp.megabytes_per_second_min, cp.megabytes_per_second, cp.megabytes_per_second_max)
    assert rates == pytest.approx((100, 200, 300))
    assert cp.cp_ratio == pytest.approx(1)
    assert (ray.rounds, ray.cp_ratio, ray.failure) == (0, None, "exit code 1: lost")


def test_the_result_is_json_and_a_table_of_at_most_100_columns() -> None:
    report = {"phase_seconds": {"extract": 0.1, "plan": 0.0, "create": 0.2, "commit": 0.1}}
    runs = [
        rate_run("cp", 0, 1000),
        rate_run("dsort-map", 0, 1300, details=report),
        rate_run("ray-tuned", 0, 1, failure="exit code 1: " + "a long story " * 20),
    ]
    skips = [Skip("limited", "4m", "cannot make a memory cgroup: " + "no " * 60)]
    machine = {"cpu": "a processor, 2 cores", "libraries": "name 1.2.3, " * 20}
    text = render(machine, runs, skips)
    assert max(map(len, text.splitlines())) <= 100
    for wanted in ("dsort-map       1  1300", "1.30", "failed", "not measured: limited"):
        assert wanted in text
    result = json.loads(json.dumps(to_json(machine, {"rounds": 1}, runs, skips)))
    assert result["format"] == "dsort-benchmarks-1"
    assert result["runs"][1]["megabytes_per_second"] == pytest.approx(1300)
    assert result["rows"][1]["cp_ratio"] == pytest.approx(1.3)
    assert result["skipped"][0]["what"] == "4m"


# --- contenders


def task_of(data: DataSet, tmp_path: Path, workers: int = 2) -> Task:
    output, scratch = data.root / "out", tmp_path / "scratch"
    output.mkdir(exist_ok=True)
    scratch.mkdir(exist_ok=True)
    return Task(data, output, scratch, workers, cores=2, memory_bytes_max=512 * 1024**2)


def test_dsort_is_given_the_same_job_as_the_others(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", SMALL)
    task = task_of(data, tmp_path)
    line = CONTENDERS["dsort-spill"].command(task)
    assert line[1:5] == ["-m", "dsort", "start", "-f"]
    rest = " ".join(line[6:])
    assert rest == (
        f"--root {data.root} --json --progress none --workers 2 --move spill --max-memory 512MB"
    )
    spec = json.loads(Path(line[5]).read_text())
    assert spec["input_format"] == {"template": "shard-{00000..00001}"}
    assert (spec["input_bck"], spec["output_bck"]) == ("shards", "out")
    assert spec["output_shard_size"] == "64MB"
    assert SHARD_BYTES == 64 * 1024**2


def test_dsort_is_counted_from_extract_to_commit() -> None:
    phases = {"resolve": 5.0, "extract": 1.0, "plan": 0.25, "create": 2.0, "commit": 0.5}
    report = {"phase_seconds": phases, "move": "map", "records": 3, "job_id": "x"}
    account = CONTENDERS["dsort"].account(Finished(0, 9.0, 1, 0, json.dumps(report), "", False))
    assert account.work_seconds == 3.75
    assert account.details == {"phase_seconds": phases, "move": "map", "records": 3}
    del phases["create"]
    with pytest.raises(KeyError):
        CONTENDERS["dsort"].account(Finished(0, 9.0, 1, 0, json.dumps(report), "", False))


def test_a_report_is_all_of_the_output_or_its_last_line() -> None:
    assert read_report('{\n "a": 1\n}\n') == {"a": 1}
    assert read_report('hello\n{"a": 1}\n') == {"a": 1}
    for text in ("", "hello", "[1]"):
        with pytest.raises(ValueError, match="no JSON report"):
            read_report(text)


def test_cp_deals_every_shard_out_once_and_fails_when_one_copy_fails(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", Request("1k", 60_000, 5))
    task = task_of(data, tmp_path, workers=3)
    assert cp_script(task).count("cp --") == 3
    subprocess.run(["/bin/sh", "-c", cp_script(task)], check=True)
    assert sorted(path.name for path in task.output.iterdir()) == list(data.names)
    data.paths[3].unlink()
    failed = subprocess.run(["/bin/sh", "-c", cp_script(task)], check=False, capture_output=True)
    assert failed.returncode == 1


def test_a_contender_that_is_not_installed_says_so() -> None:
    assert CONTENDERS["cp"].missing == ""
    contender = Contender(
        "x", CONTENDERS["cp"].command, CONTENDERS["cp"].account, modules=("no_such_module",)
    )
    assert contender.missing == "not installed: no_such_module"
