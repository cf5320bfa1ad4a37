"""Who gets a second try in ``make test``, with what, and what is reported of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.forked_commands import run_pytest

WAITS = """
import os
from pathlib import Path

import pytest

from tests.support import armed

TRIES = Path(os.environ["TRIES"])

def tries(name):
    path = TRIES / name
    path.write_text("x" + (path.read_text() if path.exists() else ""))
    return len(path.read_text())

@pytest.fixture(scope="session")
def server():
    yield f"server {tries('server')}"
    tries("server ended")

@pytest.fixture(scope="module")
def things(server):
    return []

@pytest.fixture
def unready():
    assert tries("unready") > 1, "not ready yet"

@pytest.fixture
def untidy():
    yield
    assert tries("untidy") > 1, "not tidy yet"

def test_sound(things): tries("sound")

def test_late(things):
    things.append(1)
    assert len(things) == 1
    assert tries("late") == 2, "late the first time"

def test_the_server_is_a_fresh_one(server): assert server == "server 2"

def test_broken(things):
    tries("broken")
    raise AssertionError("broken each time")

def test_set_up(unready): ...

def test_torn_down(untidy): tries("torn down")

def test_fault_that_strikes_late():
    mark = TRIES / "struck"
    armed.expect("the fault", mark, of=TRIES)
    if tries("fault") > 1:
        mark.touch()
"""


@pytest.mark.exhaustive
def test_what_waits_for_others_is_tried_again_with_new_fixtures(tmp_path: Path) -> None:
    out = run(tmp_path, "tests/job/jobs", "--second-try", "-n", "2")
    assert lines_with(out, "FAILED") == ["FAILED tests/job/jobs/test_waits.py::test_broken"]
    assert out.splitlines()[-1].startswith("1 failed, 6 passed, 5 tried again in")
    for what in ("late the first time", "not ready yet", "not tidy yet", "have not struck"):
        assert what in out
    assert out.count("first try of tests/job/jobs/test_waits.py::test_broken") == 1
    counts = {path.name: len(path.read_text()) for path in (tmp_path / "tries").iterdir()}
    once = {"sound": 1, "struck": 0}
    assert counts == {
        **once,
        **dict.fromkeys(("late", "broken", "unready", "untidy", "torn down", "fault"), 2),
        "server": 3,
        "server ended": 3,
    }


@pytest.mark.parametrize(
    ("folder", "options"), [("tests/job/contract", ["--second-try"]), ("tests/job/faults", [])]
)
def test_others_have_one_try(tmp_path: Path, folder: str, options: list[str]) -> None:
    out = run(tmp_path, folder, *options)
    assert out.splitlines()[-1].startswith("4 failed, 2 passed, 2 errors in")
    assert "first try" not in out


def lines_with(text: str, word: str) -> list[str]:
    """The lines that begin with ``word``, without the reason behind the name."""
    return [line.partition(" - ")[0] for line in text.splitlines() if line.startswith(word)]


def run(root: Path, folder: str, *options: str, program: str = WAITS) -> str:
    """What pytest says of these tests in this folder."""
    (root / folder).mkdir(parents=True)
    (root / folder / "test_waits.py").write_text(program)
    (root / "tries").mkdir()
    plain = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml"]
    ended = run_pytest(
        ["-q", *map(str, plain), "--rootdir", str(root), *options, folder],
        cwd=root,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "TRIES": str(root / "tries")},
    )
    return ended.out + ended.err
