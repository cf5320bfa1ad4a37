"""Reads the header of one item of MessagePack or CBOR: its kind, and how much follows.

Payload is never decoded. Both formats nest items in lists and maps, whose headers have the number
of items that follow, or (CBOR) end at a break.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

HEADER_BYTES_MAX: Final = 9
OPEN_LIST: Final = 1 << 62
OPEN_MAP: Final = 1 << 60
"""The number of items of a list or map that ends at a break: more than any file has."""


class Kind:
    """The kind of an item. Kinds are plain numbers, because millions of headers are read."""

    SCALAR: Final = 0  # the argument: how many bytes follow the header
    INTEGER: Final = 1  # the argument is the number itself
    BYTES: Final = 2  # the argument: how many bytes follow the header; the same for texts
    TEXT: Final = 3
    LIST: Final = 4  # the argument: how many items follow; -1: up to a break
    MAP: Final = 5  # the argument: how many pairs follow; -1: up to a break
    TAG: Final = 6  # describes the item that follows
    BREAK: Final = 7
    PIECES: Final = 8  # bytes in pieces, up to a break; the argument: the kind of the pieces


Header = tuple[int, int, int]
"""(The kind of the item, the length of the header in bytes, the argument)."""

ReadHeader = Callable[[memoryview, int], Header]
"""Reads the header at an index of a view. ``ValueError`` if the header is invalid; ``IndexError``
if the view ends in the header."""


def _unsigned(view: memoryview, at: int, size_bytes: int) -> int:
    if at + size_bytes > len(view):
        raise IndexError
    return int.from_bytes(view[at : at + size_bytes], "big")


_MSGPACK: Final[dict[int, tuple[int, int, int]]] = {
    # first byte: (kind, bytes of its length, or 0 if its size is fixed; bytes that follow anyway)
    0xC0: (Kind.SCALAR, 0, 0), 0xC2: (Kind.SCALAR, 0, 0), 0xC3: (Kind.SCALAR, 0, 0),
    0xC4: (Kind.BYTES, 1, 0), 0xC5: (Kind.BYTES, 2, 0), 0xC6: (Kind.BYTES, 4, 0),
    0xC7: (Kind.SCALAR, 1, 1), 0xC8: (Kind.SCALAR, 2, 1), 0xC9: (Kind.SCALAR, 4, 1),
    0xCA: (Kind.SCALAR, 0, 4), 0xCB: (Kind.SCALAR, 0, 8),
    0xD4: (Kind.SCALAR, 0, 2), 0xD5: (Kind.SCALAR, 0, 3), 0xD6: (Kind.SCALAR, 0, 5),
    0xD7: (Kind.SCALAR, 0, 9), 0xD8: (Kind.SCALAR, 0, 17),
    0xD9: (Kind.TEXT, 1, 0), 0xDA: (Kind.TEXT, 2, 0), 0xDB: (Kind.TEXT, 4, 0),
    0xDC: (Kind.LIST, 2, 0), 0xDD: (Kind.LIST, 4, 0),
    0xDE: (Kind.MAP, 2, 0), 0xDF: (Kind.MAP, 4, 0),
}  # fmt: skip


def msgpack_header(view: memoryview, at: int) -> Header:
    """The header of a MessagePack item."""
    first = view[at]
    if first < 0x80:
        return Kind.INTEGER, 1, first
    if first >= 0xE0:
        return Kind.INTEGER, 1, first - 256
    if first < 0x90:
        return Kind.MAP, 1, first & 0x0F
    if first < 0xA0:
        return Kind.LIST, 1, first & 0x0F
    if first < 0xC0:
        return Kind.TEXT, 1, first & 0x1F
    if 0xCC <= first <= 0xD3:
        size_bytes = 1 << (first & 3)
        number = _unsigned(view, at + 1, size_bytes)
        if first >= 0xD0 and number >> (8 * size_bytes - 1):
            number -= 1 << (8 * size_bytes)
        return Kind.INTEGER, 1 + size_bytes, number
    if first not in _MSGPACK:
        raise ValueError(f"{first:#04x} begins no MessagePack item")
    kind, length_bytes, more_bytes = _MSGPACK[first]
    length = _unsigned(view, at + 1, length_bytes) if length_bytes else 0
    return kind, 1 + length_bytes, length + more_bytes


ItemSizes = tuple[tuple[int, ...], tuple[int, ...]]
"""What the first byte of an item shows, by the value of that byte. First, how many bytes a scalar,
a string or an empty list or map has, 0 if more has to be read. Second, how many items are in a list
or map whose header is that byte alone (``OPEN_LIST``, ``OPEN_MAP`` up to a break); 0 for all
others."""


def _sizes(read_header: ReadHeader) -> ItemSizes:
    sizes, items = [0] * 256, [0] * 256
    for first in range(256):
        try:  # two headers that are equal depend on the first byte alone
            headers = {read_header(memoryview(bytes([first, *[each] * 8])), 0) for each in (0, 1)}
        except ValueError:
            continue
        kind, header_bytes, argument = headers.pop()
        if kind == Kind.INTEGER:
            sizes[first] = header_bytes
        elif headers:
            continue
        elif kind in (Kind.LIST, Kind.MAP):
            opened = {Kind.LIST: OPEN_LIST, Kind.MAP: OPEN_MAP}[kind]
            items[first] = opened if argument < 0 else argument * (1 + (kind == Kind.MAP))
            sizes[first] = int(not argument)
        elif kind <= Kind.TEXT:
            sizes[first] = header_bytes + argument
    return tuple(sizes), tuple(items)


MSGPACK_SIZES: Final = _sizes(msgpack_header)

_CBOR_KINDS: Final = (
    Kind.INTEGER, Kind.INTEGER, Kind.BYTES, Kind.TEXT, Kind.LIST, Kind.MAP, Kind.TAG, Kind.SCALAR,
)  # fmt: skip
_CBOR_OPEN: Final = {
    2: (Kind.PIECES, 1, Kind.BYTES),
    3: (Kind.PIECES, 1, Kind.TEXT),
    4: (Kind.LIST, 1, -1),
    5: (Kind.MAP, 1, -1),
    7: (Kind.BREAK, 1, 0),
}


def cbor_header(view: memoryview, at: int) -> Header:
    """The header of a CBOR item (RFC 8949)."""
    major, short = divmod(view[at], 32)
    if short < 24:
        length_bytes, argument = 0, short
    elif short < 28:
        length_bytes = 1 << (short - 24)
        argument = _unsigned(view, at + 1, length_bytes)
    elif short == 31 and major in _CBOR_OPEN:
        return _CBOR_OPEN[major]
    else:
        raise ValueError(f"{view[at]:#04x} begins no CBOR item")
    kind = _CBOR_KINDS[major]
    if kind == Kind.SCALAR:
        if short == 24 and argument < 32:
            raise ValueError("a simple value below 32 takes one byte in CBOR")
        argument = 0
    elif major == 1:
        argument = -1 - argument
    return kind, 1 + length_bytes, argument


CBOR_SIZES: Final = _sizes(cbor_header)
