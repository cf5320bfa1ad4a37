"""Estimates from samples of the inputs: the size of encoded shards once they are decoded, and the
size of the tables of short records.

No format contains the first reliably. gzip ends with a length, of its last member and modulo 4 GiB;
zstd may have one in each frame. Decoding a sample gives more, and costs little. The table of a
shard is held whole: for a million lines of 66 bytes it takes more than the bytes of the shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from dsort.containers.codecs.base import Codec
from dsort.containers.codecs.decoding import Decoding
from dsort.containers.registry import codec_of
from dsort.errors import CorruptShardError
from dsort.job.job import Job
from dsort.moves.input_shard import InputShard
from dsort.naming.names import archive_extension
from dsort.sizes import format_bytes
from dsort.storage.bucket import ReadObject

SAMPLES = 3
SAMPLE_BYTES = 256 << 10
RATIO_GUESSED = 3.0
"""For shards that cannot be decoded at their beginning: text has about this ratio."""


class DecodedBytes(Struct, frozen=True):
    """``estimate_bytes``: all inputs, decoded. ``are_encoded``: whether any of them is encoded."""

    estimate_bytes: int
    are_encoded: bool


def decoded_bytes(job: Job) -> DecodedBytes:
    """The decoded size of the inputs of a job."""
    plain = 0
    encoded: list[tuple[InputShard, Codec]] = []
    for shard in job.inputs:
        codec = _codec(job, shard)
        if codec is None:
            plain += shard.size_bytes
        else:
            encoded.append((shard, codec))
    if not encoded:
        there, inputs = job.pipeline.carrier, job.pipeline.reading.containers
        inflates = any(each.payloads is not None and each != there for each in inputs)
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
    """(bytes of the file, sum of ``weigh`` over what they decode to), for a shard's beginning."""
    read = made = 0

    def pieces() -> Iterator[bytes]:
        nonlocal read
        with job.buckets.inputs.open(shard.name) as source:
            read = min(SAMPLE_BYTES, source.info.size_bytes)
            data = bytearray(read)
            source.read_into(memoryview(data), 0)
        yield bytes(data)

    limit = job.pipeline.reading.decoding.max_expansion
    try:
        for piece in Decoding(shard.name, codec, pieces(), SAMPLE_BYTES, max_expansion=limit):
            made += weigh(bytes(piece))
    except CorruptShardError:
        pass  # the sample ends within a member; or the shard is reported when it is read
    return read, made


ROW_BYTES = 120
"""Memory of a line; the most at one time, for a million lines of 66 bytes, was 111. The next four
are added to it where they apply."""
SORTED_BYTES, CHECKED_BYTES, LINEAGE_BYTES, KEYED_BYTES = 88, 32, 48, 472
"""Measured with each of the four: 196 with keys that are not spread evenly, 138 with checked
content, 158 with lineage, 575 with keys of 55 bytes in the lines."""
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
            f"{format_bytes(self.size_bytes)} of that: smaller input shards take less"
        )


NO_TABLE = ShardTable()
"""No table that needs room of its own."""


def row_bytes(job: Job) -> int:
    """The memory of a line in the table of its shard, in bytes."""
    found = ROW_BYTES
    if not job.pipeline.algorithm.is_spread_evenly:
        found += SORTED_BYTES
    if job.pipeline.checks_content:
        found += CHECKED_BYTES
    if job.pipeline.keeps_lineage:
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
    if codec is not None:
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
    found = 0
    for start in starts:
        window = bytearray(length)
        source.read_into(memoryview(window), start)
        found += window.count(b"\n")
    return length * len(starts), found
