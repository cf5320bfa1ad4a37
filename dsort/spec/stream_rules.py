"""Rules about streams: standard input, standard output, and output of programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from dsort.containers.registry import container_of
from dsort.errors import SpecProblem
from dsort.naming.inputs import parse_input_template
from dsort.spec.algorithms import joined
from dsort.spec.checks import Rules
from dsort.spec.parts import SpecFields
from dsort.storage.ref import PIPE, STREAM, BucketRef

__all__ = ["PIPED_SHARDS_MAX", "SHARD_FIELD", "STREAM_FORMAT", "is_stdout", "rule"]

rule = Rules()

STREAM_FORMAT: Final = "stream-{0..0}"
"""The template of the one shard that goes to standard output."""
SHARD_FIELD: Final = "{shard}"
"""The placeholder for the name of a shard in the arguments of a program."""
PIPED_SHARDS_MAX: Final = 10_000
"""The maximum number of such shards. Each is a process, and a file in scratch."""


def is_stdout(bucket: object) -> bool:
    """Whether an output's ``bucket`` is standard output."""
    return isinstance(bucket, BucketRef) and bucket.scheme == STREAM


@rule
def _inputs_are_read_once(spec: SpecFields) -> Iterator[SpecProblem]:
    streams = [source for source in spec.sources if source.bucket.scheme == STREAM]
    for source in streams:
        given = [name for name, value in source.format if value is not None]
        if given:
            text = "cannot be combined with standard input, which is one shard without a name"
            yield SpecProblem(f"{source.path}input_format", text)
    for source in streams[1:]:
        yield SpecProblem(f"{source.path}input_bck", "standard input can be read only once")


@rule
def _programs_know_what_to_write(spec: SpecFields) -> Iterator[SpecProblem]:
    for source in spec.sources:
        if source.bucket.scheme != PIPE:
            continue
        path, wanted = f"{source.path}input_format", source.format
        asks = any(SHARD_FIELD in word for word in json.loads(source.bucket.path))
        if wanted.prefix is not None or wanted.glob is not None:
            text = "must name the shards: a program has no list of the shards that it can write"
            yield SpecProblem(path, text, "set input_format.template or input_format.objnames")
            continue
        names = 0
        if wanted.template is not None:
            names = parse_input_template(wanted.template).count
        elif wanted.objnames is not None:
            names = len(wanted.objnames)
        if names > PIPED_SHARDS_MAX:
            yield SpecProblem(path, f"names {names:,} shards, over {PIPED_SHARDS_MAX:,}")
        elif asks and not names:
            text = f"must name the shards that {SHARD_FIELD} stands for"
            yield SpecProblem(path, text, "set input_format.template or input_format.objnames")
        elif names > 1 and not asks:
            text = f"names {names:,} shards, but the program is not given their names"
            yield SpecProblem(path, text, f"write {SHARD_FIELD} where they belong in an argument")


@rule
def _stream_is_one_shard(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.output_bck.scheme != STREAM:
        return
    if container_of(spec.output_extension).index is not None:
        others = joined([".tar", ".zip", ".jsonl"])
        wrong = f"{spec.output_extension} shards need an index beside them"
        yield SpecProblem("output_extension", wrong, f"use {others}, or write to a bucket")
