"""Numbers of a variable number of bytes, as Thrift and protocol buffers have them: 7 bits a byte,
the lowest first."""

from __future__ import annotations

import numpy as np

from dsort.data.columns import BytesColumn, Int64s, offsets_of

VARINT_BYTES_MAX = 10


def varint(data: memoryview | bytes, at: int, bytes_max: int = VARINT_BYTES_MAX) -> tuple[int, int]:
    """The number at byte ``at``, of up to ``bytes_max`` bytes, and where it ends."""
    value = data[at]
    at += 1
    if value < 128:
        return value, at
    value &= 127
    for shift in range(7, 7 * bytes_max, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number is too long")


def write_varint(out: bytearray, value: int) -> None:
    """Append a number that is not negative."""
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def varint_bytes(value: int) -> bytes:
    """A number that is not negative, as a varint."""
    out = bytearray()
    write_varint(out, value)
    return bytes(out)


def varints(values: Int64s) -> BytesColumn:
    """Each of ``values``, which are not negative, as a varint."""
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
    return BytesColumn(offsets_of(lengths), table[places < lengths[:, None]])
