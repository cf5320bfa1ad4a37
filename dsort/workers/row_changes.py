"""Changes of columns by steps, for rows that stay rows: which columns are left, their names, and
the column of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from dsort.containers.columnar.cell_types import typed_array, typed_value
from dsort.containers.columnar.schema import is_varying
from dsort.containers.columnar.values import Leaf, LightRows, light_schema
from dsort.data.arrow_arrays import arrow_bytes
from dsort.data.columns import BytesColumn
from dsort.naming.names import KEY_COLUMN
from dsort.transforms.base import Step
from dsort.transforms.fields import Fields
from dsort.transforms.rekey import JoinKey, Rekey


def changes_rows(steps: Sequence[Step]) -> bool:
    """Whether some step changes rows, rather than only remove some."""
    return any(isinstance(step, (Fields, Rekey)) for step in steps)


def gives_keys(steps: Sequence[Step]) -> bool:
    """Whether some step gives records new keys."""
    return any(isinstance(step, (Rekey, JoinKey)) for step in steps)


def key_column(key_field: str) -> str:
    """The column that holds new keys."""
    return key_field or KEY_COLUMN


def columns_left(
    names: Sequence[str], steps: Sequence[Step], key_field: str
) -> list[tuple[str, int]]:
    """The columns that ``steps`` leave, as (new name, place in ``names`` or -1). The column of keys
    always stays; if there is none, new keys get a new column."""
    keys = key_column(key_field)
    found = [(name, at) for at, name in enumerate(names)]
    for step in steps:
        left = ((name if name == keys else step.extension_left(name), at) for name, at in found)
        found = [(name, at) for name, at in left if name is not None]
        if gives_keys([step]) and keys not in (name for name, _ in found):
            found.append((keys, -1))
    return found


def asked_columns(steps: Sequence[Step], names: Sequence[str]) -> set[str]:
    """The columns among ``names`` whose values some step reads."""
    asked: set[str] = set()
    for step in reversed(steps):
        if isinstance(step, Fields):  # later steps use the new names
            asked |= {old for old, new in step.rename if new in asked}
        asked.update(step.extensions_read)
        if isinstance(step, Rekey) and step.reads_content:
            return {*names}
    return asked


class RowChange(Struct, frozen=True):
    """``columns``: the sources of columns, as in :func:`columns_left`. ``schema``: the plain schema
    of the rows that are left. ``key_at``: the column that gets new keys; -1: keys do not change."""

    shard: str
    columns: tuple[int, ...]
    schema: Any
    key_at: int

    @classmethod
    def of(
        cls, shard: str, read: Any, left: Any, steps: Sequence[Step], key_field: str
    ) -> RowChange:
        """The change that ``steps`` make to rows: from the plain schema ``read`` to ``left``."""
        found = columns_left(read.names, steps, key_field)
        names = [name for name, _ in found]
        key_at = names.index(key_column(key_field)) if gives_keys(steps) else -1
        return cls(shard, tuple(at for _, at in found), left, key_at)

    def applied(self, rows: LightRows, keys: BytesColumn) -> LightRows:
        """The rows of a batch, with their new ``keys``."""
        import pyarrow as pa

        places = {source: place for place, source in enumerate(self.columns)}
        leaves, values = [], []
        for leaf, away in zip(rows.leaves, rows.values, strict=True):
            place = places.get(leaf.column, self.key_at)
            if place != self.key_at:
                leaves.append(Leaf(place, leaf.child, leaf.kind))
                values.append(away)
        arrays = [
            self._keys(keys) if place == self.key_at else rows.light.column(source)
            for place, source in enumerate(self.columns)
        ]
        schema = light_schema(self.schema, leaves)
        light = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return LightRows(light, tuple(leaves), tuple(values))

    def _keys(self, keys: BytesColumn) -> Any:
        """The column of keys. ``ConversionError`` for a key that its type cannot hold."""
        field = self.schema.field(self.key_at)
        found = keys.tolist()
        if is_varying(field.type) and str(field.type) in ("string", "binary"):
            return arrow_bytes(found, field.type)
        name = f".{field.name}".encode()
        made = [typed_value(self.shard, key + name, key, field.type) for key in found]
        return typed_array(self.shard, field.name, made, field.type)
