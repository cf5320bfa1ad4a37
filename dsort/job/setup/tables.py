"""Reads schemas and sizes from the footers of input tables, before a job reads their rows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsort.containers.columnar.columns import ColumnKinds, changed_schema, schema_of_kinds
from dsort.containers.columnar.reader import TableShard, open_table
from dsort.containers.columnar.schema import plain_schema, schema_bytes, schema_of, with_columns
from dsort.containers.columnar.writer import check_types
from dsort.data.members import MemberTable
from dsort.data.records import LAST_IS_KEPT, FormedRecords, form_records
from dsort.errors import CorruptShardError
from dsort.job.job import Job
from dsort.job.setup.user_code import CodeAgain
from dsort.moves.input_shard import InputShard, ShardBytes
from dsort.moves.payload_files import PayloadBuffer
from dsort.storage.bucket import Bucket, ReadObject
from dsort.storage.routed import input_of
from dsort.storage.small_objects import read_bytes
from dsort.transforms.base import Step
from dsort.transforms.payload import PayloadStep
from dsort.workers.conversion import bare_members
from dsort.workers.table_rows import columns_left

WINDOW_BYTES = 8 << 20
LEARNT_RECORDS_MAX = 256
SAMPLE_MAX = 8
"""The number of inputs that are sampled for the size of rows in memory."""


class _InputParts:
    """An input that is read in parts, as :class:`~dsort.containers.columnar.ranges.Source`."""

    def __init__(self, source: ReadObject) -> None:
        self._source = source
        self.size_bytes = source.info.size_bytes

    def whole(self) -> memoryview | None:
        """Always None: the input may be large."""
        return None

    def held(self, offset: int, length: int) -> memoryview | None:
        """Always None: nothing is held."""
        return None

    def read(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset`` on."""
        return read_bytes(self._source, offset, length)


def table_schema(bucket: Bucket, name: str) -> Any:
    """The schema of a shard. ``CorruptShardError`` if it cannot be read."""
    with bucket.open(name) as source:
        return open_table(name, _InputParts(source)).schema


def first_schema(job: Job) -> tuple[bytes, list[str]]:
    """(the schema that all inputs must have, the names of its columns with long values). The first
    readable input gives the schema. If inputs are joined, the schema has the columns of the first
    shard of each input. ``InputError`` for a schema whose rows cannot be moved,
    ``CorruptShardError`` if none can be read."""
    if not job.pipeline.reads_rows:
        return schema_bytes(_schema_of_members(job)), []
    if not job.pipeline.join:
        return _schema_of_tables(job, job.inputs)
    import pyarrow as pa

    fields: dict[str, Any] = {}
    metadata, long = None, list[str]()
    for own in _by_input(job):
        data, more = _schema_of_tables(job, own)
        long.extend(more)
        schema = schema_of(data)
        metadata = metadata or schema.metadata
        for field in schema:
            fields.setdefault(field.name, field.with_nullable(True))
    return schema_bytes(pa.schema(list(fields.values()), metadata)), long


def _by_input(job: Job) -> list[list[InputShard]]:
    """The shards of each input; all shards if there is one input without a name."""
    names = [place.name for place in job.buckets.input_places]
    found: dict[str, list[InputShard]] = {}
    for shard in job.inputs:
        found.setdefault(input_of(shard.name, names), []).append(shard)
    return list(found.values())


def _schema_of_tables(job: Job, inputs: Sequence[InputShard]) -> tuple[bytes, list[str]]:
    failed: CorruptShardError | None = None
    for shard in inputs:
        try:
            with job.buckets.inputs.open(shard.name) as source:
                table = open_table(shard.name, _InputParts(source))
                schema, long = table.schema, table.long_columns()
        except CorruptShardError as error:
            failed = failed or error
            if job.pipeline.reading.policies.corrupt_shards != "skip":
                raise
            continue
        plain_schema(shard.name, schema)
        return schema_bytes(schema), long
    if failed:
        raise failed
    import pyarrow as pa

    return schema_bytes(pa.schema([])), []


def made_schema(steps: Sequence[Step], key_field: str, schema: bytes) -> bytes:
    """The schema of the rows that ``steps`` make of rows of ``schema``. ``InputError`` if no schema
    is possible."""
    found = schema_of(schema)
    for step in steps:
        if isinstance(step, PayloadStep):
            found = changed_schema(found, step.drop, step.columns or {})
            continue
        left = columns_left(found.names, [step], key_field)
        if [name for name, _ in left] != found.names:
            found = with_columns(found, left)
    return schema_bytes(found)


def check_types_kept(job: Job, schema: bytes) -> None:
    """``InputError`` for a column whose Parquet type an output cannot have."""
    found = schema_of(schema)
    for form in job.pipeline.outputs:
        if form.container.is_columnar:
            check_types(form.container.suffixes[0], found)


def _schema_of_members(job: Job) -> Any:
    """The columns of the members of the first input that has members (see ``columnar.columns``). If
    steps make records, only some records are used, so that code does not run twice on a whole
    shard."""
    kinds = ColumnKinds()
    with contextlib.ExitStack() as stack:
        code = None
        if job.pipeline.makes_records:
            # The position of a record in the whole job changes neither members nor their names.
            steps = [each for each in job.pipeline.steps if not each.needs_positions]
            code = CodeAgain(job.pipeline.failures, steps)
            stack.callback(code.close)
        for own in _by_input(job) if job.pipeline.join else [job.inputs]:
            known = len(kinds.kinds)
            for shard in own:
                try:
                    _learn_from(job, shard, kinds, code)
                except CorruptShardError:
                    if job.pipeline.reading.policies.corrupt_shards != "skip":
                        raise
                if len(kinds.kinds) > known:
                    break
    return schema_of_kinds(kinds.kinds)


def _learn_from(job: Job, shard: InputShard, kinds: ColumnKinds, code: CodeAgain | None) -> None:
    policies = job.pipeline.reading.policies
    with job.buckets.inputs.open(shard.name) as source:
        opened = ShardBytes(
            shard.name,
            source,
            PayloadBuffer(WINDOW_BYTES),
            mapped=True,
            container=job.pipeline.reading.container,
            decoding=job.pipeline.reading.decoding,
        )
        try:
            members = bare_members(opened, opened.members(), policies.stray_members)
            keep_last = policies.duplicated_records in LAST_IS_KEPT
            records = form_records(members, policies.stray_members, keep_last=keep_last)
            if code:
                records = records.taking(np.arange(min(len(records), LEARNT_RECORDS_MAX)))
                named = input_of(shard.name, (place.name for place in job.buckets.input_places))
                left = code.run(opened, members, records, input_name=named)
                members, records = left.named, left.records
            _learn(opened, members, records, () if code else job.pipeline.steps, kinds)
        finally:
            opened.close()


def _learn(
    shard: ShardBytes,
    members: MemberTable,
    records: FormedRecords,
    steps: Sequence[Step],
    kinds: ColumnKinds,
) -> None:
    for row in records.member_rows.tolist():
        extension = members.names[row][int(records.key_bytes[row]) :]
        if not extension.startswith(b".") or len(extension) < 2:
            continue  # the maker of rows reports that there is no column
        name: str | None = extension[1:].decode("utf-8", "replace")
        for step in steps:
            name = name and step.extension_left(name)
        if not name:
            continue  # steps leave no such member
        needed = kinds.needs_content(name) and members.payload_bytes[row] <= WINDOW_BYTES
        kinds.add(name, shard.content(members, row) if needed else None)


def expanded_bytes(job: Job) -> int:
    """About how many bytes the rows of all inputs take in memory, by the footers of some inputs."""
    total = sum(shard.size_bytes for shard in job.inputs)
    if not job.pipeline.reads_rows:
        return total
    step = max(len(job.inputs) // SAMPLE_MAX, 1)
    sizes = [(shard.size_bytes, _memory_bytes(job, shard)) for shard in job.inputs[::step]]
    stored = sum(size for size, _ in sizes)
    return max(total, total * sum(expanded for _, expanded in sizes) // max(stored, 1))


def _memory_bytes(job: Job, shard: InputShard) -> int:
    try:
        with job.buckets.inputs.open(shard.name) as source:
            table: TableShard = open_table(shard.name, _InputParts(source))
            return table.memory_bytes()
    except CorruptShardError:
        return shard.size_bytes  # the reader of the shard reports the error
