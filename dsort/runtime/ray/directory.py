"""The directory of a Ray that dsort started: private, and recognised as abandoned once its owner
has died.

::

    dsort-ray-XXXXXXXX/   mode 0700: Ray makes some of its files writable for all users
        owner.json        the process with which the Ray ends
        r/                Ray's files and sockets"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from dsort.data.json_values import checked
from dsort.errors import StorageError
from dsort.runtime.machine import Holder, Machine

PREFIX = "dsort-ray-"
OWNER_FILE = "owner.json"
OWNER_BYTES_MAX = 4096
FILES_CHARACTERS_MAX = 40
"""With a longer path, the paths of Ray's sockets below it would exceed Linux's limit (107)."""

PID_LIMIT = 1 << 31

YOUNG_S = 60
"""A younger directory without an owner may be about to get one."""


class LeftRay(Struct, frozen=True):
    """A directory whose Ray has no owner any more. ``processes``: how many of its processes still
    run."""

    path: Path
    processes: int


def make_ray_directory(base: Path | None = None, *, machine: Machine | None = None) -> Path:
    """Make a directory in ``base`` (None: the temporary one), or in ``/tmp`` if paths below it
    would be too long. Its owner is this process."""
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))  # with mode 0700, whatever the umask
    if len(str(ray_files(path))) > FILES_CHARACTERS_MAX:
        path.rmdir()
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
    note_owner(path, (machine or Machine()).holder())
    ray_files(path).mkdir(mode=0o700)
    return path


def ray_files(directory: Path) -> Path:
    """The place for Ray's files."""
    return directory / "r"


def note_owner(directory: Path, owner: Holder) -> None:
    """Record ``owner`` as the owner of the directory."""
    new = directory / f"{OWNER_FILE}.new"
    new.write_text(json.dumps(asdict(owner)), encoding="utf-8")
    new.replace(directory / OWNER_FILE)


def ray_places() -> list[Path]:
    """The directories in which such directories are made."""
    return [Path(tempfile.gettempdir()), Path("/tmp")]


def rays_left(base: Path, *, machine: Machine | None = None) -> Iterator[LeftRay]:
    """Yield the directories in ``base`` that belong to this user, and whose owner is gone. No link
    is followed."""
    machine = machine or Machine()
    for path in sorted(base.glob(f"{PREFIX}*")):
        try:
            with _opened(path) as descriptor:
                gone, running = _is_left(path, descriptor, machine), holders(path)
        except OSError:
            continue  # belongs to another user, is no directory, or was removed meanwhile
        if gone is None:  # made by a version that did not record owners
            gone = not running
        if gone:
            yield LeftRay(path, len(running))


def remove_ray_directory(path: Path, *, machine: Machine | None = None) -> None:
    """End the processes of an abandoned Ray that still run, and remove its files. Do nothing if it
    is gone, or not abandoned."""
    if any(left.path == path for left in rays_left(path.parent, machine=machine)):
        discard_ray_directory(path)


def discard_ray_directory(path: Path) -> None:
    """The same, whether the Ray is abandoned or not."""
    end_holders(path)
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error.strerror}") from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open the directory, which must be this user's and no link; yield the descriptor."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(path)
        yield descriptor
    finally:
        os.close(descriptor)


def _is_left(path: Path, descriptor: int, machine: Machine) -> bool | None:
    """Whether its owner is gone; None: no owner is recorded."""
    owner = _owner(descriptor)
    if owner is None:
        is_young = machine.now_s() - os.fstat(descriptor).st_mtime < YOUNG_S
        return False if is_young else None
    here = machine.holder()
    if owner.host != here.host:
        return False  # on a file system that machines share: only the other machine can check
    boot, _, namespace = owner.boot_id.partition("/")
    boot_here, _, namespace_here = here.boot_id.partition("/")
    if boot != boot_here:
        return True
    return namespace == namespace_here and machine.is_gone(owner)


def _owner(directory: int) -> Holder | None:
    """The owner that is recorded in a directory (a descriptor); None if there is no valid one."""

    def open_here(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)

    try:
        with open(OWNER_FILE, "rb", opener=open_here) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            text = file.read(OWNER_BYTES_MAX + 1)
        if len(text) > OWNER_BYTES_MAX:
            return None
        owner = checked(json.loads(text), Holder)
        return owner if 0 < owner.pid < PID_LIMIT else None
    except (OSError, ValueError, RecursionError):
        return None


LOOK_S = 0.1
OWNER_LOOK_S = 1.0
EMPTY_LOOKS = 3
"""So many searches in a row have to find nothing: then no process is about to start another."""

END_SECONDS_MAX = 10
LEAVE = b"."

WRITE_BIT = 0o200
"""The bit in the mode of a link in ``/proc/<pid>/fd`` if the file is open for writing."""


def begin_watchdog(directory: Path) -> subprocess.Popen[bytes]:
    """Start a watchdog that ends all processes with files in ``directory``, and removes it, when
    this process ends, unless ``end_watchdog`` is called before."""
    return subprocess.Popen(
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


def holders(directory: Path) -> list[int]:
    """The other processes that have files in ``directory`` open for writing."""
    within = f"{directory}/"
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and _writes(pid, within)]


def end_holders(directory: Path, *, spare: int = 0) -> None:
    """Kill these processes, and those that they start meanwhile, until none is left; except
    ``spare``."""
    empty, end_s = 0, time.monotonic() + END_SECONDS_MAX
    while empty < EMPTY_LOOKS and time.monotonic() < end_s:
        found = [pid for pid in holders(directory) if pid != spare]
        empty = 0 if found else empty + 1
        for pid in found:
            _kill(pid, directory)
        time.sleep(LOOK_S)


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
            if not said:
                time.sleep(LOOK_S)
    if said != LEAVE:
        end_holders(directory)
        shutil.rmtree(directory, ignore_errors=True)


def _writes(pid: int, within: str) -> bool:
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed in the meantime
                if link.lstat().st_mode & WRITE_BIT and str(link.readlink()).startswith(within):
                    return True
    except OSError:
        pass  # it has ended, or belongs to another user
    return False


def _kill(pid: int, directory: Path) -> None:
    """Kill the process with this number if it still is the process that was found."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if _writes(pid, f"{directory}/"):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


if __name__ == "__main__":
    main()
