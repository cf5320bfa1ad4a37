"""Rows whose long values stay in their shard: the batch without these values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dsort.containers.columnar.plain_pages import PlacedValues
from dsort.containers.columnar.schema import array_of, nulls_of
from dsort.containers.columnar.values import Leaf, LightRows, Values, light_schema

__all__ = ["PlacedLeaf", "with_placed"]


class PlacedLeaf(Struct, frozen=True):
    """The places of the values of a leaf. ``level_max``: the definition level of a value that is
    not null. ``in_nullable``: the whole column may be null."""

    leaf: Leaf
    values: PlacedValues
    level_max: int
    in_nullable: bool

    def run(self, start: int, stop: int) -> PlacedLeaf:
        """Rows ``start:stop``."""
        values = self.values.run(start, stop)
        return PlacedLeaf(self.leaf, values, self.level_max, self.in_nullable)

    def lengths(self) -> Any:
        """The lengths as an array, null in the rows in which the value is."""
        levels = self.values.levels
        nulls = None if levels is None else levels < self.level_max
        return array_of(self.values.lengths, nulls)

    def nulls_of_column(self) -> NDArray[np.bool_]:
        """In which rows the whole column is null."""
        levels = self.values.levels
        if levels is None or not self.in_nullable:
            return np.zeros(len(self.values.starts), np.bool_)
        found: NDArray[np.bool_] = levels == 0
        return found


def with_placed(batch: Any, placed: Sequence[PlacedLeaf], plain: Any) -> LightRows:
    """Rows of the schema ``plain``. ``batch`` has all columns but those of ``placed``, and is None
    if there are no others. ``ValueError`` if they contradict each other."""
    import pyarrow as pa

    leaves = tuple(each.leaf for each in placed)
    light = light_schema(plain, leaves)
    by_leaf = {(each.leaf.column, each.leaf.child): each for each in placed}
    columns = []
    for at, field in enumerate(light):
        if (at, -1) in by_leaf:
            columns.append(by_leaf[at, -1].lengths())
            continue
        number = -1 if batch is None else batch.schema.get_field_index(field.name)
        found = None if number < 0 else batch.column(number)
        children = {child: each for (column, child), each in by_leaf.items() if column == at}
        if children:
            columns.append(_struct(found, children, field.type))
            continue
        assert found is not None
        if pa.types.is_null(found.type) and found.type != field.type:
            found = pa.nulls(len(found), field.type)
        columns.append(found if found.type == field.type else found.cast(field.type))
    values = tuple(
        Values(
            each.values.data,
            each.values.starts,
            each.values.lengths,
            in_shard=each.values.part is None,
            prefixed=True,
            part=each.values.part,
        )
        for each in placed
    )
    return LightRows(pa.RecordBatch.from_arrays(columns, schema=light), leaves, values)


def _struct(found: Any, children: dict[int, PlacedLeaf], kind: Any) -> Any:
    """A column of structs. ``found``: the column with the other fields; None if there are none."""
    import pyarrow as pa

    nulls = [each.nulls_of_column() for each in children.values()]
    if found is not None:
        nulls.append(nulls_of(found))
    if any(not np.array_equal(nulls[0], each) for each in nulls[1:]):
        raise ValueError("fields of one column disagree where it is null")
    fields = [kind.field(child) for child in range(kind.num_fields)]
    inner = [
        children[at].lengths() if at in children else found.field(field.name)
        for at, field in enumerate(fields)
    ]
    mask = None
    if nulls[0].any():
        bits = pa.py_buffer(np.packbits(nulls[0], bitorder="little"))
        mask = pa.Array.from_buffers(pa.bool_(), len(nulls[0]), [None, bits])
    return pa.StructArray.from_arrays(inner, fields=fields, mask=mask)
