"""What samples of the inputs say of them: how much encoded shards come to once they are decoded,
and how large the tables of short records get.

No format says the first reliably. gzip ends with a length, of its last member and modulo 4 GiB;
zstd may have one in each frame. What is decoded tells more, and costs little. The table of a shard
is held whole: of a million lines of 66 bytes it takes more than the bytes of the shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
"""Of what cannot be decoded at its beginning: text has about so much."""


@dataclass(frozen=True, slots=True)
class DecodedBytes:
    """``estimate_bytes``: all inputs, decoded. ``are_encoded``: whether one of them is."""

    estimate_bytes: int
    are_encoded: bool


def decoded_bytes(job: Job) -> DecodedBytes:
    """What the inputs of a job come to."""
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
        inflates = any(each.may_compress and each != there for each in inputs)
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
    """(bytes of the file, what ``weigh`` gives of what they decode to), of its beginning."""
    read = made = 0

    def pieces() -> Iterator[bytes]:
        nonlocal read
        with job.inputs_bucket.open(shard.name) as source:
            read = min(SAMPLE_BYTES, source.info.size_bytes)
            data = bytearray(read)
            source.read_into(memoryview(data), 0)
        yield bytes(data)

    limit = job.spec.max_expansion
    try:
        for piece in Decoding(shard.name, codec, pieces(), SAMPLE_BYTES, max_expansion=limit):
            made += weigh(bytes(piece))
    except CorruptShardError:
        pass  # the sample ends in the midst of a member; or the shard is reported when it is read
    return read, made


ROW_BYTES = 120
"""The most that a line took at one time, of a million of 66 bytes: 111. With each of the next:"""
SORTED_BYTES, CHECKED_BYTES, LINEAGE_BYTES, KEYED_BYTES = 88, 32, 48, 472
"""196 with keys that are not spread evenly, 138 with checked content, 158 with lineage, 575 with
keys of 55 bytes in the lines."""
LINES_SAMPLE_BYTES = 64 << 10
LEAST_LINE_BYTES = 2
EXPANSION = 10
SPARE_SHARE = 8
"""A table that surely takes less than one part in so many of a worker's memory is not looked at."""


@dataclass(frozen=True, slots=True)
class ShardTable:
    """The largest table of a job: about so many ``records`` of ``shard``."""

    shard: str = ""
    records: int = 0
    size_bytes: int = 0

    @property
    def why(self) -> str:
        """Why so much memory is needed, for people."""
        return (
            f"the table of {self.shard}, about {self.records:,} records, takes "
            f"{format_bytes(self.size_bytes)} of that: smaller input shards take less"
        )


NO_TABLE = ShardTable()
"""Nothing that needs room of its own."""


def row_bytes(job: Job) -> int:
    """What a line takes in the table of its shard."""
    found = ROW_BYTES
    if not job.pipeline.algorithm.is_spread_evenly:
        found += SORTED_BYTES
    if job.pipeline.checks_content:
        found += CHECKED_BYTES
    if job.pipeline.keeps_lineage:
        found += LINEAGE_BYTES
    return found + (KEYED_BYTES if job.spec.key_field else 0)


def largest_table(job: Job, memory_bytes: int) -> ShardTable:
    """The table that takes most room; ``NO_TABLE`` where records are not short, or tables are next
    to nothing of ``memory_bytes``, what the job may use on a node. Reads some of one shard."""
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
        with job.inputs_bucket.open(largest.name) as source:
            read, found = _plain_sample(source)
    lines = largest.size_bytes * (found + 1) // max(read, 1)
    return ShardTable(largest.name, lines, lines * a_line)


def _is_of_lines(job: Job, shard: InputShard) -> bool:
    return job.pipeline.reading.container_of(shard.name).has_short_records


def _plain_sample(source: ReadObject) -> tuple[int, int]:
    """(bytes of the file, line feeds) of its beginning, its middle and its end; of its beginning
    where each is a request."""
    size = source.info.size_bytes
    length = min(size, LINES_SAMPLE_BYTES)
    starts = (0, (size - length) // 2, size - length) if source.rereads_cheaply else (0,)
    found = 0
    for start in starts:
        window = bytearray(length)
        source.read_into(memoryview(window), start)
        found += window.count(b"\n")
    return length * len(starts), found
