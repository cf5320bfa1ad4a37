"""The directory of a Ray that dsort started: private, and known as abandoned once its owner died.

::

    dsort-ray-XXXXXXXX/   mode 0700: Ray makes some of its own files writable for everybody
        owner.json        the process that the Ray ends with
        r/                Ray's files and sockets"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dsort.errors import StorageError
from dsort.runtime.machine import Holder, Machine
from dsort.runtime.ray.watchdog import end_holders, holders

PREFIX = "dsort-ray-"
OWNER_FILE = "owner.json"
OWNER_BYTES_MAX = 4096
FILES_CHARACTERS_MAX = 40
"""Longer, and the paths of Ray's sockets below it are longer than Linux takes (107)."""

PID_LIMIT = 1 << 31

YOUNG_S = 60
"""One without an owner may be about to get one."""


@dataclass(frozen=True, slots=True)
class LeftRay:
    """A directory whose Ray nobody has any more. ``processes``: what still runs of it."""

    path: Path
    processes: int


def make_ray_directory(base: Path | None = None, *, machine: Machine | None = None) -> Path:
    """A new directory in ``base`` (None: the temporary one), or in ``/tmp`` where paths below that
    would be too long. It is this process's."""
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))  # with mode 0700, whatever the umask
    if len(str(ray_files(path))) > FILES_CHARACTERS_MAX:
        path.rmdir()
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
    note_owner(path, (machine or Machine()).holder())
    ray_files(path).mkdir(mode=0o700)
    return path


def ray_files(directory: Path) -> Path:
    """Where Ray may put what it has."""
    return directory / "r"


def note_owner(directory: Path, owner: Holder) -> None:
    """Say whose the directory is from now on."""
    new = directory / f"{OWNER_FILE}.new"
    new.write_text(json.dumps(asdict(owner)), encoding="utf-8")
    new.replace(directory / OWNER_FILE)


def ray_places() -> list[Path]:
    """Where such directories are made."""
    return [Path(tempfile.gettempdir()), Path("/tmp")]


def rays_left(base: Path, *, machine: Machine | None = None) -> Iterator[LeftRay]:
    """Those in ``base`` that are ours, and whose owner is gone. No link is followed."""
    machine = machine or Machine()
    for path in sorted(base.glob(f"{PREFIX}*")):
        try:
            with _opened(path) as descriptor:
                gone, running = _is_left(path, descriptor, machine), holders(path)
        except OSError:
            continue  # not ours, no directory, or removed meanwhile
        if gone is None:  # as it was before owners were noted
            gone = not running
        if gone:
            yield LeftRay(path, len(running))


def remove_ray_directory(path: Path, *, machine: Machine | None = None) -> None:
    """End what still runs of a Ray that was left, and remove its files. Does nothing where there is
    none any more."""
    if any(left.path == path for left in rays_left(path.parent, machine=machine)):
        discard_ray_directory(path)


def discard_ray_directory(path: Path) -> None:
    """The same, whoever has it."""
    end_holders(path)
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error.strerror}") from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of the directory, which is ours and no link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(path)
        yield descriptor
    finally:
        os.close(descriptor)


def _is_left(path: Path, descriptor: int, machine: Machine) -> bool | None:
    """Whether its owner is gone; None: nobody has said who that is."""
    owner = _owner(descriptor)
    if owner is None:
        is_young = machine.now_s() - os.fstat(descriptor).st_mtime < YOUNG_S
        return False if is_young else None
    here = machine.holder()
    if owner.host != here.host:
        return False  # a directory that machines share: it is for that one to say
    boot, _, namespace = owner.boot_id.partition("/")
    boot_here, _, namespace_here = here.boot_id.partition("/")
    if boot != boot_here:
        return True
    return namespace == namespace_here and machine.is_gone(owner)


def _owner(directory: int) -> Holder | None:
    """Who is noted in a directory (a descriptor); None where nobody can be."""

    def open_here(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)

    try:
        with open(OWNER_FILE, "rb", opener=open_here) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            text = file.read(OWNER_BYTES_MAX + 1)
        if len(text) > OWNER_BYTES_MAX:
            return None
        said = json.loads(text)
        pid = int(said["pid"])
        if not 0 < pid < PID_LIMIT:
            return None
        return Holder(str(said["host"]), str(said["boot_id"]), pid, int(said["pid_start"]))
    except (OSError, ValueError, LookupError, OverflowError, TypeError, RecursionError):
        return None
