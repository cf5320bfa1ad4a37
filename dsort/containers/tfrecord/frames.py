"""Makes frames of Examples around the payloads of members, for all records of a shard at once.

The bytes before payloads are made from columns (``data.row_bytes``); only the checksums, two for
each member, and the labels are made one by one.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Final

import numpy as np
from awscrt.checksums import crc32c
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

# --------------------------------------------------------------------------------------------------
# The masked CRC-32C of TFRecord: of one length or record, and of many lengths at once.
#
# ``awscrt`` computes it with the processor's instructions: 12 GB/s, so that checking costs a
# small part of the read. PyPI's ``crc32c`` would work as well, but it is under the LGPL.


_MASK: Final = 0xA282EAD8
ROW_BYTES_MAX: Final = 512
"""Longer rows are not computed by columns, because each column needs a table."""


def masked(checksum: int) -> int:
    """A CRC-32C as TFRecord stores it. It is masked because a checksum of data that holds its own
    checksum is weak."""
    return (((checksum >> 15) | (checksum << 17)) + _MASK) & 0xFFFFFFFF


def masked_all(checksums: UInt32s) -> UInt32s:
    """:func:`masked` of each checksum, shape ``(n,)``."""
    fifteen, seventeen = np.uint32(15), np.uint32(17)
    return ((checksums >> fifteen) | (checksums << seventeen)) + np.uint32(_MASK)


def length_checksums(lengths: Int64s) -> UInt32s:
    """The masked checksum of each length as 8 little-endian bytes, shape ``(n,)``. 40 ns each; a
    call for each would take 400 ns."""
    data = np.ascontiguousarray(lengths, "<i8").view(np.uint8).reshape(-1, 8)
    total = np.full(len(lengths), _of_zeros(), np.uint32)
    for place, table in enumerate(_tables()):
        total ^= table[data[:, place]]
    return masked_all(total)


def _of_zeros() -> int:
    return int(crc32c(bytes(8)))


@cache
def _tables() -> NDArray[np.uint32]:
    """The checksum of 8 bytes is linear except for a constant. This table has the part that each
    value of each byte adds to it, shape (8, 256)."""
    zeros = _of_zeros()
    rows = [
        [crc32c(bytes(place) + bytes([value]) + bytes(7 - place)) ^ zeros for value in range(256)]
        for place in range(8)
    ]
    return np.array(rows, np.uint32)


def row_checksums(rows: NDArray[np.uint8]) -> UInt32s:
    """The CRC-32C of each row of a table, shape ``(n,)``. Rows have at most ``ROW_BYTES_MAX`` bytes
    and most columns are the same in all of them. It is the first row's checksum, changed for each
    byte that differs. This takes 2 ns for each column with different bytes; a call for a row would
    take 250 ns."""
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


_BYTES = 2


def bytes_features(name: bytes, sizes: Int64s) -> BytesColumn:
    """The bytes before the values of features ``name``: their entries in the map of an Example,
    without the values, with which entries end. ``sizes`` are the lengths of the values."""
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
    """See ``Packing.packed``."""
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
        # This saves a slice: the seal overwrites the bytes that follow the last payload in its
        # shard.
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
    """For each member, in the order of the records: (the bytes before its value, whether these
    include the value, as for a label that becomes an int64)."""
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
    """The result of :func:`_features` for the members ``cls``, in the table rows ``rows``. An
    integer in the form of Python becomes a number."""
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
    """For each member, the checksum of its record up to the end of this member. The heads of
    frames, with which the ``literals`` at ``first`` begin, do not count. ``in_shard``: whether its
    payload is not a literal.

    They are computed first for the first member of every record, then for every second one, and so
    on."""
    begins = literals.offsets[:-1].copy()
    begins[first] += HEAD_BYTES
    stops, blob = literals.offsets[1:], literals.blob.tobytes()
    counts = np.diff(first, append=len(rows))
    found = np.zeros(len(rows) + 1, np.uint32)  # and 0, the checksum before the first
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
    """``ConversionError`` for a record that is too long for an Example."""
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
        why = "is the feature that the key goes to"
    if not is_utf8(feature):
        why = "is no UTF-8, which names of features are"
    if why:
        raise ConversionError(
            f"record {readable(key)} has a member {readable(key + suffix)}: that {why}",
            hint="rename the member",
        )
    return feature
