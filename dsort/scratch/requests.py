"""Requests to scratch nodes, and their answers, which are read from the node's own scratch files.

Payload travels in blocks of up to ``spill.BLOCK_BYTES``, never record by record. Some requests are
about the lots that records draw (random numbers); the borders and classes of lots are files, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from dsort.data.columns import BytesColumn, Int32s, Int64s, UInt64s
from dsort.data.index import (
    KEY_HASH,
    KEYS,
    ORDINAL,
    ROW,
    SAME_MORE,
    SortKeys,
)
from dsort.data.table import Table
from dsort.errors import damaged
from dsort.order.class_numbers import ClassCounts, count_classes
from dsort.scratch.columns import ColumnFile, columns_bytes
from dsort.scratch.index import IndexStore, PartitionRows
from dsort.scratch.logs import ShardCreated, read_created_logs
from dsort.scratch.tables import POSITION_SHARD, POSITIONS, OrderedRows
from dsort.transforms.outputs import BORDERS_MAX, Borders, lots_of, positions_of


def known_keys_file(number: int) -> str:
    """The name of a file that a ``KnownKeysTask`` writes."""
    return f"known-{number}.col"


class PartitionRowsOf(Struct, frozen=True):
    """The rows of each of ``partitions`` from some shards; shards without rows are left out."""

    stage: str
    shards: Int64s
    partitions: tuple[int, ...]

    def answer(self, store: IndexStore) -> list[list[tuple[int, PartitionRows]]]:
        shards = self.shards.tolist()
        return [store.partition_rows(self.stage, shards, each) for each in self.partitions]


FOUND: Final = (KEY_HASH, POSITION_SHARD, ORDINAL, ROW)
"""The columns of the records that a search by hashes finds."""


class HashesOf(Struct, frozen=True):
    """The records of some shards with ``low <= hash < high`` (high 0: no upper end). The hash is
    that of the record key. With ``by_content``, it is the first half of the hash of the content
    (``SAME_HASH``), and records that are not compared by content are left out."""

    stage: str
    shards: Int64s
    low: int
    high: int
    by_content: bool

    def answer(self, store: IndexStore) -> Table:
        read = store.same_hashes if self.by_content else store.key_hashes
        found = [read(self.stage, shard, self.low, self.high) for shard in self.shards.tolist()]
        return Table.concat(found, (*FOUND, *((SAME_MORE,) if self.by_content else ())))


class KnownKeysOf(Struct, frozen=True):
    """Keys that the result already has: the keys in the files ``numbers`` whose hash is one of the
    sorted ``hashes``."""

    numbers: tuple[int, ...]
    hashes: UInt64s

    def answer(self, store: IndexStore) -> Table:
        found = [self._found(store.columns(known_keys_file(number))) for number in self.numbers]
        return Table.concat(found, (KEY_HASH, KEYS))

    def _found(self, file: ColumnFile) -> Table:
        known = file.array("key_hash")
        first = np.searchsorted(known, self.hashes, side="left")
        counts = np.searchsorted(known, self.hashes, side="right") - first
        # The runs of rows of all hashes, one after the other: each counts up from its first row.
        starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
        rows = starts + np.arange(int(counts.sum()))
        return Table.read(file, (KEY_HASH, KEYS), 0, len(known)).take(rows)


class DistinctKeyHashes(Struct, frozen=True):
    """The hashes of all record keys of some shards, each once, in ascending order."""

    stage: str
    shards: Int64s

    def answer(self, store: IndexStore) -> UInt64s:
        hashes = [store.key_hashes(self.stage, shard)[KEY_HASH] for shard in self.shards.tolist()]
        return np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes]))


class PositionsOf(Struct, frozen=True):
    """The positions in a file that a worker has written."""

    name: str

    def answer(self, store: IndexStore) -> Table:
        file = store.columns(self.name)
        return Table.read(file, (*POSITIONS, KEYS), 0, file.count(POSITION_SHARD.text))


class KeysOf(Struct, frozen=True):
    """The record keys of some rows of some shards: ``rows[i]`` are rows of ``shards[i]``."""

    stage: str
    shards: tuple[int, ...]
    rows: tuple[Int64s, ...]

    def answer(self, store: IndexStore) -> BytesColumn:
        return BytesColumn.concat(
            store.keys(self.stage, shard, rows)
            for shard, rows in zip(self.shards, self.rows, strict=True)
        )


class KeysAt(Struct, frozen=True):
    """The record keys of a shard at some ``ordinals``, which are ascending. ``file``: the shard
    whose index file has the rows of ``shard``."""

    stage: str
    file: int
    shard: int
    ordinals: Int64s

    def answer(self, store: IndexStore) -> BytesColumn:
        return store.keys_at(self.stage, self.file, self.shard, self.ordinals)


class Sampled(Struct, frozen=True, eq=False):
    """Evenly spaced records of one shard, and how many bytes each of them represents."""

    shard: int
    sort: SortKeys
    ordinal: Int64s
    weight_bytes: Int64s


class Sample(Struct, frozen=True):
    """Up to ``rows_max`` records of each shard."""

    stage: str
    shards: Int64s
    rows_max: int

    def answer(self, store: IndexStore) -> list[Sampled]:
        found = []
        for shard in self.shards.tolist():
            sort, ordinal, weight = store.survey_sample(self.stage, shard, self.rows_max)
            if sort.count:
                found.append(Sampled(shard, sort, ordinal, weight))
        return found


class ClassCountsOf(Struct, frozen=True):
    """How many records of each class each shard has, from a survey whose sort keys are classes:
    ((output, class), number), in order of appearance."""

    stage: str
    shards: Int64s

    def answer(self, store: IndexStore) -> list[list[tuple[tuple[int, bytes], int]]]:
        found = []
        for shard in self.shards.tolist():
            sort = store.sort_keys(self.stage, shard)
            found.append(count_classes(sort.groups, sort.texts))
        return found


class OrderedRowsOf(Struct, frozen=True):
    """Rows ``start:stop`` of a partition in output order (stop -1: to the end)."""

    partition: int
    start: int = 0
    stop: int = -1
    with_keys: bool = False

    def answer(self, store: IndexStore) -> OrderedRows:
        return store.ordered(self.partition, self.start, self.stop, with_keys=self.with_keys)


class LineageOf(Struct, frozen=True):
    """The origins of rows ``start:stop`` of a partition in output order."""

    partition: int
    start: int
    stop: int

    def answer(self, store: IndexStore) -> Table:
        return store.lineage_rows(self.partition, self.start, self.stop)


class StoredBytesOf(Struct, frozen=True):
    """The bytes that rows ``start:stop`` of a partition, in output order, take in an output
    shard."""

    partition: int
    start: int
    stop: int

    def answer(self, store: IndexStore) -> Int64s:
        return store.stored_bytes(self.partition, self.start, self.stop)


class Indexed(Struct, frozen=True):
    """Whether each of some shards has a whole index file on this node: an array of booleans."""

    stage: str
    shards: Int64s

    def answer(self, store: IndexStore) -> NDArray[np.bool_]:
        found = (store.has_shard(self.stage, shard) for shard in self.shards.tolist())
        return np.fromiter(found, np.bool_, len(self.shards))


class Numbered(Struct, frozen=True):
    """Whether the keys of each shard's records are only their positions: an array of booleans."""

    stage: str
    shards: Int64s

    def answer(self, store: IndexStore) -> NDArray[np.bool_]:
        found = (store.are_numbered(self.stage, shard) for shard in self.shards.tolist())
        return np.fromiter(found, np.bool_, len(self.shards))


class CreatedLogs(Struct, frozen=True):
    """The output shards that workers of this node have staged, in any task."""

    def answer(self, store: IndexStore) -> list[ShardCreated]:
        return read_created_logs(store.scratch)


class LineFiles(Struct, frozen=True):
    """The size in bytes of each file of lines (see ``logs``) of one stage, by number."""

    stage: str

    def answer(self, store: IndexStore) -> dict[int, int]:
        start, end, found = f"{self.stage}-", ".jsonl", {}
        for name in store.scratch.names():
            number = name.removeprefix(start).removesuffix(end)
            if name == f"{start}{number}{end}" and number.isdecimal():
                found[int(number)] = store.scratch.size_bytes(name)
        return found


class LinesOf(Struct, frozen=True):
    """Ranges of files of lines, joined: (file, first byte, number of bytes)."""

    ranges: tuple[tuple[str, int, int], ...]

    def answer(self, store: IndexStore) -> bytes:
        pieces = []
        for name, start, length in self.ranges:
            with open(store.scratch.open_to_read(name), "rb") as file:
                file.seek(start)
                pieces.append(file.read(length))
        return b"".join(pieces)


class FreeBytes(Struct, frozen=True):
    """The free bytes on the file system of the node's scratch, and the number of its device."""

    def answer(self, store: IndexStore) -> tuple[int, int]:
        return store.scratch.free_bytes(), store.scratch.device()


class SpillBlocksOf(Struct, frozen=True):
    """Requests the places in the spill of the rows of one partition from some shards."""

    shards: Int64s
    partition: int

    def answer(self, store: IndexStore) -> list[Table]:
        return [store.spill_blocks("index", each, self.partition) for each in self.shards.tolist()]


def borders_bytes(borders: Borders) -> bytes:
    """The content of a file of borders."""
    lot, position = borders.lot.reshape(-1), borders.position.reshape(-1)
    return columns_bytes({"classes": borders.classes, "lot": lot, "position": position})


def borders_of(file: ColumnFile, what: str, outputs: int) -> Borders:
    """The borders in a file, which may have been in a bucket. ``StorageError`` if they are for
    another number of ``outputs``."""
    classes, lot, position = (file.array(name) for name in ("classes", "lot", "position"))
    sizes = {len(lot), len(position), len(classes) * (outputs - 1)}
    are_numbers = all(each.dtype == np.uint64 for each in (classes, lot, position))
    if len(sizes) > 1 or not are_numbers or (classes[1:] <= classes[:-1]).any():
        raise damaged(what, "it has no borders of these outputs")
    shape = (len(classes), outputs - 1)
    return Borders(classes, lot.reshape(shape), position.reshape(shape))


Drawn = tuple[UInt64s, UInt64s, UInt64s]


class Draws(Protocol):
    """The lots that the records of some shards draw."""

    def on(self, shards: Int64s) -> Draws:
        """The same draws, for ``shards``."""

    def each(self, store: IndexStore) -> Iterator[Drawn]:
        """Yield (class, lot, position) of the records of each shard."""


class IndexDraws(Struct, frozen=True):
    """The lots in the index of the survey ``stage``. Records at positions in the file ``drop`` are
    left out ("": none)."""

    stage: str
    drop: str
    shards: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))

    def on(self, shards: Int64s) -> IndexDraws:
        """See :class:`Draws`."""
        return replace(self, shards=shards)

    def each(self, store: IndexStore) -> Iterator[Drawn]:
        """See :class:`Draws`."""
        for shard in self.shards.tolist():
            classes, lots, ordinal = store.lots(self.stage, shard)
            if self.drop:
                drop = store.positions(self.drop)
                kept = ~drop.contains(np.broadcast_to(shard, len(ordinal)), ordinal)
                classes, lots, ordinal = classes[kept], lots[kept], ordinal[kept]
            yield classes, lots, positions_of(shard, ordinal)


class KeyDraws(Struct, frozen=True):
    """The lots that keys draw in their input; the number of the input is the class. ``inputs``: the
    number of each shard's input; ``names``: the names of the inputs (see ``lots_of``)."""

    stage: str
    seed: str
    names: tuple[str, ...]
    inputs: Int32s
    shards: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))

    def on(self, shards: Int64s) -> KeyDraws:
        """See :class:`Draws`."""
        # A second selection would take the inputs of other shards.
        assert not len(self.shards), "the draws are of some shards already"
        return replace(self, shards=shards, inputs=self.inputs[shards])

    def each(self, store: IndexStore) -> Iterator[Drawn]:
        """See :class:`Draws`."""
        for shard, number in zip(self.shards.tolist(), self.inputs.tolist(), strict=True):
            found = store.key_hashes(self.stage, shard)
            lots = lots_of(found[KEY_HASH], self.seed, self.names[number])
            classes = np.full(len(found), number, np.uint64)
            yield classes, lots, positions_of(found[POSITION_SHARD], found[ORDINAL])


class DrawnClasses(Struct, frozen=True):
    """Requests (classes of the records of some shards, ascending; number of records of each class).
    If there are more than ``BORDERS_MAX`` classes, only ``BORDERS_MAX`` + 1 are returned."""

    draws: IndexDraws

    def answer(self, store: IndexStore) -> tuple[UInt64s, Int64s]:
        known, counts = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        for classes, _, _ in self.draws.each(store):
            found = np.unique(classes, return_counts=True)
            known, counts = added_counts((known, counts), found)
            known, counts = known[: BORDERS_MAX + 1], counts[: BORDERS_MAX + 1]
        return known, counts


def added_counts(
    known: tuple[UInt64s, Int64s], found: tuple[UInt64s, Int64s]
) -> tuple[UInt64s, Int64s]:
    """(the classes in ``known`` and ``found``, ascending; the number of records of each class)."""
    classes, inverse = np.unique(np.concatenate([known[0], found[0]]), return_inverse=True)
    counts = np.zeros(len(classes), np.int64)
    np.add.at(counts, inverse, np.concatenate([known[1], found[1]]))
    return classes, counts


class LotSteps(Struct, frozen=True):
    """Requests, for each border that is searched, how many records of some shards have their value
    in each of ``2**bits`` ranges of ``2**shift`` values from ``low`` on. The value of a record is
    its lot. If ``tied`` has a lot for each row, only records with this lot count, and the value is
    the position.

    ``classes``: all classes. ``searched``: the row of each border of each class in ``low`` and
    ``tied``, or -1. The answer has one row for each row of ``low``."""

    draws: Draws
    classes: UInt64s
    searched: Int32s
    low: UInt64s
    shift: int
    bits: int
    tied: UInt64s

    def answer(self, store: IndexStore) -> Int64s:
        counts = np.zeros(len(self.low) << self.bits, np.int64)
        for classes, lots, positions in self.draws.each(store):
            at = np.searchsorted(self.classes, classes)
            for border in range(self.searched.shape[1]):
                row = self.searched[at, border]
                some = np.flatnonzero(row >= 0)
                row, value = row[some], (positions if len(self.tied) else lots)[some]
                inside = value >= self.low[row]
                if len(self.tied):
                    inside &= lots[some] == self.tied[row]
                row, value = row[inside], value[inside]
                step = (value - self.low[row]) >> np.uint64(self.shift)
                near = step < np.uint64(1 << self.bits)
                place = (row[near].astype(np.int64) << self.bits) + step[near].astype(np.int64)
                counts += np.bincount(place, minlength=len(counts))
        return counts.reshape(-1, 1 << self.bits)


def class_table_bytes(offsets: Int64s, classes: ClassCounts) -> bytes:
    """The content of a file of classes. ``offsets``: where the rows of each shard begin, and the
    end."""
    return columns_bytes(
        {
            "offsets": offsets,
            "group": classes.group,
            "name": classes.name,
            "count": classes.count,
            "first": classes.first,
            "total": classes.total,
        }
    )


def classes_of_shard(file: ColumnFile, shard: int) -> ClassCounts:
    """The classes of one shard."""
    start, stop = file.array("offsets", shard, shard + 2).tolist()
    return ClassCounts(
        group=file.array("group", start, stop),
        name=file.bytes_column("name", start, stop),
        count=file.array("count", start, stop),
        first=file.array("first", start, stop),
        total=file.array("total", start, stop),
    )


def check_class_table(data: bytes, what: str, *, shards: int) -> None:
    """``StorageError`` unless ``data`` is a file of classes for this number of shards. The check is
    for a file that comes back from a bucket."""
    file = ColumnFile(data, what)
    offsets = file.array("offsets")
    rows = int(offsets[-1]) if len(offsets) == shards + 1 else -1
    if rows < 0 or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise damaged(what, "it is about other shards")
    numbers = {name: file.array(name, 0, rows) for name in ("count", "first", "total")}
    if any(column.dtype != np.int64 for column in (offsets, *numbers.values())):
        raise damaged(what, "it has numbers of another kind")
    if file.array("group", 0, rows).dtype != np.int32:
        raise damaged(what, "it has numbers of another kind")
    if (np.diff(file.bytes_column("name", 0, rows).offsets) < 0).any():
        raise damaged(what, "names end before they begin")
    count, first, total = numbers.values()
    # `hashes.permuted` has this bound on totals.
    fits = (count > 0) & (first >= 0) & (first <= total - count) & (total < 1 << 53)
    if not fits.all():
        raise damaged(what, "it has impossible counts")
