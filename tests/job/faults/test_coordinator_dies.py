"""A coordinator that is killed, wherever it is: ``dsort resume`` ends the job with the bytes that
an undisturbed one gives, does nothing again that the journal has, and leaves nothing behind.

On one machine the coordinator is the driver as well: the process of ``dsort start``.
"""

from __future__ import annotations

import pytest

from tests.support.fault_points import PointFault
from tests.support.surviving import Trial


def check_resumed(trial: Trial, case: str, fault: PointFault) -> None:
    """The fault ends the job and nothing of its result shows; it is resumed, ends well, and does
    nothing again."""
    trial.die(case, fault)
    known = trial.known
    assert list(trial.out.glob(".dsort/*/manifest.json")) == []
    resumed = trial.resume()
    assert resumed.created & set(known.created) == set()
    assert resumed.extracted & set(known.extracted) == set()
    trial.is_whole()


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
    ("create:end", 1, "rows"),
    ("seal:start", 1, "replacing"),
    ("seal:end", 1, "verified"),
]


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize(("point", "nth", "case"), WORKING)
def test_killed_while_its_workers_work(point: str, nth: int, case: str, trial: Trial) -> None:
    check_resumed(trial, case, PointFault(point, nth, "kill parent"))


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
    point: str, nth: int, about: str, case: str, trial: Trial
) -> None:
    check_resumed(trial, case, PointFault(point, nth, "kill", about))
