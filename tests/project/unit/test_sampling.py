"""What ``make test`` leaves out of a slow matrix, and what it does not."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.commands import ROOT
from tests.support.forked_commands import run_pytest
from tests.support.sampling import choose

SMALL = st.integers(0, 5)
CASES = st.lists(st.fixed_dictionaries({"a": SMALL, "b": SMALL, "c": st.booleans()}), max_size=40)


@given(cases=CASES, keep=st.integers(1, 12))
def test_so_many_are_chosen_and_the_same_each_time(cases: list[dict[str, int]], keep: int) -> None:
    chosen = choose(cases, keep)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(keep, len(cases))
    assert choose(cases, keep) == chosen


@pytest.mark.parametrize("keep", [4, 5, 8])
def test_each_value_of_each_axis_is_in_one_of_them(keep: int) -> None:
    axes = itertools.product("abcd", range(3), (True, False))
    cases = [dict(zip("xyz", values, strict=True)) for values in axes]
    kept = [cases[at] for at in choose(cases, keep)]
    for name in "xyz":
        assert {case[name] for case in kept} == {case[name] for case in cases}


MATRIX = """
import pytest

@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("a", "pq")
@pytest.mark.parametrize("b", "rs")
def test_matrix(a: str, b: str) -> None: ...

@pytest.mark.exhaustive
def test_variation() -> None: ...

def test_plain() -> None: ...
"""


def run(directory: Path, *arguments: str, matrix: str = MATRIX) -> dict[str, int]:
    """How many tests of ``matrix`` passed, and so on, by pytest's words."""
    (directory / "test_matrix.py").write_text(matrix)
    options = [
        "-q",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-c",
        ROOT / "pyproject.toml",
    ]
    ended = run_pytest(
        [*map(str, options), "--rootdir", str(directory), *arguments],
        cwd=directory,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    assert ended.code == 0, ended.out + ended.err
    lines = ended.out.splitlines()
    words = lines[-1].partition(" in ")[0].replace(",", "").split()
    found = dict(zip(words[1::2], map(int, words[::2]), strict=True))
    announced = [line for line in lines if line.endswith("(make test-all) runs them")]
    return found | {"announced": int(announced[0].split()[0]) if announced else 0}


def test_usually_a_sample_runs_and_what_is_left_out_is_reported(tmp_path: Path) -> None:
    left = {"passed": 3, "deselected": 3, "announced": 3}
    assert run(tmp_path, "test_matrix.py") == left


UNMARKED = """
import pytest

@pytest.mark.parametrize("a", range(9), ids="s3://{}/".format)
def test_some(a: int) -> None: ...

@pytest.mark.whole
@pytest.mark.parametrize("a", range(9))
def test_all(a: int) -> None: ...

class TestSuite:
    EXHAUSTIVE = ("test_slow",)

    def test_slow(self) -> None: ...
"""


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("jobs", {"passed": 10, "deselected": 9, "announced": 9}),
        ("unit", {"passed": 18, "deselected": 1, "announced": 1}),
    ],
)
def test_of_a_test_that_starts_jobs_one_case_runs_without_a_mark(
    folder: str, found: dict[str, int], tmp_path: Path
) -> None:
    (tmp_path / "tests" / "room" / folder).mkdir(parents=True)
    file = f"tests/room/{folder}/test_matrix.py"
    (tmp_path / file).write_text(UNMARKED)
    assert run(tmp_path, file) == found


@pytest.mark.parametrize(
    ("names", "count"), [(["test_matrix"], 4), (["test_matrix[r-q]", "test_variation"], 2)]
)
def test_what_is_asked_for_by_its_name_runs(names: list[str], count: int, tmp_path: Path) -> None:
    named = [f"test_matrix.py::{name}" for name in names]
    assert run(tmp_path, *named) == {"passed": count, "announced": 0}
