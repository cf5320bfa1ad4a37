"""Runs one command in a process tree of its own, and ends all processes of the tree.

This process becomes the subreaper of its descendants: a daemon that a command leaves (Ray starts
several) becomes a child of this process, which waits for it, and kills it if it does not end.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import psutil

__all__ = ["DiskBytes", "Finished", "Sampler", "run_tree"]

PR_SET_CHILD_SUBREAPER = 36
MARK = "DSORT_BENCH_RUN"
STAY_SECONDS_MAX = 10.0
STDERR_CHARS_MAX = 2_000
OWN_IO = Path("/proc/self/io")


class Sampler(Protocol):
    """Measures a running tree from outside, at intervals."""

    interval_seconds: float

    def sample(self, pid: int) -> None:
        """Note what the tree under ``pid`` uses now; the tree may be gone already."""


@dataclass(frozen=True, slots=True)
class DiskBytes:
    """The bytes that a tree had read from disks and written to disks, without the page cache."""

    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a command. ``cpu_seconds``: of the whole tree; ``other_cpu_seconds``: of all other
    work of the machine in that time, including the kernel's writing back; ``disk``: None if the
    kernel does not count it."""

    exit_code: int
    wall_seconds: float
    cpu_seconds: float
    other_cpu_seconds: float
    stdout: str
    stderr: str
    timed_out: bool
    disk: DiskBytes | None = None


def run_tree(
    command: Sequence[str],
    *,
    cwd: Path,
    timeout_seconds: float,
    sampler: Sampler | None = None,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Run ``command`` to its end, or to ``timeout_seconds``, and wait for its whole tree.

    ``environment``: variables besides those of this process.
    """
    mark = f"{MARK}={uuid.uuid4().hex}"
    before = psutil.Process().children()
    _adopt_orphans(True)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        disk, cpu, busy = _disk_bytes(), _cpu_seconds(), _busy_seconds()
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(os.environ) | dict(environment or {}) | dict([mark.split("=")]),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        expired = threading.Event()
        done = threading.Event()
        threads = [threading.Thread(target=_expire, args=(process, timeout_seconds, done, expired))]
        if sampler is not None:
            threads.append(threading.Thread(target=_sample, args=(process.pid, sampler, done)))
        for thread in threads:
            thread.start()
        try:
            # A wait without a timeout, because a wait with one polls, which would make short runs
            # inexact by 50 ms.
            exit_code = process.wait()
            wall = time.perf_counter() - start
            busy = _busy_seconds() - busy
        except BaseException:
            _end_tree(process.pid)
            raise
        finally:
            done.set()
            for thread in threads:
                thread.join()
            _settle(mark, before, time.monotonic() + STAY_SECONDS_MAX)
            _adopt_orphans(False)
        cpu = _cpu_seconds() - cpu
        return Finished(
            exit_code,
            wall,
            cpu,
            max(0.0, busy - cpu),
            _text(out),
            _text(err)[-STDERR_CHARS_MAX:],
            expired.is_set(),
            _since(disk),
        )


def _adopt_orphans(adopt: bool) -> None:
    """Make this process adopt orphans, or stop that. Without Linux, daemons of a command are not
    found."""
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def _expire(
    process: subprocess.Popen[bytes],
    timeout_seconds: float,
    done: threading.Event,
    expired: threading.Event,
) -> None:
    if not done.wait(timeout_seconds):
        expired.set()
        _end_tree(process.pid)


def _sample(pid: int, sampler: Sampler, done: threading.Event) -> None:
    sampler.sample(pid)
    while not done.wait(sampler.interval_seconds):
        sampler.sample(pid)


def _end_tree(pid: int) -> None:
    """Kill ``pid`` and all of its descendants. The root is not reaped here, so its id is not used
    again.

    The root is killed first: otherwise a root that waits for its children would end by itself.
    """
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        _kill(process)


def _kill(process: psutil.Process) -> None:
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return


def _settle(mark: str, before: Sequence[psutil.Process], deadline: float) -> None:
    """Wait for orphans of the command, then end those that stay.

    ``before``: the children that this process had before. ``mark`` is in the environment of all
    processes that the command started, so no other process is waited for or ended.
    """
    while left := [child for child in psutil.Process().children() if child not in before]:
        orphans = [child for child in left if _is_marked(child, mark)]
        if not orphans:
            return
        if time.monotonic() > deadline:
            for child in orphans:
                _end_tree(child.pid)
        for child in orphans:
            _reap(child.pid)
        time.sleep(0.02)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    """Whether the command started ``process``. A process that has ended, or is about to, has no
    environment: it only needs reaping."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
        name, value = mark.split("=")
        environment = process.environ()
        return not environment or environment.get(name) == value
    except psutil.Error:
        return False


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _disk_bytes() -> DiskBytes | None:
    """The bytes of this process and of all processes for which it has waited, as the kernel adds
    them up."""
    try:
        lines = OWN_IO.read_text().splitlines()
    except OSError:
        return None
    counts = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    written_bytes = counts["write_bytes"] - counts["cancelled_write_bytes"]
    return DiskBytes(counts["read_bytes"], written_bytes)


def _since(before: DiskBytes | None) -> DiskBytes | None:
    now = _disk_bytes()
    if before is None or now is None:
        return None
    return DiskBytes(
        now.read_bytes - before.read_bytes, max(0, now.written_bytes - before.written_bytes)
    )


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
