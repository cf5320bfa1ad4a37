"""A coordinator that is killed, wherever it is: ``dsort resume`` ends the job with the bytes that
an undisturbed one gives, does nothing again that the journal has, and leaves nothing behind.

On one machine the coordinator is the driver as well: the process of ``dsort start``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.coordinators import Coordinators
from tests.support.fault_points import PointFault
from tests.support.surviving import (
    CASES,
    assert_whole,
    known_of,
    prepare,
    resume_here,
    start_arguments,
    undisturbed,
)


def die(begun: Coordinators, root: Path, case: str, fault: PointFault) -> None:
    """Begin the job, which must end by the fault and show nothing of its result."""
    prepare(root, CASES[case])
    begun.killed(root, *start_arguments(CASES[case]), by=fault)
    assert list(root.glob("out/.dsort/*/manifest.json")) == []


WORKING = [
    ("extract:start", 4, "spilled"),
    ("spill:append", 3, "spilled"),
    ("spill:append", 15, "surveyed"),
    ("index:write", 3, "shuffle"),
    ("extract:end", 2, "key map"),
    ("duplicates:end", 2, "renamed"),
    ("order:start", 1, "spilled"),
    ("order:end", 3, "key map"),
    ("cut:end", 1, "shuffle"),
    ("create:start", 1, "renamed"),
    ("create:write", 3, "shuffle"),
    ("create:write", 5, "spilled"),
    ("create:finish", 3, "verified"),
    ("create:end", 4, "surveyed"),
    ("spill:append", 9, "rows"),
    ("rows:end", 1, "rows"),
    ("seal:start", 1, "replacing"),
    ("seal:end", 1, "verified"),
]


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize(("point", "nth", "case"), WORKING)
def test_killed_while_its_workers_work(
    point: str,
    nth: int,
    case: str,
    begun: Coordinators,
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    die(begun, tmp_path, case, PointFault(point, nth, "kill parent"))
    check_resumed(tmp_path, case, base, monkeypatch)


COORDINATING = [
    ("journal:append", 1, "MovementChosen", "spilled"),
    ("journal:append", 2, "ShardExtracted", "shuffle"),
    ("journal:append", 4, "ShardExtracted", "renamed"),
    ("plan:start", 1, "", "spilled"),
    ("file:sync", 1, "shared-planned.json", "surveyed"),
    ("file:sync", 1, "journal/0001-000007", "spilled"),
    ("journal:append", 1, "Planned", "key map"),
    ("journal:append", 2, "ShardCreated", "shuffle"),
    ("journal:append", 4, "ShardCreated", "spilled"),
    ("commit:start", 1, "", "verified"),
    ("journal:append", 1, "Committing", "renamed"),
]
NAMING = [
    ("publish:start", 1, ".tar", "shuffle"),
    ("publish:start", 3, ".tar", "verified"),
    ("publish:start", 3, ".tar", "replacing"),
    ("publish:end", 3, ".tar", "renamed"),
    ("publish:end", 1, ".tar", "key map"),
    ("publish:end", 1, "index.json", "replacing"),
    ("make_durable", 1, "", "renamed"),
    ("make_durable", 1, "", "verified"),
    ("publish:start", 1, "manifest", "shuffle"),
    ("publish:start", 1, "manifest", "replacing"),
]


@pytest.mark.sample(keep=4)
@pytest.mark.parametrize(("point", "nth", "about", "case"), [*COORDINATING, *NAMING])
def test_killed_between_two_steps_or_while_it_gives_names(
    point: str,
    nth: int,
    about: str,
    case: str,
    begun: Coordinators,
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    die(begun, tmp_path, case, PointFault(point, nth, "kill", about))
    check_resumed(tmp_path, case, base, monkeypatch)


def check_resumed(root: Path, case: str, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resume the job here: it ends well, and does nothing again."""
    known = known_of(root / "out")
    resumed = resume_here(root, monkeypatch)
    assert resumed.error is None
    assert resumed.created & set(known.created) == set()
    assert resumed.extracted & set(known.extracted) == set()
    assert_whole(root / "out", undisturbed(case, base))
