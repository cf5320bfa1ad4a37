"""``dsort start --ray`` starts a Ray for the job, leaves nothing of it, however the job ends, and
lets it say nothing on the screen."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.commands import ROOT, SPEC
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.fault_points import PointFault, arm, points_environment, struck
from tests.support.inline_runtime import run_inline
from tests.support.service_process import await_that

pytestmark = pytest.mark.ray

SURVIVE_SECONDS_MAX = 100


class RayJob:
    """A ``dsort start --ray`` in a process group of its own, as a terminal would have it. All that
    it starts has ``directory``, where temporary files go and the user is at home, in its
    environment."""

    def __init__(self, root: Path, directory: Path, style: str = "json", **more: str) -> None:
        self.directory = directory
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("DSORT_", "RAY_"))}
        options = ["--ray", "--workers", "2", "--json", "--progress", style]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dsort", "start", "-f", json.dumps(SPEC), *options],
            cwd=root,
            env=inherited
            | {"PYTHONPATH": str(ROOT), "TMPDIR": str(directory), "HOME": str(directory)}
            | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The driver."""
        return self._process.pid

    def hear(self, word: str) -> str:
        """Read what it says on stderr up to a line that has ``word`` in it."""
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            if word in line:
                return line
            said.append(line)
        raise AssertionError(f"it ended and never said {word!r}: {''.join(said)}")

    def interrupt(self, number: int) -> None:
        """Signal all of its process group, as Ctrl-C does."""
        os.killpg(self._process.pid, number)

    def end(self) -> tuple[int, str, list[str]]:
        """Its exit code, and what it said on stdout and, since it was heard, on stderr."""
        out, err = self._process.communicate(timeout=180)
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


BeginJob = Callable[..., RayJob]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[BeginJob]:
    """Begin a job on so many shards of a hundred records."""
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as directory:  # for short paths
        begun = []

        def start(shards: int, style: str = "json", **more: str) -> RayJob:
            write_shards(tmp_path / "images", small_dataset("own", shards=shards, records=100))
            begun.append(RayJob(tmp_path, Path(directory), style, **more))
            return begun[-1]

        yield start
        for job in begun:
            if job.processes():
                job.interrupt(signal.SIGKILL)


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
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
    # Before it is taken, a job that is stopped leaves nothing at all; Ray starts after that.
    kept = tmp_path / "shuffled" / ".dsort"
    await_that(lambda: [*kept.rglob("*resolved.json")] or None, why="the job was not taken")
    job.interrupt(number)
    code, out, err = job.end()
    assert code == 128 + number
    assert json.loads(out)["error"]["kind"] == "JobStoppedError"
    *said, hint = [line for line in err if not line.startswith("{")]
    assert said[0] == "stopping: ending the workers"
    assert said[1].startswith(f"error: the job was stopped by {number.name}")
    has_begun = moment == "extract"
    then = "resumes the job, `dsort gc .* discards" if has_begun else "starts the job again, "
    assert re.match(rf"hint: `dsort resume \S+ --ray` {then}", " ".join([*said[2:], hint]))
    assert job.processes() == []
    assert list(job.directory.iterdir()) == []
    left = [path.name for path in (tmp_path / "shuffled").rglob("*") if path.is_file()]
    assert ("report.json" not in left and "lease.json" in left) or not has_begun
    assert left == ["report.json"] or has_begun


JOIN = """
import logging, ray
try:
    ray.init(address="auto", log_to_driver=False, logging_level=logging.CRITICAL)
    print(ray.get(ray.remote(num_cpus=0)(lambda: "ran").remote()))
except Exception as error:
    print(type(error).__name__)
"""


def joined(address: str, directory: Path) -> str:
    """What another program gets who has no token, on the same machine."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment |= {"RAY_ADDRESS": address, "HOME": str(directory)}
    # As Ray is set to take an address of loopback for one.
    environment |= {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_gcs_server_port_wait_time_s": "3",
    }
    ended = subprocess.run(
        [sys.executable, "-c", JOIN], env=environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    return ended.stdout.strip()


def stopped_below(driver: psutil.Process) -> psutil.Process | None:
    """A process below ``driver`` that stands still."""
    for process in driver.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_STOPPED:
                return process
    return None


def test_a_ray_of_its_own_is_for_its_job_alone_and_leaves_nothing_but_the_result(
    begin: BeginJob, tmp_path: Path
) -> None:
    points = arm(tmp_path / "points", PointFault("create:start", 1, "stop"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    # Even where a user does without tokens on other clusters.
    job = begin(2, "plain", RAY_AUTH_MODE="disabled", **points_environment(points))
    said = job.hear("listens on")
    job.hear("create")
    driver = psutil.Process(job.pid)
    held = await_that(lambda: stopped_below(driver), why="no worker came to a halt")
    assert struck(points) == ["create:start"]
    found = {
        (process.name(), each.laddr.ip, each.laddr.port)
        for process in (driver, *driver.children(recursive=True))
        for each in process.net_connections("inet")
        if each.status == psutil.CONN_LISTEN
    }
    assert {"gcs_server", "raylet"} <= {name for name, _, _ in found}
    assert {address.removeprefix("::ffff:") for _, address, _ in found} == {"127.0.0.1"}
    assert said.startswith("Ray of its own, locked with a token, listens on 127.0.0.1 (ports ")
    servers = {port for name, _, port in found if name in ("gcs_server", "raylet")}
    assert servers <= set(map(int, re.findall(r"\d+", said.partition("(")[2])))
    (directory,) = job.directory.glob("dsort-ray-*")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    (gcs,) = (port for name, _, port in found if name == "gcs_server")
    assert joined(f"127.0.0.1:{gcs}", elsewhere) not in ("ran", "")
    held.send_signal(signal.SIGCONT)
    code, out, _ = job.end()
    assert (code, json.loads(out)["state"]) == (0, "finished")
    assert job.processes() == []
    assert list(job.directory.iterdir()) == []
    on_ray = files_of(tmp_path / "shuffled")
    run_inline(SPEC, tmp_path, overwrite=True)
    assert files_of(tmp_path / "shuffled") == on_ray != {}


BEGUN = ["watchdog", "gcs_server", "log_monitor", "raylet", "ray::", "extract", "create"]
"""What is there, by its command line, or what was said, when the driver dies."""


@pytest.mark.sample(keep=1)
@pytest.mark.slow
@pytest.mark.parametrize("moment", BEGUN)
def test_nothing_outlives_a_driver_that_is_killed(begin: BeginJob, moment: str) -> None:
    job = begin(10)
    driver = psutil.Process(job.pid)
    if moment in ("extract", "create"):
        job.hear(moment)
    else:
        await_that(lambda: has_below(driver, moment), why=f"there was no {moment}")
    driver.suspend()  # so that what it has begun is all that there is
    below = driver.children(recursive=True)
    driver.kill()
    assert job.end()[0] == -signal.SIGKILL
    assert psutil.wait_procs(below, timeout=SURVIVE_SECONDS_MAX)[1] == []
    assert job.processes() == []
    assert [*job.directory.glob("dsort-ray-*")] == []


def has_below(driver: psutil.Process, word: str) -> bool | None:
    """Whether a command line below ``driver`` has ``word`` in it; None if not (yet)."""
    for process in driver.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(word in argument for argument in process.cmdline()):
                return True
    return None


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("moment", ["resolve", "extract"])
def test_a_job_whose_ray_dies_says_so(begin: BeginJob, moment: str) -> None:
    """Ray ends the driver then, with exit code 1 and words of its own."""
    job = begin(40)
    driver = psutil.Process(job.pid)
    if moment == "extract":
        job.hear(moment)
    raylet = await_that(lambda: found_below(driver, "raylet"), why="there was no raylet")
    raylet.kill()
    code, out, err = job.end()
    assert code == 5
    assert json.loads(out)["error"]["kind"] == "WorkerLostError"
    assert any(line.startswith("error: Ray ") for line in err)
    await_that(lambda: job.processes() == [], SURVIVE_SECONDS_MAX, why="some live on")
    assert [*job.directory.glob("dsort-ray-*")] == []


def found_below(driver: psutil.Process, name: str) -> psutil.Process | None:
    """The process below ``driver`` of that name."""
    for process in driver.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == name:
                return process
    return None
