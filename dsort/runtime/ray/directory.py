"""The directory of a Ray that dsort started. It is private, and records its owner: if the owner has
died, the directory is abandoned."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from dsort.data.json_values import checked
from dsort.errors import StorageError
from dsort.runtime.machine import HERE, NO_HOLDER, Holder, Machine
from dsort.runtime.ray.watchdog import end_holders, holders, holders_of

# dsort-ray-XXXXXXXX/   mode 0700: Ray makes some of its files writable for all users
#     owner.json        the process with which the Ray ends
#     r/                Ray's files and sockets
PREFIX = "dsort-ray-"
OWNER_FILE = "owner.json"
OWNER_BYTES_MAX = 4096
FILES_CHARACTERS_MAX = 40
"""With a longer path, the paths of Ray's sockets below it would exceed Linux's limit (107)."""

PID_LIMIT = 1 << 31

YOUNG_S = 60
"""A directory that is younger than this and has no owner may be about to get one."""


class LeftRay(Struct, frozen=True):
    """The directory of a Ray without a living owner. ``processes``: how many of its processes still
    run."""

    path: Path
    processes: int


def make_ray_directory(base: Path | None = None) -> Path:
    """Make a directory in ``base`` (None: the temporary directory), or in ``/tmp`` if paths in
    ``base`` would be too long. Its owner is this process."""
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))  # with mode 0700, whatever the umask
    if len(str(ray_files(path))) > FILES_CHARACTERS_MAX:
        path.rmdir()
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
    note_owner(path, HERE.holder())
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
    """The directories in which dsort makes directories of Rays."""
    return [Path(tempfile.gettempdir()), Path("/tmp")]


def rays_left(base: Path, *, machine: Machine = HERE) -> Iterator[LeftRay]:
    """Yield this user's directories in ``base`` whose owner has ended. No link is followed."""
    paths = sorted(base.glob(f"{PREFIX}*"))
    running = holders_of(paths) if paths else {}
    for path in paths:
        if _is_left(path, machine, is_used=len(running[path]) > 0):
            yield LeftRay(path, len(running[path]))


def remove_ray_directory(path: Path, *, machine: Machine = HERE) -> None:
    """End the processes of an abandoned Ray that still run, and remove its files. Do nothing if the
    directory is gone, or not abandoned."""
    is_used = len(holders(path)) > 0
    if path.name.startswith(PREFIX) and _is_left(path, machine, is_used=is_used):
        discard_ray_directory(path)


def discard_ray_directory(path: Path) -> None:
    """End the processes of the Ray in ``path``, abandoned or not, and remove its files."""
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


def _is_left(path: Path, machine: Machine, *, is_used: bool) -> bool:
    """Whether ``path`` is a directory of this user, and its owner is gone. ``is_used``: some
    process has files in it open."""
    try:
        with _opened(path) as descriptor:
            owner, made_at_s = _owner(descriptor), os.fstat(descriptor).st_mtime
    except OSError:
        return False  # belongs to another user, is no directory, or was removed meanwhile
    if not owner.pid:  # made by a version that did not record owners, or a moment ago
        return not is_used and machine.now_s() - made_at_s >= YOUNG_S
    here = machine.holder()
    if owner.host != here.host:
        return False  # on a file system that machines share: only the other machine can check
    boot, _, namespace = owner.boot_id.partition("/")
    boot_here, _, namespace_here = here.boot_id.partition("/")
    if boot != boot_here:
        return True
    return namespace == namespace_here and machine.is_gone(owner)


def _owner(directory: int) -> Holder:
    """The owner that a directory (a descriptor) records; ``NO_HOLDER`` if it records none, or an
    invalid one."""

    # No link is followed, and a pipe of that name does not block.
    def open_here(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)

    try:
        with open(OWNER_FILE, "rb", opener=open_here) as file:
            is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            text = file.read(OWNER_BYTES_MAX + 1) if is_file else b""
        if len(text) > OWNER_BYTES_MAX:
            return NO_HOLDER
        owner = checked(json.loads(text), Holder)
        return owner if 0 < owner.pid < PID_LIMIT else NO_HOLDER
    except (OSError, ValueError, RecursionError):
        return NO_HOLDER
