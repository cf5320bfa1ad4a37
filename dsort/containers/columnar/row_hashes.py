"""Hashes of rows, one number a row, to compare values however they are stored."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import xxhash

from dsort.containers.columnar.schema import (
    is_varying,
    list_values,
    nulls_of,
    value_offsets,
)
from dsort.data.columns import Int64s, UInt64s
from dsort.data.hashes import mix

__all__ = ["row_hashes"]

_NULL = np.uint64(0x6E756C6C6E756C6C)
_STEP = np.uint64(0x9E3779B97F4A7C15)


def row_hashes(batch: Any) -> UInt64s:
    """A hash of the values of each row of a batch of plain types, shape ``(n,)``. It depends on
    nulls, lengths and the order of columns, and not on gaps, offsets and bytes behind nulls."""
    total = np.zeros(batch.num_rows, np.uint64)
    for column in batch.columns:
        total = mix(total ^ _hashes(column))
    return total


def _hashes(array: Any) -> UInt64s:
    import pyarrow as pa

    if isinstance(array.type, pa.BaseExtensionType):
        return _hashes(array.storage)
    if pa.types.is_null(array.type):
        return np.full(len(array), _NULL)
    found = _value_hashes(array)
    if array.null_count:
        found[nulls_of(array)] = _NULL
    return found


def _value_hashes(array: Any) -> UInt64s:
    """The result of :func:`_hashes`, undefined for nulls."""
    import pyarrow as pa

    kind, count = array.type, len(array)
    if pa.types.is_struct(kind):
        total = np.ones(count, np.uint64)
        for at in range(kind.num_fields):
            total = mix(total ^ _hashes(array.field(at)))
        return total
    if is_varying(kind):
        data, bounds = (
            memoryview(array.buffers()[2] or b""),
            pairwise(value_offsets(array).tolist()),
        )
        hashes = (xxhash.xxh3_64_intdigest(data[start:stop]) for start, stop in bounds)
        return np.fromiter(hashes, np.uint64, count)
    if pa.types.is_fixed_size_list(kind):
        width = kind.list_size
        inner = array.values.slice(array.offset * width, count * width)
        return _of_lists(_hashes(inner), np.arange(count + 1, dtype=np.int64) * width)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        offsets = value_offsets(array)
        inner = list_values(array).slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        return _of_lists(_hashes(inner), offsets - offsets[0])
    return _of_fixed(array)


def _of_lists(items: UInt64s, offsets: Int64s) -> UInt64s:
    """The hashes of lists whose items ``offsets[i]`` to ``offsets[i + 1]`` have the hashes
    ``items``."""
    lengths = np.diff(offsets)
    place = np.arange(len(items)) - np.repeat(offsets[:-1], lengths)
    running = np.zeros(len(items) + 1, np.uint64)
    np.cumsum(mix(items ^ (place.astype(np.uint64) * _STEP)), out=running[1:])
    return mix((running[offsets[1:]] - running[offsets[:-1]]) ^ lengths.astype(np.uint64))


def _of_fixed(array: Any) -> UInt64s:
    """The hashes of values of one width: numbers, times, decimals, binaries of a fixed size."""
    import pyarrow as pa

    count = len(array)
    if pa.types.is_boolean(array.type):
        stop = array.offset + count
        bits = np.frombuffer(array.buffers()[1], np.uint8)
        values = np.unpackbits(bits, count=stop, bitorder="little")[array.offset :]
        return mix(values.astype(np.uint64))
    width, buffer = array.type.bit_width // 8, array.buffers()[1]
    if not width or buffer is None or not count:
        return np.zeros(count, np.uint64)
    data = np.frombuffer(buffer, np.uint8, count * width, array.offset * width)
    words = np.zeros((count, -(-width // 8) * 8), np.uint8)
    words[:, :width] = data.reshape(count, width)
    total = np.zeros(count, np.uint64)
    for column in words.view("<u8").T:
        total = mix(total ^ column)
    return total
