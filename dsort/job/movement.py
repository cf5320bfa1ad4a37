"""How payload moves, decided from sizes and from the memory that the job may really use.

``map`` (creators write slices of mapped inputs) is three times as fast as ``spill`` as long as the
inputs stay in the page cache, and fifty times slower once they do not. So it is chosen only where
they surely fit; a wrong guess the other way costs a factor of three.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsort.sizes import format_bytes

__all__ = [
    "COORDINATOR_BYTES",
    "JobMemory",
    "Movement",
    "NotMappableError",
    "TooLittleMemoryError",
    "choose_movement",
    "least_memory_bytes",
    "workers_that_fit",
]

COORDINATOR_BYTES = 48 << 20
WORKER_BYTES = 32 << 20
"""What a process takes before it holds any data: Python, NumPy, our code (measured: 34 and 19 MB of
its own; shared libraries are counted once)."""
BUFFER_BYTES_MIN = 8 << 20
BUFFER_BYTES_MAX = 4 << 30
BUCKETS_MAX = 4096
BUCKETS_A_WORKER = 16
MAP_BUCKET_BYTES = 256 << 20
BUCKET_BYTES_MIN = 1 << 20
MAP_SHARE = 0.5
"""Inputs may take this share of the usable memory under ``map``: outputs are written through the
same page cache, and the index needs room too."""
BUFFER_SHARE = 0.75
"""The share of a worker's memory that is its payload buffer; the rest is index columns, and dirty
pages on their way to the disk."""


class NotMappableError(ValueError):
    """``map`` was asked for, but the inputs cannot be mapped."""


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


@dataclass(frozen=True, slots=True)
class Movement:
    """``way`` is ``map`` or ``spill``; ``reason`` says why, for people.

    ``buffer_bytes``: the one payload buffer of each worker; ``spill`` reads an input shard that
    fits in it once, and a larger one window by window, twice. ``buckets``: how many ranges of sort
    keys the records are spread over. ``memory_bytes``: what the job may use on a node;
    ``needed_bytes``: what it takes of that, with the page cache that ``map`` lives by.
    ``scratch_bytes``: room that spill and index files need.
    """

    way: str
    reason: str
    workers: int
    buckets: int
    buffer_bytes: int
    memory_bytes: int
    needed_bytes: int
    scratch_bytes: int


def choose_movement(
    *,
    input_bytes: int,
    mappable: bool,
    memory_bytes: int,
    workers: int,
    nodes: int = 1,
    upload_bytes: int = 0,
    forced: str = "auto",
) -> Movement:
    """Choose how payload moves.

    ``memory_bytes`` is what the whole job may use on one node, and ``workers`` are spread over
    ``nodes``. ``upload_bytes``: what each worker needs besides its buffer, for uploads.
    """
    fits = mappable and input_bytes <= memory_bytes * MAP_SHARE
    way = forced if forced != "auto" else ("map" if fits else "spill")
    if way == "map" and not mappable:
        raise NotMappableError("the inputs cannot be mapped: they are not files of this machine")
    a_node, buffer_bytes = _buffers(memory_bytes, -(-workers // nodes), upload_bytes)
    workers = min(workers, a_node * nodes)
    size, memory = format_bytes(input_bytes), format_bytes(memory_bytes)
    if way == "map":
        reason = f"{size} of inputs fit twice in the {memory} that the job may use"
        # Ordering runs one bucket a task and holds its index: at least as many as workers, and
        # more as the data grows, so that a worker's memory does not.
        buckets = min(max(input_bytes // MAP_BUCKET_BYTES, workers), BUCKETS_MAX)
        scratch_bytes = input_bytes // 20
    else:
        reason = f"{size} of inputs do not fit twice in the {memory} that the job may use"
        # Half a buffer a bucket: a bucket of few large records varies much in size. And several for
        # each worker, for a bucket that two workers share is read twice.
        enough = min(workers * BUCKETS_A_WORKER, input_bytes // BUCKET_BYTES_MIN)
        buckets = min(max(-(-input_bytes * 2 // buffer_bytes), enough, workers), BUCKETS_MAX)
        scratch_bytes = input_bytes + input_bytes // 20
    if forced != "auto":
        reason = f"asked for: {forced}"
    own_bytes = WORKER_BYTES + upload_bytes
    if way == "spill":
        own_bytes += int(min(buffer_bytes, max(input_bytes, BUFFER_BYTES_MIN)) / BUFFER_SHARE)
    needed_bytes = COORDINATOR_BYTES + -(-workers // nodes) * own_bytes
    return Movement(
        way=way,
        reason=reason,
        workers=workers,
        buckets=buckets,
        buffer_bytes=buffer_bytes,
        memory_bytes=memory_bytes,
        needed_bytes=needed_bytes + (int(input_bytes / MAP_SHARE) if way == "map" else 0),
        scratch_bytes=scratch_bytes,
    )


def least_memory_bytes(upload_bytes: int = 0) -> int:
    """What the smallest working set takes on a node: a coordinator, and a worker with the smallest
    buffer. ``upload_bytes`` as in :func:`choose_movement`."""
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
