"""A stranger who may write to the output directory, and puts files where scratch is, gets nothing
by it: no code of theirs runs, and the result is the right one."""

from __future__ import annotations

import os
import pickle
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from dsort.errors import StorageAccessError, StorageError
from tests.support.engine import run_local
from tests.support.internals import (
    Event,
    PhaseDone,
    Scratch,
    make_scratch,
    new_job_id,
    open_scratch,
)
from tests.support.refusals import raises
from tests.support.surviving import CASES, facts_of, prepare, undisturbed

OLD_NAMES = ("inputs.pickle", "where-index-1", "where-survey-1", "splitters.pickle")


class _Evil:
    """Makes the file ``marker`` when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.marker),))


class _Attacker:
    """Puts another ``.dsort`` in the place of the job's, once ``phase`` is over."""

    def __init__(self, bucket: Path, marker: Path, phase: str) -> None:
        self.bucket, self.phase = bucket, phase
        self.struck = 0
        self._evil = pickle.dumps(_Evil(marker))

    def __call__(self, event: Event) -> None:
        if not isinstance(event, PhaseDone) or event.phase != self.phase:
            return
        real = self.bucket / ".dsort"
        moved = self.bucket.parent / "moved"
        real.rename(moved)
        shutil.copytree(moved, real)
        for scratch in real.glob("*/scratch"):
            found = [path.name for path in scratch.iterdir() if path.name != "node.json"]
            for name in (*found, *OLD_NAMES):
                (scratch / name).write_bytes(self._evil)
            self.struck += len(found)


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize("phase", ["resolve", "extract", "plan"])
@pytest.mark.parametrize("case", ["shuffle", "spilled", "surveyed", "renamed"])
def test_files_put_where_scratch_was_are_never_read(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, case: str, phase: str
) -> None:
    expected = undisturbed(case, tmp_path_factory.getbasetemp())
    prepare(tmp_path, CASES[case])
    attacker = _Attacker(tmp_path / "out", tmp_path / "ran", phase)
    run_local(tmp_path, CASES[case].spec, move=CASES[case].move, workers=2, on_event=attacker)
    assert attacker.struck
    assert not (tmp_path / "ran").exists()
    assert facts_of(tmp_path / "out").shards == expected.shards


def test_scratch_is_for_its_owner_alone(tmp_path: Path) -> None:
    node = tmp_path / "dsort-x"
    make_scratch(node, {"job_id": "x"})
    assert stat.S_IMODE(node.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in node.iterdir()} == {0o600}


@pytest.mark.parametrize("mode", [0o710, 0o701, 0o777])
def test_scratch_that_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    node = tmp_path / "dsort-x"
    node.mkdir()
    node.chmod(mode)
    with raises(StorageAccessError, str(node), f"{mode:04o}"):
        make_scratch(node, {"job_id": "x"})
    assert list(node.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_scratch_of_another_user_is_refused(tmp_path: Path) -> None:
    node = tmp_path / "dsort-x"
    node.mkdir(mode=0o700)
    os.chown(node, 65534, 65534)
    with raises(StorageAccessError, "user 65534"):
        make_scratch(node, {"job_id": "x"})


@pytest.mark.parametrize("link", [".dsort", ".dsort/JOB", ".dsort/JOB/scratch"])
def test_links_on_the_way_to_scratch_are_refused(tmp_path: Path, link: str) -> None:
    victim = tmp_path / "victim"
    (victim / "JOB" / "scratch").mkdir(parents=True, mode=0o700)
    (victim / "scratch").mkdir(mode=0o700)
    (victim / "precious").write_bytes(b"1")
    before = sorted(victim.rglob("*"))
    (tmp_path / "out" / link).parent.mkdir(parents=True)
    (tmp_path / "out" / link).symlink_to(victim)
    with raises(StorageAccessError, link):
        make_scratch(tmp_path / "out/.dsort/JOB/scratch", {"job_id": "JOB"})
    assert sorted(victim.rglob("*")) == before


def test_a_directory_with_files_that_are_not_ours_is_no_scratch(tmp_path: Path) -> None:
    node = tmp_path / "dsort-x"
    node.mkdir(mode=0o700)
    (node / "thesis.tex").write_bytes(b"years of work")
    with pytest.raises(StorageError, match=r"thesis\.tex"):
        make_scratch(node, {"job_id": "x"})
    make_scratch(tmp_path / "dsort-y", {"job_id": "y"})
    with pytest.raises(StorageError, match="job y"):
        make_scratch(tmp_path / "dsort-y", {"job_id": "x"})


def test_only_the_scratch_node_that_was_made_is_opened(tmp_path: Path) -> None:
    first = make_scratch(tmp_path / "dsort-x", {"job_id": "x"})
    make_scratch(tmp_path / "dsort-y", {"job_id": "y"})
    (tmp_path / "dsort-x").rename(tmp_path / "away")
    (tmp_path / "dsort-y").rename(tmp_path / "dsort-x")
    with raises(StorageError, "dsort-x"):
        open_scratch(tmp_path / "dsort-x", first)
    open_scratch(tmp_path / "away", first).close()


def _fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def _linked(path: Path, outside: Path) -> None:
    path.hardlink_to(outside)


STRANGE = {
    "a link": lambda path, outside: path.symlink_to(outside),
    "a pipe": _fifo,
    "a directory": lambda path, outside: path.mkdir(),
    "a file with two names": _linked,
}


@pytest.mark.parametrize("what", STRANGE)
def test_what_is_no_file_of_ours_in_scratch_is_not_read(tmp_path: Path, what: str) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    (tmp_path / "node").mkdir(mode=0o700)
    STRANGE[what](tmp_path / "node" / "inputs.col", outside)
    with Scratch(tmp_path / "node") as scratch, pytest.raises(StorageError, match=r"inputs\.col"):
        scratch.read("inputs.col")


def test_the_end_of_a_job_removes_what_it_held_and_nothing_that_was_put_there(
    tmp_path: Path,
) -> None:
    """By the descriptor: a directory that has taken the place of scratch is a stranger's."""
    node = tmp_path / ".dsort" / new_job_id() / "scratch"
    node.parent.mkdir(parents=True)
    held = open_scratch(node, make_scratch(node, {"job_id": node.parent.name}))
    node.rename(tmp_path / "away")
    node.mkdir()
    (node / "precious").write_bytes(b"1")
    held.remove()
    assert list((tmp_path / "away").iterdir()) == []
    assert (node / "precious").read_bytes() == b"1"
