"""Coordinators in processes of their own, that may be killed: ``dsort`` command lines, each begun
by forking one process that has everything loaded. So a hundred of them take less than a minute.

``python -m tests.support.coordinators`` is that process; tests use :func:`coordinators`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support.children import COORDINATORS
from tests.support.commands import Ended
from tests.support.disks import REAL_DISK, wait_for_disk
from tests.support.fault_points import DIRECTORY, PointFault, arm, points_environment, struck

END_SECONDS_MAX = 180
PARTITION_BYTES = 8 << 10
"""The size of partitions: so small that small jobs have many, too."""
LOADED = (
    *("dsort.api", "dsort.cli.start", "dsort.cli.jobs", "dsort.cli.gc", "dsort.verification"),
    *("dsort.job.setup.tables", "dsort.workers.row_sink", "dsort.workers.row_batches"),
    *("dsort.storage.limit", "dsort.storage.transport", "dsort.storage.s3.bucket"),
    *("numpy.ma", "pyarrow.compute", "pyarrow.parquet", "re2", "zstandard"),
)
"""Modules that commands load when they first need them: without this list, each of dozens of
commands would load them again."""


@dataclass(frozen=True)
class Running:
    """A coordinator that was begun."""

    pid: int
    log: Path
    points: Path | None
    _owner: Coordinators

    def await_stop(self) -> None:
        """Wait until it is suspended (SIGSTOP)."""
        assert self._owner.ask({"stopped": self.pid})["stopped"], "it ended"

    def suspend_all(self) -> list[psutil.Process]:
        """Suspend the coordinator, then its workers; returns all of these processes."""
        coordinator = psutil.Process(self.pid)
        coordinator.suspend()
        processes = [coordinator, *coordinator.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        return processes

    def wait(self) -> Ended:
        """Wait for the end of the coordinator and of all its workers."""
        code = self._owner.ask({"wait": self.pid})["code"]
        if self.points is not None:
            _, alive = psutil.wait_procs(processes_of(self.points), timeout=END_SECONDS_MAX)
            assert alive == [], "stray processes"
        return Ended(code, _text(self.log, "out"), _text(self.log, "err"))


class Coordinators:
    """Begins coordinators. ``flush_s``: how long their journals may wait (see
    ``dsort.results.journal``): 0, so that the recorded events do not depend on the speed of this
    machine."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._begun = 0

    def start(
        self,
        cwd: Path,
        *args: str,
        points: Path | None = None,
        flush_s: float = 0.0,
        env: Mapping[str, str] | None = None,
    ) -> Running:
        """Begin ``dsort ARGS`` in the directory ``cwd``; ``points``: its faults."""
        self._begun += 1
        log = cwd / f"coordinator-{self._begun}"
        for end in ("out", "err"):  # it may be killed before it has opened them
            log.with_suffix(f".{end}").touch()
        environment = {**points_environment(points), **(env or {})}
        asked = {"args": args, "cwd": str(cwd), "log": str(log), "env": environment}
        pid = self.ask({**asked, "flush_s": flush_s})["pid"]
        return Running(pid, log, points, self)

    def run(self, cwd: Path, *args: str, **named: Any) -> Ended:
        """Run ``dsort ARGS`` to its end."""
        return self.start(cwd, *args, **named).wait()

    def done(self, cwd: Path, *args: str, **named: Any) -> Ended:
        """Run ``dsort ARGS`` to its end, which has to be exit code 0."""
        ended = self.run(cwd, *args, **named)
        assert ended.code == 0, ended.err
        return ended

    def killed(self, cwd: Path, *args: str, by: PointFault, **named: Any) -> None:
        """Run ``dsort ARGS``, which the fault has to kill."""
        points = arm(cwd / f"points-{self._begun}", by)
        ended = self.run(cwd, *args, points=points, **named)
        assert (ended.code, struck(points)) == (-signal.SIGKILL, [by.point]), ended.err

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@contextlib.contextmanager
def coordinators() -> Iterator[Coordinators]:
    """The body of a fixture. The processes that it began end with it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.coordinators"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **points_environment(None)},
        start_new_session=True,
    )
    try:
        yield Coordinators(process)
    finally:
        begun = psutil.Process(process.pid).children(recursive=True)
        assert process.stdin is not None
        process.stdin.close()
        for each in begun:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait(END_SECONDS_MAX)
        assert process.stdout is not None
        process.stdout.close()


def processes_of(points: Path) -> list[psutil.Process]:
    """All processes that run under the faults in ``points``."""
    mine = f"{DIRECTORY}={points}\0".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if mine in path.read_bytes():
                found.append(psutil.Process(int(path.parent.name)))
    return found


def _text(log: Path, end: str) -> str:
    return log.with_suffix(f".{end}").read_text(encoding="utf-8")


def _serve() -> None:
    """Fork each process that is asked for, until the last request."""
    from dsort.cli.main import main
    from dsort.cli.process import own_process
    from tests.support.internals import journal, movement

    movement.PARTITION_BYTES_MIN = PARTITION_BYTES
    Path("/proc/self/comm").write_text(COORDINATORS)
    for module in LOADED:
        importlib.import_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            answer = {"code": os.waitstatus_to_exitcode(status)}
        elif "stopped" in request:
            _, status = os.waitpid(request["stopped"], os.WUNTRACED)
            answer = {"stopped": os.WIFSTOPPED(status)}
        else:
            answer = {"pid": os.fork()}
            if not answer["pid"]:
                Path("/proc/self/comm").write_text("python")
                journal.FLUSH_S = request["flush_s"]
                code = 70
                try:
                    _become(request)
                    own_process()  # as the command itself: its workers are forks
                    code = main(list(request["args"]))
                except BaseException:
                    traceback.print_exc()
                    raise
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)  # a fork that returned here would answer requests, too
        print(json.dumps(answer), flush=True)


def _become(request: Mapping[str, Any]) -> None:
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    if not request["env"][DIRECTORY]:
        del os.environ[DIRECTORY]
    if REAL_DISK in request["env"]:
        wait_for_disk()
    log = Path(request["log"])
    for stream, end in ((sys.stdout, "out"), (sys.stderr, "err")):
        stream.flush()
        with log.with_suffix(f".{end}").open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())


if __name__ == "__main__":
    _serve()
