"""A file of named columns in scratch: written whole, read by slices of rows. It is private to one
job; no other program reads it."""

from __future__ import annotations

import io
import json
import mmap
import os
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from dsort.data.columns import BytesColumn
from dsort.errors import StorageError
from dsort.scratch.directory import Scratch
from dsort.storage.directory.os_errors import StorageErrors

_MAGIC = b"dsortcol"
_ALIGN = 64
_HEADER_BYTES_MAX = 1 << 16
_DTYPES: Final = frozenset({"|u1", "<i4", "<i8", "<u8"})
"""Plain numbers. Other dtypes of NumPy can hold objects, or values of no bytes."""
_NARROW: Final = ("|u1", "<u2", "<u4")
_NARROW_MAX: Final = (1 << 32) - 1
_ONE: Final = "one"
KEPT_FILES_MAX: Final = 64
"""Each kept file holds a descriptor; a worker can spare about 128 descriptors."""
_PACKED_ROWS_MIN: Final = 64
"""With fewer rows, packing saves nothing, because arrays begin at multiples of 64 bytes."""

Column = NDArray[Any] | BytesColumn


def write_columns(scratch: Scratch, name: str, columns: Mapping[str, Column]) -> int:
    """Write the columns to the file ``name``; returns its size in bytes.

    The file appears only when it is whole. So a writer that dies leaves no file that a later
    attempt would read.
    """
    part = f"{name}.{os.getpid()}.part"
    fd = scratch.open_to_write(part, os.O_WRONLY | os.O_TRUNC)
    with StorageErrors(f"write {name}", str(scratch)):
        with open(fd, "wb") as file:
            size_bytes = _write(file, columns, packed=True)
        # Not synced: after a restart of the machine, scratch is cleared (`make_scratch`).
        scratch.rename(part, name)
    return size_bytes


def columns_bytes(columns: Mapping[str, Column], *, packed: bool = False) -> bytes:
    """The content of a file of ``columns``. ``packed``: only for readers that accept packed
    columns."""
    file = io.BytesIO()
    _write(file, columns, packed=packed)
    return file.getvalue()


# The layout: 8 bytes magic, 8 bytes length of the header (little-endian), the header (JSON: name →
# [dtype, count, offset]), then the arrays, each at a multiple of 64 bytes. A bytes column `x` is
# stored as `x.offsets` and `x.blob`.
def _write(file: BinaryIO, columns: Mapping[str, Column], *, packed: bool) -> int:
    arrays: dict[str, NDArray[Any]] = {}
    for name, column in columns.items():
        if isinstance(column, BytesColumn):
            arrays[f"{name}.offsets"], arrays[f"{name}.blob"] = column.offsets, column.blob
        else:
            arrays[name] = column
    header: dict[str, tuple[str, int, int] | tuple[str, int, int, str]] = {}
    first_name: dict[int, str] = {}
    at = 0
    for name, array in [*arrays.items()]:
        # Columns that are the same array, such as two equal sizes, are stored once.
        if (same := first_name.setdefault(id(array), name)) != name:
            header[name] = header[same]
            del arrays[name]
            continue
        header[name] = (array.dtype.str, len(array), at)
        if packed and (kind := _packing(array)):
            header[name] = (array.dtype.str, len(array), at, kind)
            arrays[name] = array = array[:1] if kind == _ONE else array.astype(kind)
        at += -(-array.nbytes // _ALIGN) * _ALIGN
    text = json.dumps(header).encode()
    first = -(-(16 + len(text)) // _ALIGN) * _ALIGN
    file.write(_MAGIC + len(text).to_bytes(8, "little") + text)
    end = 16 + len(text)
    for name, array in arrays.items():
        file.seek(first + header[name][2])
        end = file.tell() + file.write(np.ascontiguousarray(array).data.cast("B"))
    file.seek(end)
    file.write(bytes(first + at - end))
    return first + at


# In scratch, a column of numbers is *packed* if that makes it smaller, because the index of short
# records would be larger than the records themselves. Its entry in the header then has a fourth
# part: the narrower dtype that all of its numbers fit in, or `one` if they are all equal, which
# stores the number once. Readers get the original column.
def _packing(array: NDArray[Any]) -> str:
    """The packing that stores the numbers of ``array`` in less room; "" for none."""
    if len(array) < _PACKED_ROWS_MIN or array.itemsize < 2:
        return ""
    ends = int(array[0]), int(array[-1])
    if ends[0] != ends[1] and max(ends) > _NARROW_MAX:  # typical of hashes: skip the full check
        return ""
    low, high = int(array.min()), int(array.max())
    if low == high:
        return _ONE
    fitting = (kind for kind in _NARROW if low >= 0 and high <= np.iinfo(kind).max)
    kind = next(fitting, array.dtype.str)
    return kind if np.dtype(kind).itemsize < array.itemsize else ""


class KeptColumns:
    """Column files that stay mapped, because they are read often, some rows at a time: opening a
    file takes five times as long as reading a few thousand rows. A file that replaces another one
    is recognised by its identity. Readers go through all files in turn, so the first files are
    kept, and later ones do not replace them."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[tuple[int, int, int], ColumnFile]] = {}
        self._stage = ""

    def find(self, name: str, identity: tuple[int, int, int]) -> ColumnFile | None:
        """The kept file ``name``; None if it is not kept, or has another ``identity`` now."""
        known, file = self._files.get(name, (identity, None))
        if known != identity:
            del self._files[name]
        return file if known == identity else None

    def keep(self, name: str, identity: tuple[int, int, int], file: ColumnFile) -> None:
        """Keep ``file``, if there is room. Discards the files of other stages."""
        stage = name.partition("-")[0]
        if stage != self._stage:
            self._files.clear()
            self._stage = stage
        if len(self._files) < KEPT_FILES_MAX:
            self._files[name] = identity, file


# Some files are read back from the output bucket, where others may write. So a file is refused
# unless it holds numbers of a few known kinds, all of them inside the file.
class ColumnFile:
    """A column file opened for reading; arrays are views of the mapped file, or of bytes.

    A file with content that this module does not write raises ``StorageError`` when it is opened or
    read.
    """

    def __init__(self, data: mmap.mmap | bytes, name: str, *, may_be_packed: bool = False) -> None:
        """``name``: for error messages. ``may_be_packed``: the file is from scratch."""
        self._may_be_packed = may_be_packed
        self._bytes = data
        self._name = name
        size = int.from_bytes(data[8:16], "little")
        if data[:8] != _MAGIC:
            raise self._damaged("it is no column file")
        if size > min(_HEADER_BYTES_MAX, len(data) - 16):
            raise self._damaged("its header is cut off")
        self._first = -(-(16 + size) // _ALIGN) * _ALIGN
        try:
            header = json.loads(data[16 : 16 + size])
        except (ValueError, RecursionError):
            raise self._damaged("its header is no JSON") from None
        if not isinstance(header, dict):
            raise self._damaged("its header is no object")
        self._header: dict[str, object] = header
        self._columns: dict[str, tuple[np.dtype[Any], int, int, str]] = {}

    @classmethod
    def of(cls, scratch: Scratch, name: str, kept: KeptColumns | None = None) -> ColumnFile:
        """The file ``name`` in scratch, mapped. ``kept``: a cache of open files, for readers that
        open the file often."""
        fd = scratch.open_to_read(name)
        try:
            with StorageErrors(f"read {name}", str(scratch)):
                status = os.fstat(fd)
                identity = status.st_ino, status.st_mtime_ns, status.st_size
                if kept is not None and (known := kept.find(name, identity)) is not None:
                    return known
                size = status.st_size
                # An empty file cannot be mapped.
                mapped = mmap.mmap(fd, size, prot=mmap.PROT_READ) if size else b""
        finally:
            os.close(fd)
        file = cls(mapped, f"{name} in {scratch}", may_be_packed=True)
        if kept is not None:
            kept.keep(name, identity, file)
        return file

    def __contains__(self, name: str) -> bool:
        return name in self._header or f"{name}.offsets" in self._header

    def count(self, name: str) -> int:
        """The number of rows of an array column."""
        return self._column(name)[1]

    def array(
        self, name: str, start: int = 0, stop: int | None = None, *, dtype: str = ""
    ) -> NDArray[Any]:
        """Rows ``start:stop`` of an array column, read-only. ``dtype``: the required type; "": any
        type."""
        kind, count, at, packing = self._column(name)
        if dtype and kind.str != dtype:
            raise self._damaged(f"its column {name} has the type {kind.str}, not {dtype}")
        stop = count if stop is None else stop
        if not 0 <= start <= stop <= count:
            raise self._damaged(f"rows {start}:{stop} of {name} are outside 0:{count}")
        if start == stop:
            return np.zeros(0, kind)
        if packing == _ONE:
            return np.broadcast_to(np.frombuffer(self._bytes, kind, 1, at), (stop - start,))
        stored = np.dtype(packing) if packing else kind
        rows = np.frombuffer(self._bytes, stored, stop - start, at + start * stored.itemsize)
        return rows.astype(kind) if packing else rows

    @property
    def is_private(self) -> bool:
        """Whether the file is in scratch."""
        return self._may_be_packed

    def place(self, name: str) -> tuple[np.dtype[Any], int, int, str]:
        """The identity of an array: two names with the same place share its bytes."""
        return self._column(name)

    def bytes_column(self, name: str, start: int = 0, stop: int | None = None) -> BytesColumn:
        """Rows ``start:stop`` of a bytes column."""
        stop = self.count(f"{name}.offsets") - 1 if stop is None else stop
        offsets = self.array(f"{name}.offsets", start, stop + 1)
        first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, -1)
        blob = self.array(f"{name}.blob", first, last)
        return BytesColumn(offsets - offsets[0], blob)

    def _column(self, name: str) -> tuple[np.dtype[Any], int, int, str]:
        """(dtype, rows, first byte, packing) of a column, after a check that it lies inside the
        file."""
        if name not in self._columns:
            self._columns[name] = self._checked(name)
        return self._columns[name]

    def _checked(self, name: str) -> tuple[np.dtype[Any], int, int, str]:
        match self._header.get(name):
            case None:
                raise self._damaged(f"it has no column {name}")
            case [str(dtype), int(count), int(at), *rest] if dtype in _DTYPES:
                kind, packing = np.dtype(dtype), self._known_packing(rest)
                if packing is not None and count >= 0 and at >= 0 and at % _ALIGN == 0:
                    first = self._first + at
                    if packing == _ONE:
                        # A column with this packing takes no room for its rows, but some other
                        # column of the file has at least one byte for each row.
                        rows_bytes = max(kind.itemsize, count - first)
                    else:
                        rows_bytes = count * np.dtype(packing or dtype).itemsize
                    if not count or first + rows_bytes <= len(self._bytes):
                        return kind, count, first, packing
        raise self._damaged(f"its header is wrong about column {name}")

    def _known_packing(self, rest: list[object]) -> str | None:
        """The packing of a column; "" for none, None for one that this module does not write."""
        match rest:
            case []:
                return ""
            case [str(packing)] if self._may_be_packed and packing in (*_NARROW, _ONE):
                return packing
        return None

    def _damaged(self, reason: str) -> StorageError:
        return StorageError(
            f"column file {self._name} is damaged: {reason}",
            hint="start the job again; if the file was whole before, check who may write there",
        )
