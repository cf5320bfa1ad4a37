"""Separates long texts and binaries, as bytes, from their rows. The rest is the *light* batch,
which has the lengths of these values in their places."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from dsort.containers.columnar.arrow import pa
from dsort.containers.columnar.schema import (
    batch_bytes,
    cast,
    is_varying,
    nulls_of,
    row_bytes,
    value_offsets,
)
from dsort.data.arrow_arrays import ALL_KNOWN, arrow_numbers, validity_of
from dsort.data.columns import Int64s, UInt8s, offsets_of

LONG_BYTES = 512
"""Values of at least so many bytes on average are moved as bytes: a slice costs 0.3 µs."""
LEAVES_MAX = 64
ROWS_A_BATCH_MAX = 1 << 16
IN_SHARD_SHARE = 8
"""Mapped values take no memory of their own, but they are dealt out in another order than that in
the shard, so the page cache has to hold the values of one batch. So mapped values count as a
fraction of their size."""
PREFIX_BYTES = 4
LENGTH_BYTES = 8
"""The size of the length that replaces a value in a light batch."""


class Leaf(Struct, frozen=True):
    """A column of texts or binaries: column number ``column``, or its field ``child`` (-1: the leaf
    is the column itself)."""

    column: int
    child: int
    kind: Any

    def of(self, batch: Any) -> Any:
        """The array of the leaf in a batch."""
        column = batch.column(self.column)
        return column if self.child < 0 else column.field(self.child)

    def nulls_in(self, batch: Any) -> NDArray[np.bool_]:
        """The rows of a batch that have no value: the value or its struct is null."""
        nulls = nulls_of(self.of(batch))
        return nulls if self.child < 0 else nulls | nulls_of(batch.column(self.column))


class Values(Struct, frozen=True):
    """The values of one leaf: row ``i`` is ``lengths[i]`` bytes from ``starts[i]`` of
    ``data[part[i]]``, or of ``data[0]`` if there are no other parts; a null has none. ``prefixed``:
    the 4 bytes before each value are its length. ``in_shard``: the values are prefixed, and
    ``data`` is a whole input shard."""

    data: tuple[memoryview, ...]
    starts: Int64s
    lengths: Int64s
    in_shard: bool = False
    prefixed: bool = False
    part: Int64s | None = None

    @classmethod
    def of(cls, array: Any) -> Values:
        """The values of an array of texts or binaries."""
        offsets = value_offsets(array)
        lengths = np.diff(offsets)
        if array.null_count:
            lengths[nulls_of(array)] = 0
        buffer = array.buffers()[2]
        data = memoryview(buffer if buffer is not None else b"").cast("B")
        return cls((data,), offsets[:-1], lengths)

    @classmethod
    def joined(cls, values: Sequence[Values]) -> Values:
        """Several values of one leaf, whose rows are numbered consecutively."""
        none = np.zeros(0, np.int64)
        data, part = [view for each in values for view in each.data], None
        if any(view is not data[0] for view in data):
            firsts = accumulate((len(each.data) for each in values), initial=0)
            parts = [
                np.full(len(each.starts), first) if each.part is None else first + each.part
                for first, each in zip(firsts, values, strict=False)
            ]
            part = np.concatenate(parts)
        return cls(
            tuple(data if part is not None else data[:1]),
            np.concatenate([none, *(each.starts for each in values)]),
            np.concatenate([none, *(each.lengths for each in values)]),
            in_shard=all(each.in_shard for each in values),
            prefixed=all(each.prefixed for each in values),
            part=part,
        )

    def run(self, start: int, stop: int) -> Values:
        """Rows ``start:stop``."""
        part = None if self.part is None else self.part[start:stop]
        starts, lengths = self.starts[start:stop], self.lengths[start:stop]
        return replace(self, starts=starts, lengths=lengths, part=part)

    def slices(self, rows: Int64s, *, before: int = 0) -> list[memoryview]:
        """The bytes of some rows, in order, with ``before`` bytes before each value. A null is
        empty, because its offset is 0."""
        starts = self.starts[rows]
        stops = (starts + self.lengths[rows]).tolist()
        starts = (starts - before).tolist()
        if self.part is None:
            view = self.data[0] if self.data else memoryview(b"")
            return [view[a:b] for a, b in zip(starts, stops, strict=True)]
        places = zip(self.part[rows].tolist(), starts, stops, strict=True)
        return [self.data[at][a:b] for at, a, b in places]


class LightRows(Struct, frozen=True):
    """Rows with some leaves *away*, which means apart from the batch: ``light`` has the lengths of
    their values, ``values`` has the values."""

    # pyarrow's ``take`` copies values of 100 KB at 2.5 s a GiB, ten times the cost of a copy of
    # their bytes. So long values are copied, or written, from their places.

    light: Any
    leaves: tuple[Leaf, ...] = ()
    values: tuple[Values, ...] = ()

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(self.light.num_rows)

    @property
    def nbytes(self) -> int:
        """The size of the rows, including values that are not in memory."""
        return batch_bytes(self.light) + sum(int(each.lengths.sum()) for each in self.values)

    @property
    def end_in_shard(self) -> int:
        """The end of the last value that lies in its shard; 0 if no value does."""
        ends = [
            (each.starts + each.lengths).max(initial=0) for each in self.values if each.in_shard
        ]
        return int(max(ends, default=0))

    @property
    def held_bytes(self) -> int:
        """The memory that the rows take, with a share of the values in their shard."""
        shares = (
            int(each.lengths.sum()) // (IN_SHARD_SHARE if each.in_shard else 1)
            for each in self.values
        )
        return int(self.light.nbytes) + sum(shares)

    def row_bytes(self) -> Int64s:
        """The result of :func:`~dsort.containers.columnar.schema.row_bytes` for the whole rows."""
        total = row_bytes(self.light)
        for each in self.values:
            total += each.lengths - LENGTH_BYTES
        return total

    def without(self, leaves: Sequence[Leaf], schema: Any) -> LightRows:
        """The rows with exactly these ``leaves`` away, some of which are away already. ``schema``:
        the light schema."""
        known = dict(zip(self.leaves, self.values, strict=True))
        more = [leaf for leaf in leaves if leaf not in known]
        light = self.light if not more else light_batch(self.light, more, schema)
        known |= {leaf: Values.of(leaf.of(self.light)) for leaf in more}
        return LightRows(light, tuple(leaves), tuple(known[leaf] for leaf in leaves))


def leaves_of(schema: Any) -> tuple[Leaf, ...]:
    """The leaves that can be taken out of batches of the plain schema ``schema``."""
    return tuple(_leaves(schema))[:LEAVES_MAX]


def _leaves(schema: Any) -> Iterator[Leaf]:
    for at, field in enumerate(schema):
        if is_varying(field.type):
            yield Leaf(at, -1, field.type)
        elif pa.types.is_struct(field.type):
            for child in range(field.type.num_fields):
                kind = field.type.field(child).type
                if is_varying(kind):
                    yield Leaf(at, child, kind)


def long_leaves(batches: Sequence[LightRows], leaves: Sequence[Leaf]) -> int:
    """A mask with one bit for each of ``leaves``. A bit is set if the values of its leaf are long
    in ``batches``, or if the leaf is already away (see ``LightRows``) in one of them."""
    rows, found = sum(batch.num_rows for batch in batches), 0
    for at, leaf in enumerate(leaves):
        if any(leaf in batch.leaves for batch in batches):
            found |= 1 << at
            continue
        size_bytes = 0
        for batch in batches:
            offsets = value_offsets(leaf.of(batch.light))
            size_bytes += int(offsets[-1] - offsets[0])
        found |= (size_bytes >= LONG_BYTES * max(rows, 1)) << at
    return found


def chosen_leaves(leaves: Sequence[Leaf], mask: int) -> list[Leaf]:
    """The leaves whose bits are set in ``mask``."""
    return [leaf for at, leaf in enumerate(leaves) if mask >> at & 1]


def light_schema(schema: Any, leaves: Sequence[Leaf]) -> Any:
    """The schema of batches without the values of ``leaves``."""
    fields = list(schema)
    for leaf in leaves:
        field = fields[leaf.column]
        if leaf.child < 0:
            fields[leaf.column] = field.with_type(pa.int64())
            continue
        inner = [field.type.field(at) for at in range(field.type.num_fields)]
        inner[leaf.child] = inner[leaf.child].with_type(pa.int64())
        fields[leaf.column] = field.with_type(pa.struct(inner))
    return pa.schema(fields)


def light_batch(batch: Any, leaves: Sequence[Leaf], schema: Any) -> Any:
    """The batch with lengths instead of the values of ``leaves``. ``schema``: its light schema."""

    arrays = {}
    for leaf in leaves:
        array = leaf.of(batch)
        is_known = ~nulls_of(array) if array.null_count else ALL_KNOWN
        arrays[leaf.column, leaf.child] = arrow_numbers(Values.of(array).lengths, is_known)
    return _with(batch, arrays, schema)


def whole_batch(light: Any, values: Sequence[tuple[Leaf, memoryview]], schema: Any) -> Any:
    """A batch of ``schema``, with the values of all leaves. ``light``: the batch without the values
    of some leaves; ``values``: for each of these leaves, the bytes of its values, joined."""
    arrays = {}
    for leaf, data in values:
        lengths = leaf.of(light)
        large = pa.types.is_large_string(leaf.kind) or pa.types.is_large_binary(leaf.kind)
        offsets = offsets_of(_filled(lengths)).astype(np.int64 if large else np.int32)
        is_known = ~nulls_of(lengths) if lengths.null_count else ALL_KNOWN
        buffers = [validity_of(is_known), pa.py_buffer(offsets), pa.py_buffer(data)]
        found = pa.Array.from_buffers(leaf.kind, len(lengths), buffers)
        arrays[leaf.column, leaf.child] = found
    return _with(light, arrays, schema)


def _with(batch: Any, arrays: dict[tuple[int, int], Any], schema: Any) -> Any:
    """The batch with other arrays for some leaves."""
    columns = list(batch.columns)
    for at in {column for column, _ in arrays}:
        if (at, -1) in arrays:
            columns[at] = arrays[at, -1]
            continue
        column, kind = columns[at], schema.field(at).type
        inner = [arrays.get((at, child), column.field(child)) for child in range(kind.num_fields)]
        fields = [kind.field(child) for child in range(kind.num_fields)]
        nulls = column.is_null() if column.null_count else None
        columns[at] = pa.StructArray.from_arrays(inner, fields=fields, mask=nulls)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _filled(lengths: Any) -> Int64s:
    if not len(lengths):
        return np.zeros(0, np.int64)
    start = lengths.offset * LENGTH_BYTES
    found = np.frombuffer(lengths.buffers()[1], np.int64, len(lengths), start)
    return np.where(nulls_of(lengths), 0, found) if lengths.null_count else found


def stored_values(
    light: Any,
    leaves: Sequence[Leaf],
    data: memoryview,
    in_shard: Container[Leaf],
    prefixed: Container[Leaf],
    shard: Callable[[], memoryview],
) -> tuple[list[Values], int]:
    """The values of ``leaves``, which lie in ``data`` leaf by leaf in the order of the rows; and
    how many bytes of ``data`` they take. For leaves ``in_shard``, ``data`` has places in ``shard``;
    values of leaves ``prefixed`` have their lengths before them. ``ValueError`` for values outside
    of ``data`` or ``shard``."""
    found, at = [], 0
    for leaf in leaves:
        array = leaf.of(light)
        lengths = _filled(array)
        if leaf in in_shard:
            starts = np.frombuffer(data, np.int64, len(lengths), at)
            at += starts.nbytes
            values = Values((shard(),), starts, lengths, in_shard=True, prefixed=True)
        else:
            sizes = lengths
            if leaf in prefixed:
                sizes = np.where(nulls_of(array), 0, lengths + PREFIX_BYTES)
            ends = at + np.cumsum(sizes)
            values = Values((data,), ends - lengths, lengths, prefixed=leaf in prefixed)
            at += int(sizes.sum())
        if len(lengths) and (
            min(values.starts.min(), lengths.min()) < 0
            or (values.in_shard and values.starts[lengths > 0].min(initial=4) < PREFIX_BYTES)
            or (values.starts + lengths).max() > len(values.data[0])
        ):
            raise ValueError("a value lies outside of its shard")
        found.append(values)
    return found, at


def joined(batches: Sequence[Any], schema: Any) -> Any:
    """Record batches as one, without gaps."""
    if len(batches) == 1:
        return batches[0]
    columns = [
        pa.concat_arrays([batch.column(at) for batch in batches])
        if batches
        else pa.array([], field.type)
        for at, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# -- values that stay in their shard ---------------------------------------------------------------


class RowGroupRun(Struct, frozen=True):
    """Row groups that are read ``bytes_max`` at a time. The groups have ``rows`` rows in all; the
    group with the widest rows has ``row_bytes`` a row. ``leaves``: the leaves that may stay in
    their pages."""

    groups: list[int]
    leaves: tuple[Leaf, ...]
    row_bytes: int
    rows: int
    bytes_max: int

    @property
    def rows_at_once(self) -> int:
        """How many rows make a batch."""
        return min(max(self.bytes_max // self.row_bytes, 1), max(self.rows, 1), ROWS_A_BATCH_MAX)

    def batch_rows(self) -> Iterator[int]:
        """The number of rows of each batch, in order."""
        for at in range(0, self.rows, self.rows_at_once):
            yield min(self.rows_at_once, self.rows - at)


class PlacedLeaf(Struct, frozen=True):
    """The places of the values of a leaf. ``levels``: the definition level of each row; None if no
    value is null. ``level_max``: the level of a value that is not null. ``in_nullable``: the whole
    column may be null."""

    leaf: Leaf
    values: Values
    levels: UInt8s | None
    level_max: int
    in_nullable: bool

    def lengths(self) -> Any:
        """The lengths as an array, null where the value is null."""
        is_known = ALL_KNOWN if self.levels is None else self.levels == self.level_max
        return arrow_numbers(self.values.lengths, is_known)

    def nulls_of_column(self) -> NDArray[np.bool_]:
        """In which rows the whole column is null."""
        if self.levels is None or not self.in_nullable:
            return np.zeros(len(self.values.starts), np.bool_)
        found: NDArray[np.bool_] = self.levels == 0
        return found


def with_placed(batch: Any, placed: Sequence[PlacedLeaf], plain: Any) -> LightRows:
    """Rows of the schema ``plain``. ``batch`` has the columns that are not in ``placed``, and is
    None if all are. ``ValueError`` if ``batch`` and ``placed`` contradict each other."""
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
        columns.append(cast(found, field.type))
    values = tuple(each.values for each in placed)
    return LightRows(pa.RecordBatch.from_arrays(columns, schema=light), leaves, values)


def _struct(found: Any, children: dict[int, PlacedLeaf], kind: Any) -> Any:
    """A column of structs. ``found``: the column with the other fields; None if there are no other
    fields."""
    nulls = [each.nulls_of_column() for each in children.values()]
    if found is not None:
        nulls.append(nulls_of(found))
    if any(not np.array_equal(nulls[0], each) for each in nulls[1:]):
        raise ValueError("the fields of a column disagree about its nulls")
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
