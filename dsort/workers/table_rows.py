"""Rows of tables for readers, algorithms, steps and outputs: the batches of one input shard, their
rows as records, and the index of these records.

Cells are members. Only columns that a step, an algorithm or an output needs become members. If only
the nulls of a column matter, its members have no content, which saves a look at each cell.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from dsort.containers.codecs.decoding import EXPANSION_FLOOR_BYTES
from dsort.containers.columnar.cells import cell_contents, row_hashes
from dsort.containers.columnar.columns import typed_array, typed_value
from dsort.containers.columnar.schema import is_media, is_varying, nulls_of
from dsort.containers.columnar.values import Leaf, LightRows, light_schema
from dsort.data.arrow_arrays import arrow_bytes
from dsort.data.columns import Bools, BytesColumn, Int32s, Int64s, UInt64s, row_numbers
from dsort.data.hashes import hash_keys
from dsort.data.index import (
    BLOCK_LENGTH,
    BLOCK_ROWS,
    BLOCK_START,
)
from dsort.data.members import MemberTable
from dsort.data.record_table import RecordTable
from dsort.data.records import FormedRecords
from dsort.data.row_bytes import side_by_side
from dsort.data.segments import Segments
from dsort.data.table import Name, Numbers
from dsort.data.text_sets import HashesSeen
from dsort.errors import CorruptShardError, InputError
from dsort.moves.input_shard import ShardBytes
from dsort.moves.payload_files import PayloadBuffer
from dsort.naming.names import KEY_COLUMN, shortened
from dsort.order.sort import Partitioning
from dsort.sizes import format_bytes
from dsort.transforms.base import Step
from dsort.transforms.fields import Fields
from dsort.transforms.rekey import JoinKey, Rekey
from dsort.workers.batch import SORT_KEYS, Batch
from dsort.workers.tasks import ExtractTask

PARTITION: Final[Name[Int32s]] = Numbers("partition", "<i4")
CELL_OVERHEAD_BYTES = 4
"""The bytes of a cell besides its value, which are mostly an offset."""
_NOTHING: Final[Mapping[int, bytes]] = {}


def blocks_by_partition(
    blocks: Sequence[tuple[int, int, int, int]], partitions: int
) -> dict[str, NDArray[Any]]:
    """The index columns of ``blocks`` in the spill, by partition, and where each partition begins
    in them."""
    found = np.array(blocks, np.int64).reshape(-1, 4)
    partition, *columns = found[np.argsort(found[:, 0], kind="stable")].T
    offsets = np.searchsorted(partition, np.arange(partitions + 1)).astype(np.int64)
    names = (BLOCK_START, BLOCK_LENGTH, BLOCK_ROWS)
    pairs = zip(names, columns, strict=True)
    return {"block_offsets": offsets, **{name.text: column for name, column in pairs}}


class ShardRows(Struct):
    """The facts about the rows of one shard so far. ``plain``: the schema of the stored rows;
    ``seen``: the keys of the rows so far; ``blocks``: (partition, start, bytes, rows) of the blocks
    in the spill, in the order of their rows."""

    plain: Any = ()
    partitioning: Partitioning = Partitioning(1)
    seen: HashesSeen = field(default_factory=HashesSeen)
    blocks: list[tuple[int, int, int, int]] = field(default_factory=list)


class RowBatch(Batch, kw_only=True):
    """Rows of a table as records. ``rows``: batches of all rows that were read, with rows that were
    left out since; ``every``: these rows as records; ``at``: the row of each record that is still
    there. ``first``: the number of the first row in the shard. ``has_keys``: keys are the values of
    a column, so several rows may have one key. ``are_made``: the rows were made from records that
    may consist of JSON only. ``made_of_bytes``: for each row of ``every``, the bytes of payload of
    the record from which it was made; None if the rows are stored in a table."""

    rows: Sequence[LightRows]
    every: FormedRecords
    at: Int64s
    first: int
    shard_rows: ShardRows
    has_keys: bool
    are_made: bool = False
    made_of_bytes: Int64s | None = None

    @property
    def ordinals(self) -> Int64s:
        """See :class:`Batch`."""
        return self.first + self.at

    @property
    def ranges(self) -> Segments:
        """The sizes of the rows, without places, because a row has no single place."""
        stored = self.records.stored_bytes
        ends = row_numbers(len(stored) + 1)
        return Segments(ends, np.cumsum(stored) - stored, stored, np.zeros(0, np.uint8))

    def cells(
        self, extensions: Sequence[str], purpose: tuple[str, str], optional: Sequence[str] = ()
    ) -> RecordTable:
        """See :class:`Batch`."""
        light = [batch.light for batch in self.rows]
        known = light[0].schema.names
        more = (name for name in optional if name.removeprefix(".") in known)
        wanted = [*dict.fromkeys([*extensions, *more])]
        if not wanted:
            return self._with_sizes(self.table)
        table = record_table(
            self.shard.name, light, self.every, wanted, purpose, are_made=self.are_made
        )
        if len(self.at) < len(self.every):
            table = replace(table, records=table.records.taking(self.at))
        return self._with_sizes(replace(table, input=self.input))

    def _with_sizes(self, table: RecordTable) -> RecordTable:
        """``table`` with the sizes that expressions see: those of the records before the
        conversion."""
        if self.made_of_bytes is None:
            return table
        sizes = self.made_of_bytes[self.at]
        return replace(table, records=replace(table.records, payload_bytes=sizes))

    def count_earlier(self) -> Int64s | None:
        """See :class:`Batch`."""
        return self.shard_rows.seen.earlier(self.records.key_hash) if self.has_keys else None

    def content_hashes(self, ranges: Segments) -> UInt64s:
        """XXH3 of each row."""
        return np.concatenate([row_hashes(batch.light) for batch in self.rows])[self.at]

    def keep(self, kept: Bools) -> None:
        """See :class:`Batch`."""
        super().keep(kept)
        self.at = self.at[kept]


def rows_as_records(keys: BytesColumn, payload_bytes: Int64s, columns: int = 0) -> FormedRecords:
    """Rows as records with one member each. ``columns``: the number of columns of the outputs."""
    count = len(keys)
    return FormedRecords(
        keys=keys,
        key_hash=hash_keys(keys.tolist(), count),
        member_offsets=row_numbers(count + 1),
        member_rows=row_numbers(count),
        key_bytes=keys.lengths,
        payload_bytes=payload_bytes,
        stored_bytes=payload_bytes + CELL_OVERHEAD_BYTES * columns,
    )


def record_table(
    shard: str,
    batches: Sequence[Any],
    rows: FormedRecords,
    extensions: Sequence[str],
    wanted: tuple[str, str] = SORT_KEYS,
    *,
    unread: Collection[str] = (),
    is_whole: bool = False,
    are_made: bool = False,
) -> RecordTable:
    """The ``rows`` of some batches as records. A record has one member for each column in
    ``extensions`` that is not null in its row; without extensions, it has one member. ``wanted``:
    the purpose of the columns, and the part of the spec that names them. ``unread``: extensions
    whose content is not read. ``is_whole``: the extensions are all columns; so a row with only
    nulls is one empty member without extension. ``are_made``: see :class:`RowBatch`."""
    keys, count = rows.keys, len(rows)
    are_json = are_made and {*batches[0].schema.names} - {KEY_COLUMN} == {"json"}
    if are_json and extensions:
        extensions = [".json"]
    if not extensions:
        members = members_named(keys, rows.payload_bytes)
        return RecordTable(shard, members, rows, _cell, are_rows=not are_json)
    found = [_cells(shard, batches, each, wanted, each in unread) for each in extensions]
    if is_whole:
        empty = np.ones(count, np.bool_)
        for there, _ in found:
            empty[there] = False
        extensions = [*extensions, ""]
        found.append((np.flatnonzero(empty), []))
    row_of = np.concatenate([there for there, _ in found])
    column_of = np.repeat(np.arange(len(found)), [len(there) for there, _ in found])
    order = np.lexsort((column_of, row_of))
    names = [
        side_by_side([keys.take(there), extension.encode("utf-8", "surrogateescape")], len(there))
        for extension, (there, _) in zip(extensions, found, strict=True)
    ]
    values = [each for there, cells in found for each in cells or [b""] * len(there)]
    contents = dict(enumerate(values[at] for at in order.tolist()))
    row_of, name_of = row_of[order], BytesColumn.concat(names).take(order)
    records = replace(
        rows,
        member_offsets=np.searchsorted(row_of, np.arange(count + 1)).astype(np.int64),
        member_rows=row_numbers(len(name_of)),
        key_bytes=keys.lengths[row_of],
    )
    sizes = np.fromiter(map(len, contents.values()), np.int64, len(contents))
    members = members_named(name_of, sizes, contents)
    return RecordTable(shard, members, records, _cell, are_rows=not are_json)


def _cell(members: MemberTable, row: int) -> bytes:
    return members.literals.get(row, b"")


def members_named(
    names: BytesColumn, payload_bytes: Int64s, contents: Mapping[int, bytes] = _NOTHING
) -> MemberTable:
    """Members with these names and sizes that have no place in a shard."""
    nothing = np.full(len(names), -1, np.int64)
    return MemberTable(
        names=names,
        kind=np.zeros(len(names), np.uint8),
        payload_start=nothing,
        payload_bytes=payload_bytes,
        range_start=nothing,
        range_length=np.zeros(len(names), np.int64),
        literals=contents,
    )


def _cells(
    shard: str, batches: Sequence[Any], extension: str, wanted: tuple[str, str], unread: bool
) -> tuple[Int64s, list[bytes]]:
    """Return (the rows in which the column named by ``extension`` is not null, the contents of
    these cells). There are no contents if the column is ``unread``."""
    name = extension.removeprefix(".")
    column = batches[0].schema.get_field_index(name)
    if column < 0:
        raise InputError(
            f"shard {shard} has no column {shortened(name)} {wanted[0]}", hint=wanted[1]
        )
    if unread and not is_media(batches[0].schema.field(column).type):
        nulls = np.concatenate([nulls_of(batch.column(column)) for batch in batches])
        return np.flatnonzero(~nulls), []
    found = (cell_contents(name, batch.column(column)) for batch in batches)
    cells = list(chain.from_iterable(found))
    there = [row for row, cell in enumerate(cells) if cell is not None]
    return np.array(there, np.int64), [cell for cell in cells if cell is not None]


class ShardSource:
    """A shard for readers of tables: mapped, in the buffer, or read in parts (see
    :class:`~dsort.containers.columnar.ranges.Source`)."""

    def __init__(self, shard: ShardBytes, buffer: PayloadBuffer) -> None:
        """``buffer``: holds the requested ranges of a shard that is read in parts."""
        self._shard, self._buffer = shard, buffer
        self.size_bytes = shard.size_bytes

    def whole(self) -> memoryview | None:
        """The bytes of the shard, if they are in memory."""
        return self._shard.whole if self._shard.is_whole else None

    def forget(self, until: int) -> None:
        """Release the pages of the first ``until`` bytes, which are not read again. If they stayed
        mapped, they would fill the memory, and compete with pages on their way to the disk."""
        mapped = self._shard.whole.obj
        if isinstance(mapped, mmap.mmap) and until > mmap.PAGESIZE:
            # Rounded down to whole pages, because the page behind these is still read.
            mapped.madvise(mmap.MADV_DONTNEED, 0, until & -mmap.PAGESIZE)

    def read(self, offset: int, length: int) -> bytes:
        """A copy of a range."""
        return self._shard.at(offset, length)

    def held(self, offset: int, length: int) -> memoryview | None:
        """A range, until the next one is requested; None if it does not fit in the buffer."""
        if self._shard.is_whole:
            return self._shard.whole[offset : offset + length]
        if length > self._buffer.size_bytes:
            return None
        view = self._buffer.view(length)
        self._shard.fill(view, offset)
        return view


def gathered_up(batches: Iterable[LightRows], bytes_max: int) -> Iterator[list[LightRows]]:
    """Join batches to groups of about ``bytes_max``: small row groups would make blocks of a row or
    two."""
    waiting: list[LightRows] = []
    size_bytes = 0
    for batch in batches:
        more = batch.held_bytes
        if waiting and size_bytes + more > bytes_max:
            yield waiting
            waiting, size_bytes = [], 0
        waiting.append(batch)
        size_bytes += more
    if waiting:
        yield waiting


def bounded(
    task: ExtractTask, batches: Iterator[LightRows], max_expansion: float
) -> Iterator[LightRows]:
    """Yield ``batches``. ``CorruptShardError`` once the rows of the shard take more bytes than the
    job allows. A row counts as one byte at least, because a few bytes of a shard can hold any
    number of nulls."""
    limit = max_expansion * task.size_bytes + EXPANSION_FLOOR_BYTES
    decoded_bytes = 0
    for batch in batches:
        decoded_bytes += max(batch.nbytes, batch.num_rows)
        if decoded_bytes > limit:
            raise CorruptShardError(
                task.name,
                0,
                f"its rows take more than {format_bytes(int(limit))}, {max_expansion:g} times its "
                f"length and {format_bytes(EXPANSION_FLOOR_BYTES)}",
                hint="this may be a decompression bomb; if it is data, set a larger max_expansion",
            )
        yield batch


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
    """The columns after ``steps``, each as (new name, place in ``names`` or -1). The column of keys
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
    # Backwards: a step that renames columns turns the names after it into those before it.
    for step in reversed(steps):
        if isinstance(step, Fields):  # later steps use the new names
            asked |= {old for old, new in step.rename.items() if new in asked}
        asked.update(step.members_read)
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
