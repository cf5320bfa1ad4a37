"""Chooses and orders the tests of ``make test``: of slow matrices only a sample, the slowest kinds
first. ``--all`` (``make test-all``) leaves none out."""

from __future__ import annotations

import functools
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from pathlib import Path

import hypothesis
import pytest

KINDS = ("faults", "jobs", "contract", "laws", "unit")
"""Folders of a room's tests. The folders whose tests take longest are first, so that all processes
of a run end at about the same time."""

EXAMPLES_OF_ALL = 100
CASES_MAX = 1
"""The number of cases that run of a test that starts jobs or services, unless the test is marked.
The name of the test decides which case it is, so that different tests run different values."""
UNSAMPLED = ("unit", "golden")
"""Folders whose tests run with all cases: the tests are quick, or marked."""

Case = Mapping[str, Hashable]
"""The value of each parameter, by its name."""


def choose(cases: Sequence[Case], keep: int, name: str = "") -> list[int]:
    """The numbers, ascending, of ``keep`` cases that stand for all. If ``keep`` is large enough,
    each value of each parameter is in one of these cases (rare values first); the other cases are
    spread evenly. The same cases always give the same numbers. If ``keep`` is 1, the test's
    ``name`` decides."""
    if keep == 1 and cases:
        return [zlib.crc32(name.encode()) % len(cases)]
    often = Counter(value for case in cases for value in case.items())
    unseen = set(often)
    chosen: list[int] = []
    while len(chosen) < min(keep, len(cases)):
        worth = {
            at: (
                sum(1 / often[value] for value in case.items() if value in unseen),
                min((abs(at - other) for other in chosen), default=0),
                -at,
            )
            for at, case in enumerate(cases)
            if at not in chosen
        }
        best = max(worth, key=worth.__getitem__)
        unseen -= set(cases[best].items())
        chosen.append(best)
    return sorted(chosen)


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Those of ``items`` that only ``--all`` runs: tests marked ``exhaustive``, and of each test
    marked ``sample(keep=N)`` all but N cases. Outside of ``UNSAMPLED``, a test without a mark has
    ``CASES_MAX`` cases, and one marked ``whole`` has all."""
    found = [item for item in items if _is_exhaustive(item)]
    out = {id(item) for item in found}
    tests: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if id(item) not in out and _keep(item):
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        numbers: dict[int, int] = {}
        short = name.rpartition("/")[2]  # a file that moves keeps its cases
        kept = choose([_case(item, numbers) for item in cases], _keep(cases[0]), short)
        found += [item for at, item in enumerate(cases) if at not in kept]
    return found


def _is_exhaustive(item: pytest.Item) -> bool:
    """Whether a test is marked, or its class names it (the class may have it from a suite)."""
    named = getattr(getattr(item, "cls", None), "EXHAUSTIVE", ())
    return bool(item.get_closest_marker("exhaustive")) or getattr(item, "originalname", "") in named


def _keep(item: pytest.Item) -> int:
    """How many cases of a test run; 0: all."""
    if marker := item.get_closest_marker("sample"):
        return int(marker.kwargs["keep"])
    is_free = _folder(item) in UNSAMPLED or item.get_closest_marker("whole")
    return 0 if is_free or not hasattr(item, "callspec") else CASES_MAX


def _folder(item: pytest.Item) -> str:
    """The folder of a test; "unit" for a file beside the rooms, whose tests are quick, too."""
    path = item.nodeid.partition("::")[0]  # a parameter may have slashes
    return path.split("/")[-2] if path.count("/") > 1 else "unit"


def examples(count: int) -> int:
    """The number of examples that hypothesis makes, for a test with ``count`` under ``--all``."""
    share = hypothesis.settings.default.max_examples / EXAMPLES_OF_ALL
    return max(1, round(count * share))


def is_named(arguments: Sequence[str]) -> bool:
    """Whether the command line names single tests: then all of them run."""
    return any("::" in argument for argument in arguments)


def rank(item: pytest.Item) -> tuple[int, int]:
    """The rank of a test in the order of a run: tests of Ray first, then by kind."""
    kind = _folder(item)
    order = KINDS.index(kind) if kind in KINDS else len(KINDS)
    return 0 if item.get_closest_marker("ray") else 1, order


def group_of(nodeid: str, root: Path) -> str:
    """The group of tests that one process of pytest-xdist runs: those of a file, which share its
    fixtures; and all files of tests of Ray, because two clusters at once are too many."""
    path = nodeid.partition("::")[0]
    return "ray" if _is_of_ray(root / path) else path


@functools.cache
def _is_of_ray(path: Path) -> bool:
    return bool(re.search(r"^pytestmark = .*\bmark\.ray\b", path.read_text("utf-8"), re.M))


def _case(item: pytest.Item, numbers: dict[int, int]) -> dict[str, Hashable]:
    """The parameters of a case. ``numbers``: a number for each object that is a value, by its id.
    (Since pytest 9.2 the indices of a case number the cases, not the values of a parameter.)"""
    call = getattr(item, "callspec", None)
    assert call is not None, f"{item.nodeid} has no cases to choose from"
    return {
        name: _same_in_all_processes(value, numbers.setdefault(id(value), len(numbers)))
        for name, value in call.params.items()
    }


def _same_in_all_processes(value: object, number: int) -> Hashable:
    """A key for a parameter's value: its text if that differs from the texts of all other values
    and contains no address; else its ``number``."""
    plain = isinstance(value, str | bytes | int | float | Enum | None)
    return repr(value) if plain or hasattr(value, "__struct_fields__") else number
