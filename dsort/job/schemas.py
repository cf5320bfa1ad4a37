"""What the records of all shards have in common, and what containers put around them by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dsort.containers.base import Container
from dsort.errors import SchemaError, SpecError, SpecProblem
from dsort.job.extract import Extraction
from dsort.job.job import Job
from dsort.order.cut import OutputShard

__all__ = ["agreed_schema", "with_ends"]


def agreed_schema(job: Job, extraction: Extraction) -> str:
    """The schema that all extracted shards have; "" where there is none. ``SchemaError`` names the
    first shard that has another than those before it, and how they differ."""
    first = -1
    schema = ""
    for shard, facts in sorted(extraction.done.items()):
        if not facts.schema or facts.schema == schema:
            continue
        if schema:
            difference = job.spec.output_container.schema_difference(schema, facts.schema)
            raise SchemaError(
                f"shard {job.inputs[shard].name} {difference}, unlike shard "
                f"{job.inputs[first].name}: a shard of the output can hold but one kind",
                hint="sort shards of each kind by a job of its own, or write them anew",
            )
        first, schema = shard, facts.schema
    return schema


def with_ends(container: Container, shards: Sequence[OutputShard]) -> list[OutputShard]:
    """The output shards with what their container puts before the first member and behind the last
    one. ``SpecError`` for one that is longer than it may be."""
    placed = [_with_ends(container, shard) for shard in shards]
    largest = max((shard.file_bytes for shard in placed), default=0)
    if container.plans_sizes and 0 < container.shard_bytes_max < largest:
        problem = SpecProblem(
            "output_shard_size",
            f"an output shard would have {largest:,} bytes, a {container.suffixes[0]} shard may "
            f"have {container.shard_bytes_max:,}",
            "choose a smaller output_shard_size, or a larger output_shard_count",
        )
        raise SpecError([problem])
    return placed


def _with_ends(container: Container, shard: OutputShard) -> OutputShard:
    head_bytes = container.head_bytes(shard.records) if container.has_head else 0
    return replace(
        shard,
        head_bytes=head_bytes,
        end_bytes=container.end_bytes(shard.members, shard.entries_bytes, shard.stored_bytes),
        pieces=tuple(
            replace(piece, offset=piece.offset + head_bytes) if head_bytes else piece
            for piece in shard.pieces
        ),
    )
