"""``dsort start --ray`` starts a Ray for the job, leaves nothing of it, however the job ends, and
lets it say nothing on the screen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.commands import ROOT, SPEC
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.inline_runtime import run_inline

pytestmark = pytest.mark.ray


class RayJob:
    """A ``dsort start --ray`` in a process group of its own, as a terminal would have it. All that
    it starts has ``directory``, where temporary files go and the user is at home, in its
    environment."""

    def __init__(self, root: Path, directory: Path) -> None:
        self.directory = directory
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("DSORT_", "RAY_"))}
        options = ["--ray", "--workers", "2", "--json", "--progress", "json"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dsort", "start", "-f", json.dumps(SPEC), *options],
            cwd=root,
            env=inherited
            | {"PYTHONPATH": str(ROOT), "TMPDIR": str(directory), "HOME": str(directory)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def hear(self, word: str) -> None:
        """Read what it says on stderr up to a line that has ``word`` in it."""
        assert self._process.stderr is not None
        assert any(word in line for line in self._process.stderr), word

    def interrupt(self, number: int) -> None:
        """Signal all of its process group, as Ctrl-C does."""
        os.killpg(self._process.pid, number)

    def end(self) -> tuple[int, str, list[str]]:
        """Its exit code, and what it said on stdout and, since it was heard, on stderr."""
        out, err = self._process.communicate(timeout=60)
        return self._process.returncode, out, err.splitlines()

    def processes(self) -> list[str]:
        """The names of all that runs for it."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("TMPDIR") == str(self.directory):
                    found.append(process.name())
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue  # it ended while we looked, or is no child of ours
        return found


BeginJob = Callable[[int], RayJob]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[BeginJob]:
    """Begin a job on so many shards of a hundred records."""
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as directory:  # for short paths
        begun = []

        def start(shards: int) -> RayJob:
            write_shards(tmp_path / "images", small_dataset("own", shards=shards, records=100))
            begun.append(RayJob(tmp_path, Path(directory)))
            return begun[-1]

        yield start
        for job in begun:
            if job.processes():
                job.interrupt(signal.SIGKILL)


def test_a_job_on_its_own_ray_ends_with_nothing_but_its_result(
    begin: BeginJob, tmp_path: Path
) -> None:
    job = begin(2)
    job.hear("extract")
    assert {"gcs_server", "raylet"} <= set(job.processes())
    code, out, err = job.end()
    assert (code, json.loads(out)["state"]) == (0, "finished")
    assert [line for line in err if not line.startswith("{")] == []
    assert job.processes() == []
    assert list(job.directory.iterdir()) == []
    on_ray = files_of(tmp_path / "shuffled")
    run_inline(SPEC, tmp_path, overwrite=True)
    assert files_of(tmp_path / "shuffled") == on_ray != {}


@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGINT, "extract"), (signal.SIGTERM, "resolve")],
    ids=["Ctrl-C at work", "SIGTERM while Ray starts"],
)
def test_a_stopped_job_ends_its_ray(
    begin: BeginJob, tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    job = begin(40)  # enough to do, for as long as it takes to stop it
    job.hear(moment)
    job.interrupt(number)
    code, out, err = job.end()
    assert code == 128 + number
    assert json.loads(out)["error"]["kind"] == "JobStoppedError"
    assert [line for line in err if not line.startswith("{")] == [
        "stopping: ending the workers and removing what is partial",
        f"error: the job was stopped by {number.name}",
    ]
    assert job.processes() == []
    assert list(job.directory.iterdir()) == []
    (left,) = [path for path in (tmp_path / "shuffled").rglob("*") if path.is_file()]
    assert left.name == "report.json"
