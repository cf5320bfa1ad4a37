"""Limits of the system for a process: address space (``ulimit -v``), open files (``ulimit -n``),
and processes and threads (``ulimit -u``, the ``pids`` control group)."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from dsort.errors import StorageFullError, WorkerLostError

PROCESSES_HINT = (
    "raise the limit of processes and threads (ulimit -u, pids.max), or give --workers 1"
)
UNLIMITED = 1 << 62
"""More than a process can have of anything."""
_OWN_ADDRESSES_BYTES = 240 << 20
"""The address space of libraries, stacks and other mappings of a worker before it holds any data
(measured: 205 MB with NumPy and no store)."""
_SPARE_FILES = 128  # left for all other files of a process


def address_space_bytes() -> int:
    """How many bytes a process may map for data, besides ``_OWN_ADDRESSES_BYTES``; ``UNLIMITED``
    without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return UNLIMITED if soft == resource.RLIM_INFINITY else max(soft - _OWN_ADDRESSES_BYTES, 0)


def files_that_fit(wanted: int) -> int:
    """How many of ``wanted`` files may be open at a time. Raises the soft limit for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted + _SPARE_FILES:
        most = wanted + _SPARE_FILES
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(min(wanted, soft - _SPARE_FILES), 1)


def free_processes(
    proc_root: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")
) -> int:
    """How many processes and threads may be started now; ``UNLIMITED`` without a limit. The two
    directories are parameters for tests."""
    found = [*_left_in_groups(proc_root, cgroup_root)]
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid():  # the limit does not apply to root
        found.append(soft - _threads_of_user(proc_root))
    return max(min(found, default=UNLIMITED), 0)


@contextlib.contextmanager
def explain_limits() -> Iterator[None]:
    """A context in which errors for missing memory and threads get an explanation and a hint."""
    try:
        yield
    except MemoryError:
        raise StorageFullError(
            "dsort ran out of memory: a limit of the system allows no more",
            hint="raise the limit (ulimit -v), or give --max-memory and fewer --workers",
        ) from None
    except RuntimeError as error:
        if not is_no_thread(error):
            raise
        raise WorkerLostError("no thread can be started", hint=PROCESSES_HINT) from None


def is_no_thread(error: RuntimeError) -> bool:
    """Whether ``error`` means that no thread can be started; Python has no class for it."""
    return "start new thread" in str(error)


def _left_in_groups(proc_root: Path, cgroup_root: Path) -> Iterator[int]:
    for line in _text_of(proc_root / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "pids" in controllers.split(","):
            top = cgroup_root / "pids"
        elif number == "0" and not controllers:
            top = cgroup_root
        else:
            continue
        inside = path.strip("/")
        # A process in a namespace of its own may see a group above its root as "..".
        group = top / inside if ".." not in inside.split("/") else top
        while True:
            limit = _text_of(group / "pids.max").strip()
            used = _text_of(group / "pids.current").strip()
            if limit.isdecimal() and used.isdecimal():
                yield int(limit) - int(used)
            if group == top:
                break
            group = group.parent


def _threads_of_user(proc_root: Path) -> int:
    """The number of threads of this user, which the limit counts."""
    mine, threads = str(os.getuid()), 0
    for each in proc_root.iterdir():
        if each.name.isdecimal():
            fields = dict(
                line.partition(":")[::2] for line in _text_of(each / "status").splitlines()
            )
            if fields.get("Uid", "").split()[:1] == [mine]:
                threads += int(fields.get("Threads", "1"))
    return threads


def _text_of(file: Path) -> str:
    """The text of ``file``, empty if it cannot be read."""
    with contextlib.suppress(OSError):
        return file.read_text(errors="surrogateescape")
    return ""
