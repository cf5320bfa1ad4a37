"""The record index on disk while a job runs: column files in scratch, a few for each shard.

``<stage>-<shard>.col``      one shard's records, ordered by partition, in input order within each,
                             or those of a run of small shards, which it is the first of
``ordered-<partition>.col``  one partition's records in output order
``duplicates-<part>.col``    positions (shard, ordinal) of records whose key an earlier one has

Rows of one partition are read as slices of all shards' files, so no process holds more of the index
than one partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsort.data.columns import BytesColumn, Int32s, Int64s, UInt64s
from dsort.data.index import Origins, RecordIndex, Segments, SortKeys
from dsort.data.new_names import NewNames
from dsort.data.numbered import NumberedColumn, hash_column
from dsort.errors import StorageError
from dsort.order.partitions import Splitters
from dsort.scratch.columns import Column, ColumnFile, KeptColumns, columns_bytes, write_columns
from dsort.scratch.directory import Scratch
from dsort.scratch.ordered import LineageRows, OrderedRows, sums_of

__all__ = [
    "RUN_SHARDS_MAX",
    "IndexStore",
    "PartitionRows",
    "ShardRows",
    "SpillBlocks",
    "TableBlocks",
    "read_splitters",
    "splitters_bytes",
]


RUN_SHARDS_MAX = 64
"""So many small shards, one after the other, have one index file at most."""


@dataclass(frozen=True, slots=True, eq=False)
class TableBlocks:
    """Blocks of the spill that hold rows, one after the other: where each begins in its
    spill file, how many bytes and how many rows it has. Shapes ``(n,)``."""

    start: Int64s
    size_bytes: Int64s
    rows: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class SpillBlocks:
    """``blocks`` of the spill files of ``worker``."""

    worker: int
    blocks: TableBlocks


@dataclass(frozen=True, slots=True, eq=False)
class ShardRows:
    """The rows of one shard, or of a run of them, that belong to one partition, as far as ordering
    needs them."""

    sort: SortKeys
    ordinal: Int64s
    members: Int32s
    payload_bytes: Int64s
    stored_bytes: Int64s
    segments: Segments | None  # map: in the input shard
    content_hash: UInt64s | None
    worker: int  # spill: whose spill file holds the payload
    spill_start: int  # spill: where in it the partition's rows of this shard begin
    entries: BytesColumn | None = None  # packed (see ``data.entries``)
    blocks: TableBlocks | None = None  # of rows of tables: where they are in the spill
    origins: Origins | None = None
    extensions: BytesColumn | None = None  # see ``RecordIndex``
    says: BytesColumn | None = None  # the same
    first_row: int = 0  # of these rows, in the shard's file
    shard_of: Int64s | None = None  # of a run: which shard each is of

    def __len__(self) -> int:
        return len(self.ordinal)


@dataclass(frozen=True, slots=True, eq=False)
class PartitionRows:
    """The rows of one partition from all shards, in input order (shard ordinal, record ordinal)."""

    shards: tuple[int, ...]
    parts: tuple[ShardRows, ...]


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
        """Store a small file; it appears whole or not at all."""
        self.scratch.write(name, data)

    def file_bytes(self, name: str) -> bytes:
        """A small file, whole."""
        return self.scratch.read(name)

    def has_shard(self, stage: str, shard: int) -> bool:
        """Whether there is an index of this shard; index files appear whole."""
        return self.scratch.has(f"{stage}-{shard}.col")

    # -- shards ------------------------------------------------------------------------------

    def write_shard(
        self,
        stage: str,
        shard: int,
        index: RecordIndex,
        partition_offsets: Int64s,
        *,
        worker: int,
        spill_starts: Int64s | None,
        blocks: TableBlocks | None = None,
        block_offsets: Int64s | None = None,
        shard_of: Int64s | None = None,
    ) -> int:
        """Store one shard's index, rows already ordered by partition; returns bytes written.

        ``shard_of``: of a run of shards that begins with ``shard``, which one each row is of.
        ``partition_offsets`` has shape ``(partitions + 1,)``: where each partition's rows begin;
        ``block_offsets`` likewise: where each partition's ``blocks`` do.
        """
        sort = index.sort
        segments = index.segments if spill_starts is None else None
        return write_columns(
            self.scratch,
            f"{stage}-{shard}.col",
            {
                "partition_offsets": partition_offsets,
                "worker": np.array([worker], np.int64),
                "spill_starts": spill_starts,
                "block_offsets": block_offsets,
                "block_start": None if blocks is None else blocks.start,
                "block_bytes": None if blocks is None else blocks.size_bytes,
                "block_rows": None if blocks is None else blocks.rows,
                "ordinal": index.ordinal,
                "shard": shard_of,
                **_key_columns(index),
                "group": sort.group,
                "rank": sort.rank,
                "words": sort.words,
                "text": None if sort.text is index.keys else sort.text,
                "text_is_keys": np.ones(1, np.uint8) if sort.text is index.keys else None,
                "members": index.members,
                "payload_bytes": index.payload_bytes,
                "stored_bytes": index.stored_bytes,
                **_segment_columns(segments, index.stored_bytes),
                "content_hash": index.content_hash,
                "entries": index.entries,
                **_same_columns(index.same),
                "class": None if index.lots is None else index.lots[:, 0].copy(),
                "lot": None if index.lots is None else index.lots[:, 1].copy(),
                "origin_start": None if index.origins is None else index.origins.start,
                "origin_bytes": None if index.origins is None else index.origins.size_bytes,
                "extensions": index.extensions,
                "says": index.says,
            },
        )

    def shard_rows(self, stage: str, shard: int, partition: int) -> ShardRows:
        """One shard's rows of one partition."""
        file = ColumnFile.of(self.scratch, f"{stage}-{shard}.col", self._kept)
        start, stop = file.array("partition_offsets", partition, partition + 2).tolist()
        spill = "spill_starts" in file
        return ShardRows(
            sort=_sort_keys(file, start, stop),
            ordinal=file.array("ordinal", start, stop),
            members=file.array("members", start, stop),
            payload_bytes=file.array("payload_bytes", start, stop),
            stored_bytes=file.array("stored_bytes", start, stop),
            segments=None if spill else _segments(file, start, stop),
            content_hash=_optional(file, "content_hash", start, stop),
            worker=int(file.array("worker", 0, 1)[0]),
            spill_start=int(file.array("spill_starts", partition, partition + 1)[0])
            if spill
            else 0,
            entries=_optional_bytes(file, "entries", start, stop),
            blocks=_blocks(file, partition) if "block_offsets" in file else None,
            origins=_origins(file, start, stop) if "origin_start" in file else None,
            extensions=_optional_bytes(file, "extensions", start, stop),
            says=_optional_bytes(file, "says", start, stop),
            first_row=start,
            shard_of=_shards(file, shard, start, stop) if "shard" in file else None,
        )

    def partition_rows(self, stage: str, shards: Sequence[int], partition: int) -> PartitionRows:
        """All rows of one partition; shards without any are left out."""
        parts = [(shard, self.shard_rows(stage, shard, partition)) for shard in shards]
        kept = [(shard, part) for shard, part in parts if len(part)]
        return PartitionRows(tuple(s for s, _ in kept), tuple(part for _, part in kept))

    def spill_blocks(self, stage: str, shard: int, partition: int) -> SpillBlocks | None:
        """Where the spill has one shard's rows of one partition; None if there are none."""
        file = ColumnFile.of(self.scratch, f"{stage}-{shard}.col", self._kept)
        start, stop = file.array("partition_offsets", partition, partition + 2).tolist()
        if start == stop:
            return None
        worker = int(file.array("worker", 0, 1)[0])
        if "block_offsets" in file:
            return SpillBlocks(worker, _blocks(file, partition))
        size_bytes = file.array("stored_bytes", start, stop).sum(keepdims=True)
        first = file.array("spill_starts", partition, partition + 1)
        return SpillBlocks(worker, TableBlocks(first, size_bytes, np.array([stop - start])))

    def key_hashes(
        self, stage: str, shard: int, low: int = 0, high: int = 0
    ) -> tuple[UInt64s, Int64s, Int64s, Int64s]:
        """(key hash, shard, ordinal, row) of the records in a shard's file with
        ``low <= hash < high`` (high 0: no upper end), by ascending hash."""
        file = self.columns(f"{stage}-{shard}.col")
        ordered = file
        if "key_hash" not in file:
            ordered = self._hashes_of_numbered(file, f"{stage}-{shard}-hashes.col")
        hashes = ordered.array("key_hash")
        start = int(np.searchsorted(hashes, np.uint64(low)))
        stop = int(np.searchsorted(hashes, np.uint64(high))) if high else len(hashes)
        rows = ordered.array("key_row", start, stop).astype(np.int64)
        shards = np.broadcast_to(np.int64(shard), rows.shape)
        if "shard" in file:
            shards = _shards(file, shard, 0, file.count("shard"))[rows]
        return hashes[start:stop], shards, file.array("ordinal")[rows], rows

    def same_hashes(
        self, stage: str, shard: int, low: int = 0, high: int = 0
    ) -> tuple[UInt64s, UInt64s, Int64s, Int64s]:
        """(first half of what they are compared by, second half, ordinal, row) of a shard's records
        with ``low <= first half < high``, as ``key_hashes``; those alone that can be compared."""
        file = self.columns(f"{stage}-{shard}.col")
        hashes = file.array("same_hash")
        start = int(np.searchsorted(hashes, np.uint64(low)))
        stop = int(np.searchsorted(hashes, np.uint64(high))) if high else len(hashes)
        rows = file.array("same_row", start, stop).astype(np.int64)
        more = file.array("same_more", start, stop)
        return hashes[start:stop], more, file.array("ordinal")[rows], rows

    def lots(self, stage: str, shard: int) -> tuple[UInt64s, UInt64s, Int64s]:
        """(class, lot in it, ordinal) of a shard's records."""
        file = self.columns(f"{stage}-{shard}.col")
        return file.array("class"), file.array("lot"), file.array("ordinal")

    def keys(self, stage: str, shard: int, rows: NDArray[np.integer]) -> BytesColumn:
        """The record keys of some rows of a shard's file."""
        file = self.columns(f"{stage}-{shard}.col")
        return _keys(file, 0, file.count("ordinal")).take(rows)

    def keys_at(self, stage: str, file: int, shard: int, ordinals: Int64s) -> BytesColumn:
        """The record keys at some ordinals of a shard, which are ascending. ``file``: the shard
        whose index file has its rows."""
        columns = self.columns(f"{stage}-{file}.col")
        ordinal, order = columns.array("ordinal"), np.arange(columns.count("ordinal"))
        if "shard" in columns:
            order = np.flatnonzero(_shards(columns, file, 0, len(order)) == shard)
        order = order[np.argsort(ordinal[order], kind="stable")]
        found = np.searchsorted(ordinal[order], ordinals)
        return self.keys(stage, file, order[found])

    def are_numbered(self, stage: str, shard: int) -> bool:
        """Whether the keys of a shard's records are but their positions in it."""
        return "key_before" in self.columns(f"{stage}-{shard}.col")

    def _hashes_of_numbered(self, file: ColumnFile, name: str) -> ColumnFile:
        """The hashes of numbered keys, which are taken if somebody asks for them."""
        if not self.scratch.has(name):
            keys = _keys(file, 0, file.count("ordinal"))
            write_columns(self.scratch, name, _hash_columns(hash_column(keys)))
        return self.columns(name)

    def sort_keys(self, stage: str, shard: int) -> SortKeys:
        """The sort keys of all records of a shard."""
        file = self.columns(f"{stage}-{shard}.col")
        return _sort_keys(file, 0, file.count("ordinal"))

    def survey_sample(
        self, stage: str, shard: int, rows_max: int
    ) -> tuple[SortKeys, Int64s, Int64s]:
        """(sort keys, ordinal, weight in bytes) of up to ``rows_max`` evenly spaced records."""
        file = self.columns(f"{stage}-{shard}.col")
        stored = file.array("stored_bytes")
        rows = np.arange(0, len(stored), max(-(-len(stored) // rows_max), 1))
        if len(rows) == 0:
            return _sort_keys(file, 0, 0), np.zeros(0, np.int64), np.zeros(0, np.int64)
        weights = np.add.reduceat(stored, rows)
        sort = _sort_keys(file, 0, len(stored)).take(rows)
        return sort, file.array("ordinal")[rows], weights

    # -- ordered partitions ---------------------------------------------------------------------

    def write_ordered(self, partition: int, rows: OrderedRows) -> int:
        """Store one partition in output order; returns bytes written."""
        return write_columns(
            self.scratch,
            f"ordered-{partition}.col",
            {
                "source": rows.source,
                "shard": rows.shard,
                "ordinal": rows.ordinal,
                "group": rows.group,
                "members": rows.members,
                "payload_bytes": rows.payload_bytes,
                "stored_bytes": rows.stored_bytes,
                **_segment_columns(rows.segments, rows.stored_bytes),
                "content_hash": rows.content_hash,
                "block_shard": rows.block_shard,
                "block_worker": rows.block_worker,
                "block_start": rows.block_start,
                "block_bytes": rows.block_bytes,
                "block_rows": rows.block_rows,
                "record_offsets": rows.record_offsets,
                "version": np.array([rows.version], np.int64) if rows.version > 1 else None,
                "entries": rows.entries,
                "keys": None if rows.origins is None else rows.origins.keys,
                "origin_start": None if rows.origins is None else rows.origins.start,
                "origin_bytes": None if rows.origins is None else rows.origins.size_bytes,
            },
        )

    def ordered(self, partition: int, start: int = 0, stop: int | None = None) -> OrderedRows:
        """Records ``start:stop`` of one partition in output order."""
        file = self.columns(f"ordered-{partition}.col")
        record_offsets = None
        if "record_offsets" in file:
            stop = file.count("record_offsets") - 1 if stop is None else stop
            record_offsets = file.array("record_offsets", start, stop + 1)
            start, stop = int(record_offsets[0]), int(record_offsets[-1])
            record_offsets = record_offsets - start
        elif stop is None:
            stop = len(file.array("source"))
        return OrderedRows(
            source=file.array("source", start, stop),
            shard=file.array("shard", start, stop),
            ordinal=file.array("ordinal", start, stop),
            group=_optional(file, "group", start, stop),
            members=file.array("members", start, stop),
            payload_bytes=file.array("payload_bytes", start, stop),
            stored_bytes=file.array("stored_bytes", start, stop),
            segments=_segments(file, start, stop),
            content_hash=_optional(file, "content_hash", start, stop),
            block_shard=file.array("block_shard"),
            block_worker=file.array("block_worker"),
            block_start=file.array("block_start"),
            block_bytes=file.array("block_bytes"),
            entries=_optional_bytes(file, "entries", start, stop),
            block_rows=file.array("block_rows") if "block_rows" in file else None,
            record_offsets=record_offsets,
            version=int(file.array("version", 0, 1)[0]) if "version" in file else 1,
        )

    def stored_bytes(self, partition: int, start: int, stop: int) -> Int64s:
        """Of records ``start:stop`` of one partition in output order."""
        file = self.columns(f"ordered-{partition}.col")
        if "record_offsets" not in file:
            return file.array("stored_bytes", start, stop)
        offsets = file.array("record_offsets", start, stop + 1)
        stored = file.array("stored_bytes", int(offsets[0]), int(offsets[-1]))
        return sums_of(stored, offsets - offsets[0])

    def lineage_rows(self, partition: int, start: int, stop: int) -> LineageRows:
        """Records ``start:stop`` of one partition in output order, for the lineage: a row for each
        piece of those that were joined."""
        file = self.columns(f"ordered-{partition}.col")
        if "record_offsets" in file:
            start, stop = file.array("record_offsets")[[start, stop]].tolist()
        return LineageRows(
            shard=file.array("shard", start, stop),
            stored_bytes=file.array("stored_bytes", start, stop),
            content_hash=file.array("content_hash", start, stop),
            origins=_origins(file, start, stop),
        )

    # -- positions and splitters -------------------------------------------------------------

    def write_positions(
        self, name: str, shard: Int64s, ordinal: Int64s, nth: Int64s, keys: BytesColumn | None
    ) -> None:
        """Store record positions, sorted by (shard, ordinal), with what goes with them."""
        columns = {"shard": shard, "ordinal": ordinal, "nth": nth, "keys": keys}
        write_columns(self.scratch, name, columns)

    def positions(self, name: str) -> ColumnFile:
        """The columns that ``write_positions`` stored."""
        return self.columns(name)

    def splitters(self, name: str) -> Splitters:
        """The splitters that the coordinator shared."""
        return read_splitters(self.columns(name))


def splitters_bytes(splitters: Splitters) -> bytes:
    """A file of splitters."""
    keys = splitters.keys
    return columns_bytes(
        {
            "shard": splitters.shard,
            "ordinal": splitters.ordinal,
            "group": keys.group,
            "rank": keys.rank,
            "words": keys.words,
            "text": keys.text,
        }
    )


def read_splitters(file: ColumnFile) -> Splitters:
    """What ``splitters_bytes`` made."""
    count = file.count("shard")
    ordinal = file.array("ordinal", 0, count)
    return Splitters(_sort_keys(file, 0, count), file.array("shard"), ordinal)


def _shards(file: ColumnFile, first: int, start: int, stop: int) -> Int64s:
    """Which shard of the run that begins with ``first`` each row is of. ``StorageError``."""
    shards: Int64s = file.array("shard", start, stop)
    if len(shards) and not first <= shards.min() <= shards.max() < first + RUN_SHARDS_MAX:
        raise StorageError(
            f"the index of input shard {first} has rows of shards that are not in its run",
            hint="start the job again; if it was whole, look who may write there",
        )
    return shards


def _optional(file: ColumnFile, name: str, start: int, stop: int) -> NDArray[Any] | None:
    return file.array(name, start, stop) if name in file else None


def _optional_bytes(file: ColumnFile, name: str, start: int, stop: int) -> BytesColumn | None:
    return file.bytes_column(name, start, stop) if f"{name}.offsets" in file else None


def _origins(file: ColumnFile, start: int, stop: int) -> Origins:
    return Origins(
        _keys(file, start, stop),
        file.array("origin_start", start, stop),
        file.array("origin_bytes", start, stop),
    )


def _blocks(file: ColumnFile, partition: int) -> TableBlocks:
    first, last = file.array("block_offsets", partition, partition + 2).tolist()
    return TableBlocks(
        file.array("block_start", first, last),
        file.array("block_bytes", first, last),
        file.array("block_rows", first, last),
    )


def _sort_keys(file: ColumnFile, start: int, stop: int) -> SortKeys:
    text = None
    if "text_is_keys" in file:
        text = _keys(file, start, stop)
    elif "text" in file:
        text = file.bytes_column("text", start, stop)
    return SortKeys(
        count=stop - start,
        group=_optional(file, "group", start, stop),
        rank=_optional(file, "rank", start, stop),
        words=_optional(file, "words", start, stop),
        text=text,
    )


def _key_columns(index: RecordIndex) -> dict[str, Column | None]:
    """Keys and their hashes. Of keys that are numbers, what goes before these is all there is to
    store: their hashes are hardly ever asked for."""
    keys = index.keys
    if not isinstance(keys, NumberedColumn) or keys.after:
        key_hash = hash_column(keys) if index.key_hash is None else index.key_hash
        return {"keys": keys, **_hash_columns(key_hash)}
    are_same = keys.numbers is index.ordinal or np.array_equal(keys.numbers, index.ordinal)
    return {
        "key_before": np.frombuffer(keys.before, np.uint8),
        "key_number": None if are_same else keys.numbers,
    }


def _hash_columns(key_hash: UInt64s) -> dict[str, Column | None]:
    """Hashes in ascending order: a search for duplicates reads a range of them from every shard's
    file, a slice of it."""
    by_hash = np.argsort(key_hash).astype(np.int32)
    return {"key_hash": key_hash[by_hash], "key_row": by_hash}


def _same_columns(same: UInt64s | None) -> dict[str, Column | None]:
    """What records are compared by, as the hashes of keys are stored."""
    if same is None:
        return {}
    rows = np.flatnonzero(same.any(axis=1))
    rows = rows[np.argsort(same[rows, 0], kind="stable")]
    return {
        "same_hash": np.ascontiguousarray(same[rows, 0]),
        "same_more": np.ascontiguousarray(same[rows, 1]),
        "same_row": rows.astype(np.int32),
    }


def _keys(file: ColumnFile, start: int, stop: int) -> BytesColumn:
    if "key_before" not in file:
        return file.bytes_column("keys", start, stop)
    numbers = "key_number" if "key_number" in file else "ordinal"
    return NumberedColumn(file.array("key_before").tobytes(), file.array(numbers, start, stop))


def _segment_columns(segments: Segments | None, stored: Int64s) -> dict[str, Column | None]:
    """Of segments that are one a record, only where they begin: they are as long as it."""
    if segments is None:
        return {}
    columns: dict[str, Column | None] = {
        "segment_start": segments.start,
        "literals": segments.literals,
    }
    if len(segments.start) != len(stored) or not np.array_equal(segments.length, stored):
        columns |= {"segment_offsets": segments.offsets, "segment_length": segments.length}
    if segments.names is not None:
        columns |= {
            "name_offsets": segments.names.offsets,
            "name_at": segments.names.at,
            "names": segments.names.names,
        }
    return columns


def _segments(file: ColumnFile, start: int, stop: int) -> Segments:
    names = _new_names(file, start, stop)
    if "segment_offsets" not in file:
        return Segments(
            np.arange(stop - start + 1),
            file.array("segment_start", start, stop),
            file.array("stored_bytes", start, stop),
            file.array("literals"),
            names,
        )
    offsets = file.array("segment_offsets", start, stop + 1)
    first, last = int(offsets[0]), int(offsets[-1])
    return Segments(
        offsets - first,
        file.array("segment_start", first, last),
        file.array("segment_length", first, last),
        file.array("literals"),
        names,
    )


def _new_names(file: ColumnFile, start: int, stop: int) -> NewNames | None:
    if "name_offsets" not in file:
        return None
    offsets = file.array("name_offsets", start, stop + 1)
    first, last = int(offsets[0]), int(offsets[-1])
    at = file.array("name_at", first, last)
    return NewNames(offsets - first, at, file.bytes_column("names", first, last))
