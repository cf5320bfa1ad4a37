"""How payload moves, decided from sizes and from the memory that the job may really use.

``map`` (creators write slices of mapped inputs) is three times as fast as ``spill`` as long as the
inputs stay in the page cache, and fifty times slower once they do not. So it is chosen only where
they surely fit; a wrong guess the other way costs a factor of three. Where they do not fit,
``range`` reads large records where they are, if the disk does that as fast as in sequence.

Both generations of control groups are read, also side by side (the hybrid set-up), because in a
container ``/proc/meminfo`` tells of the whole machine. File formats: ``man 5 proc``,
``man 7 cgroups``, and the kernel's admin-guide, ``cgroup-v1/memory`` and ``cgroup-v2``.
"""

from __future__ import annotations

import contextlib
import re
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dsort.errors import StorageError
from dsort.pipeline.movement import Movement, MovementSizes
from dsort.sizes import format_bytes

COORDINATOR_BYTES = 48 << 20
WORKER_BYTES = 32 << 20
"""What a process takes before it holds any data: Python, NumPy, our code (measured: 34 and 19 MB of
its own; shared libraries are counted once)."""
BUFFER_BYTES_MIN = 8 << 20
BUFFER_BYTES_MAX = 4 << 30
PARTITIONS_MAX = 4096
PARTITIONS_A_WORKER = 16
MAP_PARTITION_BYTES = 256 << 20
PARTITIONS_A_BUFFER = 2
"""A partition of few large records varies much in size: half a buffer is planned for it."""
PARTITION_BYTES_MIN = 1 << 20
SHORT_PARTITION_BYTES = 32 << 20
"""The most in a partition where records may be short: half a million lines of 66 bytes, whose
columns take some 50 MB while they are ordered, and stay in the processor's cache in part."""
MAP_SHARE = 0.5
"""Inputs may take this share of the usable memory under ``map``: outputs are written through the
same page cache, and the index needs room too."""
BUFFER_SHARE = 0.75
"""The share of a worker's memory that is its payload buffer; the rest is index columns, and dirty
pages on their way to the disk."""


class NotMappableError(ValueError):
    """``map`` or ``range`` was asked for, but the inputs cannot be read so."""


class TooLittleMemoryError(ValueError):
    """The memory given cannot hold the smallest working set."""


@dataclass(frozen=True, slots=True)
class JobMemory:
    """What a whole job may use on this node, in bytes.

    ``most_bytes``: the smaller of what can be had in this container and the user's
    ``memory_max_bytes``. ``wanted_bytes``: what the spec asks for of that.
    """

    most_bytes: int
    wanted_bytes: int


def choose_movement(
    *,
    input_bytes: int,
    mappable: bool,
    encoded: bool = False,
    unmappable: str = "",
    no_range: str = "",
    range_suits: Callable[[], str] = lambda: "",
    memory_bytes: int,
    workers: int,
    nodes: int = 1,
    upload_bytes: int = 0,
    table_bytes: int = 0,
    short_records: bool = False,
    turns_a_buffer: int = PARTITIONS_A_BUFFER,
    forced: str = "auto",
) -> Movement:
    """Choose how payload moves.

    ``input_bytes``: of all inputs as they move; where some are ``encoded``, about what they decode
    to. ``unmappable``: why they are not ``mappable``, in words; ``no_range``: why they cannot be
    read by range, "" if they can. ``range_suits``: asked where that matters, why it is better to
    read by range than to spill, "" if it is not.
    ``memory_bytes`` is what the whole job may use on one node, and ``workers`` are spread over
    ``nodes``. ``upload_bytes``, ``table_bytes``: what each worker needs besides its buffer, for
    uploads, and for the table of an input shard.
    ``short_records``: records may be so short that their columns weigh as much.
    ``turns_a_buffer``: a partition is planned at one of so many parts of a buffer.
    """
    room_bytes = memory_bytes - -(-workers // nodes) * table_bytes
    fits = mappable and not encoded and input_bytes <= room_bytes * MAP_SHARE
    suited = "" if fits or no_range or forced != "auto" else range_suits()
    kind = "map" if fits else "range" if suited else "spill"
    if forced != "auto":
        _refuse_forced(forced, mappable=mappable, encoded=encoded, no_range=no_range)
        kind = forced
    more_bytes = upload_bytes + table_bytes
    a_node, buffer_bytes = _buffers(memory_bytes, -(-workers // nodes), more_bytes)
    workers = min(workers, a_node * nodes)
    reason = f"asked for: {forced}"
    if forced == "auto":
        why = "" if mappable and not encoded else unmappable
        reason = _reason(kind, input_bytes, memory_bytes, suited, why, encoded=encoded)
    scratch_bytes = input_bytes // 20
    if kind == "spill":
        scratch_bytes += input_bytes
        partitions = _spilled_partitions(
            input_bytes, buffer_bytes, workers, turns_a_buffer, short_records=short_records
        )
    else:
        # Ordering runs one partition a task and holds its index: at least as many as workers, and
        # more as the data grows, so that a worker's memory does not.
        most_bytes = SHORT_PARTITION_BYTES if short_records else MAP_PARTITION_BYTES
        partitions = min(max(input_bytes // most_bytes, workers), PARTITIONS_MAX)
    own_bytes, cached_bytes = WORKER_BYTES + more_bytes, int(input_bytes / MAP_SHARE)
    if kind != "map":
        own_bytes += int(min(buffer_bytes, max(input_bytes, BUFFER_BYTES_MIN)) / BUFFER_SHARE)
        cached_bytes = 0
    needed_bytes = COORDINATOR_BYTES + -(-workers // nodes) * own_bytes + cached_bytes
    return Movement(
        kind=kind,
        reason=reason,
        workers=workers,
        partitions=partitions,
        buffer_bytes=buffer_bytes,
        sizes=MovementSizes(memory_bytes, needed_bytes, scratch_bytes, input_bytes, encoded),
    )


def _reason(
    kind: str, input_bytes: int, memory_bytes: int, suited: str, unmappable: str, *, encoded: bool
) -> str:
    """Why payload moves so, in words."""
    size, memory = format_bytes(input_bytes), format_bytes(memory_bytes)
    if encoded:
        unmappable = f"the inputs are compressed: they are decoded once, to about {size}"
    if kind == "map":
        return f"{size} of inputs fit twice in the {memory} that the job may use"
    too_large = f"{size} of inputs do not fit twice in the {memory} that the job may use"
    if kind == "range":
        return suited if unmappable else f"{too_large}: {suited}"
    return unmappable or too_large


def _spilled_partitions(
    input_bytes: int, buffer_bytes: int, workers: int, turns_a_buffer: int, *, short_records: bool
) -> int:
    """Several for each worker, for a partition that two workers share is read twice."""
    enough = min(workers * PARTITIONS_A_WORKER, input_bytes // PARTITION_BYTES_MIN)
    if short_records:
        enough = max(enough, input_bytes // SHORT_PARTITION_BYTES)
    fit = -(-input_bytes * turns_a_buffer // buffer_bytes)
    return min(max(fit, enough, workers), PARTITIONS_MAX)


def _refuse_forced(kind: str, *, mappable: bool, encoded: bool, no_range: str) -> None:
    """``NotMappableError`` for a movement that cannot be."""
    if kind == "map" and encoded:
        raise NotMappableError("the inputs cannot be mapped: they are compressed")
    if kind == "map" and not mappable:
        raise NotMappableError("the inputs cannot be mapped: they are not files of this machine")
    if kind == "range" and no_range:
        raise NotMappableError(f"records cannot be read by range: {no_range}")


def least_memory_bytes(upload_bytes: int = 0) -> int:
    """What the smallest working set takes on a node: a coordinator, and a worker with the smallest
    buffer. ``upload_bytes``: what it needs besides, for uploads and tables."""
    return COORDINATOR_BYTES + _least_worker_bytes(upload_bytes)


def workers_that_fit(memory_bytes: int, workers: int) -> int:
    """How many of ``workers`` have room in ``memory_bytes`` beside a coordinator; at least one."""
    fit = (memory_bytes - COORDINATOR_BYTES) // _least_worker_bytes(0)
    return max(1, min(workers, fit))


def _least_worker_bytes(upload_bytes: int) -> int:
    return WORKER_BYTES + upload_bytes + int(BUFFER_BYTES_MIN / BUFFER_SHARE) + 1


def _buffers(memory_bytes: int, workers: int, upload_bytes: int) -> tuple[int, int]:
    """(workers that fit, payload buffer of each): fewer workers rather than tiny buffers."""
    for count in range(workers, 0, -1):
        share = (memory_bytes - COORDINATOR_BYTES) // count - WORKER_BYTES - upload_bytes
        buffer_bytes = int(share * BUFFER_SHARE)
        if buffer_bytes >= BUFFER_BYTES_MIN:
            return count, min(buffer_bytes, BUFFER_BYTES_MAX) & ~0xFFF
    needed = least_memory_bytes(upload_bytes)
    raise TooLittleMemoryError(
        f"{memory_bytes >> 20} MiB of memory are too little; a job needs {-(-needed >> 20)} MiB"
    )


_CGROUP_MOUNT = PurePosixPath("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Memory in bytes; ``available_bytes`` <= ``limit_bytes`` <= ``total_bytes``.

    ``total_bytes``: of the machine. ``limit_bytes``: what control groups leave of it to this
    process and those that share its groups. ``available_bytes``: what of that can be had now
    without swapping; page cache counts as available, since it gives way.
    """

    total_bytes: int
    limit_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class _Generation:
    """Where one generation of control groups keeps what matters here."""

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


@dataclass(frozen=True, slots=True)
class _Mount:
    """One line of mountinfo about control groups: ``root`` is what of the tree is mounted."""

    generation: _Generation
    root: str
    point: str


def usable_memory_bytes(
    proc_root: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")
) -> MemoryLimits:
    """What this process may use now (see :class:`MemoryLimits`).

    The two directories are parameters for tests. ``StorageError`` if ``proc_root`` has no
    readable ``meminfo``; what is missing of control groups means that there is no such limit.
    """
    total, available = _machine_memory(proc_root / "meminfo")
    limit = total
    for generation, directory in _groups(proc_root, cgroup_root):
        group_limit = _group_limit(generation, directory)
        if group_limit is not None and group_limit < total:
            limit = min(limit, group_limit)
            in_use = _group_use(generation, directory)
            available = min(available, max(0, group_limit - in_use))
    return MemoryLimits(total, limit, min(available, limit))


def process_memory_bytes(proc_root: Path = Path("/proc")) -> int:
    """What this process holds of memory that would not give way; 0 if that is not reported."""
    fields = _text_of(proc_root / "self" / "statm").split()
    if len(fields) < 3:
        return 0
    resident, shared = int(fields[1]), int(fields[2])  # pages; shared are those of files
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
    # Kernels before 3.14 do not tell what is available; free memory and page cache come close.
    guess = sizes.get("MemFree", 0) + sizes.get("Buffers", 0) + sizes.get("Cached", 0)
    return sizes["MemTotal"], min(sizes["MemTotal"], sizes.get("MemAvailable", guess))


def _groups(proc_root: Path, cgroup_root: Path) -> Iterator[tuple[_Generation, Path]]:
    """The directories of all memory groups that this process is in, from its own to the root."""
    paths = _group_paths(_text_of(proc_root / "self" / "cgroup"))
    for mount in _group_mounts(_text_of(proc_root / "self" / "mountinfo")):
        path = paths.get(mount.generation)
        point = PurePosixPath(mount.point)
        if path is None:
            continue
        top = Path(point)
        if point.is_relative_to(_CGROUP_MOUNT):
            top = cgroup_root / point.relative_to(_CGROUP_MOUNT)
        directory = top / _below(mount.root, path)
        while directory != top:
            if directory.is_dir():  # else a name that only the host's view of the tree has
                yield mount.generation, directory
            directory = directory.parent
        yield mount.generation, top


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


def _group_mounts(text: str) -> Iterator[_Mount]:
    """``/proc/self/mountinfo``: where the memory tree of each generation is mounted.

    A line is ``id parent dev root point options [tags...] - type source super-options``.
    """
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        places, kind = left.split(), right.split()
        if not separator or len(places) < 6 or len(kind) < 3:
            continue
        root, point = (_unescaped(place) for place in places[3:5])
        if kind[0] == "cgroup" and "memory" in kind[2].split(","):
            yield _Mount(_V1, root, point)
        elif kind[0] == "cgroup2":
            yield _Mount(_V2, root, point)


def _below(mount_root: str, path: str) -> str:
    """The group ``path`` relative to the mount, or "" where the mount does not show it."""
    group = PurePosixPath(path)
    # A path through .. lies outside of the namespace that this process sees.
    if ".." in group.parts or not group.is_relative_to(mount_root):
        return ""
    return str(group.relative_to(mount_root))


def _group_limit(generation: _Generation, directory: Path) -> int | None:
    """The smallest limit that ``directory`` tells of, in bytes; None if there is none."""
    found = [_number_in(directory / name) for name in generation.limits]
    found.append(_numbers_of(directory / "memory.stat").get(generation.inherited_limit))
    return min((number for number in found if number is not None), default=None)


def _group_use(generation: _Generation, directory: Path) -> int:
    """Bytes in use in a group that would not give way: all but the page cache of files."""
    usage = _number_in(directory / generation.usage) or 0
    numbers = _numbers_of(directory / "memory.stat")
    return usage - sum(numbers.get(key, 0) for key in generation.file_cache)


def _number_in(file: Path) -> int | None:
    """The number in ``file``; None if it is not there or says ``max``."""
    text = _text_of(file).strip()
    return int(text) if text.isdecimal() else None


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
