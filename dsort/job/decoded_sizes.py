"""How much encoded inputs come to once they are decoded: a guess, from the first bytes of some.

No format says it reliably. gzip ends with a length, of its last member and modulo 4 GiB; zstd may
have one in each frame. What is decoded tells more, and costs little.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsort.containers.codecs.base import Codec
from dsort.containers.codecs.decoding import Decoding
from dsort.containers.registry import codec_of
from dsort.errors import CorruptShardError
from dsort.job.job import Job
from dsort.naming.names import archive_extension
from dsort.workers.source import InputShard

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
    default = job.pipeline.reading.codec
    for shard in job.inputs:
        codec = codec_of(shard.name) if archive_extension(shard.name) else default
        if codec is None:
            plain += shard.size_bytes
        else:
            encoded.append((shard, codec))
    if not encoded:
        there, read = job.pipeline.carrier, job.pipeline.reading.containers
        inflates = any(each.may_compress and each != there for each in read)
        return DecodedBytes(plain, are_encoded=inflates)
    step = max((len(encoded) - 1) // (SAMPLES - 1), 1)
    sampled = [_sample(job, *each) for each in encoded[::step][:SAMPLES]]
    read, made = (sum(each) for each in zip(*sampled, strict=True))
    ratio = made / read if read and made else RATIO_GUESSED
    total = sum(shard.size_bytes for shard, _ in encoded)
    return DecodedBytes(plain + int(total * max(ratio, 1.0)), are_encoded=True)


def _sample(job: Job, shard: InputShard, codec: Codec) -> tuple[int, int]:
    """(bytes of the file, bytes that they decode to), of the beginning of a shard."""
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
            made += len(piece)
    except CorruptShardError:
        pass  # the sample ends in the midst of a member; or the shard is reported when it is read
    return read, made
