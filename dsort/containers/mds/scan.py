"""Reads an MDS shard from windows on its bytes: the table, the columns, the sizes in each sample,
and the keys if they are requested."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from dsort.containers.base import Need, Scanner
from dsort.containers.mds.columns import CONFIG_BYTES_MAX, NUMBER_TYPES, Columns
from dsort.containers.positions import record_table
from dsort.containers.samples import read_offsets, read_sizes, table_bytes
from dsort.data.columns import Int64s
from dsort.errors import ContentKeyError, CorruptShardError

__all__ = ["EXTENSION", "KEY_ENCODINGS", "number_text", "scan_samples"]

EXTENSION = b".mds"
"""The extension of the one member of a record, after its key."""
KEY_ENCODINGS = ("str", "bytes", "str_int", *(n for n in NUMBER_TYPES if not n.startswith("float")))
KEY_BYTES_MAX = 1 << 16


def scan_samples(shard: str, size_bytes: int, key_column: str) -> Scanner:
    """See ``Container.scanner``. ``key_column``: "" if records are numbered."""
    offsets = yield from read_offsets(shard, size_bytes, "MDS shard", "samples", has_head=True)
    starts, lengths = offsets[:-1], np.diff(offsets)
    columns = yield from _read_columns(shard, offsets)
    if key_column:
        _check_key_column(shard, columns, key_column)
    short = np.flatnonzero(lengths < 4 * columns.variable + columns.fixed_bytes)
    if len(short):
        text = "a sample is shorter than its columns"
        raise CorruptShardError(shard, int(starts[short[0]]), text)
    ranges = [np.zeros((2, 0), np.int64)]

    def take(starts: Int64s, sizes: Int64s) -> None:
        if key_column:
            ranges.append(_key_ranges(columns, key_column, starts, sizes))

    variable, fixed_bytes = columns.variable, columns.fixed_bytes
    yield from read_sizes(shard, offsets, variable, fixed_bytes, "a sample", take)
    keys = None
    if key_column:
        keys = yield from _read_keys(shard, columns, key_column, np.concatenate(ranges, axis=1))
    return record_table(shard, EXTENSION, starts, lengths, keys, schema=columns.schema)


def _read_columns(shard: str, offsets: Int64s) -> Generator[Need, memoryview, Columns]:
    count = len(offsets) - 1
    at = table_bytes(count)
    size_bytes = int(offsets[0]) - at
    if size_bytes > CONFIG_BYTES_MAX:
        text = f"its config has more than {CONFIG_BYTES_MAX:,} bytes"
        raise CorruptShardError(shard, 4, text)
    config = bytes((yield Need(at, size_bytes))[:size_bytes])
    try:
        columns = Columns.of_config(config)
    except ValueError as error:
        raise CorruptShardError(shard, at, str(error)) from None
    if count and not columns.names:
        raise CorruptShardError(shard, at, "it has samples, but no columns")
    return columns


def _check_key_column(shard: str, columns: Columns, key_column: str) -> None:
    if key_column not in columns.names:
        raise ContentKeyError(
            f"shard {shard} has no column {key_column}",
            hint=f"key_field is one of {', '.join(columns.names)}; without it records are numbered",
        )
    encoding = columns.encodings[columns.names.index(key_column)]
    if encoding not in KEY_ENCODINGS:
        raise ContentKeyError(
            f"column {key_column} of shard {shard} is {encoding}, which is no key",
            hint=f"a key is one of {', '.join(KEY_ENCODINGS)}",
        )


def _key_ranges(columns: Columns, key_column: str, starts: Int64s, sizes: Int64s) -> Int64s:
    """(where the key of each sample begins, its length), shape (2, n)."""
    at = starts + 4 * columns.variable
    variable = 0
    for name, size in zip(columns.names, columns.sizes, strict=True):
        own = sizes[:, variable] if size is None else np.full(len(starts), size, np.int64)
        if name == key_column:
            return np.stack([at, own])
        at = at + own
        variable += size is None
    raise AssertionError(key_column)


def _read_keys(
    shard: str, columns: Columns, key_column: str, ranges: Int64s
) -> Generator[Need, memoryview, list[bytes]]:
    starts, lengths = ranges
    wrong = np.flatnonzero((lengths == 0) | (lengths > KEY_BYTES_MAX))
    if len(wrong):
        raise ContentKeyError(
            f"sample {int(wrong[0])} of shard {shard} has no key in {key_column}, or one of more "
            f"than {KEY_BYTES_MAX:,} bytes",
            hint="choose another key_field, or leave it out: then records are numbered",
        )
    keys: list[bytes] = []
    ends = starts + lengths
    while (row := len(keys)) < len(starts):
        first = int(starts[row])
        keys += _keys_in((yield Need(first, int(lengths[row]))), first, starts[row:], ends[row:])
    encoding = columns.encodings[columns.names.index(key_column)]
    return [number_text(encoding, key) for key in keys] if encoding in NUMBER_TYPES else keys


def _keys_in(window: memoryview, first: int, starts: Int64s, ends: Int64s) -> list[bytes]:
    """The keys that end in ``window``, which begins at byte ``first`` of the shard."""
    stop = int(np.searchsorted(ends, first + len(window), side="right"))
    pairs = zip((starts[:stop] - first).tolist(), (ends[:stop] - first).tolist(), strict=True)
    return [bytes(window[begin:end]) for begin, end in pairs]


def number_text(encoding: str, value: bytes) -> bytes:
    """The number in ``value`` as decimal text: the shortest text that is read as the same
    number."""
    number = np.frombuffer(value, NUMBER_TYPES[encoding])[0]
    return str(number).encode()
