"""Rows that steps with code make from rows, made again for ``verify``. The values that code returns
are converted to the column types of the result, which may change a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from dsort.containers.columnar.cell_types import cell_decoders
from dsort.containers.columnar.cells import cells_of_rows
from dsort.containers.columnar.columns import batch_of_records, row_contents
from dsort.containers.columnar.schema import plain_schema, schema_bytes, schema_of
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords, form_records
from dsort.errors import CorruptShardError, ObjectNotFoundError
from dsort.job.setup.tables import made_schema, table_schema
from dsort.job.setup.user_code import CodeAgain
from dsort.moves.input_shard import ShardBytes
from dsort.naming.names import KEY_COLUMN
from dsort.pipeline.compile import steps_of
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket
from dsort.transforms.base import Step
from dsort.transforms.rekey import JoinKey, Rekey


class RowsAgain(Struct, frozen=True):
    """Makes the rows of steps again. ``schema``: the plain schema of these rows. ``key_column``: as
    for ``row_contents``."""

    schema: Any
    key_column: str

    @classmethod
    def of(
        cls, steps: Sequence[Step], key_field: str, bucket: Bucket, shard: str, code: CodeAgain
    ) -> RowsAgain:
        """For the rows that ``steps`` make from rows like those of ``shard``. From now on ``code``
        receives rows as values. Raises ``InputError`` and its subclasses."""
        read = table_schema(bucket, shard)
        code.read_rows(cell_decoders(plain_schema(shard, read)))
        made = schema_of(made_schema(steps, key_field, schema_bytes(read)))
        return cls(plain_schema(shard, made), key_field)

    def cells(
        self, shard: ShardBytes, members: MemberTable, records: FormedRecords
    ) -> tuple[MemberTable, FormedRecords]:
        """The cells of the rows that ``records`` become, and the records of these cells.
        ``ConversionError`` for a value that a column cannot hold."""
        keys, offsets = records.keys.tolist(), records.member_offsets.tolist()
        rows = records.member_rows.tolist()
        contents = [
            [
                (members.names[row][int(records.key_bytes[row]) :], shard.content(members, row))
                for row in rows[offsets[at] : offsets[at + 1]]
            ]
            for at in range(len(records))
        ]
        named = [
            row_contents(key, cells, self.key_column)
            for key, cells in zip(keys, contents, strict=True)
        ]
        batch = batch_of_records(shard.name, self.schema, keys, named)
        found = cells_of_rows(iter([(batch, keys)]), self.schema.names)
        return found, form_records(found, "keep")


def rows_have_keys(spec: JobSpec, bucket: Bucket, inputs: Sequence[str]) -> bool:
    """Whether the rows of the result have a column of keys (``key_field``, or ``__key__``), by the
    spec and the first input shard that can be read. Without one, rows are only numbered."""

    gives_keys = any(isinstance(step, (Rekey, JoinKey)) for step in steps_of(spec))
    if spec.key_field or gives_keys:
        return True
    for name in inputs:
        try:
            return KEY_COLUMN in table_schema(bucket, name).names
        except (CorruptShardError, ObjectNotFoundError):
            continue
    return False
