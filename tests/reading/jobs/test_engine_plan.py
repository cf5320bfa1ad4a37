"""A plan, and a dry run: nothing is written to any bucket or copied to scratch, and what it says
is what the job then does, moves and asks for."""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dsort
from dsort.cli import summary
from dsort.errors import SpecError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from dsort.storage.directory.random_reads import KernelReads
from dsort.storage.s3.bucket import CompletionCondition, S3Bucket
from dsort.storage.s3.client import S3Client
from tests.support.children import children_here
from tests.support.datasets import (
    END,
    Member,
    Shard,
    files_of,
    small_dataset,
    tree_of,
    write_shards,
)
from tests.support.disks import really_written
from tests.support.engine import plan_local, refused, run_local, spec_of
from tests.support.inline_runtime import Moved, plan_inline, run_inline
from tests.support.internals import Event, PhaseDone, PlanEstimate, worker_setup
from tests.support.seaweedfs import S3Server
from tests.support.tar_builder import header, member, pax

pytestmark = pytest.mark.usefixtures("workers_here")


SHUFFLE = {"kind": "shuffle", "seed": 9}
HUGE_BYTES = 9 << 30


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where scratch of plans is."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


@pytest.mark.parametrize("move", ["map", "spill"])
def test_a_plan_foretells_the_job_and_writes_nothing(
    move: str, tmp_path: Path, temporary: Path
) -> None:
    write_shards(tmp_path / "in", small_dataset("plan"))
    spec = spec_of(algorithm=SHUFFLE, output_shard_records=None, output_shard_size="5KB")
    before = tree_of(tmp_path)
    plan = plan_local(tmp_path, spec, move=move, workers=2)
    assert tree_of(tmp_path) == before
    assert plan.run.move == move
    report = run_local(tmp_path, spec, move=move)
    found = files_of(tmp_path / "out")
    assert {shard.name: shard.file_bytes for shard in plan.shards} == {
        name: len(data) for name, data in found.items()
    }
    assert (plan.records, plan.totals.members, plan.totals.payload_bytes) == (
        report.records,
        report.totals.members,
        report.totals.payload_bytes,
    )
    assert sum(shard.records for shard in plan.shards) == plan.records


def test_a_dry_run_from_python_is_a_plan(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", small_dataset("plan"))
    before = tree_of(tmp_path)
    report = run_local(tmp_path, spec_of(algorithm=SHUFFLE, dry_run=True))
    assert tree_of(tmp_path) == before
    assert (report.state, report.manifest_name, report.records) == ("planned", None, 36)


def test_a_plan_refuses_what_the_job_would(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", small_dataset("plan"))
    before = tree_of(tmp_path)
    with refused(tmp_path, SpecError, "out-{0..6} has 7 names"):
        plan_local(tmp_path, spec_of(output_format="out-{0..6}"))
    with refused(tmp_path, SpecError):
        plan_local(tmp_path, spec_of(output_bck="in", output_format="in-%d"))
    assert tree_of(tmp_path) == before


def huge_shard(path: Path, headers: bytes) -> None:
    """A shard whose payload is a hole of ``HUGE_BYTES``, and a small record after it."""
    with path.open("wb") as file:
        file.write(headers)
        file.seek(len(headers) + HUGE_BYTES)
        file.write(member(b"small.jpg", b"small") + END)


@pytest.mark.sample(keep=2)
@pytest.mark.usefixtures("worker_processes")
@pytest.mark.parametrize("move", ["map", "spill"])
@pytest.mark.parametrize("form", ["base-256", "pax"])
def test_members_of_more_than_8_gb_are_planned_without_reading_them(
    form: str, move: str, tmp_path: Path, temporary: Path
) -> None:
    (tmp_path / "in").mkdir()
    if form == "pax":
        headers = pax({b"size": b"%d" % HUGE_BYTES}) + header(b"huge.bin", 0)
    else:
        headers = header(b"huge.bin", b"\x80" + HUGE_BYTES.to_bytes(11, "big"), style="gnu")
    huge_shard(tmp_path / "in" / "in.tar", headers)
    if (tmp_path / "in" / "in.tar").stat().st_blocks * 512 > 1 << 20:
        pytest.skip("this file system has no holes")
    read: list[int] = []

    def look(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == "extract":
            assert sum(f.stat().st_size for f in temporary.rglob("*") if f.is_file()) < 1 << 20
            workers = children_here()
            read.extend(worker.io_counters().read_chars for worker in workers)

    plan = dsort.plan(
        parse_spec(spec_of(output_shard_records=1, algorithm=SHUFFLE)).spec,
        options=RunOptions(root=tmp_path, move=move, workers=1, memory_max_bytes=200 << 20),
        on_event=look,
    )
    assert plan.totals.payload_bytes == HUGE_BYTES + 5
    assert sorted(s.file_bytes for s in plan.shards) == [2048, HUGE_BYTES + len(headers) + 1024]
    assert 0 < sum(read) < HUGE_BYTES // 16
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "out").exists()


KIB = 1 << 10
ABOUT = 0.03
"""So much may be read and written besides: index, journal, manifest."""
SEEDED = {"kind": "shuffle", "seed": 4}


def make_inputs(root: Path, *, shards: int, records: int, payload_bytes: int) -> None:
    rng = random.Random(7)
    write_shards(
        root / "in",
        {
            f"in-{number}.tar": Shard(
                tuple(
                    Member(f"{number}-{key:03}.jpg", rng.randbytes(payload_bytes))
                    for key in range(records)
                )
            )
            for number in range(shards)
        },
    )


def io_of_this_process() -> Counter[str]:
    lines = Path("/proc/self/io").read_text().splitlines()
    return Counter({name: int(value) for name, value in (line.split(": ") for line in lines)})


def bytes_of(run: Callable[[], object]) -> Counter[str]:
    """What this process read and wrote meanwhile, by calls and from disks. Asynchronous reads are
    calls, too, but the kernel does not count them among those of a process."""
    before, ended = io_of_this_process(), KernelReads.ended
    asynchronous: list[int] = []

    def watched(self: KernelReads, least: int) -> list[tuple[int, int]]:
        found = ended(self, least)
        asynchronous.extend(result for _, result in found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KernelReads, "ended", watched)
        run()
    now = io_of_this_process()
    found = Counter({name: now[name] - before[name] for name in now})
    return found + Counter(rchar=sum(asynchronous))


def forget_pages(directory: Path) -> None:
    """So that the disk is read."""
    for path in directory.iterdir():
        with path.open("rb") as file:
            really_written(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def estimate(spec: dict[str, Any], root: Path, moved: Moved) -> PlanEstimate:
    found = plan_inline(spec, root, moved).plan.estimate
    assert found is not None
    return found


SPILL = Moved("spill", partitions=3, buffer_bytes=8 << 20)


@pytest.mark.parametrize(
    ("moved", "payload_bytes"),
    [(Moved("range"), 100 * KIB), (SPILL, 100 * KIB), (SPILL, 20 * KIB)],
    ids=["range", "spill", "spill of small records"],
)
def test_bytes_of_files_are_those_that_a_job_then_reads_and_writes(
    moved: Moved, payload_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_setup, "SCRATCH_SHARE", 1 << 40)  # none of it stays in memory
    make_inputs(
        tmp_path, shards=3, records=2000 * KIB // payload_bytes, payload_bytes=payload_bytes
    )
    spec = spec_of(algorithm=SEEDED)
    planned = estimate(spec, tmp_path, moved)
    found = bytes_of(lambda: run_inline(spec, tmp_path, moved))
    assert found["rchar"] == pytest.approx(planned.disk_read_bytes, rel=3 * ABOUT)
    assert found["wchar"] == pytest.approx(planned.disk_written_bytes, rel=ABOUT)
    assert planned.requests == {}


def test_a_view_reads_no_payload_and_writes_a_few_bytes_a_record(tmp_path: Path) -> None:
    make_inputs(tmp_path, shards=3, records=400, payload_bytes=1 * KIB)
    spec = spec_of(algorithm=SEEDED, output="view")
    planned = estimate(spec, tmp_path, Moved())
    inputs = sum(each.stat().st_size for each in (tmp_path / "in").iterdir())
    found = bytes_of(lambda: run_inline(spec, tmp_path, Moved()))
    assert inputs <= planned.disk_read_bytes < inputs * (1 + ABOUT)
    assert found["rchar"] < 2 * planned.disk_read_bytes
    assert planned.disk_written_bytes < inputs / 20


@pytest.mark.disk
def test_what_is_mapped_is_read_from_the_disk_once(tmp_path: Path) -> None:
    make_inputs(tmp_path, shards=3, records=20, payload_bytes=100 * KIB)
    spec = spec_of(algorithm=SEEDED)
    forget_pages(tmp_path / "in")
    found = bytes_of(lambda: run_inline(spec, tmp_path, Moved("map")))
    planned = estimate({**spec, "output_bck": "again"}, tmp_path, Moved("map"))
    if not found["read_bytes"]:
        pytest.skip("this file system reads from no disk")
    assert found["read_bytes"] == pytest.approx(planned.disk_read_bytes, rel=2 * ABOUT)
    assert found["wchar"] == pytest.approx(planned.disk_written_bytes, rel=ABOUT)


def test_a_survey_is_one_more_pass(tmp_path: Path) -> None:
    make_inputs(tmp_path, shards=2, records=8, payload_bytes=20 * KIB)
    moved = Moved("spill", partitions=4)
    once = estimate(spec_of(algorithm=SEEDED), tmp_path, moved)
    twice = estimate(spec_of(algorithm={"kind": "alphanumeric"}), tmp_path, moved)
    size = sum(path.stat().st_size for path in (tmp_path / "in").iterdir())
    assert twice.disk_read_bytes - once.disk_read_bytes == size


KINDS = {
    "GetObject": "get",
    "HeadObject": "head",
    "HeadBucket": "head",
    "ListObjectsV2": "list",
    "ListMultipartUploads": "list",
    "PutObject": "put",
    "CreateMultipartUpload": "create",
    "UploadPart": "part",
    "CompleteMultipartUpload": "complete",
    "AbortMultipartUpload": "delete",
    "DeleteObject": "delete",
    "DeleteObjects": "delete",
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The requests that clients of this process make, by kind."""
    made: Counter[str] = Counter()
    begin = S3Client.__init__

    def watched(self: S3Client, *args: Any, **more: Any) -> None:
        begin(self, *args, **more)

        def before_send(event_name: str, **_: object) -> None:
            made[KINDS[event_name.rpartition(".")[2]]] += 1

        # Buckets that are opened together share what is registered with.
        self.api.meta.events.register("before-send.s3", before_send, unique_id="asked")

    monkeypatch.setattr(S3Client, "__init__", watched)
    return made


@pytest.fixture
def between_buckets(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """A job of six shards in a store into twenty there."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    make_inputs(tmp_path, shards=6, records=10, payload_bytes=20 * KIB)
    bucket, client = s3.new_bucket_name(), s3.client()
    client.create_bucket(Bucket=bucket)
    for path in (tmp_path / "in").iterdir():
        client.put_object(Bucket=bucket, Key=f"in/{path.name}", Body=path.read_bytes())
    return spec_of(
        algorithm=SEEDED,
        input_bck=f"s3://{bucket}/in",
        output_bck=f"s3://{bucket}/out",
        output_shard_records=3,
    )


@pytest.mark.exhaustive
def test_requests_to_stores_are_those_that_a_job_then_makes(
    between_buckets: dict[str, Any],
    asked: Counter[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CompletionCondition, "is_heeded", lambda *_: True)  # as of AWS
    monkeypatch.setattr(CompletionCondition, "is_known", True)
    moved = Moved("spill", partitions=3)
    planned = estimate(between_buckets, tmp_path, moved)
    asked.clear()
    report = run_inline(between_buckets, tmp_path, moved)
    assert planned.store_written_bytes == report.totals.file_bytes
    assert planned.disk_read_bytes == 0
    for kind in ("get", "create", "part", "complete"):
        assert planned.requests[kind] == asked[kind]
    assert set(planned.requests) == set(asked)
    assert sum(planned.requests.values()) == pytest.approx(asked.total(), rel=0.15)


@pytest.mark.exhaustive
def test_of_a_store_that_may_heed_no_condition_the_most_is_planned(
    between_buckets: dict[str, Any],
    asked: Counter[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = Moved("spill", partitions=3)
    planned = estimate(between_buckets, tmp_path, moved)
    asked.clear()
    run_inline(between_buckets, tmp_path, moved)  # this store heeds it, which is found out
    assert all(planned.requests[kind] >= asked[kind] for kind in ("head", "create", "complete"))

    completed = S3Bucket._complete

    def complete(*given: Any, **more: Any) -> bool:
        completed(*given, **more)
        return False  # whether the whole was checked

    monkeypatch.setattr(S3Bucket, "_complete", complete)
    monkeypatch.setattr(CompletionCondition, "is_heeded", lambda *_: False)
    asked.clear()
    run_inline(
        {**between_buckets, "output_bck": between_buckets["output_bck"] + "2"}, tmp_path, moved
    )
    assert planned.requests["head"] >= asked["head"] > 2 * 20
    assert sum(planned.requests.values()) == pytest.approx(asked.total(), rel=0.15)


def test_an_estimate_is_said_in_80_columns() -> None:
    large = PlanEstimate(
        disk_read_bytes=10**15,
        disk_written_bytes=10**15,
        store_read_bytes=0,
        store_written_bytes=0,
        exchanged_bytes=10**15,
        requests=dict.fromkeys(KINDS.values(), 10**8),
    )
    lines = summary.estimate_lines(large)
    assert len(lines) == 6
    assert max(len(f"{'algorithm':11}{value}") for _, value in lines) <= 80
    assert summary.estimate_lines(None) == []
