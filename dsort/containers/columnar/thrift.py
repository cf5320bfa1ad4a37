"""Thrift's compact protocol, as far as Parquet's headers and footers need it, read with bounds.

A struct is a mapping of field numbers to (type, value), in the order of the file. So unknown fields
are written again unchanged.
"""

from __future__ import annotations

import struct
from typing import Any

from dsort.containers.varints import varint, write_varint

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
DEPTH_MAX = 16
_DOUBLE = struct.Struct("<d")

ThriftStruct = dict[int, tuple[int, Any]]
"""A list is (type of its items, items); a map (types of keys and values, pairs)."""


def read_struct(data: memoryview, at: int) -> tuple[ThriftStruct, int]:
    """(the struct at byte ``at``, its end). ``ValueError`` if the struct is invalid or does not end
    within ``data``."""
    try:
        return _read_struct(data, at, 0)
    except IndexError:
        raise ValueError("a Thrift struct is cut off") from None


def _read_struct(data: memoryview, at: int, depth: int) -> tuple[ThriftStruct, int]:
    if depth > DEPTH_MAX:
        raise ValueError("a Thrift struct is nested too deep")
    found: ThriftStruct = {}
    number = 0
    while True:
        head = data[at]
        at += 1
        kind = head & 15
        if head > 15:
            number += head >> 4
        elif not head:
            return found, at
        else:
            more, at = varint(data, at)
            number = _signed(more)
        if I16 <= kind <= I64:  # inline, not in a call: headers of pages are mostly numbers
            value: Any = data[at]
            at += 1
            if value > 127:
                value, at = varint(data, at - 1)
            value = (value >> 1) ^ -(value & 1)
        elif kind in (TRUE, FALSE):
            value = kind == TRUE
        else:
            value, at = _read(data, at, kind, depth)
        found[number] = (kind, value)


def _read(data: memoryview, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (I16, I32, I64):
        value, at = varint(data, at)
        return _signed(value), at
    if kind == BINARY:
        size, at = varint(data, at)
        if size > len(data) - at:
            raise IndexError
        return bytes(data[at : at + size]), at + size
    if kind == STRUCT:
        return _read_struct(data, at, depth + 1)
    if kind in (LIST, SET):
        return _read_list(data, at, depth + 1)
    if kind == MAP:
        return _read_map(data, at, depth + 1)
    if kind in (TRUE, FALSE, BYTE):  # as items of lists, a byte each
        return data[at], at + 1
    if kind == DOUBLE:
        if len(data) - at < _DOUBLE.size:
            raise IndexError
        return _DOUBLE.unpack_from(data, at)[0], at + _DOUBLE.size
    raise ValueError(f"Thrift has no type {kind}")


def _read_list(data: memoryview, at: int, depth: int) -> tuple[tuple[int, list[Any]], int]:
    if depth > DEPTH_MAX:
        raise ValueError("a Thrift list is nested too deep")
    count, inner, at = list_head(data, at)
    items = []
    for _ in range(count):
        item, at = _read(data, at, inner, depth)
        items.append(item)
    return (inner, items), at


def _read_map(data: memoryview, at: int, depth: int) -> tuple[Any, int]:
    if depth > DEPTH_MAX:
        raise ValueError("a Thrift map is nested too deep")
    count, kinds, at = _map_head(data, at)
    pairs = []
    for _ in range(count):
        key, at = _read(data, at, kinds >> 4, depth)
        value, at = _read(data, at, kinds & 15, depth)
        pairs.append((key, value))
    return (kinds, pairs), at


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def field_number(data: memoryview | bytes, at: int, before: int) -> tuple[int, int]:
    """(number of the field with its head at byte ``at``, start of its value)."""
    step = data[at] >> 4
    if step:
        return before + step, at + 1
    more, at = varint(data, at + 1)
    return _signed(more), at


def list_head(data: memoryview | bytes, at: int) -> tuple[int, int, int]:
    """(number of items, type of the items, place of the first item) of a list. Booleans take a byte
    each in lists."""
    head = data[at]
    count, inner, at = head >> 4, head & 15, at + 1
    # Four bits count up to 14 items; 15 means that the count follows.
    if count == 15:
        count, at = varint(data, at)
    if count > len(data) - at:  # an item takes a byte at least
        raise IndexError
    return count, inner, at


def _map_head(data: memoryview | bytes, at: int) -> tuple[int, int, int]:
    """(number of pairs, types of keys and values, place of the first pair) of a map."""
    count, at = varint(data, at)
    if count > len(data) - at:
        raise IndexError
    return (count, data[at], at + 1) if count else (0, 0, at)


def skipped(data: memoryview | bytes, at: int, kind: int, depth: int = 0) -> int:
    """Where the value at byte ``at`` ends. ``IndexError`` if the value is cut off."""
    if BYTE < kind <= I64:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind == BINARY:
        size, at = varint(data, at)
        if size > len(data) - at:
            raise IndexError
        return at + size
    if kind < BYTE:  # true or false: the type is the value
        return at
    if kind in (BYTE, DOUBLE):
        return at + (1 if kind == BYTE else 8)
    if depth > DEPTH_MAX:
        raise ValueError("a Thrift struct is nested too deep")
    if kind == STRUCT:
        while head := data[at]:
            at += 1
            if head < 16:
                _, at = varint(data, at)
            inner = head & 15
            if BYTE < inner <= I64:  # inline, not in a call: most of the skipped values
                while data[at] > 127:
                    at += 1
                at += 1
            elif inner == BINARY and data[at] < 128:
                at += 1 + data[at]
            elif inner >= BYTE:
                at = skipped(data, at, inner, depth + 1)
        return at + 1
    if kind in (LIST, SET):
        count, inner, at = list_head(data, at)
        if BYTE < inner <= I64:
            for _ in range(count):
                while data[at] > 127:
                    at += 1
                at += 1
            return at
        for _ in range(count):
            at = skipped(data, at, max(inner, BYTE), depth + 1)
        return at
    if kind == MAP:
        count, kinds, at = _map_head(data, at)
        for _ in range(count):
            at = skipped(data, at, max(kinds >> 4, BYTE), depth + 1)
            at = skipped(data, at, max(kinds & 15, BYTE), depth + 1)
        return at
    raise ValueError(f"Thrift has no type {kind}")


def written(fields: ThriftStruct) -> bytes:
    """A struct as bytes."""
    out = bytearray()
    _write_struct(out, fields)
    return bytes(out)


def _write_struct(out: bytearray, fields: ThriftStruct) -> None:
    last = 0
    for number, (kind, value) in fields.items():
        step = number - last
        if 0 < step < 16:
            out.append(step << 4 | kind)
        else:
            out.append(kind)
            write_varint(out, number << 1 ^ number >> 63)
        last = number
        if kind not in (TRUE, FALSE):
            _write(out, kind, value)
    out.append(0)


def _write(out: bytearray, kind: int, value: Any) -> None:
    if kind in (I16, I32, I64):
        write_varint(out, value << 1 ^ value >> 63)
    elif kind == BINARY:
        write_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind in (LIST, SET):
        inner, items = value
        if len(items) < 15:
            out.append(len(items) << 4 | inner)
        else:
            out.append(15 << 4 | inner)
            write_varint(out, len(items))
        for item in items:
            _write(out, inner, item)
    elif kind == MAP:
        kinds, pairs = value
        write_varint(out, len(pairs))
        if pairs:
            out.append(kinds)
        for key, item in pairs:
            _write(out, kinds >> 4, key)
            _write(out, kinds & 15, item)
    elif kind == DOUBLE:
        out += _DOUBLE.pack(value)
    else:
        out.append(value)
