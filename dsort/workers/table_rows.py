"""Rows of tables, as readers, algorithms, steps and outputs need them: the batches of one input
shard, their rows as records, and the index of these.

Cells are members. Only columns that a step, an algorithm or an output needs become members. If only
the nulls of a column matter, its members have no content, which saves a look at each cell.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
from msgspec import Struct, field

from dsort.containers.codecs.decoding import EXPANSION_FLOOR_BYTES
from dsort.containers.columnar.cells import cell_contents
from dsort.containers.columnar.columns import typed_array, typed_value
from dsort.containers.columnar.schema import is_media, is_varying, nulls_of
from dsort.containers.columnar.values import Leaf, LightRows, light_schema
from dsort.data.arrow_arrays import arrow_bytes
from dsort.data.columns import BytesColumn, Int32s, Int64s
from dsort.data.hashes import hash_keys
from dsort.data.index import (
    BLOCK_LENGTH,
    BLOCK_ROWS,
    BLOCK_START,
    CONTENT_HASH,
    KEY_HASH,
    KEYS,
    ORDINAL,
    PAYLOAD_BYTES,
    SAME_HASH,
    SAME_MORE,
    record_index,
    sort_keys_of,
)
from dsort.data.members import MemberTable
from dsort.data.record_table import RecordTable
from dsort.data.records import FormedRecords
from dsort.data.repeated_names import HashesSeen
from dsort.data.row_bytes import side_by_side
from dsort.data.segments import Segments
from dsort.data.table import Column, Name, Numbers, Table
from dsort.errors import CorruptShardError, InputError
from dsort.moves.payload_files import PayloadBuffer, Spool
from dsort.naming.names import KEY_COLUMN, shortened
from dsort.sizes import format_bytes
from dsort.storage.bucket import ReadObject
from dsort.transforms.base import Step
from dsort.transforms.fields import Fields
from dsort.transforms.rekey import JoinKey, Rekey
from dsort.workers.batch import FOUND
from dsort.workers.record_values import ShardSortKeys
from dsort.workers.tasks import ExtractTask

SORT_KEYS = ("to sort by", "algorithm.extension names a column, with a dot before it")
CLASSES = ("to stratify by", "stratify names a column")
SAME = ("to compare records by", "deduplicate.by.field names a column")
"""The purpose of a column, and the part of the spec that names it: for messages."""
PARTITION: Final[Name[Int32s]] = Numbers("partition", "<i4")
CELL_OVERHEAD_BYTES = 4
"""The bytes of a cell besides its value, which are mostly an offset."""


def record_table(
    shard: str,
    batches: Sequence[Any],
    keys: BytesColumn,
    payload_bytes: Int64s,
    extensions: Sequence[str],
    wanted: tuple[str, str] = SORT_KEYS,
    *,
    has_cells: bool = False,
    unread: Collection[str] = (),
    is_whole: bool = False,
    are_made: bool = False,
) -> RecordTable:
    """The rows of some batches as records. A record has one member for each column in
    ``extensions`` that is not null in its row; without extensions, it has one member. ``wanted``:
    the purpose of the columns, and the part of the spec that names them. ``has_cells``: members
    have the sizes of cells, and not of rows. ``unread``: extensions whose content is not read.
    ``is_whole``: the extensions are all columns; so a row with only nulls is one empty member
    without extension. ``are_made``: the rows are made of records, which may be nothing but JSON."""
    are_json = are_made and {*batches[0].schema.names} - {KEY_COLUMN} == {"json"}
    if are_json and extensions:
        extensions = [".json"]
    count = len(keys)
    contents: Mapping[int, bytes] = {}
    ends = np.arange(count + 1, dtype=np.int64)
    name_of, key_bytes, sizes = keys, keys.lengths, payload_bytes
    if extensions:
        found = [_cells(shard, batches, each, wanted, each in unread) for each in extensions]
        if is_whole:
            empty = np.ones(count, np.bool_)
            for rows, _ in found:
                empty[rows] = False
            extensions = [*extensions, ""]
            found.append((np.flatnonzero(empty), []))
        row_of = np.concatenate([rows for rows, _ in found])
        column_of = np.repeat(np.arange(len(found)), [len(rows) for rows, _ in found])
        order = np.lexsort((column_of, row_of))
        names = [
            side_by_side([keys.take(rows), extension.encode("utf-8", "surrogateescape")], len(rows))
            for extension, (rows, _) in zip(extensions, found, strict=True)
        ]
        values = [each for rows, cells in found for each in cells or [b""] * len(rows)]
        contents = dict(enumerate(values[at] for at in order.tolist()))
        row_of, name_of = row_of[order], BytesColumn.concat(names).take(order)
        ends = np.searchsorted(row_of, ends).astype(np.int64)
        key_bytes, sizes = keys.lengths[row_of], payload_bytes[row_of]
        if has_cells:
            sizes = np.fromiter(map(len, contents.values()), np.int64, len(contents))
    records = FormedRecords(
        keys=keys,
        key_hash=hash_keys(keys.tolist(), count),
        member_offsets=ends,
        member_rows=np.arange(len(name_of)),
        key_bytes=key_bytes,
        payload_bytes=payload_bytes,
        stored_bytes=payload_bytes,
    )
    members = _members_named(name_of, sizes, contents)
    return RecordTable(shard, members, records, _cell, are_rows=not are_json)


def _cell(members: MemberTable, row: int) -> bytes:
    return members.literals[row]


def _members_named(
    names: BytesColumn, payload_bytes: Int64s, contents: Mapping[int, bytes]
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
    these cells; no contents if the column is ``unread``)."""
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


class TableRows(Struct, eq=False):
    """The facts about the rows of one shard so far. ``parts``: tables of the rows of some batches,
    with their partitions. ``columns``: the number of columns of the outputs. ``left_out``: how many
    rows steps left out, by kind; ``dropped``: how many rows each step dropped, or went to no
    output. ``counts``: how many rows reached each step that needs positions."""

    sort_keys: ShardSortKeys
    columns: int = 0
    parts: list[Table] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    read: int = 0
    counts: tuple[int, ...] = ()
    hashes_seen: HashesSeen = field(default_factory=HashesSeen)

    def index(self) -> tuple[Table, Int32s]:
        """The index of all rows, in input order, and the partition of each."""
        rows = Table.concat(self.parts, (ORDINAL, KEYS, KEY_HASH, PAYLOAD_BYTES, PARTITION))
        stored = rows[PAYLOAD_BYTES] + CELL_OVERHEAD_BYTES * self.columns
        ends = np.arange(len(rows) + 1, dtype=np.int64)
        ranges = Segments(ends, np.cumsum(stored) - stored, stored, np.zeros(0, np.uint8))
        index = record_index(
            ordinal=rows[ORDINAL],
            keys=rows[KEYS],
            sort=sort_keys_of(rows),
            members=np.ones(len(rows), np.int32),
            payload_bytes=rows[PAYLOAD_BYTES],
            stored_bytes=stored,
            ranges=ranges,
        )
        more = (KEY_HASH, CONTENT_HASH, SAME_HASH, SAME_MORE, *FOUND)
        return index.beside(rows.only(name for name in more if name in rows)), rows[PARTITION]


class SpilledBlocks(Struct):
    """The blocks in the spill, in the order of the rows."""

    partition: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    size_bytes: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def add(self, partition: int, start: int, size_bytes: int, rows: int) -> None:
        self.partition.append(partition)
        self.start.append(start)
        self.size_bytes.append(size_bytes)
        self.rows.append(rows)

    def by_partition(self, partitions: int) -> tuple[Table, Int64s]:
        """Return (the blocks by partition, where the blocks of each partition begin)."""
        partition = np.array(self.partition, np.int64)
        order = np.argsort(partition, kind="stable")
        columns: dict[str, Column] = {
            BLOCK_START.text: np.array(self.start, np.int64),
            BLOCK_LENGTH.text: np.array(self.size_bytes, np.int64),
            BLOCK_ROWS.text: np.array(self.rows, np.int64),
        }
        offsets = np.searchsorted(partition[order], np.arange(partitions + 1)).astype(np.int64)
        return Table(len(partition), columns).take(order), offsets


class ShardSource:
    """An opened input for readers of tables: mapped, in the buffer, or read in parts."""

    def __init__(
        self,
        source: ReadObject | Spool,
        size_bytes: int,
        view: memoryview | None,
        buffer: PayloadBuffer,
    ) -> None:
        """``buffer``: holds the requested ranges where ``view`` is None."""
        self._source = source
        self._view = view
        self._buffer = buffer
        self.size_bytes = size_bytes

    @classmethod
    def of(cls, source: ReadObject, buffer: PayloadBuffer) -> ShardSource:
        """An input that is mapped, or read into ``buffer`` if it fits."""
        size_bytes, view = source.info.size_bytes, source.mapping()
        if view is None and size_bytes <= buffer.size_bytes:
            view = buffer.view(size_bytes)
            source.read_into(view, 0)
        return cls(source, size_bytes, view, buffer)

    def whole(self) -> memoryview | None:
        """See :class:`~dsort.containers.columnar.ranges.Source`."""
        return self._view

    def forget(self, until: int) -> None:
        """Release the pages of the first ``until`` bytes, which are not read again. If they stayed
        mapped, they would fill the memory, and compete with pages on their way to the disk."""
        mapped = None if self._view is None else self._view.obj
        if isinstance(mapped, mmap.mmap) and until > mmap.PAGESIZE:
            mapped.madvise(mmap.MADV_DONTNEED, 0, until & -mmap.PAGESIZE)

    def read(self, offset: int, length: int) -> bytes:
        """See :class:`~dsort.containers.columnar.ranges.Source`."""
        if self._view is not None:
            return bytes(self._view[offset : offset + length])
        data = bytearray(length)
        self._source.read_into(memoryview(data), offset)
        return bytes(data)

    def held(self, offset: int, length: int) -> memoryview | None:
        """See :class:`~dsort.containers.columnar.ranges.Source`."""
        if self._view is not None:
            return self._view[offset : offset + length]
        if length > self._buffer.size_bytes:
            return None
        view = self._buffer.view(length)
        self._source.read_into(view, offset)
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
                hint="a bomb does; if this is data, set a larger max_expansion",
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
