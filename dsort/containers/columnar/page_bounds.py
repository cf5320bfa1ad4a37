"""Checks what pages of Parquet declare before pyarrow allocates memory for it: inflated lengths,
sizes of decoded values, and CRC-32s.

A few bytes of a shard may stand for many values: by dictionaries, by shared prefixes, or by lists
of equal items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from isal import isal_zlib
from msgspec import Struct

from dsort.containers.columnar.arrow import pa, pc
from dsort.containers.columnar.footers import Chunk
from dsort.containers.columnar.thrift import ThriftStruct, read_struct
from dsort.errors import CorruptShardError, UnsupportedShardError
from dsort.sizes import format_bytes

Headers = Callable[[int, int], tuple[ThriftStruct, int]]
"""Returns (a Thrift struct of a shard, its end), given the byte at which it begins and the byte
before which it must end. ``ValueError`` if there is no such struct."""

HEADER_BYTES_MAX = 1 << 20
_UNCOMPRESSED, _COMPRESSED, _CRC = 2, 3, 4  # fields of a page header, by number
_DATA_PAGES = {5: 2, 8: 4}
"""Headers of data pages, and the number of the field with the encoding in each. The first field is
the count of values."""
_KIND, _DICTIONARY_PAGE = 1, 2
_DICTIONARY_CODED, _DELTA_BYTE_ARRAY = (2, 8), 7
UNSEEN_BYTES_MAX = 4 << 30
"""How many bytes the values of a dictionary may add up to in a row group before a job reads the
dictionary. To read a dictionary of 1,024 texts of 3 KB takes 2 ms, a third of the time for a small
row group."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_OFFSET_BYTES = 4

Opened = Callable[..., Any]
"""Opens the shard as a ``ParquetFile``, with its options."""


def refuse_larger(shard: str, what: str, size_bytes: int, bytes_max: float) -> None:
    """``CorruptShardError`` if ``what`` of a shard has more than ``bytes_max`` bytes."""
    if size_bytes > bytes_max:
        raise CorruptShardError(
            shard,
            0,
            f"{what} take {format_bytes(size_bytes)}, more than {format_bytes(int(bytes_max))}",
            hint="it may be a decompression bomb; if it is data, set a larger max_expansion",
        )


class ColumnPages(Struct):
    """Inflated lengths of some pages of a column: of the longest page, of its dictionary, and of
    the longest page in which each value declares how much it shares with the value before it.
    ``values``: how many values the column has. ``coded``: how many values of the column are numbers
    in the dictionary."""

    values: int
    longest_bytes: int = 0
    dictionary_bytes: int = 0
    prefixed_bytes: int = 0
    coded: int = 0


def headers_in(data: memoryview, start: int = 0) -> Headers:
    """Headers in ``data``, the bytes of a shard from byte ``start`` on."""

    def header(at: int, stop: int) -> tuple[ThriftStruct, int]:
        if at < start:
            raise ValueError("a header lies before the bytes that were read")
        found, end = read_struct(data[: min(stop, at + HEADER_BYTES_MAX) - start], at - start)
        return found, end + start

    return header


def inflated_pages(
    headers: Headers, shard_bytes: int, chunks: Mapping[int, Chunk]
) -> dict[int, ColumnPages]:
    """The inflated lengths of pages of some columns of a row group, in a shard of ``shard_bytes``.
    ``ValueError`` for invalid pages."""
    found = {}
    for number, chunk in chunks.items():
        stop = min(chunk.stop, shard_bytes)
        pages = ColumnPages(chunk.values)
        for size_bytes, is_dictionary, encoding, values in _pages(
            headers, chunk.start, stop, pages.values
        ):
            pages.longest_bytes = max(pages.longest_bytes, size_bytes)
            if is_dictionary:
                pages.dictionary_bytes = max(pages.dictionary_bytes, size_bytes)
            elif encoding in _DICTIONARY_CODED:
                pages.coded += values
            elif encoding == _DELTA_BYTE_ARRAY:
                pages.prefixed_bytes = max(pages.prefixed_bytes, size_bytes)
        found[number] = pages
    return found


def _pages(
    headers: Headers, at: int, stop: int, values: int
) -> Iterator[tuple[int, bool, object, int]]:
    """(inflated length, whether it is a dictionary, encoding, number of values) of each page in
    bytes ``at:stop``, up to ``values`` values in all. A page that is not a data page has no
    encoding and no values."""
    if at < 0:
        raise ValueError("a column begins before its shard")
    while at < stop and values > 0:
        header, body = headers(at, stop)
        sizes = [header.get(number, (0, -1))[1] for number in (_UNCOMPRESSED, _COMPRESSED)]
        if not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise ValueError("a page has no length")
        at, encoding, found = body + sizes[1], None, 0
        for number, place in _DATA_PAGES.items():
            if number in header and isinstance(header[number][1], dict):
                count = header[number][1].get(1, (0, 0))[1]
                found += max(count, 0) if isinstance(count, int) else 0
                encoding = header[number][1].get(place, (0, None))[1]
        values -= found
        yield sizes[0], header.get(_KIND, (0, None))[1] == _DICTIONARY_PAGE, encoding, found


# -- CRC-32s, if a writer put them into the headers ------------------------------------------------


def is_intact(header: ThriftStruct, page: memoryview | bytes) -> bool:
    """Whether the bytes of a page, as they are stored, have the CRC-32 in its header. True if the
    header has no CRC-32. ``TypeError`` for a CRC-32 that is not a number."""
    if _CRC not in header:
        return True
    crc: int = header[_CRC][1]
    return isal_zlib.crc32(page) == crc & 0xFFFFFFFF


def torn_page(
    headers: Headers, read: Callable[[int, int], memoryview | bytes], chunk: Chunk, size_bytes: int
) -> tuple[int, int] | None:
    """(number, first byte) of the first page of a chunk that has a wrong CRC-32; None if all
    CRC-32s are right. ``read``: returns bytes of a shard of ``size_bytes``, by offset and length.
    ``ValueError`` for an invalid page."""
    at, stop, number = chunk.start, min(chunk.stop, size_bytes), 0
    while 0 <= at < stop:
        header, body = headers(at, stop)
        length = header.get(_COMPRESSED, (0, -1))[1]
        if not isinstance(length, int) or not 0 <= length <= stop - body:
            raise ValueError("a page has no length")
        if _CRC in header and not is_intact(header, read(body, length)):
            return number, body
        at, number = body + length, number + 1
    return None


# -- values once they are decoded ------------------------------------------------------------------


class DecodedColumn(Struct, frozen=True):
    """The decoded size of a column of a row group. ``row_bytes``: the size of the largest row, or
    the average size of lists. ``list_bytes``: the size of all items of lists, 0 without lists."""

    path: str
    row_bytes: int
    list_bytes: int = 0


class ColumnKind(Struct, frozen=True):
    """The properties of a column that are the same in all row groups. ``width``: the bytes of a
    value, 0 if values have various lengths."""

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
    ``rows`` rows. ``pages``: the lengths of pages of these columns. The sizes leave out texts that
    are stored one by one, shared prefixes in lists, and values of dictionaries that add up to at
    most ``unseen_max``. Items of lists are counted one by one only if nothing else shows whether
    they take less than ``bytes_max``."""
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
    """The length of the longest value in the dictionary of a column. If pyarrow does not return the
    dictionary, as when the first value is null, the result is the upper limit ``bytes_max``."""
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
    while pa.types.is_nested(array.type):
        array = array.field(0) if pa.types.is_struct(array.type) else array.values
    return array


def _exact(opened: Opened, number: int, path: str) -> int:
    """The size of all decoded values of a column, including those outside a dictionary."""
    total = 0
    for batch in _as_dictionary(opened, number, path):
        leaf = _leaf(batch.column(0))
        if not pa.types.is_dictionary(leaf.type):
            total += leaf.nbytes
            continue
        lengths = pc.binary_length(leaf.dictionary).cast("int64")
        total += int(pc.sum(lengths.take(leaf.indices)).as_py() or 0)
    return total


# --------------------------------------------------------------------------------------------------
# Turns pyarrow's errors about a shard into errors of dsort: either the bytes of the shard are
# invalid, or it has content that pyarrow or dsort cannot read.


NOT_IMPLEMENTED = ("Not yet implemented", "Unknown encoding type")
"""The beginnings of messages about features that pyarrow's Parquet reader lacks. The exception is
an ``OSError``, as for invalid bytes."""
UNREAD_MAGICS = {
    b"PARE": "it is Parquet with an encrypted footer",
    b"FEA1": "it is Feather of version 1, which is older than Arrow IPC",
}


@contextmanager
def arrow_errors(shard: str) -> Iterator[None]:
    """The body reads bytes of ``shard``. Errors of the body become ``CorruptShardError`` if bytes
    are invalid, and ``UnsupportedShardError`` if pyarrow or dsort cannot read their content."""
    try:
        yield
    except NotImplementedError as error:
        raise UnsupportedShardError(shard, first_line(error)) from None
    except MemoryError as error:  # the declared size was compared with its bound before
        hint = "give the job more memory; if there is enough, the shard is corrupt"
        raise UnsupportedShardError(shard, first_line(error), hint=hint) from None
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
        reason = first_line(error)
        if reason.startswith(NOT_IMPLEMENTED):
            raise UnsupportedShardError(shard, reason) from None
        raise CorruptShardError(shard, 0, reason) from None


def first_line(error: BaseException) -> str:
    """The first line of an error of pyarrow."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]


def refuse_unread(shard: str, magic: bytes) -> None:
    """``UnsupportedShardError`` for a shard in a table format that dsort does not read; its first
    bytes show that."""
    if magic in UNREAD_MAGICS:
        raise UnsupportedShardError(shard, UNREAD_MAGICS[magic])
