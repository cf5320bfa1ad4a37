"""``tf.train.Example`` as bytes: where the values of its features are.

Nothing is passed over: a field that has no place in an Example is an error, because it would be
lost in a conversion.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Final, Literal

import numpy as np
from msgspec import Struct, field

VALUES_MAX: Final = 1 << 20
"""The maximum number of values of one record: more would be objects of many times the record's
size."""
PARTS_MAX: Final = 1 << 17
"""The maximum number of features, lists and values of bytes of one record. Each is an object, even
if it has but two bytes, and nearly each becomes a member."""
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
    """One feature. ``ranges``: the values of a bytes feature as (start, bytes). ``numbers``: of
    other features, their values."""

    name: bytes
    kind: Kind = ""
    ranges: list[tuple[int, int]] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)

    def number_text(self) -> bytes:
        """Its one number as decimal text; of a float, the shortest that stands for exactly this
        32-bit float."""
        return _text(self.numbers[0]).encode()

    def json_text(self) -> bytes:
        """Its numbers as a JSON array; NaN and infinities as Python writes and reads them."""
        return f"[{', '.join(map(_text, self.numbers))}]".encode()


def _text(number: float) -> str:
    if isinstance(number, int):
        return str(number)
    if number != number or number in (float("inf"), float("-inf")):
        return json.dumps(number)
    return str(np.float32(number))


class ExampleBytes:
    """Records of one shard, read through a small window that moves with them, so that large values
    cost nothing.

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
                    raise NoExampleError("a list of floats has no whole number of them")
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
                raise NoExampleError(f"a list of {feature.kind} values has others")

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
                raise NoExampleError("a field is longer than what it is in")
            yield tag >> 3, wire, at, size
            at += size

    def _varint(self, at: int, stop: int) -> tuple[int, int]:
        """(value, offset of the next byte)."""
        place, window = at - self._base, self._window
        if at < stop and 0 <= place < len(window) and window[place] < 0x80:
            return window[place], at + 1  # as most are
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
