"""What a job with ``overwrite`` replaces is kept until its manifest is written: wherever the commit
fails or dies, there is all that was there before, or the whole result with its manifest."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dsort.errors import ChangedInputError, NamesTakenError
from tests.support.coordinators import Coordinators
from tests.support.datasets import files_of, small_dataset, tree_of, write_shards
from tests.support.engine import left_in, run_local, spec_of
from tests.support.fault_points import PointFault, arm, struck
from tests.support.faulty_store import StoreFaults, arm_store
from tests.support.internals import Event, PhaseDone
from tests.support.refusals import raises
from tests.support.surviving import (
    CASES,
    assert_kept,
    assert_whole,
    job_in,
    only_a_report,
    prepare,
    resume_here,
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


def die(begun: Coordinators, root: Path, fault: PointFault) -> None:
    """The process of the job is killed by the fault."""
    begun.killed(root, *start_arguments(CASES[CASE]), by=fault)


def as_before(root: Path) -> None:
    """The output bucket holds what it held before the job, to the byte, and nothing else."""
    assert files_of(root / "out") == CASES[CASE].old
    assert set(tree_of(root / "out")) == set(CASES[CASE].old)


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("fault", BEFORE_ITS_MANIFEST, ids=named)
def test_a_job_that_died_is_undone_by_gc(
    fault: PointFault, begun: Coordinators, tmp_path: Path
) -> None:
    prepare(tmp_path, CASES[CASE])
    die(begun, tmp_path, fault)
    begun.done(tmp_path, *GC)
    as_before(tmp_path)


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize("fault", [*BEFORE_ITS_MANIFEST, *AFTER_IT], ids=named)
def test_a_job_that_died_is_resumed(
    fault: PointFault,
    begun: Coordinators,
    base: Path,
    tmp_path: Path,
) -> None:
    prepare(tmp_path, CASES[CASE])
    die(begun, tmp_path, fault)
    begun.done(tmp_path, "resume", job_in(tmp_path / "out"), "--bucket", "out")
    if fault in AFTER_IT:
        begun.done(tmp_path, *GC)
    assert_whole(tmp_path / "out", undisturbed(CASE, base))


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("fault", AFTER_IT, ids=named)
def test_what_was_committed_is_not_undone(
    fault: PointFault, begun: Coordinators, base: Path, tmp_path: Path
) -> None:
    prepare(tmp_path, CASES[CASE])
    die(begun, tmp_path, fault)
    begun.done(tmp_path, *GC)
    assert_whole(tmp_path / "out", undisturbed(CASE, base))


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("fault", FEWER, ids=named)
def test_a_job_that_died_and_cannot_go_on_is_undone(
    fault: PointFault, begun: Coordinators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path, CASES[CASE])
    die(begun, tmp_path, fault)
    path = tmp_path / "in" / "in-1.tar"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    resumed = resume_here(tmp_path, monkeypatch)
    assert isinstance(resumed.error, ChangedInputError)
    assert files_of(tmp_path / "out") == CASES[CASE].old
    only_a_report(tmp_path / "out", CASES[CASE].old)


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("then", ["gc", "resume"])
def test_dying_while_it_is_undone(
    then: str, nth: int, begun: Coordinators, base: Path, tmp_path: Path
) -> None:
    prepare(tmp_path, CASES[CASE])
    die(begun, tmp_path, PointFault("publish:start", about="manifest"))
    begun.killed(tmp_path, *GC, by=PointFault("put back:end", nth))
    if then == "gc":
        begun.done(tmp_path, *GC)
        as_before(tmp_path)
    else:
        begun.done(tmp_path, "resume", job_in(tmp_path / "out"), "--bucket", "out")
        assert_whole(tmp_path / "out", undisturbed(CASE, base))


@pytest.mark.exhaustive
def test_old_shards_of_the_same_bytes_are_not_taken_for_the_jobs_own(
    begun: Coordinators, base: Path, tmp_path: Path
) -> None:
    """As when a job is done again."""
    expected = undisturbed(CASE, base)
    for number, fault in enumerate(FEWER):
        root = tmp_path / str(number)
        root.mkdir()
        prepare(root, CASES[CASE])
        write_shards(root / "out", expected.shards)
        die(begun, root, fault)
        begun.done(root, *GC)
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
    fault: PointFault, begun: Coordinators, tmp_path: Path
) -> None:
    prepare(tmp_path, CASES[CASE])
    points = arm(tmp_path / "points", fault)
    ended = begun.run(tmp_path, *start_arguments(CASES[CASE]), points=points)
    assert struck(points) == [fault.point]
    assert ended.code == 143, ended.err
    reported = "2 objects that it was to replace are as before" in ended.err
    assert reported == fault.point.startswith("publish")
    assert assert_kept(tmp_path / "out", CASES[CASE].old) != set()


@pytest.mark.parametrize("how", ["denied", "down"])
def test_a_store_that_fails_while_all_is_put_back(
    how: str, begun: Coordinators, tmp_path: Path
) -> None:
    prepare(tmp_path, CASES[CASE])
    faults = [PointFault("publish:end", 5, "terminate", about=".tar")]
    script: list[dict[str, object]] = []
    if how == "denied":
        script = [{"operation": "put_back", "kind": "denied", "times": 9}]
    else:
        faults.append(PointFault("put back:end", 1, "store down"))
    points = arm(tmp_path / "points", *faults)
    arm_store(points, StoreFaults(about="out", script=script))
    ended = begun.run(tmp_path, *start_arguments(CASES[CASE]), points=points)
    assert ended.code == 143, ended.err
    assert struck(points) == sorted(fault.point for fault in faults)
    job = job_in(tmp_path / "out")
    if how == "denied":
        assert f"the earlier object out-3.tar is kept as .dsort/{job}/replaced/3" in ended.err
    else:
        assert "not all of it could be undone" in ended.err
    assert f"`dsort resume {job}` goes on" in ended.err
    begun.done(tmp_path, *GC)
    assert files_of(tmp_path / "out") == CASES[CASE].old
    assert [name for name in left_in(tmp_path / "out") if name not in CASES[CASE].old] in (
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


def test_what_cannot_be_put_back_is_kept_and_named(begun: Coordinators, tmp_path: Path) -> None:
    prepare(tmp_path, CASES[CASE])
    die(begun, tmp_path, PointFault("publish:end", 5, about=".tar"))
    job = job_in(tmp_path / "out")
    (tmp_path / "out" / "out-3.tar").unlink()
    (tmp_path / "out" / "out-3.tar").mkdir()
    removed = begun.run(tmp_path, *GC)
    assert removed.code == 4, removed.err
    assert f"the earlier object out-3.tar is kept as .dsort/{job}/replaced/3" in removed.err
    assert (tmp_path / f"out/.dsort/{job}/replaced/3").read_bytes() == b"another"
    assert (tmp_path / "out" / "out-0.tar").read_bytes() == b"an old shard"
    (tmp_path / "out" / "out-3.tar").rmdir()
    begun.done(tmp_path, *GC)
    as_before(tmp_path)


def test_an_object_that_a_stranger_wrote_since_stays(begun: Coordinators, tmp_path: Path) -> None:
    prepare(tmp_path, CASES[CASE])
    die(begun, tmp_path, PointFault("publish:end", 5, about=".tar"))
    job = job_in(tmp_path / "out")
    (tmp_path / "out" / "out-3.tar").unlink()
    (tmp_path / "out" / "out-3.tar").write_bytes(b"newer")
    removed = begun.run(tmp_path, *GC)
    assert removed.code == 4, removed.err
    assert "another writer has stored something under that name since" in removed.err
    (tmp_path / f"out/.dsort/{job}/replaced/3").unlink()
    begun.done(tmp_path, *GC)
    assert files_of(tmp_path / "out") == {"out-0.tar": b"an old shard", "out-3.tar": b"newer"}


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize(
    "note", [b"", b"[]", b'{"kept": 2}', b'{"kept": 1, "objects": [[0, "../x", "", "copy", ""]]}']
)
def test_a_damaged_note_is_reported_and_nothing_is_touched(
    note: bytes, begun: Coordinators, tmp_path: Path
) -> None:
    prepare(tmp_path, CASES[CASE])
    die(begun, tmp_path, PointFault("publish:end", 5, about=".tar"))
    kept = tmp_path / "out" / ".dsort" / job_in(tmp_path / "out") / "replaced"
    (kept / "kept.json").write_bytes(note)
    before = tree_of(tmp_path / "out")
    removed = begun.run(tmp_path, *GC)
    assert removed.code == 4, removed.err
    assert "kept.json" in removed.err
    after = tree_of(tmp_path / "out")
    assert {name: each for name, each in after.items() if ".dsort" not in name} == {
        name: each for name, each in before.items() if ".dsort" not in name
    }
    assert (kept / "3").read_bytes() == b"another"
