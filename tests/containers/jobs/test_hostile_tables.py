"""Every reader keeps to the law of ``dsort/bounds.py`` over tables whose headers are made to harm,
or of which a few bytes become many values."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsort.containers.columnar.thrift import BINARY, I32, I64, LIST, STRUCT, read_struct, written
from tests.support.bounds import check_reader

HEADER_AT: Final = 4  # of the first page, behind the magic


def _parquet(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def _arrow(column: pa.Array) -> bytes:
    file, batch = io.BytesIO(), pa.record_batch({"a": column})
    with pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    return file.getvalue()


def _taken_apart(data: bytes) -> tuple[bytes, dict[int, Any]]:
    """The bytes before the footer, and the footer."""
    at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    return data[:at], read_struct(memoryview(data), at)[0]


def _put_together(body: bytes, footer: bytes) -> bytes:
    return body + footer + struct.pack("<I", len(footer)) + b"PAR1"


def _words(**options: Any) -> bytes:
    return _parquet(pa.table({"a": [f"word {n % 100}" for n in range(1000)]}), **options)


def _with_header(data: bytes, field: int, value: int) -> bytes:
    """``data`` with another number in the header of its first page."""
    body, footer = _taken_apart(data)
    header, end = read_struct(memoryview(body), HEADER_AT)
    header[field] = (I32, value)
    made = written(header)
    more = len(made) - (end - HEADER_AT)
    chunk = footer[4][1][1][0][1][1][1][0][3][1]
    chunk[7] = (I64, chunk[7][1] + more)  # its length
    if 11 in chunk:
        chunk[9] = (I64, chunk[9][1] + more)  # where data pages begin, behind the dictionary
    return _put_together(body[:HEADER_AT] + made + body[end:], written(footer))


def _larger_dictionary() -> bytes:
    """A dictionary that inflates to 10 times the length in its header."""
    data = _parquet(pa.table({"a": [b"x" * 20_000_000]}), compression="zstd")
    return _with_header(data, 2, 2_000_000)


def _endless_rows() -> bytes:
    body, footer = _taken_apart(_words(compression="zstd"))
    footer[3] = footer[4][1][1][0][3] = (I64, 1 << 40)
    return _put_together(body, written(footer))


def _long_list() -> bytes:
    """A footer whose schema has 2**31 elements, it says."""
    body, footer = _taken_apart(_words())
    data = written(footer)
    return _put_together(body, data[:2] + b"\x19\xfc\xff\xff\xff\xff\x07" + data[4:])


def _deep_footer() -> bytes:
    body, footer = _taken_apart(_words())
    deep = b"\x0c\xc8\x01" + b"\x1c" * 500_000 + bytes(500_001)
    return _put_together(body, written(footer)[:-1] + deep + b"\0")


def _long_metadata() -> bytes:
    body, footer = _taken_apart(_words())
    footer[5] = (LIST, (STRUCT, [{1: (BINARY, b"k"), 2: (BINARY, b"")}] * 300_000))
    return _put_together(body, written(footer))


def _repeated_groups() -> bytes:
    """The same pages in 5,000 row groups."""
    data = _parquet(pa.table({"a": [b"0" * 100] * 10_000}), compression="zstd")
    body, footer = _taken_apart(data)
    footer[4] = (LIST, (STRUCT, footer[4][1][1] * 5000))
    footer[3] = (I64, 10_000 * 5000)
    return _put_together(body, written(footer))


def _empty_groups() -> bytes:
    body, footer = _taken_apart(_words())
    group = {1: (LIST, (STRUCT, [])), 2: (I64, 0), 3: (I64, 0)}
    footer[3], footer[4] = (I64, 0), (LIST, (STRUCT, [group] * 300_000))
    return _put_together(body, written(footer))


def _wide_nulls() -> bytes:
    """A column of 1,000 parts, all null."""
    kind = pa.struct([(f"f{number}", pa.int8()) for number in range(1000)])
    return _parquet(pa.table({"a": pa.nulls(50_000, kind)}))


def _shared_prefixes() -> bytes:
    table = pa.table({"a": [b"0" * 100_000] * 50_000})
    encoding = {"a": "DELTA_BYTE_ARRAY"}
    return _parquet(table, compression="zstd", use_dictionary=False, column_encoding=encoding)


def _lists_of_nulls() -> pa.Array:
    """2,000 lists of a million nulls each."""
    ends = np.arange(2001, dtype=np.int32) * 1_000_000
    return pa.ListArray.from_arrays(ends, pa.nulls(int(ends[-1])))


ZOO: Final[dict[str, Callable[[], bytes]]] = {
    "larger-dictionary.parquet": _larger_dictionary,
    "inflated.parquet": lambda: _with_header(_words(compression="zstd"), 2, 2**31 - 1),
    "negative.parquet": lambda: _with_header(_words(compression="zstd"), 2, -5),
    "stored.parquet": lambda: _with_header(_words(compression="zstd"), 3, 2**31 - 1),
    "endless-rows.parquet": _endless_rows,
    "long-list.parquet": _long_list,
    "deep-footer.parquet": _deep_footer,
    "long-metadata.parquet": _long_metadata,
    "repeated-groups.parquet": _repeated_groups,
    "empty-groups.parquet": _empty_groups,
    "wide-nulls.parquet": _wide_nulls,
    "shared-prefixes.parquet": _shared_prefixes,
    "lists-of-nulls.arrow": lambda: _arrow(_lists_of_nulls()),
    "fixed-lists.arrow": lambda: _arrow(
        pa.FixedSizeListArray.from_arrays(pa.nulls(1 << 30), 1 << 20)
    ),
    "nulls.arrow": lambda: _arrow(pa.nulls(1 << 30)),
}


@pytest.mark.sample(keep=5)
@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize(
    "reader", ["dsort.read_shards", "dsort.open", "scan", "inspect", "cat", "dsort.Loader"]
)
def test_readers_of_hostile_tables_keep_within_bounds(
    reader: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(ZOO[name]())
    check_reader(reader, path)
