"""The record index on disk while a job runs: column files in scratch, a few for each shard.

The rows of a partition are read as slices of all shards' files. So no process holds more of the
index than one partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dsort.data.columns import BytesColumn, Int32s, Int64s, UInt64s, run_sums
from dsort.data.index import (
    BLOCK_LENGTH,
    BLOCK_ROWS,
    BLOCK_SHARD,
    BLOCK_START,
    BLOCK_WORKER,
    CONTENT_HASH,
    ENTRIES,
    EXTENSIONS,
    GROUP,
    KEY_HASH,
    KEYS,
    MEMBERS,
    ORDINAL,
    ORIGIN_BYTES,
    ORIGIN_START,
    PAYLOAD_BYTES,
    RANGES,
    RANK,
    ROW,
    SAME_HASH,
    SAME_MORE,
    SAYS,
    SHARD,
    STORED_BYTES,
    TEXT,
    WORDS,
    SortKeys,
    sort_columns,
    sort_keys_of,
)
from dsort.data.numbered import NumberedColumn, hash_column
from dsort.data.table import Column, Table
from dsort.errors import StorageError, damaged
from dsort.order.sort import Splitters, order_rows
from dsort.scratch.columns import ColumnFile, KeptColumns, columns_bytes, write_columns
from dsort.scratch.directory import Scratch
from dsort.scratch.tables import (
    CREATION_COLUMNS,
    EACH_ROW,
    LINEAGE,
    OPTIONAL_CREATION_COLUMNS,
    POSITION_SHARD,
    OrderedRows,
    Positions,
    check_positions,
)

RUN_SHARDS_MAX = 64
"""The most small shards, one after the other, that share one index file."""


COUNTED: Final = (ORDINAL, MEMBERS, PAYLOAD_BYTES, STORED_BYTES)
SORT_KEYS: Final = (GROUP, RANK, WORDS, TEXT)
ORIGINS: Final = (KEYS, ORIGIN_START, ORIGIN_BYTES)
SOMETIMES: Final = (*SORT_KEYS, SHARD, RANGES, CONTENT_HASH, ENTRIES, EXTENSIONS, SAYS)
"""The columns that ordering needs if the index has them."""
BLOCKS: Final = (BLOCK_SHARD, BLOCK_WORKER, BLOCK_START, BLOCK_LENGTH)


_NO_SPILL: Final[Mapping[str, NDArray[Any]]] = {}


class PartitionRows(Struct, frozen=True, eq=False):
    """The rows of one partition, in input order (shard ordinal, record ordinal), with the columns
    that ordering needs, and the blocks of the spill with their payload."""

    rows: Table
    blocks: Table

    @staticmethod
    def concat(parts: Sequence[PartitionRows]) -> PartitionRows:
        """The rows and blocks of all parts, one after the other."""
        rows = Table.concat([part.rows for part in parts], (*COUNTED, SHARD, RANGES))
        blocks = [part.blocks for part in parts if len(part.blocks)]
        return PartitionRows(rows, Table.concat(blocks, BLOCKS))


# <stage>-<shard>.col      one shard's records, ordered by partition, in input order within each;
#                          or the records of a run of small shards, which begins with this shard
# ordered-<partition>.col  one partition's records in output order
# duplicates-<part>.col    positions (shard, ordinal) of records whose key an earlier record has
class IndexStore:
    """Reads and writes the index files of one job in its scratch directory."""

    def __init__(self, scratch: Scratch) -> None:
        self.scratch = scratch
        self._kept = KeptColumns()

    def columns(self, name: str) -> ColumnFile:
        """The column file ``name`` in scratch."""
        return ColumnFile.of(self.scratch, name)

    # -- small files -------------------------------------------------------------------------

    def write_file(self, name: str, data: bytes) -> None:
        """Store a small file; readers see it only when it is whole."""
        self.scratch.write(name, data)

    def file_bytes(self, name: str) -> bytes:
        """The whole content of a small file."""
        return self.scratch.read(name)

    def has_shard(self, stage: str, shard: int) -> bool:
        """Whether this node has the index of this shard; index files appear only whole."""
        return self.scratch.has(f"{stage}-{shard}.col")

    # -- shards ------------------------------------------------------------------------------

    def write_shard(
        self,
        stage: str,
        shard: int,
        index: Table,
        partition_offsets: Int64s,
        *,
        worker: int,
        spill: Mapping[str, NDArray[Any]] = _NO_SPILL,
    ) -> None:
        """Store one shard's index, rows already ordered by partition.

        The index of a run of shards has a column of shards, and ``shard`` is the first of the run.
        ``partition_offsets`` has shape ``(partitions + 1,)``: where each partition's rows begin.
        ``spill``: where the payload is in the spill; empty if payload did not move. It has either
        ``spill_starts``, the start of each partition's piece, or the columns of many blocks and
        ``block_offsets``, the start of each partition's blocks.
        """
        rows = index.without(KEY_HASH, SAME_HASH, SAME_MORE)
        if spill:
            rows = rows.without(RANGES)
        write_columns(
            self.scratch,
            f"{stage}-{shard}.col",
            {
                "partition_offsets": partition_offsets,
                "worker": np.array([worker], np.int64),
                **spill,
                **rows.arrays(),
                **_hashes_by_key(index),
                **_hashes_by_content(index),
            },
        )

    def shard_rows(self, stage: str, shard: int, partition: int) -> PartitionRows:
        """One shard's rows of one partition."""
        file, start, stop = self._partition(stage, shard, partition)
        origins = ORIGINS if ORIGIN_START.is_in(file) else ()
        rows = Table.read(file, (*COUNTED, *origins), start, stop, optional=SOMETIMES)
        if SHARD in rows:
            _check_run(rows[SHARD], shard)
        else:
            rows = rows.with_(SHARD, np.full(stop - start, shard, np.int32))
        if EXTENSIONS in rows:
            rows = rows.with_(ROW, np.arange(start, stop))
        return PartitionRows(rows, self._blocks(file, shard, partition, start, stop))

    def partition_rows(
        self, stage: str, shards: Sequence[int], partition: int
    ) -> list[tuple[int, PartitionRows]]:
        """The rows of one partition, by shard (of a run: the shard that has the index file); shards
        without rows are left out."""
        parts = ((shard, self.shard_rows(stage, shard, partition)) for shard in shards)
        return [(shard, part) for shard, part in parts if len(part.rows)]

    def spill_blocks(self, stage: str, shard: int, partition: int) -> Table:
        """The blocks of the spill with the payload of one shard's rows of one partition."""
        file, start, stop = self._partition(stage, shard, partition)
        blocks = self._blocks(file, shard, partition, start, stop)
        return blocks if start < stop else blocks.run(0, 0)

    def _partition(self, stage: str, shard: int, partition: int) -> tuple[ColumnFile, int, int]:
        """A shard's file, and the rows of one partition in it: the first, and the one after the
        last."""
        file = ColumnFile.of(self.scratch, f"{stage}-{shard}.col", self._kept)
        start, stop = file.array("partition_offsets", partition, partition + 2).tolist()
        return file, start, stop

    def _blocks(self, file: ColumnFile, shard: int, partition: int, start: int, stop: int) -> Table:
        """The blocks with rows ``start:stop`` of a shard's file: a single block, or for tables all
        blocks that were spilled."""
        columns: dict[str, Column]
        if "block_offsets" in file:
            first, last = file.array("block_offsets", partition, partition + 2).tolist()
            read = (BLOCK_START, BLOCK_LENGTH, BLOCK_ROWS)
            columns = {each.text: each.read(file, first, last) for each in read}
            count = last - first
        elif "spill_starts" not in file:
            return _NO_BLOCKS
        else:
            begin = file.array("spill_starts", partition, partition + 1)
            size_bytes = file.array("stored_bytes", start, stop).sum(keepdims=True)
            columns = {BLOCK_START.text: begin, BLOCK_LENGTH.text: size_bytes}
            count = 1
        columns[BLOCK_SHARD.text] = np.full(count, shard, np.int64)
        columns[BLOCK_WORKER.text] = np.full(count, file.array("worker", 0, 1)[0], np.int64)
        return Table(count, columns)

    def key_hashes(self, stage: str, shard: int, low: int = 0, high: int = 0) -> Table:
        """The records in a shard's file with ``low <= key hash < high`` (high 0: no upper end), by
        ascending hash."""
        file = self.columns(f"{stage}-{shard}.col")
        ordered = file
        if "key_hash" not in file:
            ordered = self._hashes_of_numbered(file, f"{stage}-{shard}-hashes.col")
        hashes, start, stop = _between(ordered, "key_hash", low, high)
        found = self._rows_at(file, shard, ordered.array("key_row", start, stop))
        return found.with_(KEY_HASH, hashes)

    def same_hashes(self, stage: str, shard: int, low: int, high: int) -> Table:
        """The records in a shard's file with ``low <= content hash < high``, as in ``key_hashes``.
        A content hash is the first half of the hash of a record's content."""
        file = self.columns(f"{stage}-{shard}.col")
        hashes, start, stop = _between(file, "same_hash", low, high)
        found = self._rows_at(file, shard, file.array("same_row", start, stop))
        more = SAME_MORE.read(file, start, stop)
        return found.with_(KEY_HASH, hashes).with_(SAME_MORE, more)

    def _rows_at(self, file: ColumnFile, shard: int, rows: Int32s) -> Table:
        """The positions of the records at ``rows`` of a shard's file."""
        ordinal = file.array("ordinal")[rows]
        shards = np.broadcast_to(np.int64(shard), rows.shape)
        if "shard" in file:
            shards = _check_run(file.array("shard"), shard)[rows].astype(np.int64)
        row = rows.astype(np.int64)
        columns = {POSITION_SHARD.text: shards, ORDINAL.text: ordinal, ROW.text: row}
        return Table(len(rows), columns)

    def lots(self, stage: str, shard: int) -> tuple[UInt64s, UInt64s, Int64s]:
        """(class, lot, ordinal) of a shard's records. A lot is the random number that a record
        draws in its class."""
        file = self.columns(f"{stage}-{shard}.col")
        ordinal = file.array("ordinal")
        if len(ordinal) == 0:  # without records, a shard may have no such columns
            return np.zeros(0, np.uint64), np.zeros(0, np.uint64), ordinal
        return file.array("class"), file.array("lot"), ordinal

    def keys(self, stage: str, shard: int, rows: NDArray[np.integer]) -> BytesColumn:
        """The record keys of some rows of a shard's file."""
        file = self.columns(f"{stage}-{shard}.col")
        return KEYS.read(file, 0, file.count("ordinal")).take(rows)

    def keys_at(self, stage: str, file: int, shard: int, ordinals: Int64s) -> BytesColumn:
        """The record keys at some ordinals of a shard, in ascending order. ``file``: the shard
        whose index file has the rows of ``shard``."""
        columns = self.columns(f"{stage}-{file}.col")
        ordinal, order = columns.array("ordinal"), np.arange(columns.count("ordinal"))
        if "shard" in columns:
            order = np.flatnonzero(_check_run(columns.array("shard"), file) == shard)
        order = order[np.argsort(ordinal[order], kind="stable")]
        found = np.searchsorted(ordinal[order], ordinals)
        return self.keys(stage, file, order[found])

    def are_numbered(self, stage: str, shard: int) -> bool:
        """Whether the keys of a shard's records are only their positions in it."""
        return "keys.before" in self.columns(f"{stage}-{shard}.col")

    def _hashes_of_numbered(self, file: ColumnFile, name: str) -> ColumnFile:
        """The hashes of numbered keys, which are computed on the first request."""
        if not self.scratch.has(name):
            keys = KEYS.read(file, 0, file.count("ordinal"))
            # Several processes may compute them at once: the content is the same, and the file
            # appears whole.
            write_columns(self.scratch, name, _hash_columns(hash_column(keys)))
        return self.columns(name)

    def sort_keys(self, stage: str, shard: int) -> SortKeys:
        """The sort keys of all records of a shard."""
        file = self.columns(f"{stage}-{shard}.col")
        return _sort_keys(file, file.count("ordinal"))

    def survey_sample(
        self, stage: str, shard: int, rows_max: int
    ) -> tuple[SortKeys, Int64s, Int64s]:
        """(sort keys, ordinal, weight in bytes) of up to ``rows_max`` evenly spaced records."""
        file = self.columns(f"{stage}-{shard}.col")
        stored = file.array("stored_bytes")
        rows = np.arange(0, len(stored), max(-(-len(stored) // rows_max), 1))
        if len(rows) == 0:
            return _sort_keys(file, 0), np.zeros(0, np.int64), np.zeros(0, np.int64)
        weights = np.add.reduceat(stored, rows)
        sort = _sort_keys(file, len(stored)).take(rows)
        return sort, file.array("ordinal")[rows], weights

    # -- ordered partitions ---------------------------------------------------------------------

    def write_ordered(self, partition: int, ordered: OrderedRows) -> None:
        """Store one partition in output order."""
        write_columns(
            self.scratch,
            f"ordered-{partition}.col",
            {
                **ordered.rows.arrays(),
                **ordered.blocks.arrays(),
                **({"record_offsets": ordered.record_offsets} if ordered.has_pieces else {}),
                "version": np.array([ordered.version], np.int64),
            },
        )

    def ordered(
        self, partition: int, start: int, stop: int, *, with_keys: bool = False
    ) -> OrderedRows:
        """Records ``start:stop`` of one partition in output order (stop -1: to the end)."""
        columns = (*CREATION_COLUMNS, *((KEYS,) if with_keys else ()))
        file = self.columns(f"ordered-{partition}.col")
        start, stop, record_offsets = _rows_of(file, start, stop)
        return OrderedRows(
            Table.read(file, columns, start, stop, optional=OPTIONAL_CREATION_COLUMNS),
            Table.read(file, BLOCKS, 0, file.count(BLOCK_START.text), optional=[BLOCK_ROWS]),
            record_offsets,
            int(file.array("version", 0, 1)[0]),
        )

    def stored_bytes(self, partition: int, start: int, stop: int) -> Int64s:
        """The stored bytes of records ``start:stop`` of one partition in output order."""
        file = self.columns(f"ordered-{partition}.col")
        start, stop, record_offsets = _rows_of(file, start, stop)
        stored = STORED_BYTES.read(file, start, stop)
        return run_sums(stored, record_offsets) if len(record_offsets) else stored

    def lineage_rows(self, partition: int, start: int, stop: int) -> Table:
        """Records ``start:stop`` of one partition in output order, for the lineage. Joined records
        have a row for each piece."""
        file = self.columns(f"ordered-{partition}.col")
        start, stop, _ = _rows_of(file, start, stop)
        return Table.read(file, LINEAGE, start, stop)

    # -- positions and splitters -------------------------------------------------------------

    def write_table(self, name: str, table: Table) -> None:
        """Store a table in a separate file."""
        write_columns(self.scratch, name, table.arrays())

    def positions(self, name: str) -> Positions:
        """The positions in the file ``name``."""
        return Positions(self.columns(name), name)

    def splitters(self, name: str) -> Splitters:
        """The splitters in a file from the coordinator."""
        return read_splitters(self.columns(name))


def splitters_bytes(splitters: Splitters) -> bytes:
    """The content of a file of splitters."""
    keys = splitters.keys
    return columns_bytes(
        {
            POSITION_SHARD.text: splitters.shard,
            "ordinal": splitters.ordinal,
            **Table(keys.count, sort_columns(keys)).arrays(is_private=False),
        }
    )


def read_splitters(file: ColumnFile) -> Splitters:
    """The splitters from which ``splitters_bytes`` made ``file``."""
    count = file.count(POSITION_SHARD.text)
    ordinal = file.array("ordinal", 0, count)
    return Splitters(_sort_keys(file, count), file.array(POSITION_SHARD.text), ordinal)


_NO_BLOCKS: Final = Table.concat([], BLOCKS)


def _check_run(shards: Int32s, first: int) -> Int32s:
    """Return ``shards``, if all of them are in a run that begins with ``first``; else raise
    ``StorageError``."""
    if len(shards) and not first <= shards.min() <= shards.max() < first + RUN_SHARDS_MAX:
        raise StorageError(
            f"the index of input shard {first} has rows of shards that are not in its run",
            hint="start the job again; if the file was whole before, check who may write there",
        )
    return shards


def _between(file: ColumnFile, name: str, low: int, high: int) -> tuple[UInt64s, int, int]:
    """The hashes ``low <= hash < high`` of an ascending column, and the bounds of their rows."""
    hashes = file.array(name, dtype="<u8")
    start = int(np.searchsorted(hashes, np.uint64(low)))
    stop = int(np.searchsorted(hashes, np.uint64(high))) if high else len(hashes)
    return hashes[start:stop], start, stop


def _rows_of(file: ColumnFile, start: int, stop: int) -> tuple[int, int, Int64s]:
    """The rows of records ``start:stop`` in output order (stop -1: to the end), and the first row
    of each record (empty if each row is a record)."""
    if "record_offsets" not in file:
        return start, stop if stop >= 0 else file.count(ORDINAL.text), EACH_ROW
    stop = stop if stop >= 0 else file.count("record_offsets") - 1
    offsets = file.array("record_offsets", start, stop + 1)
    return int(offsets[0]), int(offsets[-1]), offsets - offsets[0]


def _sort_keys(file: ColumnFile, count: int) -> SortKeys:
    return sort_keys_of(Table.read(file, (), 0, count, optional=SORT_KEYS))


def _hashes_by_key(index: Table) -> dict[str, NDArray[Any]]:
    """The columns of the hashes of keys; none for numbered keys, whose hashes are rarely needed."""
    if KEY_HASH in index:
        return _hash_columns(index[KEY_HASH])
    keys = index[KEYS]
    if isinstance(keys, NumberedColumn) and not keys.after:
        return {}
    return _hash_columns(hash_column(keys))


def _hash_columns(key_hash: UInt64s) -> dict[str, NDArray[Any]]:
    """The columns of hashes, in ascending order, so that a search for duplicates reads a range of
    hashes as one slice of each shard's file."""
    # Row numbers of one shard fit in 32 bits, which take half the room.
    by_hash = np.argsort(key_hash).astype(np.int32)
    return {"key_hash": key_hash[by_hash], "key_row": by_hash}


def _hashes_by_content(index: Table) -> dict[str, NDArray[Any]]:
    """The hashes of content by which records are compared, stored like the hashes of keys."""
    if SAME_HASH not in index:
        return {}
    first, more = index[SAME_HASH], index[SAME_MORE]
    # Zeros stand for a record without the compared members, which equals no other.
    rows = np.flatnonzero((first | more) != 0)
    rows = rows[np.argsort(first[rows], kind="stable")]
    return {"same_hash": first[rows], "same_more": more[rows], "same_row": rows.astype(np.int32)}


def check_splitters(data: bytes, what: str, *, shards: int, decreasing: bool) -> None:
    """``StorageError`` unless ``data`` is a file of splitters in output order, for so many shards.
    The check is for a file that comes back from a bucket."""
    file = ColumnFile(data, what)
    found = read_splitters(file)
    check_positions(file, what, shards)
    text = found.keys.text
    if text is not None and (np.diff(text.offsets) < 0).any():
        raise damaged(what, "texts end before they begin")
    by_position = np.lexsort((found.ordinal, found.shard))
    order = by_position[order_rows(found.keys.take(by_position), decreasing=decreasing)]
    if not np.array_equal(order, np.arange(len(order))):
        raise damaged(what, "splitters are not in order")
