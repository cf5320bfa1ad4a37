"""The places of the records of a shard, in columns, for reading many records by byte ranges.

The content of a member is a range of the shard if payloads are stored unchanged, without
compression and checksums. Only indexes of such shards are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from typing import Any, Final, overload

import numpy as np
import xxhash
from msgspec import Struct

from dsort.data.columns import (
    BytesColumn,
    Int64s,
    UInt64s,
    are_all_rows,
    cut_rows,
    offsets_of,
    row_numbers,
)
from dsort.data.members import MemberKind, MemberTable
from dsort.data.numbered import DIGITS
from dsort.data.records import split_names, starts_record
from dsort.data.text_sets import names_come_again, repeated_names
from dsort.errors import StorageError
from dsort.naming.names import position_key
from dsort.scratch.columns import ColumnFile, columns_bytes

__all__ = [
    "AT_ONCE",
    "KEYS_COMPARED_MAX",
    "KeySequence",
    "PositionKeys",
    "RecordIndex",
    "near_keys",
    "text_of",
]

_NUMBERS: Final = ("offsets", "key_bytes", "start", "size")


class RecordIndex(Struct, frozen=True, eq=False, dict=True):
    """Records ``(n,)`` and their files ``(m,)``, in the order of the shard.

    Record ``i`` has the files ``offsets[i]:offsets[i + 1]``, shape ``(n + 1,)``; its key is the
    first ``key_bytes[i]`` bytes of the name of the first of them. The content of a file is the
    ``size`` bytes of the shard from ``start`` on.
    """

    offsets: Int64s
    key_bytes: Int64s
    names: BytesColumn
    start: Int64s
    size: Int64s

    def __len__(self) -> int:
        return len(self.key_bytes)

    @classmethod
    def of(cls, members: MemberTable) -> tuple[RecordIndex, Int64s]:
        """(index of the bare table ``members``, row of each file in that table, shape ``(m,)``).
        Literals have the start -1; sizes are sizes after decompression. The index of a shard with
        literals or compressed members is not kept."""
        records = adjacent_records(members)
        rows = records.rows
        if are_all_rows(rows, len(members)):
            start, size = members.payload_start, members.payload_bytes
            return cls(records.offsets, records.key_bytes, members.names, start, size), rows
        return cls(
            records.offsets,
            records.key_bytes,
            members.names.take(rows),
            members.payload_start[rows],
            members.payload_bytes[rows],
        ), rows

    def numbers_of(self, key: bytes) -> list[int]:
        """The numbers of the records with ``key``."""
        found: list[int] = []
        for first in range(0, len(self), AT_ONCE):
            keys = self._keys(first, min(first + AT_ONCE, len(self)))
            found += [number for number, own in enumerate(keys, first) if own == key]
        return found

    @cached_property
    def keys(self) -> KeySequence:
        """The key of each record."""
        return KeySequence(len(self), self._key, self._keys)

    def _key(self, number: int) -> bytes:
        return self.names[int(self.offsets[number])][: int(self.key_bytes[number])]

    def _keys(self, first: int, stop: int) -> list[bytes]:
        files = self.offsets[first : stop + 1]
        names = self.names.run(int(files[0]), int(files[-1]))
        starts = names.offsets[files[:-1] - files[0]]
        return cut_rows(names.blob, starts, self.key_bytes[first:stop]).tolist()

    @classmethod
    def joined(cls, parts: Iterable[RecordIndex]) -> RecordIndex:
        """The records of all ``parts``, one after the other."""
        parts = list(parts)
        if len(parts) == 1:
            return parts[0]
        none = [np.zeros(0, np.int64)]
        return cls(
            offsets_of(np.concatenate([*(np.diff(part.offsets) for part in parts), *none])),
            np.concatenate([*(part.key_bytes for part in parts), *none]),
            BytesColumn.concat([part.names for part in parts]),
            np.concatenate([*(part.start for part in parts), *none]),
            np.concatenate([*(part.size for part in parts), *none]),
        )

    @cached_property
    def low(self) -> Int64s:
        """For each record, the first byte of its content, shape ``(n,)``."""
        if not len(self):
            return np.zeros(0, np.int64)
        found: Int64s = np.minimum.reduceat(self.start, self.offsets[:-1])
        return found

    @cached_property
    def high(self) -> Int64s:
        """For each record, the byte after the last one of its content, shape ``(n,)``."""
        if not len(self):
            return np.zeros(0, np.int64)
        found: Int64s = np.maximum.reduceat(self.start + self.size, self.offsets[:-1])
        return found

    def to_bytes(self) -> bytes:
        """The index as the bytes of a file: about 10 bytes and the name for each file of the
        shard."""
        numbers: dict[str, Any] = {name: getattr(self, name) for name in _NUMBERS}
        # A start counted from the end of the file before it is a small number, which packs well.
        numbers["start"] = np.diff(self.start, prepend=0) - np.append(0, self.size[:-1])
        numbers["offsets"] = np.diff(self.offsets)
        return columns_bytes({**numbers, "names": self.names}, packed=True)

    @classmethod
    def from_bytes(cls, data: bytes, what: str, size_bytes: int) -> RecordIndex:
        """The index that :meth:`to_bytes` wrote for a shard of ``size_bytes``. ``StorageError``,
        which names ``what``, for any other ``data``."""
        file = ColumnFile(data, what, may_be_packed=True)
        counts, key_bytes, gaps, size = (file.array(name).astype(np.int64) for name in _NUMBERS)
        names = file.bytes_column("names")
        offsets = offsets_of(counts)
        start = np.cumsum(gaps + np.append(0, size[:-1]))
        files = len(size)
        is_sound = (
            len(names) == len(start) == files
            and len(counts) == len(key_bytes)
            and int(offsets[-1]) == files
            and bool((np.diff(offsets) > 0).all())
            and bool(((size >= 0) & (size <= size_bytes)).all())
            and bool(((start >= 0) & (start <= size_bytes - size)).all())
            and bool((names.lengths >= 0).all())
            and bool((key_bytes >= 0).all())
            and bool((key_bytes <= names.lengths[offsets[:-1]]).all())
        )
        if not is_sound:
            raise StorageError(f"{what} is no index of a shard of {size_bytes:,} bytes")
        return cls(offsets, key_bytes, names, start, size)


class AdjacentRecords(Struct, frozen=True, eq=False):
    """The records of a shard, in its order. ``rows``: the rows of the member table that are files,
    shape ``(m,)``. Record ``i`` has ``rows[offsets[i]:offsets[i + 1]]``; the first ``key_bytes[i]``
    bytes of the name of its first member are the key. ``offsets``: shape ``(n + 1,)``."""

    rows: Int64s
    offsets: Int64s
    key_bytes: Int64s


def adjacent_records(members: MemberTable) -> AdjacentRecords:
    """The records of ``members``. Directories, links and devices have no content and are left out;
    a file without an extension is a separate record."""
    count, of_each = len(members), members.own.record_of
    is_each_one = of_each is not None and are_all_rows(of_each, count)  # like the lines of a text
    if (
        is_each_one
        and members.own.key_bytes is not None
        and bool((members.kind == MemberKind.FILE).all())
    ):
        return AdjacentRecords(row_numbers(count), row_numbers(count + 1), members.own.key_bytes)
    rows = np.flatnonzero(members.kind == MemberKind.FILE)
    if members.own.key_bytes is not None and members.own.record_of is not None:
        key_bytes, record_of = members.own.key_bytes[rows], members.own.record_of[rows]
        starts = np.diff(record_of, prepend=-1) != 0
    else:
        names = members.names.take(rows)
        split = split_names(names)
        key_bytes = np.where(split.stray, names.lengths, split.key_bytes)
        every = np.arange(len(rows))
        starts = starts_record(names, every, key_bytes, split.stray)
        record_of = np.cumsum(starts) - 1
        repeated = repeated_names(names, every, record_of, key_bytes)
        if len(repeated):
            starts[names_come_again(names, every, record_of, repeated)] = True
    first = np.flatnonzero(starts)
    return AdjacentRecords(rows, np.append(first, len(rows)).astype(np.int64), key_bytes[first])


AT_ONCE: Final = 1 << 16
NEAR_KEYS_MAX: Final = 3
KEYS_COMPARED_MAX: Final = 20_000
NUMBER_DIGITS_MAX: Final = 20
COMPARED_CHARACTERS_MAX: Final = 200
"""The time of a comparison grows with the square of this length."""


class KeySequence(Sequence[str]):
    """The key of each record, in order. Keys that are not UTF-8 are decoded with surrogate escapes.
    A list of strings would take a hundred bytes and more a record; the columns that find a key take
    16."""

    def __init__(
        self,
        count: int,
        one: Callable[[int], bytes],
        some: Callable[[int, int], Sequence[bytes]],
    ) -> None:
        """``one``: returns the key of a record by its number; ``some``: returns the keys of the
        records from one number up to another."""
        self._count = count
        self._one, self._some = one, some

    @classmethod
    def of_column(cls, column: BytesColumn) -> KeySequence:
        """The keys are the rows of ``column``."""
        return cls(len(column), column.__getitem__, lambda a, b: column.run(a, b).tolist())

    def some(self, first: int, stop: int) -> Sequence[bytes]:
        """The keys of the records from ``first`` up to ``stop``, as they are stored."""
        return self._some(first, stop)

    def repeated(self) -> Int64s:
        """The numbers of the records whose key an earlier record has, ascending. Compares hashes
        only."""
        hashes, order = self._order
        return np.sort(order[1:][hashes[1:] == hashes[:-1]])

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> list[str]: ...

    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[number] for number in range(self._count)[at]]
        return text_of(self._one(range(self._count)[at]))

    def __iter__(self) -> Iterator[str]:
        for first in range(0, self._count, AT_ONCE):
            yield from map(text_of, self._some(first, min(first + AT_ONCE, self._count)))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self.numbers_of(key))

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, islice(self, NEAR_KEYS_MAX)))
        return f"<{self._count:,} keys: {shown}{', …' if self._count > NEAR_KEYS_MAX else ''}>"

    def numbers_of(self, key: str) -> list[int]:
        """The numbers of the records with ``key``."""
        wanted = key.encode("utf-8", "surrogateescape")
        hashes, order = self._order
        place = np.uint64(xxhash.xxh3_64_intdigest(wanted))
        first, stop = (int(np.searchsorted(hashes, place, side)) for side in ("left", "right"))
        return [number for number in order[first:stop].tolist() if self._one(number) == wanted]

    @cached_property
    def _order(self) -> tuple[UInt64s, Int64s]:
        """The hashes of the keys, sorted, and for each hash the number of its key."""
        hashes = np.empty(self._count, np.uint64)
        for first in range(0, self._count, AT_ONCE):
            some = self._some(first, min(first + AT_ONCE, self._count))
            found = map(xxhash.xxh3_64_intdigest, some)
            hashes[first : first + len(some)] = np.fromiter(found, np.uint64, len(some))
        order = np.argsort(hashes, kind="stable")
        return hashes[order], order


class PositionKeys(KeySequence):
    """The keys of records without stored keys: their positions in ``shard``."""

    def __init__(self, shard: str, count: int) -> None:
        before = position_key(shard, 0)[:-DIGITS]
        super().__init__(
            count,
            lambda number: b"%b%09d" % (before, number),
            lambda a, b: [b"%b%09d" % (before, number) for number in range(a, b)],
        )

    def repeated(self) -> Int64s:
        """See :class:`KeySequence`."""
        return np.zeros(0, np.int64)

    def numbers_of(self, key: str) -> list[int]:
        """See :class:`KeySequence`."""
        _, _, digits = key.rpartition("-")
        is_number = len(digits) < NUMBER_DIGITS_MAX and digits.isascii() and digits.isdigit()
        number = int(digits) if is_number else -1  # int() refuses very long digit strings
        return [number] if 0 <= number < len(self) and self[number] == key else []


def near_keys(wanted: str, keys: Iterable[str]) -> str:
    """A hint with the first ``NEAR_KEYS_MAX`` keys that are similar to ``wanted``; "" if no key
    is."""
    if len(wanted) > COMPARED_CHARACTERS_MAX:
        return ""
    known = (each for each in keys if len(each) <= COMPARED_CHARACTERS_MAX)
    some = dict.fromkeys(islice(known, 2 * KEYS_COMPARED_MAX))
    near = get_close_matches(wanted, some, NEAR_KEYS_MAX)
    return f"near: {', '.join(near)}" if near else ""


def text_of(name: bytes) -> str:
    """A name or a key as text; bytes that are not UTF-8 become surrogate escapes."""
    return name.decode("utf-8", "surrogateescape")
