"""Encodes features of a ``tf.train.Example``, those of many records at once."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dsort.data.columns import BytesColumn, Int64s
from dsort.data.row_bytes import side_by_side

__all__ = ["bytes_features", "int_feature", "varints"]

_BYTES = 2


def varints(values: Int64s) -> BytesColumn:
    """Each of ``values``, which are not negative, as a varint: 7 bits a byte, the lowest first."""
    count = len(values)
    shortest, longest = (
        max((int(each.bit_length()) + 6) // 7, 1)
        for each in ((int(values.min()), int(values.max())) if count else (0, 0))
    )
    if shortest == longest:
        rows = np.empty((count, longest), np.uint8)
        for place in range(longest):
            rows[:, place] = values >> 7 * place & 0x7F
        rows[:, :-1] |= 0x80
        return BytesColumn(np.arange(count + 1, dtype=np.int64) * longest, rows.reshape(-1))
    lengths = np.ones(count, np.int64)
    for bits in range(7, 63, 7):
        more = values >= 1 << bits
        if not more.any():
            break
        lengths += more
    width = int(lengths.max()) if len(values) else 1
    places = np.arange(width)
    table = (values[:, None] >> (7 * places) & 0x7F).astype(np.uint8)
    table |= np.where(places < lengths[:, None] - 1, 0x80, 0).astype(np.uint8)
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return BytesColumn(offsets, table[places < lengths[:, None]])


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
    packed = _field(1, _varint(number & 0xFFFFFFFFFFFFFFFF))
    return _field(1, _field(1, name) + _field(2, _field(3, packed)))


def _field(number: int, payload: bytes) -> bytes:
    return bytes((number << 3 | _BYTES,)) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
