"""Reads and makes the bytes of ``tf.train.Example``: finds the values of features, and makes frames
of Examples around the payloads of members, for all records of a shard at once.

Nothing is passed over: a field that has no place in an Example is an error, because it would be
lost in a conversion."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Final, Literal

import numpy as np
from awscrt.checksums import crc32c
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from dsort.containers.facets import Payloads
from dsort.containers.varints import varint_bytes, varints
from dsort.data.columns import Bools, BytesColumn, Int64s, UInt8s, UInt32s
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.data.row_bytes import RowBytes, column_of, distinct_rows, side_by_side, spread
from dsort.errors import ConversionError
from dsort.naming.names import KEY_COLUMN, is_utf8, readable

VALUES_MAX: Final = 1 << 20
"""The maximum number of values of one record: more would be objects of many times the record's
size."""
PARTS_MAX: Final = 1 << 17
"""The maximum number of features, lists and values of bytes of one record. Each feature, list and
value is an object, though it may have only two bytes, and nearly all values become members."""
WINDOW_BYTES: Final = 4096
"""The number of bytes read at once. Heads of features are small, and lie between values that are
passed over."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOAT = struct.Struct("<f")

Kind = Literal["", "bytes", "float", "int64"]
_KINDS: Final[tuple[Kind, ...]] = ("", "bytes", "float", "int64")


class NoExampleError(ValueError):
    """The record is not a ``tf.train.Example``."""


class Feature(Struct):
    """One feature. ``ranges``: the values of a bytes feature as (start, bytes). ``numbers``: the
    values of any other feature."""

    name: bytes
    kind: Kind = ""
    ranges: list[tuple[int, int]] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)

    def number_text(self) -> bytes:
        """The only number of the feature as decimal text; of a float, the shortest text that stands
        for exactly this 32-bit float."""
        return _text(self.numbers[0]).encode()

    def json_text(self) -> bytes:
        """The numbers of the feature as a JSON array; NaN and infinities as Python writes and reads
        them."""
        return f"[{', '.join(map(_text, self.numbers))}]".encode()


def _text(number: float) -> str:
    if isinstance(number, int):
        return str(number)
    if number != number or number in (float("inf"), float("-inf")):
        return json.dumps(number)
    return str(np.float32(number))


class ExampleBytes:
    """Reads the records of one shard through a small window, so that large values are passed over
    unread.

    By field numbers, an Example is ``{1: Features}``; Features are a map ``{1: {1: name, 2:
    Feature}}``; a Feature is ``{1: BytesList}``, ``{2: FloatList}`` or ``{3: Int64List}``; and each
    list is ``{1: values}``, numbers packed or not. A SequenceExample has a field 2 besides."""

    def __init__(self, read: Callable[[int, int], bytes | memoryview]) -> None:
        """``read``: returns bytes of the shard, by offset and count."""
        self._read = read
        self._window: bytes | memoryview = b""
        self._base = 0
        self._stop = 0
        self._values = self._parts = 0

    def features(self, start: int, length: int) -> Iterator[Feature]:
        """The features of the record at ``start``, in their order. ``NoExampleError``."""
        self._stop, self._values, self._parts = start + length, 0, 0
        for number, wire, at, size in self._fields(start, self._stop):
            if number == 2 and wire == _BYTES:
                raise NoExampleError("it looks like a tf.train.SequenceExample")
            if number != 1 or wire != _BYTES:
                raise NoExampleError(f"it has a field {number}")
            for entry, kind, first, count in self._fields(at, at + size):
                if entry != 1 or kind != _BYTES:
                    raise NoExampleError(f"its features have a field {entry}")
                self._count_part()
                yield self._feature(first, first + count)

    def _feature(self, start: int, stop: int) -> Feature:
        name, value = b"", None
        for number, wire, at, size in self._fields(start, stop):
            if number == 1 and wire == _BYTES:
                if size > WINDOW_BYTES:
                    raise NoExampleError("a feature has a name of more than 4096 bytes")
                name = self._bytes(at, size)
            elif number == 2 and wire == _BYTES and value is None:
                value = (at, at + size)
            else:
                raise NoExampleError(f"a feature has a field {number}")
        feature = Feature(name)
        if value is not None:
            for number, wire, at, size in self._fields(*value):
                if not 1 <= number <= 3 or wire != _BYTES:
                    raise NoExampleError(f"the value of a feature has a field {number}")
                kind = _KINDS[number]
                if feature.kind not in ("", kind):
                    raise NoExampleError("a feature has values of two types")
                feature.kind = kind
                self._count_part()
                self._values_of(feature, at, at + size)
        return feature

    def _values_of(self, feature: Feature, start: int, stop: int) -> None:
        """Add the values of one list to a feature."""
        ranges, numbers = feature.ranges, feature.numbers
        for number, wire, at, size in self._fields(start, stop):
            if number != 1:
                raise NoExampleError(f"a list of values has a field {number}")
            self._count(1)
            if feature.kind == "bytes" and wire == _BYTES:
                self._count_part()
                ranges.append((at, size))
            elif feature.kind == "float" and wire in (_BYTES, _FIXED32):
                if size % _FLOAT.size:
                    raise NoExampleError("the length of a list of floats is no multiple of 4 bytes")
                self._count(size // _FLOAT.size)
                numbers += np.frombuffer(self._bytes(at, size), "<f4").tolist()
            elif feature.kind == "int64" and wire == _BYTES:
                place = at
                while place < at + size:
                    value, place = self._varint(place, at + size)
                    self._count(1)
                    numbers.append(_signed(value))
            elif feature.kind == "int64" and wire == _VARINT:
                numbers.append(_signed(self._varint(at, at + size)[0]))
            else:
                raise NoExampleError(f"a list of {feature.kind} values has values of another type")

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > VALUES_MAX:
            raise NoExampleError(f"it has more than {VALUES_MAX:,} values")

    def _count_part(self) -> None:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise NoExampleError(f"it has more than {PARTS_MAX:,} features, lists and values")

    def _fields(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """(number, wire type, start of its value, length of its value) of each field."""
        at = start
        while at < stop:
            tag, at = self._varint(at, stop)
            wire = tag & 7
            if wire == _BYTES:
                size, at = self._varint(at, stop)
            elif wire == _VARINT:
                size = self._varint(at, stop)[1] - at
            elif wire in (_FIXED32, _FIXED64):
                size = 4 if wire == _FIXED32 else 8
            else:
                raise NoExampleError(f"it is no protocol buffer (wire type {wire})")
            if size > stop - at:
                raise NoExampleError("a field is longer than the message around it")
            yield tag >> 3, wire, at, size
            at += size

    def _varint(self, at: int, stop: int) -> tuple[int, int]:
        """(value, offset of the next byte)."""
        place, window = at - self._base, self._window
        if at < stop and 0 <= place < len(window) and window[place] < 0x80:
            return window[place], at + 1  # most numbers take one byte
        value = 0
        for shift in range(0, 70, 7):
            if at >= stop:
                raise NoExampleError("it ends within a number")
            place = at - self._base
            if not 0 <= place < len(self._window):
                self._move(at)
                place = 0
            byte = self._window[place]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                # Ten bytes hold 70 bits; protocol buffers ignore those above 64.
                return value & 0xFFFFFFFFFFFFFFFF, at
        raise NoExampleError("it has a number of more than 64 bits")

    def _bytes(self, at: int, size: int) -> bytes:
        place = at - self._base
        if place < 0 or place + size > len(self._window):
            if size > WINDOW_BYTES:
                return bytes(self._read(at, size))
            self._move(at)
            place = 0
        return bytes(self._window[place : place + size])

    def _move(self, at: int) -> None:
        self._window = self._read(at, min(WINDOW_BYTES, self._stop - at))
        self._base = at


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


# --------------------------------------------------------------------------------------------------
# The masked CRC-32C of TFRecord: of one length or record, and of many lengths at once.
#
# ``awscrt`` computes it with the processor's instructions: 12 GB/s, so that checking costs a
# small part of the read. PyPI's ``crc32c`` would work as well, but it is under the LGPL.


_MASK: Final = 0xA282EAD8
ROW_BYTES_MAX: Final = 512
"""Longer rows are not computed by columns, because each column needs a table."""


def masked(checksum: int) -> int:
    """A CRC-32C as TFRecord stores it. The checksum is masked because a checksum of data that holds
    its own checksum is weak."""
    return (((checksum >> 15) | (checksum << 17)) + _MASK) & 0xFFFFFFFF


def masked_all(checksums: UInt32s) -> UInt32s:
    """:func:`masked` of each checksum, shape ``(n,)``."""
    fifteen, seventeen = np.uint32(15), np.uint32(17)
    return ((checksums >> fifteen) | (checksums << seventeen)) + np.uint32(_MASK)


def length_checksums(lengths: Int64s) -> UInt32s:
    """The masked checksum of each length as 8 little-endian bytes, shape ``(n,)``. 40 ns each; a
    call for each would take 400 ns."""
    data = np.ascontiguousarray(lengths, "<i8").view(np.uint8).reshape(-1, 8)
    total = np.full(len(lengths), crc32c(bytes(8)), np.uint32)
    for place in range(8):
        total ^= _changes(7 - place)[data[:, place]]
    return masked_all(total)


def row_checksums(rows: NDArray[np.uint8]) -> UInt32s:
    """The CRC-32C of each row of a table, shape ``(n,)``. Rows have at most ``ROW_BYTES_MAX`` bytes
    and most columns are the same in all of them. Each checksum is that of the first row, changed
    for each byte that differs. A row takes 2 ns for each column that differs; a call for a row
    would take 250 ns."""
    count, width = rows.shape
    found = np.full(count, crc32c(rows[0].tobytes()) if count else 0, np.uint32)
    if count > 1:
        differing = rows ^ rows[0]
        for place in np.flatnonzero(differing.any(axis=0)).tolist():
            found ^= _changes(width - 1 - place)[differing[:, place]]
    return found


@cache
def _changes(behind: int) -> UInt32s:
    """How a checksum changes with the bits of a byte that is followed by ``behind`` bytes, shape
    (256,)."""
    if behind == 0:
        zero = crc32c(bytes(1))
        return np.array([crc32c(bytes([bits])) ^ zero for bits in range(256)], np.uint32)
    nearer = _changes(behind - 1)
    changes: UInt32s = (nearer >> np.uint32(8)) ^ _changes(0)[nearer & np.uint32(0xFF)]
    return changes


def bytes_features(name: bytes, sizes: Int64s) -> BytesColumn:
    """The bytes before the values of features ``name``, which have ``sizes`` bytes each: the
    entries of the features in the map of an Example, up to the value, with which each entry
    ends."""
    value = varints(sizes)
    in_feature = 1 + value.lengths + sizes
    of_list = varints(in_feature)
    in_value = 1 + of_list.lengths + in_feature
    of_feature = varints(in_value)
    head = _field(1, name) + b"\x12"
    of_entry = varints(len(head) + of_feature.lengths + in_value)
    parts = (b"\n", of_entry, head, of_feature, b"\n", of_list, b"\n", value)
    return side_by_side(parts, len(sizes))


@lru_cache(1 << 14)
def int_feature(name: bytes, number: int) -> bytes:
    """The entry of a feature with the single int64 ``number``. Entries are cached, because there
    are few labels."""
    # A negative int64 is stored as its two's complement, in ten bytes.
    packed = _field(1, varint_bytes(number & 0xFFFFFFFFFFFFFFFF))
    return _field(1, _field(1, name) + _field(2, _field(3, packed)))


def _field(number: int, payload: bytes) -> bytes:
    return bytes((number << 3 | _BYTES,)) + varint_bytes(len(payload)) + payload


KEY_FEATURE: Final = KEY_COLUMN.encode()
"""The feature with the key of a converted record."""
EXAMPLE_BYTES_MAX: Final = (1 << 31) - 1
"""The maximum size of a protocol buffer."""
HEAD_BYTES: Final = 12
TAIL_BYTES: Final = 4

_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_INTEGER_BYTES_MAX: Final = 20
_CLS: Final = b"cls"
_NOTHING: Final = BytesColumn.empty(1)


def packed_frames(members: MemberTable, records: FormedRecords, payloads: Payloads) -> MemberTable:
    """See ``Container.packed``."""
    rows, first = records.member_rows, records.member_offsets[:-1]
    last = records.member_offsets[1:] - 1
    if not len(rows):
        return replace(members, literals={}, tails={}, entries=None)
    features, is_number = _features(members, records, payloads)
    sizes = np.where(is_number, 0, members.payload_bytes[rows])
    keys = side_by_side(
        [bytes_features(KEY_FEATURE, records.keys.lengths), records.keys], len(first)
    )
    in_entries = keys.lengths + np.add.reduceat(features.lengths + sizes, first)
    before = side_by_side([b"\n", varints(in_entries), keys], len(first))
    lengths = before.lengths - keys.lengths + in_entries
    _check_lengths(lengths, records)
    heads = np.empty((len(first), HEAD_BYTES), np.uint8)
    heads[:, :8] = lengths.astype("<u8").view(np.uint8).reshape(-1, 8)
    heads[:, 8:] = length_checksums(lengths).astype("<u4").view(np.uint8).reshape(-1, 4)
    begun = side_by_side([BytesColumn.of_table(heads), before], len(first))
    parts = [spread(begun, first, len(rows)), features]
    if members.literals:
        bare = BytesColumn.concat([column_of(members.literals, len(members)), _NOTHING])
        parts.append(bare.take(np.where(is_number, len(members), rows)))
    literals = side_by_side(parts, len(rows))
    in_shard = ~is_number & (members.payload_start[rows] >= 0)
    range_length = members.range_length.copy()
    range_length[rows[is_number]] = 0
    if payloads.are_sealed_later:
        # The range of the last payload also takes the bytes behind it, which the seal overwrites:
        # room for the seal would be one more slice.
        ends = members.payload_start[rows[last]] + range_length[rows[last]]
        fits = in_shard[last] & (ends + TAIL_BYTES <= payloads.shard_bytes)
        range_length[rows[last[fits]]] += TAIL_BYTES
        last = last[~fits]
        sums = np.zeros((len(last), TAIL_BYTES), np.uint8)
    else:
        sums = stored_checksums(_checksums(literals, first, payloads, rows, in_shard)[last])
    return replace(
        members,
        literals=RowBytes(spread(literals, rows, len(members))),
        tails=RowBytes(spread(BytesColumn.of_table(sums), rows[last], len(members))),
        range_length=range_length,
        entries=None,
    )


def _features(
    members: MemberTable, records: FormedRecords, payloads: Payloads
) -> tuple[BytesColumn, Bools]:
    """(the bytes before the value of each member in its record, whether these include the value: a
    label that becomes an int64), for the members in the order of the records."""
    rows, names = records.member_rows, members.names
    key_bytes, sizes = records.key_bytes[rows], members.payload_bytes[rows]
    suffixes = names.offsets[:-1][rows] + key_bytes, names.lengths[rows] - key_bytes
    suffix_of, first = distinct_rows(names.blob, *suffixes)
    is_number = np.zeros(len(rows), np.bool_)
    parts, places = [], []
    for suffix, place in enumerate(first.tolist()):
        name, size = names[int(rows[place])], int(key_bytes[place])
        feature = _feature_name(name[:size], name[size:])
        own = np.flatnonzero(suffix_of == suffix)
        if feature == _CLS:
            column, is_number[own] = _labels(rows[own], sizes[own], payloads)
        else:
            column = bytes_features(feature, sizes[own])
        parts.append(column)
        places.append(own)
    if len(parts) == 1:
        return parts[0], is_number
    return BytesColumn.concat(parts).take(np.argsort(np.concatenate(places))), is_number


def _labels(rows: Int64s, sizes: Int64s, payloads: Payloads) -> tuple[BytesColumn, Bools]:
    """The result of :func:`_features` for the members ``cls``, whose table rows are ``rows``. A
    member that is an integer, as Python writes it, becomes a number."""
    heads = bytes_features(_CLS, sizes).tolist()
    is_number = np.zeros(len(rows), np.bool_)
    short = np.flatnonzero((sizes > 0) & (sizes <= _INTEGER_BYTES_MAX))
    for place, pieces in zip(short.tolist(), payloads.each(rows[short]), strict=True):
        text = b"".join(map(bytes, pieces))
        if _INTEGER.fullmatch(text) and -(1 << 63) <= int(text) < 1 << 63:
            heads[place] = int_feature(_CLS, int(text))
            is_number[place] = True
    return BytesColumn.of(heads), is_number


def _checksums(
    literals: BytesColumn, first: Int64s, payloads: Payloads, rows: Int64s, in_shard: Bools
) -> UInt32s:
    """For each member, the checksum of its record up to the end of the member, without the heads of
    frames, with which the ``literals`` at ``first`` begin. ``in_shard``: whether the payload of the
    member is a range of the shard, and not a literal.

    The checksums are computed for the first members of all records, then for the second ones, and
    so on."""
    begins = literals.offsets[:-1].copy()
    begins[first] += HEAD_BYTES
    stops, blob = literals.offsets[1:], literals.blob.tobytes()
    counts = np.diff(first, append=len(rows))
    found = np.zeros(len(rows) + 1, np.uint32)  # the last: before the first
    own, before = first, np.full(len(first), len(rows))
    while len(own):
        width = literals.width
        if own is first and len(own) == len(rows) and width and width <= ROW_BYTES_MAX:
            found[own] = row_checksums(literals.blob.reshape(-1, width)[:, HEAD_BYTES:])
        else:
            slices = map(slice, begins[own].tolist(), stops[own].tolist())
            sums = map(crc32c, map(blob.__getitem__, slices), found[before].tolist())
            found[own] = np.fromiter(sums, np.uint32, len(own))
        ranges = own[in_shard[own]]
        found[ranges] = payloads.checksums(rows[ranges], crc32c, found[ranges])
        goes_on = counts > 1
        before, counts = own[goes_on], counts[goes_on] - 1
        own = before + 1
    return found[:-1]


def stored_checksums(checksums: UInt32s) -> UInt8s:
    """Each checksum as it is stored, shape ``(n, TAIL_BYTES)``."""
    return masked_all(checksums).astype("<u4").view(np.uint8).reshape(-1, TAIL_BYTES)


def _check_lengths(lengths: Int64s, records: FormedRecords) -> None:
    """``ConversionError`` for a record whose length no Example can have."""
    long = np.flatnonzero(lengths > EXAMPLE_BYTES_MAX)
    if len(long):
        record = int(long[0])
        raise ConversionError(
            f"record {readable(records.keys[record])} would be an Example of "
            f"{int(lengths[record]):,} bytes; the largest has {EXAMPLE_BYTES_MAX:,}",
            hint="split the record, or choose another container",
        )


def _feature_name(key: bytes, suffix: bytes) -> bytes:
    """The feature that a member becomes. ``suffix``: the end of its name, after the key. For a
    member without an extension the suffix is empty, and so is the name of its feature."""
    feature = suffix[1:]
    why = ""
    if suffix == b".":
        why = "has an empty extension"
    elif feature == KEY_FEATURE:
        why = "would be the feature of the key"
    if not is_utf8(feature):
        why = "is not UTF-8, as names of features are"
    if why:
        raise ConversionError(
            f"record {readable(key)} has a member {readable(key + suffix)} that {why}",
            hint="rename the member",
        )
    return feature
