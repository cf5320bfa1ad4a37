"""Probes of the inputs: whether to read by range, and estimates of decoded sizes and of tables.

Disks differ in their speed of reading out of order, the decoded size of an encoded shard is in no
reliable field, and the table of a million short lines is larger than the lines. Some megabytes are
read."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from msgspec import Struct

from dsort.containers.codecs.base import Codec
from dsort.containers.codecs.decoding import Decoding
from dsort.containers.facets import Hops
from dsort.containers.registry import codec_of
from dsort.data.records import split_name
from dsort.errors import CorruptShardError, DsortError
from dsort.job.job import Job
from dsort.moves.header_reads import HOP_BYTES, HoppedShard
from dsort.moves.input_shard import InputShard
from dsort.moves.payload_files import PayloadBuffer, RangeBuffer
from dsort.moves.range_queue import RangeQueue, RangeRead
from dsort.naming.names import archive_extension
from dsort.sizes import format_bytes
from dsort.storage.bucket import RandomReads, ReadObject
from dsort.storage.process_limits import UNLIMITED, address_space_bytes, free_processes
from dsort.storage.small_objects import read_bytes
from dsort.workers.header_reader import Peeks, header_hops

RECORD_BYTES_MIN = 32 << 10
"""Smaller records, on average, are spilled: for 8 KB, direct reads gave 223 MB/s and took 2.8
processor seconds per GiB; for 32 KB, 626 MB/s and 0.95; reads in sequence gave 530 MB/s."""
THREADS_A_WORKER = 64
HOP_RECORD_BYTES_MIN = 64 << 10
"""If records are smaller, on average, shards are read whole to find headers. For 1.1 GB of 32 KB
records, reads from header to header took 2.3 s, at 30,000 reads a second, and spill, which reads
all, 1.2 s."""
FAR_RECORD_BYTES_MIN = 4 << 20
"""In a store, a request takes as much processor time of the client as to read this many bytes, and
costs as much as a service charges for it."""
FAR_WITHOUT_SCRATCH_BYTES_MIN = 64 << 10
FAR_HEADERS = 8
SHARDS_SAMPLED = 3
HEADERS_A_SHARD_MAX = 64
PROBED_BYTES = 8 << 20
READS_MIN, READS_MAX = 16, 128
DEPTH = 32
PAGE = 4096
SEQUENTIAL_BYTES = 1 << 20
ROUNDS = 3
"""A disk is timed this many times before it counts as slow, because other programs use it, too."""
SHARE_OF_SEQUENTIAL = 0.4
"""``range`` reads once and writes once, ``spill`` does both twice: so reads in any order may take
more than twice as long and still win."""


def range_suits(job: Job, *, spill_to_disk: bool, has_scratch: bool) -> str:
    """Why reading by range is better than a spill, in words; "" if a spill is better.
    ``spill_to_disk``: whether a spill is too large to stay in memory; ``has_scratch``: whether
    scratch has room for it."""
    if are_in_stores(job):
        return _range_suits_in_store(job, spill_to_disk=spill_to_disk, has_scratch=has_scratch)
    threads = THREADS_A_WORKER * job.runtime.workers_max()
    if free_processes() < threads or address_space_bytes() < UNLIMITED:  # a thread maps megabytes
        return ""
    with contextlib.suppress(DsortError), _sampled(job) as opened:
        record_bytes = sampled_record_bytes(_hops(job), opened)
        if record_bytes >= RECORD_BYTES_MIN and _answers_quickly(opened, record_bytes):
            return f"records of about {format_bytes(record_bytes)} are read where they are"
    return ""  # the reader of a shard reports its error


def are_in_stores(job: Job) -> bool:
    """Whether each read of a range of the inputs is a request."""
    return bool(job.buckets.inputs.pinned(job.inputs[0]))


def _range_suits_in_store(job: Job, *, spill_to_disk: bool, has_scratch: bool) -> str:
    with contextlib.suppress(DsortError):
        record_bytes = _record_bytes_in_store(job)
        if record_bytes >= FAR_RECORD_BYTES_MIN and spill_to_disk:
            return f"records of about {format_bytes(record_bytes)} take a request each"
        if record_bytes >= FAR_WITHOUT_SCRATCH_BYTES_MIN and not has_scratch:
            size = format_bytes(record_bytes)
            return f"scratch has no room to spill, and records of about {size} take a request each"
    return ""


def headers_are_far_apart(job: Job) -> bool:
    """Whether going from header to header costs less than reading shards whole."""
    if are_in_stores(job):
        with contextlib.suppress(DsortError):
            return _record_bytes_in_store(job) >= FAR_RECORD_BYTES_MIN
        return False
    with contextlib.suppress(DsortError), _sampled(job) as opened:
        return sampled_record_bytes(_hops(job), opened) >= HOP_RECORD_BYTES_MIN
    return False


@contextlib.contextmanager
def _sampled(job: Job) -> Iterator[list[tuple[InputShard, RandomReads]]]:
    """Some of the inputs, open."""
    shards = [shard for shard in job.inputs if shard.size_bytes]
    step = max((len(shards) - 1) // (SHARDS_SAMPLED - 1), 1)
    with contextlib.ExitStack() as ends:
        opened: list[tuple[InputShard, RandomReads]] = []
        for shard in shards[::step][:SHARDS_SAMPLED]:
            with job.buckets.inputs.open(shard.name) as source:
                reads = source.random_reads()
            if reads:
                opened.append((shard, ends.enter_context(reads)))
        yield opened


def _record_bytes_in_store(job: Job) -> int:
    """The average size of a record, by the first headers of a shard, which takes a few requests."""
    shard = max(job.inputs, key=lambda each: each.size_bytes)
    pinned = job.buckets.inputs.pinned(shard)
    if not pinned:
        return 0
    source = HoppedShard(pinned, FAR_HEADERS * HOP_BYTES)
    records, end = _first_records(_hops(job), shard, source, FAR_HEADERS)
    return end // max(records, 1)


def _hops(job: Job) -> Hops:
    hops = job.pipeline.carrier.hops
    assert hops  # else no records are read by range
    return hops


def sampled_record_bytes(hops: Hops, shards: Sequence[tuple[InputShard, RandomReads]]) -> int:
    """The average size of a record, by the first headers of some shards; 0 if none are found."""
    total = records = 0
    for shard, reads in shards:
        own, end = _first_records(hops, shard, reads, HEADERS_A_SHARD_MAX)
        total, records = total + end, records + own
    return total // max(records, 1)


def _first_records(
    hops: Hops, shard: InputShard, reads: Peeks, headers_max: int
) -> tuple[int, int]:
    """(records, bytes) of the members with the first headers of a shard, without a member that is
    cut off."""
    records, key, end = 0, None, 0
    for hop in islice(header_hops(hops, reads, shard.size_bytes), headers_max):
        if hop.next_at > shard.size_bytes:
            break
        if hop.name and (name := split_name(hop.name)[0]) != key:
            key, records = name, records + 1
        end = hop.next_at
    return records, end


def _answers_quickly(shards: Sequence[tuple[InputShard, RandomReads]], record_bytes: int) -> bool:
    """Whether the disk reads ranges out of order about as fast as in sequence."""
    size = -(-min(record_bytes, SEQUENTIAL_BYTES) // PAGE) * PAGE
    places = [(reads, shard.size_bytes // PAGE * PAGE) for shard, reads in shards]
    places = [(reads, length) for reads, length in places if length >= SEQUENTIAL_BYTES]
    if not places:
        return False
    count = min(max(PROBED_BYTES // size, READS_MIN), READS_MAX)
    rng = random.Random(0)
    room = RangeBuffer(PayloadBuffer(PAGE + max(count * size, PROBED_BYTES)), PAGE)
    view = room.take(room.size_bytes)
    for _ in range(ROUNDS):
        some = [_begin_of_any(rng, places, size) for _ in range(count)]
        any_order_s = _time_s(some, size, view, depth=DEPTH)
        reads, length = max(places, key=lambda place: place[1])
        first = _begin_of_any(rng, [(reads, length)], run := min(length, PROBED_BYTES))[1]
        run = run // SEQUENTIAL_BYTES * SEQUENTIAL_BYTES
        follow = [(reads, first + at) for at in range(0, run, SEQUENTIAL_BYTES)]
        sequence_s = _time_s(follow, SEQUENTIAL_BYTES, view, depth=2)
        if any_order_s * run * SHARE_OF_SEQUENTIAL <= sequence_s * count * size:
            return True
    return False


def _begin_of_any(
    rng: random.Random, places: Sequence[tuple[RandomReads, int]], size_bytes: int
) -> tuple[RandomReads, int]:
    """(shard, offset) of a random range of ``size_bytes``. ``places``: shards and their lengths."""
    reads, length = rng.choice(places)
    return reads, rng.randrange((length - size_bytes) // PAGE + 1) * PAGE


def _time_s(
    begins: Sequence[tuple[RandomReads, int]], size_bytes: int, view: memoryview, *, depth: int
) -> float:
    """Seconds to read ``size_bytes`` at each of ``begins``, ``depth`` reads at a time."""
    queue = RangeQueue(depth)
    try:
        queue.begin([]).wait()  # threads take milliseconds to start
        parts = [view[at : at + size_bytes] for at in range(0, len(view), size_bytes)]
        begun = time.perf_counter()
        queue.begin(
            [
                RangeRead(reads, part, offset, size_bytes)
                for (reads, offset), part in zip(begins, parts, strict=False)
            ]
        ).wait()
        return time.perf_counter() - begun
    finally:
        queue.close()


SAMPLES = 3
SAMPLE_BYTES = 256 << 10
RATIO_GUESSED = 3.0
"""For shards that cannot be decoded at their beginning: text has about this ratio."""


class DecodedBytes(Struct, frozen=True):
    """``estimate_bytes``: all inputs, decoded. ``are_encoded``: whether any input is encoded."""

    estimate_bytes: int
    are_encoded: bool


def decoded_bytes(job: Job) -> DecodedBytes:
    """The decoded size of the inputs of a job."""
    plain = 0
    encoded: list[tuple[InputShard, Codec]] = []
    for shard in job.inputs:
        codec = _codec(job, shard)
        if not codec:
            plain += shard.size_bytes
        else:
            encoded.append((shard, codec))
    if not encoded:
        there, inputs = job.pipeline.carrier, job.pipeline.reading.containers
        inflates = any(each.payloads and each != there for each in inputs)
        return DecodedBytes(plain, are_encoded=inflates)
    step = max((len(encoded) - 1) // (SAMPLES - 1), 1)
    sampled = [_sample(job, *each, len) for each in encoded[::step][:SAMPLES]]
    read, made = (sum(each) for each in zip(*sampled, strict=True))
    ratio = made / read if read and made else RATIO_GUESSED
    total = sum(shard.size_bytes for shard, _ in encoded)
    return DecodedBytes(plain + int(total * max(ratio, 1.0)), are_encoded=True)


def _codec(job: Job, shard: InputShard) -> Codec | None:
    return codec_of(shard.name) if archive_extension(shard.name) else job.pipeline.reading.codec


def _sample(
    job: Job, shard: InputShard, codec: Codec, weigh: Callable[[bytes], int]
) -> tuple[int, int]:
    """For the beginning of a shard: (its bytes in the file, the sum of ``weigh`` over the decoded
    pieces)."""
    read = made = 0

    def pieces() -> Iterator[bytes]:
        nonlocal read
        with job.buckets.inputs.open(shard.name) as source:
            read = min(SAMPLE_BYTES, source.info.size_bytes)
            data = read_bytes(source, 0, read)
        yield data

    limit = job.pipeline.reading.decoding.max_expansion
    try:
        for piece in Decoding(shard.name, codec, pieces(), SAMPLE_BYTES, max_expansion=limit):
            made += weigh(bytes(piece))
    except CorruptShardError:
        pass  # the sample ends within a member; or the reader of the shard reports the damage
    return read, made


ROW_BYTES = 120
"""Memory of a line; the most at one time, for a million lines of 66 bytes, was 111. The next four
constants are added where they apply."""
SORTED_BYTES, CHECKED_BYTES, LINEAGE_BYTES, KEYED_BYTES = 88, 32, 48, 472
"""Measured with each of the four conditions: 196 with keys that are not spread evenly, 138 with
checked content, 158 with lineage, 575 with keys of 55 bytes in the lines."""
LINES_SAMPLE_BYTES = 64 << 10
LEAST_LINE_BYTES = 2
EXPANSION = 10
SPARE_SHARE = 8
"""A table that certainly takes less than one part in this many of a worker's memory is not
sampled."""


class ShardTable(Struct, frozen=True):
    """The largest table of a job: that of ``shard``, with about ``records`` records."""

    shard: str = ""
    records: int = 0
    size_bytes: int = 0

    @property
    def why(self) -> str:
        """Why so much memory is needed, as a text for users."""
        return (
            f"the table of {self.shard}, about {self.records:,} records, takes "
            f"{format_bytes(self.size_bytes)} of this memory: smaller input shards take less"
        )


NO_TABLE = ShardTable()
"""No table that needs room of its own."""


def row_bytes(job: Job) -> int:
    """The memory of a line in the table of its shard, in bytes."""
    found = ROW_BYTES
    if not job.pipeline.algorithm.is_spread_evenly:
        found += SORTED_BYTES
    if job.pipeline.result.checks_content:
        found += CHECKED_BYTES
    if job.pipeline.result.keeps_lineage:
        found += LINEAGE_BYTES
    return found + (KEYED_BYTES if job.pipeline.reading.key_field else 0)


def largest_table(job: Job, memory_bytes: int) -> ShardTable:
    """The table that takes most memory; ``NO_TABLE`` if records are not short, or if tables are
    negligible in ``memory_bytes``, the memory that the job may use on a node. Reads some of one
    shard."""
    shards = [each for each in job.inputs if _is_of_lines(job, each)]
    if not shards or job.pipeline.reading.makes_shards:
        return NO_TABLE
    largest = max(shards, key=lambda each: each.size_bytes)
    a_line = row_bytes(job)
    codec = _codec(job, largest)
    workers = -(-job.runtime.workers_max() // job.runtime.nodes())
    most_lines = largest.size_bytes * (EXPANSION if codec else 1) // LEAST_LINE_BYTES
    if most_lines * a_line * SPARE_SHARE <= memory_bytes // workers:
        return NO_TABLE
    if codec:
        read, found = _sample(job, largest, codec, lambda piece: piece.count(b"\n"))
    else:
        with job.buckets.inputs.open(largest.name) as source:
            read, found = _plain_sample(source)
    lines = largest.size_bytes * (found + 1) // max(read, 1)
    return ShardTable(largest.name, lines, lines * a_line)


def _is_of_lines(job: Job, shard: InputShard) -> bool:
    return job.pipeline.reading.container_of(shard.name).has_short_records


def _plain_sample(source: ReadObject) -> tuple[int, int]:
    """(bytes read, line feeds in them) at the beginning, the middle and the end of a file; only at
    its beginning if each read is a request."""
    size = source.info.size_bytes
    length = min(size, LINES_SAMPLE_BYTES)
    starts = (0, (size - length) // 2, size - length) if source.rereads_cheaply else (0,)
    found = sum(read_bytes(source, start, length).count(b"\n") for start in starts)
    return length * len(starts), found
