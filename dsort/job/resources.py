"""What one job may take of this machine and of its stores: workers, memory, threads, requests."""

from __future__ import annotations

import os

from msgspec import Struct
from msgspec.structs import replace

from dsort.job.memory import JobMemory, process_memory_bytes, usable_memory_bytes
from dsort.options import RunOptions
from dsort.pipeline.movement import COORDINATOR_BYTES
from dsort.sizes import Percent
from dsort.spec.model import JobSpec
from dsort.storage.limit import StoreLimits
from dsort.storage.process_limits import address_space_bytes, free_processes
from dsort.storage.ref import BucketRef

OWN_THREADS = 3
WORKER_THREADS = 2
"""Processes and threads that a coordinator and a worker take of those that are allowed; over object
stores both take more, if they get it."""
REQUESTS_MAX = 1 << 16
THREAD_BYTES = 72 << 20
"""What a thread maps: its stack, and an arena of malloc's."""
UPLOAD_SHARE = 8
PART_BYTES_MIN = 5 << 20
PART_BYTES_MAX = 64 << 20


class CodeRoom(Struct, frozen=True):
    """What user code may use of this machine. ``workers_max``: the most workers with processes of
    user code; None: all. ``gpus``: the GPUs that these share; None: not distributed by dsort."""

    workers_max: int | None = None
    gpus: tuple[str, ...] | None = None


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def workers_here(wanted: int | None) -> int:
    """How many workers to start on this machine: ``wanted``, or one per core, but no more than the
    limit of processes allows. At least one: if none can be started, the start reports that."""
    room = free_processes()
    workers = wanted or cores()
    return workers if room is None else max(min(workers, (room - OWN_THREADS) // WORKER_THREADS), 1)


def job_memory(spec: JobSpec, options: RunOptions) -> JobMemory:
    """The memory for a job whose workers have not started yet."""
    limits = usable_memory_bytes()
    # Memory that this process takes already is the coordinator's part, which is counted later.
    own_bytes = min(process_memory_bytes(), COORDINATOR_BYTES)
    most = min(limits.available_bytes + own_bytes, limits.limit_bytes)
    if options.memory_max_bytes is not None:
        most = min(most, options.memory_max_bytes)
    mappable_bytes = address_space_bytes()
    if mappable_bytes is not None:  # each process may have to map all inputs
        most = min(most, mappable_bytes)
    wanted = spec.memory_limit
    if isinstance(wanted, Percent):
        return JobMemory(most, min(most, int(limits.limit_bytes * wanted.percent / 100)))
    return JobMemory(most, min(most, wanted.bytes))


def store_limits(ref: BucketRef, options: RunOptions, *, workers: int = 1) -> StoreLimits:
    """What each of ``workers`` may request of the store that ``ref`` is in."""
    limits = options.settings.limits(ref)
    given = (options.bandwidth_max_bytes_per_s, limits.bandwidth_max_bytes_per_s)
    total = min((each for each in given if each is not None), default=None)
    share = None if total is None else total / workers
    return replace(
        limits,
        bandwidth_max_bytes_per_s=share,
        requests_in_flight_max=min(limits.requests_in_flight_max, _threads_max(workers)),
    )


def _threads_max(workers: int) -> int:
    """How many threads each of ``workers`` can have for requests, at least one."""
    room, addresses_bytes = free_processes(), address_space_bytes()
    by_count = REQUESTS_MAX if room is None else (room - OWN_THREADS) // (2 * workers)
    by_size = REQUESTS_MAX if addresses_bytes is None else addresses_bytes // (2 * THREAD_BYTES)
    return max(min(by_count, by_size), 1)


def with_part_sizes(limits: StoreLimits, memory_bytes: int, *, workers_a_node: int) -> StoreLimits:
    """``limits`` with part sizes that fit: the parts of a node take an eighth of its memory, and a
    sixteenth of that is for their buffers (``part_room``).

    Large shards get large parts if memory is plenty, because stores charge per request; if it is
    scarce, all parts are smaller, down to the least that S3 takes.
    """
    a_worker = memory_bytes // (workers_a_node * UPLOAD_SHARE)
    large = replace(limits, part_bytes_max=PART_BYTES_MAX)
    if large.upload_bytes <= a_worker:
        return large
    fits = max(a_worker // limits.parts_in_flight_max, PART_BYTES_MIN)
    return replace(limits, part_bytes=min(limits.part_bytes, fits))
