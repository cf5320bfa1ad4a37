"""From a spec to a job: its id, its memory, its rules, its key map. Everything decided once."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import replace

from dsort.data.tally import SAMPLES_MAX, Tally
from dsort.errors import KeyMapError
from dsort.job.memory import COORDINATOR_BYTES, JobMemory, process_memory_bytes, usable_memory_bytes
from dsort.job.output_names import OutputNames
from dsort.keymap.fetch import read_keymap_text, shown_location
from dsort.keymap.match import KeyMap, entries_of_mapping, parse_keymap
from dsort.options import RunOptions
from dsort.sizes import Percent
from dsort.spec.model import JobSpec
from dsort.storage.limit import StoreLimits
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.process_limits import address_space_bytes, free_processes
from dsort.storage.ref import BucketRef
from dsort.workers.tasks import ReactionRules

__all__ = [
    "cores",
    "job_memory",
    "load_keymap",
    "new_job_id",
    "output_names",
    "reaction_rules",
    "store_limits",
    "with_part_sizes",
    "with_seed",
    "workers_here",
]


OWN_THREADS = 3
WORKER_THREADS = 2
"""What a coordinator and a worker take of the processes and threads that there may be; over object
stores both take more, if they get it."""
REQUESTS_MAX = 1 << 16
THREAD_BYTES = 72 << 20
"""What a thread maps: its stack, and an arena of malloc's."""
UPLOAD_SHARE = 8
PART_BYTES_MIN = 5 << 20
PART_BYTES_MAX = 64 << 20


def new_job_id() -> str:
    """An id that sorts by time and is a safe directory name: ``20260131-235959-4f2a9c``."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def workers_here(wanted: int | None) -> int:
    """How many workers to start on this machine: ``wanted``, or one a core, but no more than there
    may be processes. One at least: that there can be none is told when it is started."""
    room = free_processes()
    workers = wanted or cores()
    return workers if room is None else max(min(workers, (room - OWN_THREADS) // WORKER_THREADS), 1)


def with_seed(spec: JobSpec) -> JobSpec:
    """The spec with a seed if its order is random: one is drawn where it has none."""
    if not spec.algorithm.type.is_random or spec.algorithm.seed is not None:
        return spec
    return spec.with_seed(str(secrets.randbits(63)))


def job_memory(spec: JobSpec, options: RunOptions) -> JobMemory:
    """The memory for a job whose workers have not started yet."""
    limits = usable_memory_bytes()
    # What this process takes already is the coordinator's part, which is reckoned with later.
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
    """How much each of ``workers`` may ask of the store that ``ref`` is in."""
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
    """How many threads each of ``workers`` can have for requests, one at least."""
    room, addresses_bytes = free_processes(), address_space_bytes()
    by_count = REQUESTS_MAX if room is None else (room - OWN_THREADS) // (2 * workers)
    by_size = REQUESTS_MAX if addresses_bytes is None else addresses_bytes // (2 * THREAD_BYTES)
    return max(min(by_count, by_size), 1)


def with_part_sizes(limits: StoreLimits, memory_bytes: int, *, workers_a_node: int) -> StoreLimits:
    """``limits`` with parts that fit: all part buffers of a node take an eighth of its memory.

    Large shards get large parts where memory is plenty, for a store is paid by the request; where
    it is scarce all parts are smaller, down to the least that S3 takes.
    """
    a_worker = memory_bytes // (workers_a_node * UPLOAD_SHARE)
    large = replace(limits, part_bytes_max=PART_BYTES_MAX)
    if large.upload_bytes <= a_worker:
        return large
    fits = max(a_worker // limits.parts_in_flight_max, PART_BYTES_MIN)
    return replace(limits, part_bytes=min(limits.part_bytes, fits))


def reaction_rules(spec: JobSpec) -> ReactionRules:
    """The reactions that workers apply."""
    config = spec.config
    return ReactionRules(
        duplicated_records=config.duplicated_records,
        corrupt_shards=config.corrupt_shards,
        stray_members=config.stray_members,
        ekm_missing_key=config.ekm_missing_key,
        unsafe_names=config.unsafe_names,
        incomplete_shards=config.incomplete_shards,
        concatenated_shards=config.concatenated_shards,
        records_only=spec.index == "wids",
    )


def load_keymap(spec: JobSpec, tally: Tally, *, fetch: FetchPolicy | None = None) -> KeyMap | None:
    """The external key map of the spec, read and parsed; malformed lines are counted.

    ``fetch`` says from where it may come. ``KeyMapError`` if it cannot be had, or as the reactions
    of the spec say.
    """
    if not spec.has_key_map:
        return None
    if spec.ekm is not None:
        return KeyMap.of(entries_of_mapping(spec.ekm), spec.ekm_default)
    text = read_keymap_text(spec.ekm_file or "", policy=fetch)
    source = shown_location(spec.ekm_file or "")
    entries, malformed = parse_keymap(text, separator=spec.ekm_file_sep, source_name=source)
    if malformed:
        if spec.config.ekm_malformed_line == "abort":
            raise KeyMapError(
                f"external key map {source} has {len(malformed)} malformed lines: {malformed[0]}",
                hint="a line is a key, ekm_file_sep (a tab, if it is not set), and a template; "
                "ekm_malformed_line: warn leaves such lines out",
            )
        tally.add("ekm_malformed_line", len(malformed), map(str, malformed[:SAMPLES_MAX]))
    keymap = KeyMap.of(entries, spec.ekm_default)
    if not keymap.templates:
        raise KeyMapError(f"external key map {source} has no keys")
    return keymap


def output_names(spec: JobSpec, keymap: KeyMap | None) -> OutputNames:
    """The names of the job's output shards."""
    if keymap is None:
        return OutputNames.of([spec.output_format or ""], spec.output_extension)
    try:
        return OutputNames.of(keymap.templates, spec.names_extension)
    except ValueError as error:
        raise KeyMapError(f"a template of the external key map is none: {error}") from None
