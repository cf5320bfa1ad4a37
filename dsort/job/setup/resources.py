"""What one job may take of this machine and of its stores: workers, memory, threads, requests."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from dsort.errors import StorageError
from dsort.options import RunOptions
from dsort.pipeline.movement import COORDINATOR_BYTES
from dsort.sizes import Percent
from dsort.spec.model import JobSpec
from dsort.storage.limit import StoreLimits
from dsort.storage.process_limits import UNLIMITED, address_space_bytes, free_processes
from dsort.storage.ref import BucketRef


class JobMemory(Struct, frozen=True):
    """The memory that a whole job may use on this node, in bytes.

    ``most_bytes``: the memory available in this container, or the user's ``memory_max_bytes`` if
    that is smaller. ``wanted_bytes``: how much of that the spec requests.
    """

    most_bytes: int
    wanted_bytes: int


# Both generations of control groups are read, also side by side (the hybrid set-up), because in a
# container ``/proc/meminfo`` describes the whole machine. File formats: ``man 5 proc``, ``man 7
# cgroups``, and the kernel's admin-guide, ``cgroup-v1/memory`` and ``cgroup-v2``.
_CGROUP_MOUNT = PurePosixPath("/sys/fs/cgroup")


class MemoryLimits(Struct, frozen=True):
    """Memory in bytes; ``available_bytes`` <= ``limit_bytes`` <= ``total_bytes``.

    ``total_bytes``: of the machine. ``limit_bytes``: the memory that control groups allow for all
    processes in the groups of this process. ``available_bytes``: how much of ``limit_bytes`` is
    available now without swapping; page cache counts as available, because the kernel can drop it.
    """

    total_bytes: int
    limit_bytes: int
    available_bytes: int


class _Generation(Struct, frozen=True):
    """The files and keys of one generation of control groups that are read here."""

    limits: tuple[str, ...]  # files with a limit each; the smallest counts
    usage: str
    file_cache: tuple[str, ...]  # keys of memory.stat
    inherited_limit: str  # key of memory.stat: the smallest limit above, seen or not


_V1 = _Generation(
    limits=("memory.limit_in_bytes",),
    usage="memory.usage_in_bytes",
    file_cache=("total_inactive_file", "total_active_file"),
    inherited_limit="hierarchical_memory_limit",
)
_V2 = _Generation(
    limits=("memory.max", "memory.high"),  # beyond `high` a process is slowed down to a crawl
    usage="memory.current",
    file_cache=("inactive_file", "active_file"),
    inherited_limit="",
)


def usable_memory_bytes(
    proc_root: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")
) -> MemoryLimits:
    """The memory that this process may use now (see :class:`MemoryLimits`).

    The two directories are parameters for tests. ``StorageError`` if ``proc_root`` has no readable
    ``meminfo``; a missing file of control groups means that there is no such limit.
    """
    total, available = _machine_memory(proc_root / "meminfo")
    limit = total
    for generation, directory in _groups(proc_root, cgroup_root):
        group_limit = _group_limit(generation, directory)
        if group_limit < total:
            limit = min(limit, group_limit)
            in_use = _group_use(generation, directory)
            available = min(available, max(0, group_limit - in_use))
    return MemoryLimits(total, limit, min(available, limit))


def process_memory_bytes(proc_root: Path = Path("/proc")) -> int:
    """Memory of this process that the kernel cannot drop, in bytes; 0 if it is not reported."""
    fields = _text_of(proc_root / "self" / "statm").split()
    if len(fields) < 3:
        return 0
    resident, shared = int(fields[1]), int(fields[2])  # in pages; shared pages are those of files
    return max(0, resident - shared) * resource.getpagesize()


def _machine_memory(meminfo: Path) -> tuple[int, int]:
    """Total and available memory of the machine in bytes."""
    try:
        text = meminfo.read_text()
    except OSError as error:
        raise StorageError(f"cannot read how much memory there is: {error}") from error
    sizes = {key: int(size) << 10 for key, size in re.findall(r"(?m)^(\w+): +(\d+) kB", text)}
    if "MemTotal" not in sizes:
        raise StorageError(f"cannot read how much memory there is: no MemTotal in {meminfo}")
    # Kernels before 3.14 do not report available memory; free memory and page cache are close to
    # it.
    guess = sizes.get("MemFree", 0) + sizes.get("Buffers", 0) + sizes.get("Cached", 0)
    return sizes["MemTotal"], min(sizes["MemTotal"], sizes.get("MemAvailable", guess))


def _groups(proc_root: Path, cgroup_root: Path) -> Iterator[tuple[_Generation, Path]]:
    """The directories of all memory groups that this process is in, from its own to the root."""
    paths = _group_paths(_text_of(proc_root / "self" / "cgroup"))
    for generation, root, point in _group_mounts(_text_of(proc_root / "self" / "mountinfo")):
        if generation not in paths:
            continue
        top = Path(point)
        if point.is_relative_to(_CGROUP_MOUNT):
            top = cgroup_root / point.relative_to(_CGROUP_MOUNT)
        directory = top / _below(root, paths[generation])
        while directory != top:
            if directory.is_dir():  # else only the host's view of the tree has it
                yield generation, directory
            directory = directory.parent
        yield generation, top


def _group_paths(text: str) -> dict[_Generation, str]:
    """``/proc/self/cgroup``: the path of this process in the memory tree of each generation."""
    paths = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            paths[_V1] = path
        elif number == "0" and not controllers:
            paths[_V2] = path
    return paths


def _group_mounts(text: str) -> Iterator[tuple[_Generation, str, PurePosixPath]]:
    """From ``/proc/self/mountinfo``: for each version of cgroups, the mounted part of its tree for
    memory, and where this part is mounted.

    A line is ``id parent dev root point options [tags...] - type source super-options``.
    """
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        places, kind = left.split(), right.split()
        if not separator or len(places) < 6 or len(kind) < 3:
            continue
        root, point = (_unescaped(place) for place in places[3:5])
        if kind[0] == "cgroup" and "memory" in kind[2].split(","):
            yield _V1, root, PurePosixPath(point)
        elif kind[0] == "cgroup2":
            yield _V2, root, PurePosixPath(point)


def _below(mount_root: str, path: str) -> str:
    """The group ``path`` relative to the mount, or "" where the mount does not show it."""
    group = PurePosixPath(path)
    # A path through .. lies outside of the namespace that this process sees.
    if ".." in group.parts or not group.is_relative_to(mount_root):
        return ""
    return str(group.relative_to(mount_root))


def _group_limit(generation: _Generation, directory: Path) -> int:
    """The smallest limit in the files of ``directory``, in bytes."""
    found = (_number_in(directory / name, UNLIMITED) for name in generation.limits)
    inherited = _numbers_of(directory / "memory.stat").get(generation.inherited_limit, UNLIMITED)
    return min(inherited, *found)


def _group_use(generation: _Generation, directory: Path) -> int:
    """Bytes in use in a group that the kernel cannot drop: all but the page cache of files."""
    usage = _number_in(directory / generation.usage, 0)
    numbers = _numbers_of(directory / "memory.stat")
    return usage - sum(numbers.get(key, 0) for key in generation.file_cache)


def _number_in(file: Path, otherwise: int) -> int:
    """The number in ``file``; ``otherwise`` if the file is missing or contains ``max``."""
    text = _text_of(file).strip()
    return int(text) if text.isdecimal() else otherwise


def _numbers_of(file: Path) -> dict[str, int]:
    """The ``key number`` lines of ``file``."""
    return {key: int(number) for key, number in re.findall(r"(?m)^(\w+) (\d+)$", _text_of(file))}


def _text_of(file: Path) -> str:
    """The text of ``file``, empty if it cannot be read."""
    with contextlib.suppress(OSError):
        return file.read_text(errors="surrogateescape")
    return ""


def _unescaped(place: str) -> str:
    r"""A path of mountinfo, where white space and backslashes are octal: ``\040``."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), place)


OWN_THREADS = 3
WORKER_THREADS = 2
"""Processes and threads that a coordinator and a worker need of the allowed number. With object
stores both take more threads, if the limit allows it."""
REQUESTS_MAX = 1 << 16
THREAD_BYTES = 72 << 20
"""What a thread maps: its stack, and an arena of malloc's."""
UPLOAD_SHARE = 8
PART_BYTES_MIN = 5 << 20
PART_BYTES_MAX = 64 << 20


class CodeRoom(Struct, frozen=True):
    """The workers and GPUs of this machine that user code may use. ``workers_max``: the most
    workers with processes of user code; None: all. ``gpus``: the GPUs that such processes share;
    None: dsort does not distribute GPUs."""

    workers_max: int | None = None
    gpus: tuple[str, ...] | None = None


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def workers_here(wanted: int | None) -> int:
    """How many workers to start on this machine: ``wanted``, or one per core, and at most as many
    as the limit on processes allows. The result is at least one; if not even one worker can start,
    the start reports that."""
    room = (free_processes() - OWN_THREADS) // WORKER_THREADS
    return max(min(wanted or cores(), room), 1)


def job_memory(spec: JobSpec, options: RunOptions) -> JobMemory:
    """The memory for a job whose workers have not started yet."""
    limits = usable_memory_bytes()
    # Memory that this process takes already is the coordinator's part, which is counted later.
    own_bytes = min(process_memory_bytes(), COORDINATOR_BYTES)
    most = min(limits.available_bytes + own_bytes, limits.limit_bytes)
    if options.memory_max_bytes is not None:
        most = min(most, options.memory_max_bytes)
    most = min(most, address_space_bytes())  # each process may have to map all inputs
    wanted, whole = spec.memory_limit, limits.limit_bytes
    share = int(whole * wanted.percent / 100) if isinstance(wanted, Percent) else wanted.bytes
    return JobMemory(most, min(most, share))


def store_limits(ref: BucketRef, options: RunOptions, *, workers: int = 1) -> StoreLimits:
    """The limits of the requests that each of ``workers`` makes to the store of ``ref``."""
    limits = options.settings.limits(ref)
    given = (options.bandwidth_max_bytes_per_s, limits.bandwidth_max_bytes_per_s)
    shares = [each / workers for each in given if each is not None]
    return replace(
        limits,
        bandwidth_max_bytes_per_s=min(shares, default=None),
        requests_in_flight_max=min(limits.requests_in_flight_max, _threads_max(workers)),
    )


def _threads_max(workers: int) -> int:
    """How many threads each of ``workers`` can have for requests, at least one."""
    by_count = (free_processes() - OWN_THREADS) // (2 * workers)
    by_size = address_space_bytes() // (2 * THREAD_BYTES)
    return max(min(by_count, by_size, REQUESTS_MAX), 1)


def with_part_sizes(limits: StoreLimits, memory_bytes: int, *, workers_a_node: int) -> StoreLimits:
    """``limits`` with part sizes that fit: the parts of a node take an eighth of its memory. This
    includes the spare room in the buffers of parts (``part_room``).

    If there is enough memory, large shards get large parts, because stores charge per request. If
    there is little memory, all parts are smaller, down to the minimum of S3.
    """
    a_worker = memory_bytes // (workers_a_node * UPLOAD_SHARE)
    large = replace(limits, part_bytes_max=PART_BYTES_MAX)
    if large.upload_bytes <= a_worker:
        return large
    fits = max(a_worker // limits.parts_in_flight_max, PART_BYTES_MIN)
    return replace(limits, part_bytes=min(limits.part_bytes, fits))
