"""The benchmarks measure what they say: seeded data, honest ratios, the same job for all."""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tarfile
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from benchmarks.__main__ import main
from benchmarks.container_contenders import dsort_on
from benchmarks.container_data import ContainerData, ContainerRequest, make_containers
from benchmarks.contenders import (
    CONTENDERS,
    SHARD_BYTES,
    Contender,
    Task,
)
from benchmarks.data import (
    PROFILES,
    Data,
    DataSet,
    Request,
    make_data,
    make_shard,
)
from benchmarks.gate import upper_bound
from benchmarks.measure import Bench
from benchmarks.memory import (
    LimitedSampler,
    MemoryLimit,
    NotPermittedError,
)
from benchmarks.object_store import (
    STORE_CONTENDERS,
    StoreTask,
    account_of,
    spec_of,
)
from benchmarks.process import Finished, run_tree
from benchmarks.results import (
    Run,
    ratio_of,
)
from benchmarks.scripts.copy_shards import Copier
from dsort.spec.load import parse_spec
from tests.support.memory_bucket import MemoryBucket

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


# --- ratios


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


# --- process trees and memory


def test_a_tree_that_does_not_end_is_ended_whole(tmp_path: Path) -> None:
    command = ["sh", "-c", "tail -f /dev/null & echo $!; wait"]
    finished = run_tree(command, cwd=tmp_path, timeout_seconds=0.3)
    assert finished.timed_out
    assert finished.exit_code == -9
    assert not psutil.pid_exists(int(finished.stdout))


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


PHASES = {"resolve": 0.1, "extract": 1.0, "plan": 0.1, "create": 2.0, "commit": 0.2}


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


TOTAL_BYTES = 400_000


def data_of(directory: Path, kind: str, suffix: str) -> ContainerData:
    return make_containers(directory, ContainerRequest(kind, suffix, TOTAL_BYTES, 2))


def test_the_same_records_are_in_each_container(tmp_path: Path) -> None:
    tars, lines = data_of(tmp_path, "3k", ".tar"), data_of(tmp_path, "3k", ".jsonl")
    rows = data_of(tmp_path, "3k", ".parquet")
    assert tars.total_bytes == lines.total_bytes == rows.total_bytes >= TOTAL_BYTES
    for tar, jsonl, parquet in zip(tars.paths, lines.paths, rows.paths, strict=True):
        with tarfile.open(tar) as archive:
            members = {
                member.name: archive.extractfile(member).read()  # type: ignore[union-attr]
                for member in archive
            }
        assert list(members.values()) == jsonl.read_bytes().splitlines()
        parsed = [json.loads(payload) for payload in members.values()]
        assert list(members) == [f"{each['id']}.json" for each in parsed]
        assert pq.read_table(parquet).to_pylist() == parsed


@pytest.mark.parametrize(
    ("suffix", "output_suffix"),
    [(".tar", ""), (".tar", ".mds"), (".jsonl", ""), (".parquet", ""), (".tgz", "")],
)
def test_the_job_that_dsort_gets_is_a_valid_spec(
    tmp_path: Path, suffix: str, output_suffix: str
) -> None:
    data: Data = ContainerData(tmp_path, "3k", suffix, 4, 1000, 1000)
    contender = dsort_on("x", 4, move="map", output_suffix=output_suffix)
    line = contender.command(Task(data, tmp_path / "out", tmp_path, 2, 2))
    spec = parse_spec(json.loads(Path(line[line.index("-f") + 1]).read_text())).spec
    assert spec.output_shard_count == 4
    assert line[-2:] == ["--move", "map"]


@pytest.mark.parametrize(("pairs", "rank"), [(10, 8), (20, 14), (4, 4)])
def test_the_bound_of_a_median_is_one_of_the_ratios(pairs: int, rank: int) -> None:
    ratios = [1 + number / 100 for number in range(pairs)]
    random.Random(pairs).shuffle(ratios)
    assert upper_bound(ratios) == sorted(ratios)[rank - 1]
