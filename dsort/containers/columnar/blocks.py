"""Blocks of rows, in the form in which they pass through scratch, and row groups gathered from
them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct

from dsort.containers.columnar.arrow import pa
from dsort.containers.columnar.plain_chunks import LENGTH_PREFIX, ChunkPages, PlainColumn
from dsort.containers.columnar.values import (
    Leaf,
    LightRows,
    Values,
    chosen_leaves,
    joined,
    leaves_of,
    light_batch,
    light_schema,
    long_leaves,
    stored_values,
    whole_batch,
)
from dsort.data.arrow_arrays import arrow_numbers
from dsort.data.columns import Int32s, Int64s

HEADER = struct.Struct("<QQQQ")
ALIGNMENT = 8


class DealtBlock(Struct, frozen=True):
    """The rows of one partition: ``pieces``, with ``size_bytes`` in all.

    The pieces are, in order: a header (which leaves are away from the batch, which of them stay in
    their shard, which have each value after its length, how long the message is); the light batch
    as a message of Arrow IPC without its schema; and for each leaf that is away, the bytes of its
    values or their places in the input shard."""

    partition: int
    rows: int
    pieces: list[memoryview]
    size_bytes: int


def deal_out(
    batches: Sequence[LightRows], partition: Int32s, schema: Any, *, by_place: bool
) -> Iterator[DealtBlock]:
    """The rows of all ``batches`` as one block for each partition, in input order; ``schema``: the
    plain schema of the batches. ``partition``: the partition of each row; -1: the row is left out.
    ``by_place``: values that lie in an input shard stay there, and the block has their places. The
    pieces are views of the batches."""

    order = np.argsort(partition, kind="stable")
    # Rows that are left out have partition -1, so a sort puts them first.
    order = order[np.searchsorted(partition[order], 0) :]
    every = leaves_of(schema)
    mask = long_leaves(batches, every)
    leaves = chosen_leaves(every, mask)
    light = light_schema(schema, leaves)
    apart = [batch.without(leaves, light) for batch in batches]
    taken = joined([batch.light for batch in apart], light)
    if not np.array_equal(order, np.arange(taken.num_rows)):
        taken = taken.take(arrow_numbers(order))
    values = [Values.joined([batch.values[at] for batch in apart]) for at in range(len(leaves))]
    stays = [by_place and each.in_shard for each in values]
    behind = [
        each.prefixed and not is_in_place for each, is_in_place in zip(values, stays, strict=True)
    ]
    staying, prefixed = (
        sum(1 << every.index(leaf) for leaf, is_so in zip(leaves, those, strict=True) if is_so)
        for those in (stays, behind)
    )
    of_row = partition[order]
    bounds = [*np.flatnonzero(np.diff(of_row, prepend=-1)).tolist(), len(of_row)]
    for start, stop in pairwise(bounds):
        message = taken.slice(start, stop - start).serialize()
        head = HEADER.pack(mask, staying, prefixed, message.size)
        pieces = [memoryview(head), memoryview(message)]
        for each, is_in_place, is_behind in zip(values, stays, behind, strict=True):
            if is_in_place:
                pieces.append(memoryview(each.starts[order[start:stop]].tobytes()))
            else:
                before = LENGTH_PREFIX.size if is_behind else 0
                pieces.extend(each.slices(order[start:stop], before=before))
        size_bytes = sum(map(len, pieces))
        padding = -size_bytes % ALIGNMENT
        pieces.append(memoryview(bytes(padding)))
        yield DealtBlock(int(of_row[start]), stop - start, pieces, size_bytes + padding)


class RowBlocks:
    """The rows of several blocks, numbered consecutively."""

    def __init__(
        self,
        blocks: Sequence[memoryview],
        schema: Any,
        shard: Callable[[int], memoryview],
        away: Sequence[Leaf] = (),
    ) -> None:
        """``blocks``: made by :func:`deal_out`. ``schema``: the plain schema. ``shard``: returns
        the input shard of a block, if values stay there. ``away``: leaves that have to be away,
        long or not. ``ValueError`` or an error of pyarrow for invalid bytes."""
        every = leaves_of(schema)
        opened = [_opened(block, every, schema, shard, at) for at, block in enumerate(blocks)]
        self.mask = sum(1 << every.index(leaf) for leaf in away)
        for mask, _ in opened:
            self.mask |= mask
        self.leaves = chosen_leaves(every, self.mask)
        light = light_schema(schema, self.leaves)
        apart = [rows.without(self.leaves, light) for _, rows in opened]
        self.light = joined([rows.light for rows in apart], light)
        self._values = [
            Values.joined([rows.values[at] for rows in apart]) for at in range(len(self.leaves))
        ]

    @classmethod
    def of_batch(cls, batch: Any, schema: Any, away: Sequence[Leaf]) -> RowBlocks:
        """The rows of a record batch of the plain schema ``schema``."""
        found, every = cls.__new__(cls), leaves_of(schema)
        found.mask = long_leaves([LightRows(batch)], every)
        found.mask |= sum(1 << every.index(leaf) for leaf in away)
        found.leaves = chosen_leaves(every, found.mask)
        found.light = light_batch(batch, found.leaves, light_schema(schema, found.leaves))
        found._values = [Values.of(leaf.of(batch)) for leaf in found.leaves]
        return found

    def slices(self, leaf: int, rows: Int64s) -> list[memoryview]:
        """The bytes of leaf number ``leaf`` in some rows, in order."""
        return self._values[leaf].slices(rows)

    def lengths(self, leaf: int, rows: Int64s) -> Int64s:
        """The lengths of the values of leaf number ``leaf`` in some rows; undefined for nulls."""
        return self._values[leaf].lengths[rows]

    def prefixed(self, leaf: int, rows: Int64s) -> tuple[list[memoryview], bool]:
        """(values, each after its length, without nulls; whether these bytes stay valid as long as
        the shard is open)."""
        values = self._values[leaf]
        if not values.prefixed:
            return _with_lengths(values.slices(rows)), True
        return values.slices(rows, before=LENGTH_PREFIX.size), values.in_shard


def _with_lengths(slices: Sequence[memoryview]) -> list[memoryview]:
    return [memoryview(LENGTH_PREFIX.pack(len(each)) + each) for each in slices]


def _opened(
    block: memoryview,
    every: Sequence[Leaf],
    schema: Any,
    shard: Callable[[int], memoryview],
    number: int,
) -> tuple[int, LightRows]:
    if len(block) < HEADER.size:
        raise ValueError("it is shorter than its header")
    mask, staying, prefixed, message_bytes = HEADER.unpack_from(block)
    is_wrong = mask >> len(every) or staying & ~mask or prefixed & ~(mask & ~staying)
    if is_wrong or message_bytes > len(block) - HEADER.size:
        raise ValueError("its header is not that of a block")
    leaves = chosen_leaves(every, mask)
    message = pa.py_buffer(block[HEADER.size : HEADER.size + message_bytes])
    light = pa.ipc.read_record_batch(message, light_schema(schema, leaves))
    behind = block[HEADER.size + message_bytes :]
    values, size_bytes = stored_values(
        light,
        leaves,
        behind,
        chosen_leaves(every, staying),
        chosen_leaves(every, prefixed),
        lambda: shard(number),
    )
    if not 0 <= len(behind) - size_bytes < ALIGNMENT:
        raise ValueError(f"it has {len(behind)} bytes of values and not {size_bytes}")
    return mask, LightRows(light, tuple(leaves), tuple(values))


class GroupRows(Struct, frozen=True):
    """The rows of a row group. ``light`` does not have the values of ``columns``: those are in
    ``pages``."""

    light: Any
    columns: tuple[PlainColumn, ...] = ()
    pages: tuple[ChunkPages, ...] = ()

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(self.light.num_rows)

    @classmethod
    def of_batch(cls, batch: Any, schema: Any, columns: Sequence[PlainColumn]) -> GroupRows:
        """The rows of a record batch of the plain schema ``schema``, without some columns."""
        leaves = [column.leaf for column in columns]
        rows = LightRows(batch).without(leaves, light_schema(schema, leaves))
        pages = tuple(ChunkPages(column) for column in columns)
        for made, column, values in zip(pages, columns, rows.values, strict=True):
            there = np.flatnonzero(~column.leaf.nulls_in(rows.light))
            slices = _with_lengths(values.slices(there))
            made.add(values.lengths, column.levels(rows.light), slices, stay=True)
        return cls(rows.light, tuple(columns), pages)


class RowGroup:
    """Gathers rows of blocks into the rows of one row group. The memory of a group is reused for
    the next group."""

    def __init__(self, schema: Any, columns: Sequence[PlainColumn] = ()) -> None:
        """``columns``: the values of these columns become pages when rows are added. In all blocks,
        the leaves of these columns are away (see ``LightRows``)."""
        self.schema = schema
        self._leaves = leaves_of(schema)
        self.columns = tuple(columns)
        self.away = tuple(column.leaf for column in columns)
        self._away_mask = sum(1 << self._leaves.index(leaf) for leaf in self.away)
        self._pages = tuple(ChunkPages(column) for column in columns)
        self._bytes = [np.empty(0, np.uint8) for _ in self._leaves]
        self._ends = [0] * len(self._leaves)
        self._parts: list[tuple[int, Any]] = []

    def add(self, blocks: RowBlocks, rows: Int64s) -> None:
        """Add ``rows`` of ``blocks``, in that order."""
        if self._parts and self._parts[-1][0] != blocks.mask:
            self._parts = [(self._away_mask, self._batch())]
            self._bytes = [np.empty(0, np.uint8) for _ in self._leaves]  # the batch keeps its own
        light = blocks.light.take(arrow_numbers(rows))
        self._parts.append((blocks.mask, light))
        for at, leaf in enumerate(blocks.leaves):
            if leaf in self.away:
                self._keep(self.away.index(leaf), light, blocks, at, rows)
            else:
                self._append(self._leaves.index(leaf), blocks.slices(at, rows))

    def _keep(self, away: int, light: Any, blocks: RowBlocks, at: int, rows: Int64s) -> None:
        """Add the values of a leaf that is away to its pages."""
        column = self.columns[away]
        slices, stay = blocks.prefixed(at, rows[~column.leaf.nulls_in(light)])
        self._pages[away].add(blocks.lengths(at, rows), column.levels(light), slices, stay=stay)

    def _append(self, leaf: int, slices: Sequence[memoryview]) -> None:
        at = self._ends[leaf]
        end = at + sum(map(len, slices))
        if end > len(self._bytes[leaf]):
            grown = np.empty(max(end, 2 * at), np.uint8)
            grown[:at] = self._bytes[leaf][:at]
            self._bytes[leaf] = grown
        out = self._bytes[leaf].data
        for piece in slices:
            stop = at + len(piece)
            out[at:stop] = piece
            at = stop
        self._ends[leaf] = end

    def taken(self) -> GroupRows:
        """All rows, valid until the next row is added. The group is empty afterwards."""
        found = GroupRows(self._batch(), self.columns, self._pages)
        self._parts = []
        self._pages = tuple(ChunkPages(column) for column in self.columns)
        return found

    def _batch(self) -> Any:
        """All rows, without the leaves that are away."""
        wanted = light_schema(self.schema, self.away)
        masks = {mask for mask, _ in self._parts}
        if len(masks) > 1:  # long values came after short ones: the first rows have all values
            first = self._parts[0][1]
            self._parts = self._parts[1:]
            return joined([first, self._batch()], wanted)
        leaves = chosen_leaves(self._leaves, masks.pop() if masks else self._away_mask)
        light = joined([batch for _, batch in self._parts], light_schema(self.schema, leaves))
        values = []
        for leaf in leaves:
            if leaf not in self.away:
                at = self._leaves.index(leaf)
                values.append((leaf, self._bytes[at][: self._ends[at]].data))
        self._ends = [0] * len(self._leaves)
        return whole_batch(light, values, wanted) if values else light
