"""Storage that fills up or cannot be written, at every step: a clear failure, nothing half-visible,
and what was there before is as it was."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import dsort
from dsort.errors import StorageAccessError, StorageFullError
from dsort.options import RunOptions
from tests.support.datasets import Member, Shard, files_of, small_dataset, write_shards
from tests.support.engine import left_in, run_local, spec_of
from tests.support.internals import Event, JobStarted, PhaseDone, Progress
from tests.support.refusals import raises
from tests.support.small_places import fill, small_disk
from tests.support.surviving import assert_kept, job_in

DATASET = small_dataset("storage", shards=4, records=30, payload_bytes_max=30_000)


def spec_into(directory: Path) -> dict[str, object]:
    return spec_of(
        output_bck=(directory / "out").as_uri(),
        output_shard_records=20,
        algorithm={"kind": "shuffle", "seed": 4},
        index="wids",
    )


def only_a_report(names: list[str]) -> bool:
    """A disk that is full may have no room for even that."""
    return names in ([], [".dsort/JOB/report.json"])


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(
    ("phase", "leave_bytes"), [("plan", 0), ("plan", 100_000), ("plan", 1_500_000), ("create", 0)]
)
def test_an_output_disk_that_fills_up(
    phase: str, leave_bytes: int, tmp_path: Path, small: Path
) -> None:
    write_shards(tmp_path / "in", DATASET)
    write_shards(small / "out", {"mine.tar": b"mine"})

    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == phase:
            fill(small, leave_bytes)

    scratch = tmp_path / "scratch"
    with raises(StorageFullError, str(small)) as full:
        run_local(tmp_path, spec_into(small), scratch=scratch, on_event=listen, workers=2)
    assert full.value.exit_code == 4
    assert full.value.hint
    assert_kept(small / "out", {"mine.tar": b"mine"})
    assert [path.name for path in scratch.iterdir()] == [f"dsort-{job_in(small / 'out')}"]


def test_a_full_disk_does_not_cost_what_was_to_be_replaced(tmp_path: Path, small: Path) -> None:
    write_shards(tmp_path / "in", DATASET)
    old = {f"out-{number}.tar": b"old %d" % number for number in range(6)}
    write_shards(small / "out", old)

    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == "create":
            fill(small)

    with pytest.raises(StorageFullError):
        run_local(
            tmp_path,
            spec_into(small),
            scratch=tmp_path / "scratch",
            on_event=listen,
            overwrite=True,
        )
    assert_kept(small / "out", old)


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize(("move", "leave_bytes"), [("map", 0), ("spill", 0), ("spill", 300_000)])
def test_a_scratch_disk_that_fills_up(
    move: str, leave_bytes: int, tmp_path: Path, small: Path
) -> None:
    write_shards(tmp_path / "in", DATASET)

    def listen(event: Event) -> None:
        if isinstance(event, JobStarted):
            fill(small, leave_bytes)

    with raises(StorageFullError, str(small)):
        run_local(
            tmp_path, spec_into(tmp_path), scratch=small, move=move, on_event=listen, workers=2
        )
    assert_kept(tmp_path / "out")
    assert [path.name for path in small.iterdir()] == ["filler"]


@pytest.mark.parametrize("which", ["output", "scratch"])
def test_too_little_room_is_reported_before_any_work(
    which: str, tmp_path: Path, small: Path
) -> None:
    write_shards(tmp_path / "in", DATASET)
    fill(small, 500_000)
    elsewhere = tmp_path / "elsewhere"
    directory, scratch = (small, elsewhere) if which == "output" else (tmp_path, small)
    phases: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone):
            phases.append(event.phase)

    with raises(StorageFullError, str(small) if which == "output" else "scratch"):
        run_local(tmp_path, spec_into(directory), scratch=scratch, move="spill", on_event=listen)
    assert phases == []
    assert only_a_report(left_in(directory / "out"))


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("which", ["output", "scratch"])
def test_too_little_room_is_reported_before_a_job_is_begun_again(
    which: str, tmp_path: Path, small: Path
) -> None:
    write_shards(tmp_path / "in", DATASET)
    elsewhere = tmp_path / "elsewhere"
    directory, scratch = (small, elsewhere) if which == "output" else (tmp_path, small)

    def fail(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == "extract":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_local(tmp_path, spec_into(directory), scratch=scratch, move="spill", on_event=fail)
    ((job,),) = ([path.name for path in (directory / "out" / ".dsort").iterdir()],)
    fill(small, 500_000)
    phases: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone):
            phases.append(event.phase)

    options = RunOptions(root=tmp_path, scratch=scratch, move="spill", workers=1)
    bucket = (directory / "out").as_uri()
    with raises(StorageFullError, str(small) if which == "output" else "scratch"):
        dsort.resume(job, bucket, options=options, on_event=listen)
    assert phases == []


def test_a_bucket_that_may_only_be_read_can_be_an_input(tmp_path: Path) -> None:
    with small_disk(tmp_path / "in") as sealed:
        write_shards(sealed, DATASET)
        subprocess.run(["mount", "-o", "remount,ro", str(sealed)], check=True)
        report = run_local(tmp_path, spec_into(tmp_path))
        assert report.records == 120
        with raises(StorageAccessError, str(sealed)):
            run_local(tmp_path, spec_of(output_bck="in"))
        assert files_of(sealed) == {name: shard.data for name, shard in DATASET.items()}
        assert len(left_in(sealed)) == len(DATASET)


def test_what_hard_links_expand_to_is_counted_before_it_is_written(
    tmp_path: Path, small: Path
) -> None:
    linked = [Member(f"{n}.bin", kind="hardlink", target="0.bin") for n in range(1, 11)]
    shard = Shard((Member("0.bin", b"7" * (1 << 20)), *linked))
    write_shards(tmp_path / "in", {f"in-{number}.tar": shard for number in range(3)})
    phases = []

    def listen(event: Event) -> None:
        if isinstance(event, Progress):
            phases.append(event.phase)

    fields = spec_of(output_bck=(small / "out").as_uri(), config={"duplicate_keys": "warn"})
    with raises(StorageFullError, str(small), "33"):
        run_local(tmp_path, fields, scratch=tmp_path / "s", move="map", on_event=listen)
    assert "plan" in phases
    assert "create" not in phases
    assert_kept(small / "out")
