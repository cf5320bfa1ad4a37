"""Memory of other processes: the peaks of the processes in a tree, and a cgroup with a limit."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = [
    "LimitedSampler",
    "MemoryLimit",
    "NotPermittedError",
    "Peak",
    "TreeSampler",
    "drop_caches",
    "group_parent",
    "own_bytes",
    "touch_memory",
]

CGROUP_ROOT = Path("/sys/fs/cgroup")
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
REMOVE_SECONDS_MAX = 5.0
TOUCHED_SHARE_MAX = 0.5
"""The share of free memory that is touched: other programs and the page cache need the rest."""


class NotPermittedError(Exception):
    """This user, or this machine, does not allow what a run needs."""


@dataclass(slots=True)
class Peak:
    """The peaks of one process, in bytes. ``own`` is anonymous and shared memory, which the kernel
    cannot drop. RSS and PSS also count mapped file pages, which are cache."""

    rss_bytes: int = 0
    pss_bytes: int = 0
    own_bytes: int = 0


class TreeSampler:
    """Peaks of the command's first process and of each process below it.

    ``own_bytes_sum``: the most that all of them had at one time.
    """

    def __init__(self, interval_seconds: float = 0.02) -> None:
        self.interval_seconds = interval_seconds
        self.peaks: dict[int, Peak] = {}
        self.own_bytes_sum = 0
        self.root_pid = 0

    def sample(self, pid: int) -> None:
        """Read ``smaps_rollup`` of every process of the tree."""
        self.root_pid = pid
        try:
            root = psutil.Process(pid)
            pids = [pid, *(child.pid for child in root.children(recursive=True))]
        except psutil.NoSuchProcess:
            return
        self.own_bytes_sum = max(self.own_bytes_sum, sum(map(self._note, pids)))

    def _note(self, pid: int) -> int:
        """Update the peak of one process. Returns its own bytes."""
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return 0
        fields = (line.split() for line in text.splitlines()[1:])
        kilobytes = {words[0]: int(words[1]) for words in fields if len(words) == 3}
        own = kilobytes.get("Anonymous:", 0) + kilobytes.get("Pss_Shmem:", 0)
        peak = self.peaks.setdefault(pid, Peak())
        peak.rss_bytes = max(peak.rss_bytes, kilobytes.get("Rss:", 0) * 1024)
        peak.pss_bytes = max(peak.pss_bytes, kilobytes.get("Pss:", 0) * 1024)
        peak.own_bytes = max(peak.own_bytes, own * 1024)
        return own * 1024

    @property
    def workers(self) -> list[Peak]:
        """The peaks of each process below the first one."""
        return [peak for pid, peak in self.peaks.items() if pid != self.root_pid]

    @property
    def worker(self) -> Peak:
        """The largest peaks that any process below the first one had."""
        return Peak(
            max((peak.rss_bytes for peak in self.workers), default=0),
            max((peak.pss_bytes for peak in self.workers), default=0),
            max((peak.own_bytes for peak in self.workers), default=0),
        )

    @property
    def first(self) -> Peak:
        """The peaks of the first process: of dsort, the coordinator."""
        return self.peaks.get(self.root_pid, Peak())


def group_parent(proc_cgroup: str, root: Path = CGROUP_ROOT) -> tuple[Path, int]:
    """The directory in which a memory cgroup can be made, and the cgroup version (1 or 2).

    ``proc_cgroup`` is the text of ``/proc/self/cgroup``. In version 1, the group is made below our
    own group. Version 2 forbids processes in a group that has limited children, so the group is
    made beside our own.
    """
    unified = None
    for line in proc_cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            own = root / "memory" / path.lstrip("/")
            # In a container, the path is that of the host, but our own group is mounted.
            return (own if own.is_dir() else root / "memory"), 1
        if not controllers:
            unified = path.lstrip("/")
    if unified is None:
        raise NotPermittedError("this machine has no memory cgroup")
    own = root / unified
    return (own.parent if unified and own.is_dir() else root), 2


class MemoryLimit:
    """A memory cgroup with a limit, made on entry and removed on exit. Page cache counts in it."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        parent, self.version = group_parent(Path("/proc/self/cgroup").read_text())
        self.path = parent / f"dsort-bench-{os.getpid()}"

    def __enter__(self) -> MemoryLimit:
        try:
            self.path.mkdir()
            self._set_limit()
        except OSError as error:
            self._remove()
            raise NotPermittedError(f"cannot make a memory cgroup: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _set_limit(self) -> None:
        if self.version == 1:
            (self.path / "memory.limit_in_bytes").write_text(str(self.limit_bytes))
        else:
            (self.path / "memory.max").write_text(str(self.limit_bytes))
            swap = self.path / "memory.swap.max"
            if swap.exists():
                swap.write_text("0")

    def _remove(self) -> None:
        """Remove the group. The kernel takes a moment to release a group whose last process has
        ended."""
        deadline = time.monotonic() + REMOVE_SECONDS_MAX
        while self.path.is_dir():
            try:
                self.path.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def wrap(self, command: Sequence[str]) -> list[str]:
        """``command``, started inside the group."""
        enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        return ["/bin/sh", "-c", enter, str(self.path), *command]

    @property
    def peak_bytes(self) -> int:
        """The peak of the group, page cache included; 0 if the kernel does not report it."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        file = self.path / name
        return int(file.read_text()) if file.exists() else 0

    @property
    def own_bytes(self) -> int:
        """Anonymous memory of the group now, without page cache."""
        wanted = "total_rss" if self.version == 1 else "anon"
        return self._count("memory.stat", wanted)

    @property
    def kill_count(self) -> int:
        """Processes that the kernel ended because the group was full."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return self._count(name, "oom_kill")

    def _count(self, name: str, wanted: str) -> int:
        for line in (self.path / name).read_text().splitlines():
            word, value = line.split()
            if word == wanted:
                return int(value)
        return 0


class LimitedSampler:
    """The peak of a group's anonymous memory. A sample is one small read, so its cost is small."""

    interval_seconds = 0.05

    def __init__(self, limit: MemoryLimit) -> None:
        self.limit = limit
        self.own_bytes_peak = 0

    def sample(self, pid: int) -> None:
        """Note the group's anonymous memory; ``pid`` is not needed."""
        self.own_bytes_peak = max(self.own_bytes_peak, self.limit.own_bytes)


def drop_caches() -> None:
    """Write back and drop the page cache of the whole machine."""
    os.sync()
    try:
        DROP_CACHES.write_text("3\n")
    except OSError as error:
        raise NotPermittedError(f"cannot drop the page cache: {error}") from error


def touch_memory(wanted_bytes: int) -> None:
    """Write to each page of ``wanted_bytes`` of free memory once, and free it again.

    On a virtual machine, freed memory (dropped caches, removed files) may have gone to the host.
    Then the first touch of a page takes time, which would count for the next run.
    """
    free_bytes = psutil.virtual_memory().free
    size = min(wanted_bytes, int(TOUCHED_SHARE_MAX * free_bytes)) // mmap.PAGESIZE * mmap.PAGESIZE
    if size > 0:
        with mmap.mmap(-1, size) as pages:
            pages[:: mmap.PAGESIZE] = bytes(size // mmap.PAGESIZE)


def own_bytes(field: str) -> int:
    """A field of ``/proc/self/status``: ``VmRSS``, or ``VmHWM`` for the peak. The peak of
    ``getrusage`` may be that of the process that began this one."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise ValueError(f"/proc/self/status has no {field}")
