"""A file of named columns in scratch: written whole, read by slices of rows, never parsed.

Layout: 8 bytes magic, 8 bytes length of the header (little-endian), the header (JSON: name →
[dtype, count, offset]), then the arrays, each at a multiple of 64 bytes. A bytes column ``x`` is
stored as ``x.offsets`` and ``x.blob``. Private to one job; no other program reads it.
"""

from __future__ import annotations

import io
import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dsort.core.columns import BytesColumn
from dsort.errors import InvariantError
from dsort.storage.os_errors import StorageErrors

__all__ = ["ColumnFile", "columns_bytes", "write_columns"]

_MAGIC = b"dsortcol"
_ALIGN = 64

Column = NDArray[Any] | BytesColumn


def write_columns(path: Path, columns: Mapping[str, Column | None]) -> int:
    """Write the columns (None is left out) to ``path``; returns the file's size in bytes.

    The file appears whole: whoever died meanwhile has left none that a later attempt would trust.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with StorageErrors(f"write {path.name}", str(path.parent)):
        with part.open("wb") as file:
            size_bytes = _write(file, columns)
        part.replace(path)
    return size_bytes


def columns_bytes(columns: Mapping[str, Column | None]) -> bytes:
    """The same file, in memory."""
    file = io.BytesIO()
    _write(file, columns)
    return file.getvalue()


def _write(file: BinaryIO, columns: Mapping[str, Column | None]) -> int:
    arrays: dict[str, NDArray[Any]] = {}
    for name, column in columns.items():
        if isinstance(column, BytesColumn):
            arrays[f"{name}.offsets"], arrays[f"{name}.blob"] = column.offsets, column.blob
        elif column is not None:
            arrays[name] = column
    header: dict[str, tuple[str, int, int]] = {}
    at = 0
    for name, array in arrays.items():
        header[name] = (array.dtype.str, len(array), at)
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


class ColumnFile:
    """A column file opened for reading; arrays are views of the mapped file."""

    def __init__(self, path: Path) -> None:
        with StorageErrors(f"read {path.name}", str(path.parent)), path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        if self._bytes[:8] != _MAGIC:
            raise InvariantError(f"{path.name} is not a column file")
        size = int.from_bytes(self._bytes[8:16], "little")
        self._header: dict[str, tuple[str, int, int]] = json.loads(self._bytes[16 : 16 + size])
        self._first = -(-(16 + size) // _ALIGN) * _ALIGN

    def __contains__(self, name: str) -> bool:
        return name in self._header or f"{name}.offsets" in self._header

    def array(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Rows ``start:stop`` of an array column, read-only."""
        dtype, count, at = self._header[name]
        stop = count if stop is None else stop
        if not 0 <= start <= stop <= count:
            raise InvariantError(f"rows {start}:{stop} of {name} are outside 0:{count}")
        kind = np.dtype(dtype)
        if start == stop:
            return np.zeros(0, kind)
        offset = self._first + at + start * kind.itemsize
        return np.frombuffer(self._bytes, kind, stop - start, offset)

    def bytes_column(self, name: str, start: int = 0, stop: int | None = None) -> BytesColumn:
        """Rows ``start:stop`` of a bytes column."""
        stop = self._header[f"{name}.offsets"][1] - 1 if stop is None else stop
        offsets = self.array(f"{name}.offsets", start, stop + 1)
        blob = self.array(f"{name}.blob", int(offsets[0]), int(offsets[-1]))
        return BytesColumn(offsets - offsets[0], blob)
