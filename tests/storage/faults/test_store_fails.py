"""A store that fails, in all processes of a job: what passes is tried again and changes nothing;
what stays ends the job by a clear error with nothing of the result to be seen, and afterwards the
job can be gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsort.errors import (
    ChangedInputError,
    DsortError,
    StorageAccessError,
    StorageError,
    StorageFullError,
)
from tests.support.coordinators import Coordinators
from tests.support.datasets import files_of
from tests.support.fault_points import PointFault, arm, struck
from tests.support.faulty_bucket import ALWAYS, TRANSIENT
from tests.support.faulty_store import DOWN, StoreFaults, arm_store
from tests.support.surviving import (
    CASES,
    assert_whole,
    job_in,
    only_a_report,
    prepare,
    start_arguments,
    undisturbed,
)

PASSING: dict[str, dict[str, Any]] = {
    "no answer": {"kinds": ["timeout", "reset"]},
    "errors": {"kinds": ["429", "500", "502", "503"]},
    "streams cut short": {"kinds": ["cut"]},
    "replies lost": {"kinds": ["reply lost"]},
    "everything": {"kinds": [*TRANSIENT, "cut", "reply lost"], "rate": 0.3},
}


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize(
    ("what", "case", "like_store"),
    [
        *((what, "renamed", True) for what in PASSING),
        ("everything", "replacing", False),
        ("everything", "verified", True),
    ],
)
def test_what_passes_changes_nothing(
    what: str, case: str, like_store: bool, begun: Coordinators, base: Path, tmp_path: Path
) -> None:
    prepare(tmp_path, CASES[case])
    points = tmp_path / "points"
    arm_store(points, StoreFaults(seed=f"{what} {case}", like_store=like_store, **PASSING[what]))
    scratch = ["--scratch", str(tmp_path / "scratch")]
    ended = begun.run(tmp_path, *start_arguments(CASES[case], *scratch), points=points)
    assert ended.code == 0, ended.err
    assert_whole(tmp_path / "out", undisturbed(case, base))
    assert list((tmp_path / "scratch").iterdir()) == []


def always(operation: str, kind: str, name: str = "*", first: int = 1) -> dict[str, Any]:
    return {"operation": operation, "kind": kind, "name": name, "first": first, "times": ALWAYS}


STAYING: list[tuple[dict[str, Any], type[DsortError], str]] = [
    (always("open", "denied", "in-2.tar"), StorageAccessError, "in-2.tar"),
    (always("read_into", "reset", "in-1.tar"), StorageError, "in-1.tar"),
    (always("read_into", "cut", "in-1.tar"), StorageError, "in-1.tar"),
    (always("open", "size", "in-1.tar"), StorageError, "in-1.tar"),
    (always("open", "etag", "in-1.tar"), ChangedInputError, "in-1.tar"),
    (always("stat_many", "etag", first=2), ChangedInputError, "in-0.tar"),  # resolve asks first
    (always("stage", "503", "out-2.tar"), StorageError, "503"),
    (always("write_at", "full", "out-1.tar"), StorageFullError, "out-1.tar"),
    (always("finish", "denied", "out-1.tar"), StorageAccessError, "out-1.tar"),
    (always("write", "full", "*journal/0001-000004*"), StorageFullError, "journal"),
    (always("publish", "denied", "out-3.tar"), StorageAccessError, "out-3.tar"),
    (always("publish", "500", "out-4.tar"), StorageError, "out-4.tar"),
    (always("publish", "timeout", "*manifest.json"), StorageError, "manifest"),
    (always("publish", "reply lost", "*manifest.json"), StorageError, "manifest"),
    (always("make_durable", "500"), StorageError, "500"),
    (always("make_durable", "500", first=2), StorageError, "500"),
]


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("number", range(len(STAYING)), ids=lambda at: STAYING[at][0]["kind"])
def test_what_stays_ends_the_job_and_it_can_be_gone_on_with(
    number: int, begun: Coordinators, base: Path, tmp_path: Path
) -> None:
    fault, error, word = STAYING[number]
    like_store = bool(number % 3)
    prepare(tmp_path, CASES["spilled"])
    points = tmp_path / "points"
    arm_store(points, StoreFaults([fault], like_store=like_store))
    scratch = ["--scratch", str(tmp_path / "scratch")]
    ended = begun.run(tmp_path, *start_arguments(CASES["spilled"], *scratch), points=points)
    assert f'"{error.__name__}"' in ended.out, ended.err
    assert ended.code == error.exit_code
    assert word in ended.err
    if error is not StorageFullError:  # which keeps what the job has done
        only_a_report(tmp_path / "out")
        assert list((tmp_path / "scratch").iterdir()) == []
    arm_store(points, StoreFaults(like_store=like_store))
    found = ["--bucket", "out", *scratch]
    ended = begun.run(tmp_path, "resume", job_in(tmp_path / "out"), *found, points=points)
    assert ended.code == 0, ended.err
    assert_whole(tmp_path / "out", undisturbed("spilled", base))


GOES = [
    ("extract:end", 2, "spilled", True),
    ("order:end", 2, "renamed", False),
    ("create:end", 3, "spilled", True),
    ("commit:start", 1, "verified", True),
    ("publish:end", 3, "spilled", False),
    ("publish:end", 3, "renamed", True),
    ("make_durable", 1, "renamed", True),
]


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize(("point", "nth", "case", "like_store"), GOES)
def test_a_store_that_goes_away_leaves_what_can_be_gone_on_with(
    point: str,
    nth: int,
    case: str,
    like_store: bool,
    begun: Coordinators,
    base: Path,
    tmp_path: Path,
) -> None:
    prepare(tmp_path, CASES[case])
    points = arm(tmp_path / "points", PointFault(point, nth, "store down"))
    arm_store(points, StoreFaults(like_store=like_store))
    ended = begun.run(tmp_path, *start_arguments(CASES[case]), points=points)
    assert struck(points) == [point]
    assert ended.code == StorageError.exit_code, ended.err
    assert "503" in ended.err
    assert "Traceback" not in ended.err
    (points / DOWN).unlink()
    ended = begun.run(
        tmp_path, "resume", job_in(tmp_path / "out"), "--bucket", "out", points=points
    )
    assert ended.code == 0, ended.err
    assert_whole(tmp_path / "out", undisturbed(case, base))


def test_a_job_that_cannot_begin_leaves_nothing(begun: Coordinators, tmp_path: Path) -> None:
    prepare(tmp_path, CASES["spilled"])
    points = tmp_path / "points"
    arm_store(points, StoreFaults([always("write_new", "denied")], about="out"))
    ended = begun.run(tmp_path, *start_arguments(CASES["spilled"]), points=points)
    assert ended.code == StorageAccessError.exit_code
    assert files_of(tmp_path / "out", "**/*") == {}
