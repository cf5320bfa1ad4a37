"""Finds how large values of Parquet are once they are decoded, if a few bytes of a shard stand for
many of them: by dictionaries, by shared prefixes, by lists of equal items."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dsort.containers.columnar.declared import ColumnPages

__all__ = ["UNSEEN_BYTES_MAX", "ColumnKind", "DecodedColumn", "column_kinds", "decoded_columns"]

UNSEEN_BYTES_MAX = 4 << 30
"""How many bytes the values of a dictionary may add up to in a row group before a job reads the
dictionary. Reading it takes 2 ms if a writer put its first 1,024 texts of 3 KB into one, a third of
the time for small groups."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_OFFSET_BYTES = 4

Opened = Callable[..., Any]
"""Opens the shard as a ``ParquetFile``, with its options."""


class DecodedColumn(Struct, frozen=True):
    """The decoded size of a column of a row group. ``row_bytes``: of one row at most, or of lists
    on average. ``list_bytes``: of all items of its lists, 0 if it has none."""

    path: str
    row_bytes: int
    list_bytes: int = 0


class ColumnKind(Struct, frozen=True):
    """The properties of a column that are the same in all row groups. ``width``: bytes of a value,
    0 if they vary."""

    path: str
    width: int
    is_list: bool


def column_kinds(schema: Any) -> list[ColumnKind]:
    """The columns of a Parquet schema."""
    found = []
    for at in range(len(schema)):
        column, width = schema.column(at), 0
        if column.physical_type != "BYTE_ARRAY":
            width = _WIDTHS.get(column.physical_type, 0) or column.length
        found.append(ColumnKind(column.path, width, bool(column.max_repetition_level)))
    return found


def decoded_columns(
    opened: Opened,
    kinds: Sequence[ColumnKind],
    number: int,
    rows: int,
    pages: Mapping[int, ColumnPages],
    bytes_max: float,
    unseen_max: int,
) -> list[DecodedColumn]:
    """The decoded sizes of the columns of some ``kinds`` in row group ``number``, which has
    ``rows`` rows. ``pages``: of these columns. Left out are texts that are stored one by one,
    shared prefixes in lists, and values of dictionaries that add up to ``unseen_max`` at most. The
    items of lists are counted one by one only if that is necessary to find out whether they take
    less than ``bytes_max``."""
    found = []
    for at, each in pages.items():
        kind, count = kinds[at], each.values
        if kind.width:
            total, row_bytes = count * kind.width, kind.width
        else:
            coded_bytes = each.dictionary_bytes
            if is_suspect := each.coded * coded_bytes > unseen_max:
                coded_bytes = _longest(opened, number, kind.path, coded_bytes)
            total = each.coded * coded_bytes + count * _OFFSET_BYTES
            row_bytes = max(coded_bytes if is_suspect else _OFFSET_BYTES, each.prefixed_bytes)
            if kind.is_list and total > bytes_max >= count * _OFFSET_BYTES:
                total = _exact(opened, number, kind.path) + count * _OFFSET_BYTES
        if kind.is_list:
            row_bytes = total // max(rows, 1)
        found.append(DecodedColumn(kind.path, row_bytes, total if kind.is_list else 0))
    return found


def _longest(opened: Opened, number: int, path: str, bytes_max: int) -> int:
    """The length of the longest value in the dictionary of a column; ``bytes_max``, which it cannot
    exceed, if pyarrow does not return the dictionary, as when the first value is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    batch = next(_as_dictionary(opened, number, path, 1), None)
    leaf = _leaf(batch.column(0)) if batch is not None else None
    if leaf is None or not pa.types.is_dictionary(leaf.type) or not len(leaf.dictionary):
        return bytes_max
    return int(pc.max(pc.binary_length(leaf.dictionary)).as_py() or 0)


def _as_dictionary(opened: Opened, number: int, path: str, rows: int | None = None) -> Any:
    """Batches of one column, whose values stay numbers in a dictionary."""
    reader = opened(read_dictionary=[path])
    rows = rows or max(reader.metadata.num_rows, 1)
    return reader.iter_batches(rows, row_groups=[number], columns=[path], use_threads=False)


def _leaf(array: Any) -> Any:
    """The values inside the lists and structs of one column; maps are read as lists and structs,
    too."""
    import pyarrow as pa

    while pa.types.is_nested(array.type):
        array = array.field(0) if pa.types.is_struct(array.type) else array.values
    return array


def _exact(opened: Opened, number: int, path: str) -> int:
    """The size of all decoded values of a column, including those outside a dictionary."""
    import pyarrow as pa
    import pyarrow.compute as pc

    total = 0
    for batch in _as_dictionary(opened, number, path):
        leaf = _leaf(batch.column(0))
        if not pa.types.is_dictionary(leaf.type):
            total += leaf.nbytes
            continue
        lengths = pc.binary_length(leaf.dictionary).cast("int64")
        total += int(pc.sum(lengths.take(leaf.indices)).as_py() or 0)
    return total
