"""What a job with ``overwrite`` replaces is kept until its manifest is written: wherever the commit
fails or dies, there is all that was there before, or the whole result with its manifest."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dsort.errors import ChangedInputError, NamesTakenError
from tests.support.datasets import files_of, small_dataset, tree_of, write_shards
from tests.support.engine import left_in, run_local, spec_of
from tests.support.fault_points import PointFault, arm, struck
from tests.support.faulty_store import StoreFaults, arm_store
from tests.support.internals import Event, PhaseDone
from tests.support.refusals import raises
from tests.support.surviving import (
    CASES,
    Trial,
    assert_kept,
    job_in,
    only_a_report,
    prepare,
    start_arguments,
    undisturbed,
)

DATASET = small_dataset("replacing", shards=3, records=10, payload_bytes_max=2000)
OLD = {f"out-{number}.tar": b"old %d" % number for number in range(5)}
CASE = "replacing"
GC = ("gc", "out", "--remove", "--older-than", "0s")

BEFORE_ITS_MANIFEST = [
    PointFault("journal:append", about="Committing"),
    PointFault("keep:end", 1, about="out-0"),
    PointFault("keep:end", 1, about="out-2"),
    PointFault("file:sync", about="replaced/kept.json"),
    PointFault("publish:start", 1, about=".tar"),
    PointFault("publish:end", 1, about=".tar"),
    PointFault("publish:end", 3, about=".tar"),
    PointFault("publish:start", about="out-3"),
    PointFault("publish:end", about="out-3"),
    PointFault("publish:start", about="index"),
    PointFault("publish:end", about="index"),
    PointFault("make_durable", 2),
    PointFault("publish:start", about="manifest"),
]
FEWER = [BEFORE_ITS_MANIFEST[at] for at in (0, 2, 3, 7, 12)]
AFTER_IT = [
    PointFault("publish:end", about="manifest"),
    # Before it: names of reactions, index, lineage, manifest.
    PointFault("discard", 5, about="/staged/"),
    PointFault("discard", about="/replaced/"),
    PointFault("discard", about="/journal/"),
]


def named(fault: PointFault) -> str:
    return f"{fault.point} {fault.nth} {fault.about}"


def as_before(trial: Trial) -> None:
    """The output bucket holds what it held before the job, to the byte, and nothing else."""
    assert files_of(trial.out) == CASES[CASE].old
    assert set(tree_of(trial.out)) == set(CASES[CASE].old)


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("fault", BEFORE_ITS_MANIFEST, ids=named)
def test_a_job_that_died_is_undone_by_gc(fault: PointFault, trial: Trial) -> None:
    trial.die(CASE, fault)
    trial.done(*GC)
    as_before(trial)


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize("fault", [*BEFORE_ITS_MANIFEST, *AFTER_IT], ids=named)
def test_a_job_that_died_is_resumed(fault: PointFault, trial: Trial) -> None:
    trial.die(CASE, fault)
    trial.done("resume", job_in(trial.out), "--bucket", "out")
    if fault in AFTER_IT:
        trial.done(*GC)
    trial.is_whole()


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("fault", AFTER_IT, ids=named)
def test_what_was_committed_is_not_undone(fault: PointFault, trial: Trial) -> None:
    trial.die(CASE, fault)
    trial.done(*GC)
    trial.is_whole()


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("fault", FEWER, ids=named)
def test_a_job_that_died_and_cannot_go_on_is_undone(fault: PointFault, trial: Trial) -> None:
    trial.die(CASE, fault)
    path = trial.root / "in" / "in-1.tar"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert isinstance(trial.refused(), ChangedInputError)
    assert files_of(trial.out) == CASES[CASE].old
    only_a_report(trial.out, CASES[CASE].old)


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("then", ["gc", "resume"])
def test_dying_while_it_is_undone(then: str, nth: int, trial: Trial) -> None:
    trial.die(CASE, PointFault("publish:start", about="manifest"))
    trial.begun.killed(trial.root, *GC, by=PointFault("put back:end", nth))
    if then == "gc":
        trial.done(*GC)
        as_before(trial)
    else:
        trial.done("resume", job_in(trial.out), "--bucket", "out")
        trial.is_whole()


@pytest.mark.exhaustive
def test_old_shards_of_the_same_bytes_are_not_taken_for_the_jobs_own(trial: Trial) -> None:
    """As when a job is done again."""
    expected = undisturbed(CASE, trial.base)
    for number, fault in enumerate(FEWER):
        root = trial.root / str(number)
        root.mkdir()
        prepare(root, CASES[CASE])
        write_shards(root / "out", expected.shards)
        trial.begun.killed(root, *start_arguments(CASES[CASE]), by=fault)
        trial.begun.done(root, *GC)
        assert files_of(root / "out") == expected.shards, fault
        assert set(tree_of(root / "out")) == set(expected.shards)


@pytest.mark.parametrize(
    "fault",
    [
        PointFault("keep:end", 2, "terminate"),
        PointFault("publish:end", 4, "terminate", about=".tar"),
    ],
    ids=named,
)
def test_a_job_that_is_stopped_while_it_replaces_puts_all_back(
    fault: PointFault, trial: Trial
) -> None:
    points = arm(trial.root / "points", fault)
    ended = trial.run(*trial.prepare(CASE), points=points)
    assert struck(points) == [fault.point]
    assert ended.code == 143, ended.err
    reported = "2 objects that the job was to replace are as before" in ended.err
    assert reported == fault.point.startswith("publish")
    assert assert_kept(trial.out, CASES[CASE].old) != set()


@pytest.mark.parametrize("how", ["denied", "down"])
def test_a_store_that_fails_while_all_is_put_back(how: str, trial: Trial) -> None:
    faults = [PointFault("publish:end", 5, "terminate", about=".tar")]
    script: list[dict[str, object]] = []
    if how == "denied":
        script = [{"operation": "put_back", "kind": "denied", "times": 9}]
    else:
        faults.append(PointFault("put back:end", 1, "store down"))
    points = arm(trial.root / "points", *faults)
    arm_store(points, StoreFaults(about="out", script=script))
    ended = trial.run(*trial.prepare(CASE), points=points)
    assert ended.code == 143, ended.err
    assert struck(points) == sorted(fault.point for fault in faults)
    job = job_in(trial.out)
    if how == "denied":
        assert f"the earlier object out-3.tar is kept as .dsort/{job}/replaced/3" in ended.err
    else:
        assert "not all of its work could be undone" in ended.err
    assert f"`dsort resume {job}` resumes the job" in ended.err
    trial.done(*GC)
    assert files_of(trial.out) == CASES[CASE].old
    assert [name for name in left_in(trial.out) if name not in CASES[CASE].old] in (
        [],
        [".dsort/JOB/report.json"],
    )


# -- names that cannot be used -------------------------------------------------------------------


def begin(root: Path, old: dict[str, bytes]) -> dict[str, object]:
    """A job of six shards."""
    write_shards(root / "in", DATASET)
    write_shards(root / "out", old)
    return spec_of(algorithm={"kind": "shuffle", "seed": 4}, overwrite=True)


def test_a_name_that_becomes_a_directory_costs_no_old_shard(tmp_path: Path) -> None:
    spec = begin(tmp_path, OLD)

    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == "create":
            (tmp_path / "out" / "out-5.tar").mkdir()

    with raises(NamesTakenError, "out-5.tar", "5 objects"):
        run_local(tmp_path, spec, on_event=listen)
    (tmp_path / "out" / "out-5.tar").rmdir()
    assert files_of(tmp_path / "out") == OLD
    assert [name for name in left_in(tmp_path / "out") if name not in OLD] == [
        ".dsort/JOB/report.json"
    ]
    report = json.loads(
        (tmp_path / f"out/.dsort/{job_in(tmp_path / 'out')}/report.json").read_bytes()
    )
    assert "are as before" in report["error"]


def test_a_strangers_object_that_comes_while_names_are_given_stays(tmp_path: Path) -> None:
    spec = begin(tmp_path, {name: OLD[name] for name in ("out-0.tar", "out-1.tar")})

    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == "create":
            (tmp_path / "out" / "out-4.tar").write_bytes(b"new, and a stranger's")

    report = run_local(tmp_path, spec, on_event=listen)
    assert report.state == "finished"  # --overwrite was given, and it was there to be kept
    assert left_in(tmp_path / "out")[0] == ".dsort/JOB/manifest.json"


def test_what_cannot_be_put_back_is_kept_and_named(trial: Trial) -> None:
    trial.die(CASE, PointFault("publish:end", 5, about=".tar"))
    job = job_in(trial.out)
    (trial.out / "out-3.tar").unlink()
    (trial.out / "out-3.tar").mkdir()
    removed = trial.run(*GC)
    assert removed.code == 4, removed.err
    assert f"the earlier object out-3.tar is kept as .dsort/{job}/replaced/3" in removed.err
    assert (trial.root / f"out/.dsort/{job}/replaced/3").read_bytes() == b"another"
    assert (trial.out / "out-0.tar").read_bytes() == b"an old shard"
    (trial.out / "out-3.tar").rmdir()
    trial.done(*GC)
    as_before(trial)


def test_an_object_that_a_stranger_wrote_since_stays(trial: Trial) -> None:
    trial.die(CASE, PointFault("publish:end", 5, about=".tar"))
    job = job_in(trial.out)
    (trial.out / "out-3.tar").unlink()
    (trial.out / "out-3.tar").write_bytes(b"newer")
    removed = trial.run(*GC)
    assert removed.code == 4, removed.err
    assert "another writer has stored something under that name since" in removed.err
    (trial.root / f"out/.dsort/{job}/replaced/3").unlink()
    trial.done(*GC)
    assert files_of(trial.out) == {"out-0.tar": b"an old shard", "out-3.tar": b"newer"}


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(
    "note", [b"", b"[]", b'{"kept": 2}', b'{"kept": 1, "objects": [[0, "../x", "", "copy", ""]]}']
)
def test_a_damaged_note_is_reported_and_nothing_is_touched(note: bytes, trial: Trial) -> None:
    trial.die(CASE, PointFault("publish:end", 5, about=".tar"))
    kept = trial.out / ".dsort" / job_in(trial.out) / "replaced"
    (kept / "kept.json").write_bytes(note)
    before = tree_of(trial.out)
    removed = trial.run(*GC)
    assert removed.code == 4, removed.err
    assert "kept.json" in removed.err
    after = tree_of(trial.out)
    assert {name: each for name, each in after.items() if ".dsort" not in name} == {
        name: each for name, each in before.items() if ".dsort" not in name
    }
    assert (kept / "3").read_bytes() == b"another"
