"""What the records of all shards have in common, and what containers put around them for that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsort.containers.base import Container
from dsort.errors import ObjectNotFoundError, SchemaError, SpecError, SpecProblem
from dsort.job.extraction import Extraction
from dsort.job.job import Job
from dsort.order.output_shards import OutputShards
from dsort.storage.bucket import Bucket
from dsort.storage.small_objects import read_small
from dsort.workers.conversion import extensions_by_output

FILE_BYTES_MAX = 256 << 20
AT_ONCE = 1 << 16
_APART = "sort shards of each kind by a job of its own, or write them anew"


def input_schema(job: Job) -> str:
    """The schema in the files beside the inputs, if their container has such files; else "".
    ``SchemaError`` if one is missing or unusable, or if two differ."""
    schemas = job.pipeline.reading.container.schemas
    if schemas is None or not schemas.file:
        return ""
    first, schema = "", ""
    for directory in sorted({shard.name[: shard.name.rfind("/") + 1] for shard in job.inputs}):
        name = f"{directory}{schemas.file}"
        where = f"{name} in {job.buckets.inputs.uri}"
        try:
            found = schemas.in_file(read_small(job.buckets.inputs, name, bytes_max=FILE_BYTES_MAX))
        except ObjectNotFoundError:
            raise SchemaError(
                f"there is no {where}, which says what the shards beside it hold",
                hint="put it there: without it the shards cannot be read",
            ) from None
        except ValueError as error:
            raise SchemaError(f"{where} cannot be used: {error}") from None
        if schema and found != schema:
            difference = schemas.difference(schema, found)
            raise SchemaError(f"{where} {difference}, unlike {first}", hint=_APART)
        first, schema = name, found
    return schema


def with_schema_beside(container: Container, bucket: Bucket, name: str) -> Container:
    """``container`` with the schema in the file beside the shard ``name``, if there is one: nothing
    else describes its records."""
    schemas = container.schemas
    if schemas is None or not schemas.file:
        return container
    file = f"{name[: name.rfind('/') + 1]}{schemas.file}"
    try:
        found = read_small(bucket, file, bytes_max=FILE_BYTES_MAX)
        return container.with_schema(schemas.in_file(found))
    except (ObjectNotFoundError, ValueError):
        return container


def agreed_schema(job: Job, extraction: Extraction) -> str:
    """The schema that all extracted shards have; "" if there is none. ``SchemaError`` with the
    first shard that has another schema than those before it, and how they differ."""
    first = -1
    schema, schemas = "", job.pipeline.carrier.schemas
    # With late outputs, the schemas of shards are for ``late_schemas``.
    if schemas is None or job.pipeline.has_late_outputs:
        return ""
    for shard, facts in sorted(extraction.done.items()):
        if not facts.schema or facts.schema == schema:
            continue
        if schema:
            difference = schemas.difference(schema, facts.schema)
            raise SchemaError(
                f"shard {job.inputs[shard].name} {difference}, unlike shard "
                f"{job.inputs[first].name}: a shard of the output can hold but one kind",
                hint=_APART,
            )
        first, schema = shard, facts.schema
    return schema


def late_schemas(job: Job, extraction: Extraction) -> tuple[str, ...]:
    """By output, the schema of records that are converted as they are written: of all extensions
    that their members have. "" for other outputs; empty if there is no such schema."""
    wanted = [form.container.schemas if form.is_late else None for form in job.pipeline.outputs]
    if not any(wanted):
        return ()
    found: list[set[str]] = [set() for _ in job.pipeline.targets]
    for facts in extraction.done.values():
        for own, names in zip(found, extensions_by_output(facts.schema), strict=False):
            own.update(names)
    return tuple(
        schemas.of_members(sorted(names)) if schemas is not None and names else ""
        for schemas, names in zip(wanted, found, strict=True)
    )


def with_ends(
    container: Container, shards: OutputShards, *, late: Sequence[bool] = ()
) -> OutputShards:
    """The output shards with the sizes of what their container puts before the first member and
    behind the last one. ``late``: by group, whether it is converted as it is written: then these
    sizes are unknown. ``SpecError`` for a shard that is longer than allowed."""
    is_late = np.array(late or [False], bool)[shards.column("group") * bool(late)]
    heads, ends = np.zeros(len(shards), np.int64), np.zeros(len(shards), np.int64)
    names = ("records", "members", "entries_bytes", "stored_bytes")
    head = container.head
    for begin in range(0, len(shards), AT_ONCE):
        part = slice(begin, begin + AT_ONCE)
        rows = [shards.column(name)[part].tolist() for name in names]
        if head is not None:
            heads[part] = list(map(head.size_bytes, rows[0]))
        ends[part] = [container.end_bytes(*sizes) for sizes in zip(*rows[1:], strict=True)]
    heads[is_late] = ends[is_late] = 0
    placed = shards.with_columns(head_bytes=heads, end_bytes=ends)
    largest = int(placed.container_bytes.max(initial=0))
    if head is not None and head.shard_bytes_max < largest:
        problem = SpecProblem(
            "output_shard_size",
            f"an output shard would have {largest:,} bytes, a {container.suffixes[0]} shard may "
            f"have {head.shard_bytes_max:,}",
            "choose a smaller output_shard_size, or a larger output_shard_count",
        )
        raise SpecError([problem])
    return placed
