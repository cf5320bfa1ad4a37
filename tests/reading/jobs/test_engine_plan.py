"""A plan, and a dry run: nothing is written to any bucket, nothing is copied to scratch, and what
it says is what the job then does. So for members of more than 8 GB, whose payload is not read."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

import dsort
from dsort.errors import SpecError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.support.children import children_here
from tests.support.datasets import END, files_of, small_dataset, tree_of, write_shards
from tests.support.engine import plan_local, refused, run_local, spec_of
from tests.support.internals import Event, PhaseDone
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
    with refused(tmp_path, SpecError, "would replace the input shard"):
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
