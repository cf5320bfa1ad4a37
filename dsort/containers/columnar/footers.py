"""Reads the column chunks from the footer of a Parquet file: their places, sizes and codecs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from dsort.containers.columnar.arrow import pa, pc
from dsort.containers.columnar.schema import list_values
from dsort.containers.columnar.thrift import (
    BINARY,
    BYTE,
    I64,
    LIST,
    STRUCT,
    ThriftStruct,
    field_number,
    list_head,
    read_struct,
    skipped,
)
from dsort.containers.varints import varint
from dsort.naming.names import shortened

_SCHEMA = 2  # of a footer
_GROUPS, _COLUMNS, _METADATA, _ENCRYPTED = 4, 1, 3, 8  # of a footer, a row group, a chunk
_OWN_KEY = 2  # of ColumnCryptoMetaData
_CODEC, _VALUES, _INFLATED, _STORED, _PAGE, _DICTIONARY = 4, 5, 6, 7, 9, 11
_FIELDS = 16
_NUMBER_MAX = (1 << 15) - 1
_UNCOMPRESSED = 0
ONE_BINARY = 1 << 4 | BINARY
T = TypeVar("T")


class Chunk(NamedTuple):
    """A column of a row group. ``values``: the number of values. ``stored_bytes``: the length of
    the chunk. ``inflated_bytes``: the length of the chunk before it was compressed. ``page``: where
    the data pages begin. ``dictionary``: where the dictionary begins; 0: the chunk has none."""

    codec: int
    values: int
    inflated_bytes: int
    stored_bytes: int
    page: int
    dictionary: int

    @property
    def is_stored(self) -> bool:
        """Whether the values of the chunk are stored uncompressed."""
        return self.codec == _UNCOMPRESSED and not self.dictionary

    @property
    def start(self) -> int:
        """Where the chunk begins."""
        return self.dictionary if 0 < self.dictionary < self.page else self.page

    @property
    def stop(self) -> int:
        """Where the chunk ends."""
        return self.start + self.stored_bytes


def chunks_of(footer: bytes, groups_max: int = sys.maxsize) -> list[list[Chunk]]:
    """The chunks of each row group, or of the first ``groups_max`` of them. ``ValueError`` for an
    invalid footer, ``NotImplementedError`` if a column is encrypted."""
    # pyarrow is not used: it ends the process if a requested chunk is encrypted, has an unknown
    # codec, or has a footer that contradicts itself; and a request, or decoding the whole footer,
    # costs 3 to 50 µs a chunk, which is most of the cost of small row groups. The needed fields
    # alone cost 20 µs a chunk.
    try:
        return _listed(footer, 0, _GROUPS, _group, groups_max)[0]
    except IndexError:
        raise ValueError("the footer is cut off") from None


def schema_elements(footer: bytes) -> list[ThriftStruct]:
    """The elements of the schema of a file, unchanged. ``ValueError`` for an invalid footer."""
    try:
        return _listed(memoryview(footer), 0, _SCHEMA, read_struct, to_end=False)[0]
    except IndexError:
        raise ValueError("the footer is cut off") from None


def _listed(
    data: bytes | memoryview,
    at: int,
    wanted: int,
    item: Callable[[Any, int], tuple[T, int]],
    most: int = sys.maxsize,
    *,
    to_end: bool = True,
) -> tuple[list[T], int]:
    """Read the struct at byte ``at``, whose field ``wanted`` lists structs. Return (results of
    ``item`` for the first ``most`` of these, end of the whole struct). If the list has more items,
    or with ``to_end`` false, the end is that of the last item that was read."""
    found, number, seen = list[T](), 0, 0
    while head := data[at]:
        number, at = field_number(data, at, number)
        seen, kind = _noted(seen, number), head & 15
        if number != wanted or kind != LIST:
            at = skipped(data, at, kind)
            continue
        count, inner, at = list_head(data, at)
        if inner != STRUCT:
            raise ValueError("a footer lists no structs")
        for _ in range(count):
            one, at = item(data, at)
            found.append(one)
            if len(found) == most:
                return found, at
        if not to_end:
            break
    return found, at + 1


def _group(data: bytes, at: int) -> tuple[list[Chunk], int]:
    """The chunks of the row group at byte ``at``, and where it ends."""
    return _listed(data, at, _COLUMNS, _chunk)


def _chunk(data: bytes, at: int) -> tuple[Chunk, int]:
    """The chunk at byte ``at``, and where it ends."""
    found, number, seen = list[int](), 0, 0
    while head := data[at]:
        number, at = (number + (head >> 4), at + 1) if head > 15 else field_number(data, at, number)
        seen, kind = _noted(seen, number), head & 15
        if number == _ENCRYPTED and kind == STRUCT:
            raise _encrypted(data, at)
        if number == _METADATA and kind == STRUCT:
            found, at = _numbers(data, at)
        elif BYTE < kind <= I64:
            while data[at] > 127:
                at += 1
            at += 1
        else:
            at = skipped(data, at, kind)
    if not found:
        raise ValueError("a column chunk is not described")
    return Chunk(
        found[_CODEC],
        found[_VALUES],
        found[_INFLATED],
        found[_STORED],
        found[_PAGE],
        found[_DICTIONARY],
    ), at + 1


def _encrypted(data: bytes, at: int) -> NotImplementedError:
    """The error for an encrypted column; its ``ColumnCryptoMetaData`` is at byte ``at``. The error
    names the column if this column has its own key."""
    keys, _ = read_struct(memoryview(data), at)
    path = ""
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        path = ".".join(name.decode(errors="replace") for name in keys[_OWN_KEY][1][1][1][1])
    text = f"column {shortened(path)} is encrypted" if path else "its columns are encrypted"
    return NotImplementedError(text)


def _noted(seen: int, number: int) -> int:
    """The numbers of the fields read so far, one bit each. ``ValueError`` for a field that occurs
    twice, because readers differ about such fields."""
    if not 0 <= number <= _NUMBER_MAX or seen >> number & 1:
        raise ValueError("a footer has a field twice")
    return seen | 1 << number


def _numbers(data: bytes, at: int) -> tuple[list[int], int]:
    """The first numbers of the struct at byte ``at``, by field, 0 for missing fields; and where it
    ends. Nearly all of a footer consists of such structs, so calls for each value would cost more
    than everything else."""
    found, number, seen = [0] * _FIELDS, 0, 0
    while head := data[at]:
        kind = head & 15
        if head > 15:
            number, at = number + (head >> 4), at + 1
        else:
            number, at = field_number(data, at, number)
        if 0 <= number < _FIELDS and not seen >> number:  # higher than all fields before
            seen |= 1 << number
        else:
            seen = _noted(seen, number)
        if not BYTE < kind <= I64:
            if kind == LIST and data[at] == ONE_BINARY and data[at + 1] < 128:  # the path
                at += 2 + data[at + 1]
            else:
                at = skipped(data, at, kind)
            continue
        value = data[at]
        at += 1
        if value > 127:
            value, at = varint(data, at - 1)
        if number < _FIELDS:
            found[number] = (value >> 1) ^ -(value & 1)
    return found, at + 1


# --------------------------------------------------------------------------------------------------
# INT96, the timestamps of old Parquet writers: a day, and nanoseconds within it.
#
# pyarrow reads them as nanoseconds in 64 bits, which end in 1677 and 2262, and wraps other times
# around: 9999-12-31 becomes 1816-03-29. Spark writes INT96, and such days are common.


_TYPE, _INT96 = 1, 3  # of an element of the schema
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def int96_columns(elements: Sequence[ThriftStruct]) -> set[int]:
    """The numbers of the columns that are INT96, among all stored columns."""
    stored = [each[_TYPE][1] for each in elements if _TYPE in each]
    return {at for at, kind in enumerate(stored) if kind == _INT96}


def refuse_wrapped(opened: Callable[..., Any], path: str, groups: Sequence[int], rows: int) -> None:
    """``NotImplementedError`` if pyarrow wraps a value of the column ``path`` around, in some row
    groups. To find out, the values are also read in seconds, ``rows`` at a time: 64 bits of seconds
    hold any INT96."""
    readers = (opened(), opened(coerce_int96_timestamp_unit="s"))
    batches = [
        each.iter_batches(rows, row_groups=list(groups), columns=[path], use_threads=False)
        for each in readers
    ]
    for fine, coarse in zip(*batches, strict=True):
        pairs = zip(_timestamps(fine.column(0)), _timestamps(coarse.column(0)), strict=True)
        if any(_differ(*pair) for pair in pairs):
            raise NotImplementedError(
                f"column {shortened(path)} is INT96 with timestamps before 1677-09-22 or after "
                "2262-04-10, which 64 bits of nanoseconds do not reach"
            )


def _timestamps(array: Any) -> Iterator[Any]:
    """The timestamps within a column, at any depth of nesting."""
    if pa.types.is_timestamp(array.type):
        yield array
    elif pa.types.is_struct(array.type):
        for at in range(array.type.num_fields):
            yield from _timestamps(array.field(at))
    elif pa.types.is_nested(array.type):
        yield from _timestamps(list_values(array))


def _differ(fine: Any, coarse: Any) -> bool:
    """Whether two arrays of timestamps are more than a rounded second apart."""
    seconds = [pc.divide(each.cast(pa.int64()), _UNITS[each.type.unit]) for each in (fine, coarse)]
    apart = pc.max(pc.abs(pc.subtract(*seconds))).as_py()
    return apart is not None and apart > 1
