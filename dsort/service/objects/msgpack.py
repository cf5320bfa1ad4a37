"""The part of MessagePack that lists of objects need: AIStore's clients accept them in no other
form.

(https://github.com/msgpack/msgpack/blob/master/spec.md)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dsort.data.json_values import encodable

__all__ = ["packed"]

_FIX_MAP: Final = 0x80
_FIX_ARRAY: Final = 0x90
_FIX_STR: Final = 0xA0
_INTEGERS: Final = ((0xCC, ">BB", 1 << 8), (0xCD, ">BH", 1 << 16), (0xCE, ">BI", 1 << 32))


def packed(value: object) -> bytes:
    """``value`` as MessagePack: texts, with an escape for each character that cannot be encoded,
    whole numbers from 0 on, and maps and lists of them."""
    return b"".join(_pieces(value))


def _pieces(value: object) -> Iterator[bytes]:
    if isinstance(value, str):
        text = encodable(value).encode()
        yield _head(len(text), _FIX_STR, 32, 0xD9)
        yield text
    elif isinstance(value, int):
        yield _integer(value)
    elif isinstance(value, Mapping):
        yield _head(len(value), _FIX_MAP, 16, 0xDE, has_short=False)
        for name, each in value.items():
            yield from _pieces(name)
            yield from _pieces(each)
    else:
        assert isinstance(value, Sequence), f"{type(value).__name__} is not packed"
        yield _head(len(value), _FIX_ARRAY, 16, 0xDC, has_short=False)
        for each in value:
            yield from _pieces(each)


def _integer(value: int) -> bytes:
    if 0 <= value < 128:
        return bytes([value])
    for first, layout, end in _INTEGERS:
        if 0 <= value < end:
            return struct.pack(layout, first, value)
    return struct.pack(">BQ", 0xCF, value)


def _head(count: int, fixed: int, fixed_end: int, first: int, *, has_short: bool = True) -> bytes:
    """The bytes that announce ``count`` bytes or items. ``first``: the code of the shortest form
    with a separate length, which has one byte if ``has_short``, else two; the codes of the longer
    forms follow it."""
    if count < fixed_end:
        return bytes([fixed | count])
    if has_short:
        if count < 1 << 8:
            return struct.pack(">BB", first, count)
        first += 1
    if count < 1 << 16:
        return struct.pack(">BH", first, count)
    return struct.pack(">BI", first + 1, count)
