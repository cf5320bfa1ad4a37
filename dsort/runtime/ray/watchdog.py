"""A program that ends a Ray of dsort once the process that started this Ray is gone."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

LOOK_S = 0.1
OWNER_LOOK_S = 1.0
EMPTY_LOOKS = 3
"""So many searches in a row have to find nothing: then no process is about to start another."""

END_SECONDS_MAX = 10
LEAVE = b"."

WRITE_BIT = 0o200
"""The bit in the mode of a link in ``/proc/<pid>/fd`` if the file is open for writing."""


def begin_watchdog(directory: Path) -> subprocess.Popen[bytes]:
    """Start a watchdog. If this process ends before it calls ``end_watchdog``, the watchdog ends
    all processes with files in ``directory``, and removes ``directory``."""
    return subprocess.Popen(
        # -I -S: no site packages and no variables of the user's, which could keep it from starting.
        [sys.executable, "-I", "-S", __file__, str(directory), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # signals to a process group or a terminal do not reach it
    )


def end_watchdog(watchdog: subprocess.Popen[bytes]) -> None:
    """End the watchdog, and leave its directory and processes alone. May be called twice."""
    assert watchdog.stdin is not None
    if not watchdog.stdin.closed:
        with contextlib.suppress(BrokenPipeError):  # the watchdog has been ended
            watchdog.stdin.write(LEAVE)
            watchdog.stdin.close()
    watchdog.wait()


# A process belongs to that Ray if it holds a file of the Ray's directory open for writing. All of
# Ray's processes do so from their first instruction on: their logs. (Their names and environments
# cannot be used, because the processes overwrite these.)
def holders(directory: Path) -> list[int]:
    """The other processes that have files in ``directory`` open for writing."""
    return holders_of([directory])[directory]


def holders_of(directories: Sequence[Path]) -> dict[Path, list[int]]:
    """The ``holders`` of each of several directories, from one look at all processes."""
    found: dict[Path, list[int]] = {each: [] for each in directories}
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        written = _written(pid) if pid != os.getpid() else ()
        for directory in directories:
            if any(path.startswith(f"{directory}/") for path in written):
                found[directory].append(pid)
    return found


def end_holders(directory: Path, *, spare: int = 0) -> None:
    """Kill the ``holders`` of ``directory`` and all processes that they start meanwhile, except
    ``spare``, until none is left."""
    empty, end_s = 0, time.monotonic() + END_SECONDS_MAX
    while empty < EMPTY_LOOKS and time.monotonic() < end_s:
        found = [pid for pid in holders(directory) if pid != spare]
        empty = 0 if found else empty + 1
        for pid in found:
            _kill(pid, directory)
        time.sleep(LOOK_S)


# The watchdog uses only the standard library, because it starts before all parts of Ray, and has to
# outlive whatever ends its owner. It reads from a pipe whose other end only the owner holds. A byte
# means that the owner no longer needs the watchdog. The end of the pipe means that the owner died:
# the watchdog ends all processes of that Ray and removes its files.
def main() -> None:
    """Wait for the end of the owner."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    directory, owner = Path(sys.argv[1]), int(sys.argv[2])
    said = b""
    # A process that the owner forked may hold the other end, too; and the owner may close it.
    while os.getppid() == owner and said != LEAVE:
        if select.select([0], [], [], OWNER_LOOK_S)[0]:
            said = os.read(0, 1)
            # The pipe has ended, but the owner may live: each look would find the end at once.
            if not said:
                time.sleep(LOOK_S)
    if said != LEAVE:
        end_holders(directory)
        shutil.rmtree(directory, ignore_errors=True)


def _written(pid: int) -> list[str]:
    """The files that a process has open for writing."""
    found = []
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed in the meantime
                if link.lstat().st_mode & WRITE_BIT:
                    found.append(str(link.readlink()))
    return found


def _kill(pid: int, directory: Path) -> None:
    """Kill the process with this number if it still is the process that was found."""
    with contextlib.suppress(OSError):
        # The handle stays with this process, even if its number is given to another one before the
        # kill.
        handle = os.pidfd_open(pid)
        try:
            if any(path.startswith(f"{directory}/") for path in _written(pid)):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


if __name__ == "__main__":
    main()
