"""Commands on Ray run in a child: what is reported of one that Ray ended, and that signals, exit
codes and bugs come through as if there were none. No Ray is needed for that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from dsort.cli.main import whole_app
from dsort.cli.process import VERBS, is_for_ray
from tests.support.commands import ROOT
from tests.support.service_process import await_that

SCRIPT = """
import os, signal, sys
from dsort.cli import exits
from dsort.cli.process import run_overseen
from dsort.errors import DsortError

def hold():
    # Pending until it is waited for: a handler may run before the wait begins.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    print(os.getpid(), flush=True)
    signal.sigwait([signal.SIGTERM])
    os.read(0, 1)
    return 41 + (signal.SIGTERM in signal.sigpending())

def fail():
    raise ZeroDivisionError

WORK = {
    "done": lambda: 3,
    "ended": lambda: os._exit(1),
    "aborted": lambda: os.abort(),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "bug": fail,
    "hold": hold,
}
try:
    sys.exit(run_overseen(WORK[sys.argv[1]]))
except DsortError as error:
    sys.exit(exits.report_error(error, as_json=False, debug=False))
"""

Begin = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def begin() -> Iterator[Begin]:
    begun: list[subprocess.Popen[str]] = []

    def start(work: str) -> subprocess.Popen[str]:
        begun.append(
            subprocess.Popen(
                [sys.executable, "-c", SCRIPT, work],
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("work", ["ended", "aborted"])
def test_a_job_that_ray_ended_is_one_whose_workers_were_lost(begin: Begin, work: str) -> None:
    process = begin(work)
    _, said = process.communicate()
    assert process.returncode == 5
    assert said.startswith("error: Ray ended the job's process")
    assert "hint: " in said
    assert "dsort resume" in said


@pytest.mark.parametrize(
    ("work", "code", "words"),
    [("done", 3, ""), ("bug", 1, "ZeroDivisionError"), ("killed", -signal.SIGKILL, "")],
)
def test_all_else_ends_as_it_would_alone(begin: Begin, work: str, code: int, words: str) -> None:
    process = begin(work)
    _, said = process.communicate()
    assert process.returncode == code
    assert words in said
    assert "Ray" not in said


def child_of(process: subprocess.Popen[str]) -> psutil.Process:
    assert process.stdout is not None
    return psutil.Process(int(process.stdout.readline()))


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["process", "group"])
def test_a_request_to_stop_is_heard_once(
    begin: Begin, send: Callable[[int, signal.Signals], None]
) -> None:
    process = begin("hold")
    child_of(process)
    send(process.pid, signal.SIGTERM)
    process.communicate(input="x")
    assert process.returncode == 41


def test_a_job_stands_still_with_its_command(begin: Begin) -> None:
    process = begin("hold")
    child = child_of(process)
    process.send_signal(signal.SIGTSTP)
    os.waitpid(process.pid, os.WUNTRACED)
    await_that(lambda: child.status() == psutil.STATUS_STOPPED)
    process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGTERM)
    process.communicate(input="x")
    assert process.returncode == 41


def test_a_job_ends_with_its_command(begin: Begin) -> None:
    process = begin("hold")
    child = child_of(process)
    process.kill()
    process.wait()
    assert psutil.wait_procs([child], timeout=60)[1] == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("start -f x --ray", True),
        ("resume JOB --ray-address auto", True),
        ("plan --ray-address=auto", True),
        ("start -f x", False),
        ("start -f x --ray-labels {}", False),
        ("serve --ray", False),
        ("", False),
    ],
)
def test_only_what_may_use_ray_is_overseen(line: str, expected: bool) -> None:
    assert is_for_ray(line.split()) is expected


def test_every_command_that_can_use_ray_is_overseen() -> None:
    with_ray = {
        name
        for name, command in whole_app().commands.items()
        if name != "serve" and any("--ray" in each.opts for each in command.params)
    }
    assert with_ray == VERBS
