"""Reads the classes in ImageNet's ``meta.mat``, a MATLAB file of version 5, and nothing else of it.

The format is MathWorks' "MAT-File Format" (level 5): a head of 128 bytes, then elements of a tag
(type, length) and data at multiples of 8 bytes. An element of type 15 contains another element,
deflated; elements of type 15 are not nested in others. dsort did not write the file, so each length
is checked against the available bytes, and inflated data is bounded.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from msgspec import Struct

from dsort.errors import InputError

__all__ = ["is_mat", "synsets_of"]

HEAD_BYTES = 128
INFLATED_BYTES_MAX = 64 << 20
ELEMENTS_MAX = 1_000_000
_COMPRESSED, _MATRIX = 15, 14
_STRUCT, _CHAR = 2, 4
_FORMATS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_TEXTS = {1: "latin-1", 2: "latin-1", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le"}


def is_mat(data: bytes) -> bool:
    """Whether ``data`` begins like such a file."""
    return data[:10] == b"MATLAB 5.0" and data[126:128] == b"IM"


def synsets_of(name: str, data: bytes) -> list[tuple[bytes, int]]:
    """(WNID, ILSVRC2012_ID) of each leaf of ``synsets``, in order of the numbers. ``InputError`` if
    ``synsets`` is missing or damaged."""
    try:
        for kind, content in _elements(data[HEAD_BYTES:]):
            if kind == _COMPRESSED:
                kind, content = next(_elements(_inflated(content)), (0, b""))
            if kind == _MATRIX:
                matrix = _matrix(content)
                if matrix.name == "synsets" and matrix.kind == _STRUCT:
                    return _leaves(matrix)
    except (ValueError, IndexError, OverflowError, struct.error, zlib.error) as error:
        raise InputError(f"{name} is a damaged MATLAB file: {error}") from None
    raise InputError(f"{name} has no struct synsets", hint="ImageNet's meta.mat has it")


class _Matrix(Struct, frozen=True):
    """``kind``: its class in MATLAB. ``rest``: the elements after its name."""

    name: str
    kind: int
    count: int
    rest: list[tuple[int, bytes]]


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, data) of each element."""
    at = count = 0
    while at + 8 <= len(data):
        count += 1
        if count > ELEMENTS_MAX:
            raise ValueError("it has too many elements")
        kind, size = struct.unpack_from("<II", data, at)
        if kind >> 16:  # small: its length and its data are in the tag
            kind, size = kind & 0xFFFF, kind >> 16
            if size > 4:
                raise ValueError("a small element is too long")
            yield kind, data[at + 4 : at + 4 + size]
            at += 8
            continue
        start, at = at + 8, at + 8 + size
        if at > len(data):
            raise ValueError("an element is cut off")
        yield kind, data[start:at]
        if kind != _COMPRESSED:
            at += -size % 8


def _inflated(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    found = stream.decompress(data, INFLATED_BYTES_MAX)
    if stream.unconsumed_tail:
        raise ValueError(f"an element inflates to over {INFLATED_BYTES_MAX:,} bytes")
    return found


def _matrix(data: bytes) -> _Matrix:
    elements = list(_elements(data))
    flags, dimensions, name, *rest = elements
    kind = struct.unpack_from("<I", flags[1])[0] & 0xFF
    count = 1
    for size in _numbers(dimensions):
        if not 0 <= size <= ELEMENTS_MAX:
            raise ValueError("a matrix is too large")
        count *= int(size)
    if count > ELEMENTS_MAX:
        raise ValueError("a matrix is too large")
    return _Matrix(name[1].decode("latin-1"), kind, count, rest)


def _numbers(element: tuple[int, bytes]) -> tuple[float, ...]:
    kind, data = element
    if kind not in _FORMATS:
        raise ValueError(f"type {kind} holds no numbers")
    size = struct.calcsize(_FORMATS[kind])
    return struct.unpack(f"<{len(data) // size}{_FORMATS[kind]}", data[: len(data) // size * size])


def _leaves(synsets: _Matrix) -> list[tuple[bytes, int]]:
    width_element, names_element, *cells = synsets.rest
    width = int(_numbers(width_element)[0])
    if not 0 < width <= 1024:
        raise ValueError("names of fields have no length")
    text = names_element[1]
    fields = [
        text[at : at + width].partition(b"\0")[0].decode("latin-1")
        for at in range(0, len(text), width)
    ]
    if len(cells) != synsets.count * len(fields):
        raise ValueError("cells of synsets are missing")
    found: dict[int, bytes] = {}
    for row in range(synsets.count):
        cell = dict(zip(fields, cells[row * len(fields) : (row + 1) * len(fields)], strict=True))
        if "num_children" in cell and _number(cell["num_children"]):
            continue  # a class of classes, which has no images
        number = _number(cell["ILSVRC2012_ID"]) if "ILSVRC2012_ID" in cell else 0
        if number < 1 or number in found:
            raise ValueError("synsets have no numbers from 1 on")
        if "WNID" not in cell:
            raise ValueError("synsets have no WNID")
        found[number] = _word(cell["WNID"])
    return [(found[number], number) for number in sorted(found)]


def _number(cell: tuple[int, bytes]) -> int:
    matrix = _matrix(cell[1])
    value = _numbers(matrix.rest[0])[0]
    if value != int(value):
        raise ValueError("a number of a class is no whole number")
    return int(value)


def _word(cell: tuple[int, bytes]) -> bytes:
    matrix = _matrix(cell[1])
    kind, data = matrix.rest[0]
    if matrix.kind != _CHAR or kind not in _TEXTS:
        raise ValueError("a WNID is no text")
    return data.decode(_TEXTS[kind]).encode()
