"""Rows of small tables that describe files: CSV, JSON lines, Parquet.

They are files that dsort did not write: an invalid table is an ``InputError`` that names the file
and its line.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator

from dsort.errors import InputError

__all__ = ["TABLE_SUFFIXES", "Row", "json_payload", "name_bytes", "rows_of"]

TABLE_SUFFIXES = (".csv", ".jsonl", ".parquet")
CELL_BYTES_MAX = 16 << 20
EXPANDED_BYTES_MAX = 4 << 30
"""The maximum declared size of the columns of a Parquet table."""

Row = dict[str, object]


def rows_of(name: str, data: bytes) -> Iterator[tuple[str, Row]]:
    """(its place, in words; its columns) of each row of the table ``name``. ``InputError``."""
    if name.endswith(".parquet"):
        return _parquet_rows(name, data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8, at byte {error.start:,}") from None
    if name.endswith((".jsonl", ".ndjson")):
        return _json_rows(name, text)
    if name.endswith((".csv", ".tsv")):
        return _csv_rows(name, text)
    raise InputError(f"{name} is no table that is known", hint="use .csv, .jsonl or .parquet")


def name_bytes(where: str, name: str) -> bytes:
    """The bytes of a name in a table or a list. ``InputError`` with ``where`` if the name has none:
    JSON can contain half of a surrogate pair."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InputError(f"{where} names {name!a}, which is no text") from None


def json_payload(where: str, values: Row) -> bytes:
    """``values`` as the JSON of a member. ``InputError`` with ``where``, the place of the
    values."""
    try:
        return json.dumps(values, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{where} cannot be written as JSON: {error}") from None


def _json_rows(name: str, text: str) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{name}, line {number:,}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is no JSON: {error}") from None
        if not isinstance(row, dict):
            raise InputError(f"{where} is no JSON object")
        yield where, row


def _csv_rows(name: str, text: str) -> Iterator[tuple[str, Row]]:
    csv.field_size_limit(CELL_BYTES_MAX)
    delimiter = "\t" if name.endswith(".tsv") else ","
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        columns = next(reader, [])
        if len({*columns}) != len(columns):
            raise InputError(f"{name} has two columns of one name")
        for values in reader:
            where = f"{name}, line {reader.line_num:,}"
            if not values:
                continue
            if len(values) != len(columns):
                raise InputError(f"{where} has {len(values)} cells, and not {len(columns)}")
            yield where, dict(zip(columns, values, strict=True))
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num:,}: {error}") from None


def _parquet_rows(name: str, data: bytes) -> Iterator[tuple[str, Row]]:
    import pyarrow as pa  # takes 0.1 s to load, and few tables are Parquet
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        groups = range(file.metadata.num_row_groups)
        expanded = sum(file.metadata.row_group(at).total_byte_size for at in groups)
        if expanded > EXPANDED_BYTES_MAX:
            raise InputError(f"{name} says that its columns take {expanded:,} bytes")
        number = 0
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                yield f"{name}, row {number:,}", row
                number += 1
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{name} cannot be read as Parquet: {error}") from None
