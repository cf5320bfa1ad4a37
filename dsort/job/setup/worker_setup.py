"""Set up a job's workers: their movement of payload, their rules, their scratch and its room."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

from msgspec.structs import replace

from dsort.containers.codecs.decoding import WINDOW_BYTES_MIN
from dsort.errors import SpecError, SpecProblem, StorageError, StorageFullError
from dsort.job.job import Job
from dsort.job.plan import input_schema
from dsort.job.setup.inputs import first_objects
from dsort.job.setup.probes import (
    NO_TABLE,
    decoded_bytes,
    headers_are_far_apart,
    largest_table,
    range_suits,
)
from dsort.job.setup.resources import store_limits, with_part_sizes
from dsort.log_lines import level_in_force, logger_of
from dsort.loose_files.bucket import FilesBucket
from dsort.pipeline.movement import (
    MAP_SHARE,
    PARTITIONS_A_BUFFER,
    PARTITIONS_MAX,
    Load,
    Movement,
    NotMappableError,
    TooLittleMemoryError,
    choose_movement,
    least_memory_bytes,
)
from dsort.pipeline.pipeline import Pipeline
from dsort.results.layout import scratch_name, staged_prefix
from dsort.scratch.requests import FreeBytes
from dsort.sizes import format_bytes
from dsort.storage.bucket import ObjectInfo
from dsort.storage.limit import StoreLimits
from dsort.storage.ref import BucketRef
from dsort.storage.routed import bucket_named, parted
from dsort.workers.encoder import ENCODING_BYTES
from dsort.workers.tasks import Attempt, CodeShare, WorkerSetup

WORKERS_PER_ATTEMPT = 1_000_000
OUTPUT_PARTITIONS_MAX = 1024
"""The most partitions that are made for the sake of several outputs; each partition is a file of
each worker."""
TABLE_BYTES = 96 << 20
"""Memory that a worker needs in addition once it has loaded pyarrow and written with it."""
USER_CODE_BYTES = 64 << 20
"""Memory that a worker needs in addition for the process of a step and the frames sent to and from
it. The memory of the user's code is unknown."""
TABLE_TURNS_A_BUFFER = 4
"""A partition of rows has to fit in a third of a buffer: if it does not, its blocks are read again
for each turn over it."""
PAST_CACHE_FACTOR = 2
"""Scratch of more than this many times the memory is read past the page cache. Of smaller scratch,
the page cache keeps a part: with 1.2 GB of memory, it kept half of 1.1 GB."""
SCRATCH_SHARE = 8
"""Scratch of at most one part in this many of the memory stays in memory until it is removed: the
kernel alone would begin to write scratch when a tenth of the free memory is dirty, or after 30
s."""

log = logger_of("job")


def movement_for(job: Job) -> Movement:
    """How the job moves payload. ``SpecError`` if the memory that it may use does not suffice."""
    mappable = all(bucket.local_path(name) for bucket, name in first_objects(job))
    uploads = _upload_bytes(job)
    decoded = decoded_bytes(job)
    is_table = job.pipeline.reads_rows or job.pipeline.carrier.is_columnar
    input_bytes, values_stay = bytes_to_move(job, decoded.estimate_bytes), False
    if is_table:
        from dsort.job.setup.tables import expanded_bytes  # the readers of tables

        values_stay = mappable and input_bytes <= job.found.memory.wanted_bytes * MAP_SHARE
        values_stay = values_stay and job.options.move == "auto"
        mappable = False
        uploads += TABLE_BYTES
        input_bytes = max(input_bytes, job.stop.wait_for(lambda: expanded_bytes(job)))
    elif job.pipeline.writes_rows:
        uploads += TABLE_BYTES
    if job.pipeline.makes_records:
        mappable = values_stay = False
        uploads += USER_CODE_BYTES
    if decoded.are_encoded:
        uploads += WINDOW_BYTES_MIN
    if job.pipeline.encodes:
        uploads += ENCODING_BYTES
    memory_bytes, forced = job.found.memory.wanted_bytes, job.options.move
    short, table = any(each.has_short_records for each in job.pipeline.reading.containers), NO_TABLE
    if short:
        table = job.stop.wait_for(lambda: largest_table(job, memory_bytes))
    least = least_memory_bytes(uploads + table.size_bytes)
    if memory_bytes < least <= job.found.memory.most_bytes:
        # AIStore's users write "1KB" only to have records go through the disk.
        job.reporter.warn(
            "max_mem_usage",
            f"max_mem_usage {job.spec.max_mem_usage} is less than any job needs: this job uses "
            f"the least memory, {-(-least >> 20)} MiB, and moves records through the disk",
        )
        memory_bytes, forced = least, "spill" if forced == "auto" else forced
    try:
        load = Load(
            input_bytes=input_bytes,
            memory_bytes=memory_bytes,
            workers=job.runtime.workers_max(),
            nodes=job.runtime.nodes(),
            unmappable=_why_unmappable(job, mappable=mappable, is_table=is_table),
            encoded=decoded.are_encoded,
            no_range=_why_no_range(job, encoded=decoded.are_encoded),
            range_suits=lambda: _range_suits(job, input_bytes),
            upload_bytes=uploads,
            table_bytes=table.size_bytes,
            short_records=short,
            turns_a_buffer=TABLE_TURNS_A_BUFFER if is_table else PARTITIONS_A_BUFFER,
        )
        chosen = choose_movement(load, forced, only=job.pipeline.result.way)
        return _settled(job, chosen, values_stay=values_stay)
    except TooLittleMemoryError as problem:
        hint = (
            "no movement needs less: give the job more memory (--max-memory, ulimit -v), or end "
            "other programs"
        )
        if table.records:
            hint = f"{table.why}; or give the job more memory (--max-memory)"
        raise SpecError([SpecProblem("max_mem_usage", str(problem), hint)]) from None
    except NotMappableError as problem:
        raise SpecError([SpecProblem("", str(problem), problem.hint)]) from None


def _settled(job: Job, chosen: Movement, *, values_stay: bool) -> Movement:
    """``chosen``, completed with the fields that depend on more than sizes."""
    scratch_bytes = chosen.sizes.scratch_bytes
    room_bytes = chosen.sizes.memory_bytes * job.runtime.nodes()
    return replace(
        chosen,
        values_stay=values_stay,
        partitions=_partitions(job, chosen),
        hops=_may_hop(job, chosen) and job.stop.wait_for(lambda: headers_are_far_apart(job)),
        to_disk=scratch_bytes * SCRATCH_SHARE > room_bytes,
        past_cache=scratch_bytes > room_bytes * PAST_CACHE_FACTOR,
    )


def _may_hop(job: Job, chosen: Movement) -> bool:
    """Whether headers can be read without the payload between them."""
    containers = {*job.pipeline.reading.containers, job.pipeline.carrier}
    hops = len(containers) == 1 and bool(job.pipeline.carrier.hops)
    return chosen.way.reads_ranges and hops and not job.pipeline.compared


def _why_unmappable(job: Job, *, mappable: bool, is_table: bool) -> str:
    """Why records go through the disk, however small they are; "" if they need not."""
    if job.pipeline.makes_records:
        return "steps make records, which go through the disk"
    if is_table:
        return "rows are taken from tables and written anew, which goes through the disk"
    if job.pipeline.reading.makes_shards:
        return "records are made of loose files, each opened once, which goes through the disk"
    return "" if mappable else "the inputs are no files of this machine: each is read once"


def _range_suits(job: Job, input_bytes: int) -> str:
    """Why reading by range suits the job, "" if it does not. This is called only for jobs whose
    inputs do not fit in memory, or are in stores."""
    nodes = job.runtime.nodes()
    to_disk = input_bytes * SCRATCH_SHARE > job.found.memory.wanted_bytes * nodes
    has_scratch = nodes > 1 or scratch_free(scratch_place(job, dry=False)) >= input_bytes
    if not (
        to_disk
        or not has_scratch
        or any(each.ref.is_directory for each in job.buckets.input_places)
    ):
        return ""  # a request for each header would cost more
    return job.stop.wait_for(
        lambda: range_suits(job, spill_to_disk=to_disk, has_scratch=has_scratch)
    )


def scratch_free(place: Path) -> int:
    """The free bytes in the file system of ``place``, which need not exist yet."""
    while not place.is_dir():
        place = place.parent
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def _why_no_range(job: Job, *, encoded: bool) -> str:
    """Why the job cannot read records by range while it writes; "" if it can."""
    pipeline = job.pipeline
    containers = {*pipeline.reading.containers, pipeline.carrier}
    if pipeline.makes_records or pipeline.reading.makes_shards:
        return "records are made on the way, and are in no input as they are written"
    found = first_objects(job)
    files = [bucket.local_path(name) for bucket, name in found]
    stored = [bucket.pinned(ObjectInfo(name, 0, 0, "")) for bucket, name in found]
    if not (all(files) or all(stored)):
        return "some inputs are files of this machine, and some are not"
    if len(containers) > 1 or not pipeline.carrier.hops:
        return "all inputs and outputs have to be tars"
    if pipeline.has_late_outputs:
        return "outputs are converted as they are written"
    if encoded or pipeline.result.hashes_content or pipeline.compared:
        return "the job reads all payload before it writes any"
    return ""


def _partitions(job: Job, chosen: Movement) -> int:
    """The number of partitions for this job's outputs and steps."""
    if job.pipeline.makes_records and not job.pipeline.division:
        in_one = chosen.sizes.payload_bytes * PARTITIONS_A_BUFFER <= chosen.buffer_bytes
        # Ordering less than a buffer on one worker costs little. More partitions need a survey of
        # where they begin, which runs the user's code once more.
        if in_one and not job.pipeline.is_spread_evenly:
            return 1
    return _with_outputs(job.pipeline, chosen.partitions)


def _with_outputs(pipeline: Pipeline, partitions: int) -> int:
    """The number of partitions if each of several outputs has its own. Each output has as many as a
    single output would have, up to limits: conditions may send nearly all records to one output."""
    division = pipeline.division
    if not division or not pipeline.algorithm.is_spread_evenly:
        return partitions
    outputs = len(division.names)
    if division.conditions:
        partitions = max(min(partitions * outputs, OUTPUT_PARTITIONS_MAX), 2 * partitions)
    return min(partitions + outputs, PARTITIONS_MAX)


def check_directories(job: Job, *, dry: bool) -> None:
    """``StorageError`` if a node does not see a directory that its workers need. A file that is
    written there shows it."""
    lost: dict[str, None] = {}
    read = job.buckets.inputs
    first = read.first_files() if isinstance(read, FilesBucket) else first_objects(job)
    buckets = [("input", bucket, name) for bucket, name in first]
    token = f"{staged_prefix(job.job_id)}here"
    for place in () if dry else job.buckets.output_places:
        if place.ref.is_directory:
            bucket = bucket_named(job.buckets.outputs, place.name)
            bucket.stage(token).close()
            buckets.append(("output", bucket, token))
    for role, bucket, name in buckets:
        path = bucket.local_path(name)
        if not path:
            continue
        try:
            lost |= dict.fromkeys(
                job.runtime.check_directory(str(path).removesuffix(f"/{name}"), name)
            )
        except StorageError as error:
            raise StorageError(
                f"the {role} bucket {bucket.uri}: {error.message}", hint=error.hint
            ) from None
    for node in lost:
        job.reporter.warn("node_lost", f"node {node} is lost: the job begins without it")


def start_workers(job: Job, *, dry: bool) -> None:
    """Start the job's workers, for the movement that was chosen."""
    movement = job.found.movement
    log.debug(
        "records move by %s (%s): %d workers, %d partitions, buffers of %d bytes",
        *(movement.way.name, movement.reason, movement.workers, movement.partitions),
        movement.buffer_bytes,
    )
    before = job.attempt.before
    job.found.scratch = str(scratch_place(job, dry=dry))
    extractors = min(movement.workers, job.extractors_max or movement.workers)
    setup = WorkerSetup(
        job_id=job.job_id,
        pipeline=job.pipeline.with_schema(input_schema(job)),
        movement=movement,
        inputs=tuple(
            replace(place, limits=store_limits(place.ref, job.options, workers=movement.workers))
            for place in job.buckets.input_places
        ),
        outputs=tuple(
            replace(place, limits=output_limits(job, place.ref, workers=movement.workers))
            for place in job.buckets.output_places
        ),
        output_uri=job.buckets.outputs.uri,
        root=str(job.options.root.absolute()),
        scratch=job.found.scratch,
        attempt=Attempt(
            number=job.attempt.lease.attempt,
            # Above all numbers of earlier attempts, including workers that never finished a task.
            first_worker=max(before.worker_last + 1, before.attempts * WORKERS_PER_ATTEMPT),
            scratch_before=tuple(sorted({facts.node for facts in before.extracted.values()})),
        ),
        code=CodeShare(extractors, job.found.code_room.gpus),
        fetch=job.options.fetch,
        log_level=level_in_force(),
    )
    job.runtime.start(setup, movement.workers)


def _upload_bytes(job: Job) -> int:
    """The memory that a worker needs for its uploads, which go to one bucket at a time."""
    return max(
        output_limits(job, place.ref).upload_bytes
        if bucket_named(job.buckets.outputs, place.name).seals_on_finish
        else 0
        for place in job.buckets.output_places
    )


def output_limits(job: Job, ref: BucketRef, *, workers: int = 1) -> StoreLimits:
    """The limits of each of ``workers`` for its uploads to a bucket."""
    return with_part_sizes(
        store_limits(ref, job.options, workers=workers),
        job.found.memory.wanted_bytes,
        workers_a_node=-(-job.runtime.workers_max() // job.runtime.nodes()),
    )


def scratch_place(job: Job, *, dry: bool) -> Path:
    """The directory for scratch; on a cluster, each node has a directory of its own in it. A bucket
    that a client on the network named never gets scratch."""
    base = job.options.scratch
    if not base and not dry and not job.options.fetch and job.runtime.nodes() == 1:
        beside = job.buckets.outputs.local_path("x")
        if beside:
            return (beside.parent / scratch_name(job.job_id)).absolute()
    import tempfile  # jobs whose outputs are files of this machine need no other place

    return (base or Path(tempfile.gettempdir())).absolute() / f"dsort-{job.job_id}"


def check_free_space(job: Job, total_bytes: int, *, dry: bool) -> None:
    """``StorageFullError`` unless there is room for scratch, and for outputs as large as the
    inputs, which have ``total_bytes``."""
    if job.attempt.before.extracted or job.attempt.before.created:
        return  # a part of the room is taken by existing files
    scratch_bytes = job.found.movement.sizes.scratch_bytes
    scratch_free = sum(free for free, _ in _free_scratch(job))
    if dry and not job.pipeline.measures_encoded:  # index files only
        scratch_bytes = total_bytes // 20 if job.found.movement.way.spills else scratch_bytes
        _need(scratch_free, scratch_bytes, "scratch")
        return
    shares_disk = not dry and _shares_disk(job)
    if not dry:
        beside = scratch_bytes if shares_disk else 0
        _need_for_outputs(job, _outputs_bytes(job, total_bytes), beside=beside)
    if not shares_disk:
        _need(scratch_free, scratch_bytes, "scratch")


def bytes_to_move(job: Job, total_bytes: int) -> int:
    """About how many bytes the output records have, for inputs of ``total_bytes``. It is at least
    ``total_bytes``, and exactly that if only a pass over the inputs would show more."""
    there, mix = sum(shard.size_bytes for shard in job.inputs), job.pipeline.mix
    if not mix or mix.is_counted or not there:
        return total_bytes
    pairs = zip(mix.names, mix.weights, strict=True)
    weights = {name: max(weight, Fraction(1)) for name, weight in pairs}
    weighed = sum(shard.size_bytes * weights[parted(shard.name)[0]] for shard in job.inputs)
    return int(total_bytes * weighed / there)


def check_output_space(job: Job, total_bytes: int) -> None:
    """``StorageFullError`` unless there is room for ``total_bytes`` of outputs, as planned. Room
    was checked for outputs as large as the inputs. Resolved hard links make outputs larger."""
    if job.attempt.is_resumed or job.pipeline.encodes:
        return  # planned sizes are those before encoding
    expected = sum(shard.size_bytes for shard in job.inputs)
    if total_bytes > expected and job.found.movement.way.moves_payload:
        # Spilled data is removed as outputs are written.
        spilled = job.found.movement.sizes.scratch_bytes if _shares_disk(job) else 0
        _need_for_outputs(job, total_bytes, beside=-spilled)


def _need_for_outputs(job: Job, needed: int, *, beside: int) -> None:
    """``StorageFullError`` if a bucket has no room for its share of ``needed``, as far as its free
    space is known. The main bucket needs ``beside`` bytes more."""
    division = job.pipeline.division
    shares = {place.name: 0.0 for place in job.buckets.output_places} if division else {"": 1.0}
    if division.fractions:
        for target, fraction in zip(job.pipeline.targets, division.fractions, strict=True):
            shares[target.place] += fraction
    elif len(shares) == 1:
        shares[""] = 1.0
    for place, share in shares.items():
        bucket = bucket_named(job.buckets.outputs, place)
        free = bucket.free_bytes()
        if free is not None:
            own = int(needed * share) + (0 if place else beside)
            _need(free, own, f"the output bucket {bucket.uri}")


def _outputs_bytes(job: Job, total_bytes: int) -> int:
    """About how many bytes the outputs take, for inputs of ``total_bytes``."""
    if not job.found.movement.way.moves_payload:
        return 0
    encoded = job.found.movement.sizes.encoded_inputs
    if job.pipeline.encodes:
        return total_bytes if encoded else 0  # how much plain inputs shrink is not known
    return job.found.movement.sizes.payload_bytes if encoded else total_bytes


def _shares_disk(job: Job) -> bool:
    """Whether scratch and the outputs are on one file system."""
    scratch = _free_scratch(job)
    output = job.buckets.outputs.local_path("x")
    device = output.parent.stat().st_dev if output else None
    return len(scratch) == 1 and scratch[0][1] == device


def _free_scratch(job: Job) -> list[tuple[int, int]]:
    """(free bytes, device) of each scratch node."""
    return [job.runtime.ask(node, FreeBytes()) for node in job.runtime.scratch_nodes()]


def _need(free: int, needed: int, where: str) -> None:
    if free < needed:
        raise StorageFullError(
            f"{where} has {format_bytes(free)} free, the job needs about {format_bytes(needed)}",
            hint="make room, or put scratch on another file system: --scratch",
        )
