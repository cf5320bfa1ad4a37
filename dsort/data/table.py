"""A table: named, typed columns, a row for each record, member or block.

A column is an array of numbers, a ``BytesColumn`` of texts, or the ``Segments`` of records. An
array that has two names is stored, read, taken and joined only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeGuard, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dsort.data.columns import BytesColumn, Int64s, are_row_numbers, numbers_at, row_numbers
from dsort.data.numbered import NumberedColumn
from dsort.data.segments import NO_NEW_NAMES, NewNames, Segments
from dsort.errors import InvariantError, StorageError

Column = NDArray[Any] | BytesColumn | Segments
Rows = NDArray[np.integer]
C = TypeVar("C", bound=Column)
_NOTHING: Final[Mapping[str, Any]] = {}


class Arrays(Protocol):
    """A file of arrays. ``StorageError`` for missing rows or arrays."""

    @property
    def is_private(self) -> bool:
        """Whether the file is in scratch. A file from another place may have other writers, so its
        arrays must not decode to more bytes than the file has."""

    def __contains__(self, name: str) -> bool:
        """Whether the file has the array ``name``."""

    def array(
        self, name: str, start: int = 0, stop: int | None = None, *, dtype: str = ""
    ) -> NDArray[Any]:
        """Rows ``start:stop`` of an array, of the type ``dtype`` unless that is empty."""

    def place(self, name: str) -> object:
        """The identity of an array: two names with the same place share its bytes."""


class Name(Struct, Generic[C], frozen=True):
    """The name of a column, with the type of its values."""

    text: str

    def is_in(self, file: Arrays) -> bool:
        """Whether ``file`` has the column."""
        raise NotImplementedError

    def read(self, file: Arrays, start: int, stop: int) -> C:
        """Rows ``start:stop`` of the column."""
        raise NotImplementedError

    def blank(self, rows: int) -> C:
        """A column of ``rows`` zeros or empty texts, for a table without this column."""
        raise NotImplementedError


class Numbers(Name[NDArray[Any]], frozen=True):
    """The name of an array of numbers. ``dtype``: as NumPy writes it."""

    dtype: str

    def is_in(self, file: Arrays) -> bool:
        """See :class:`Name`."""
        return self.text in file

    def read(self, file: Arrays, start: int, stop: int) -> NDArray[Any]:
        """See :class:`Name`."""
        return file.array(self.text, start, stop, dtype=self.dtype)

    def blank(self, rows: int) -> NDArray[Any]:
        """See :class:`Name`."""
        return np.zeros(rows, self.dtype)


class Texts(Name[BytesColumn], frozen=True):
    """The name of a column of byte strings. In scratch, numbered texts are stored as numbers."""

    def is_in(self, file: Arrays) -> bool:
        """See :class:`Name`."""
        return f"{self.text}.offsets" in file or self._is_numbered(file)

    def _is_numbered(self, file: Arrays) -> bool:
        return file.is_private and f"{self.text}.before" in file

    def read(self, file: Arrays, start: int, stop: int) -> BytesColumn:
        """See :class:`Name`."""
        if self._is_numbered(file):
            before = file.array(f"{self.text}.before", dtype="|u1").tobytes()
            numbers = file.array(f"{self.text}.numbers", start, stop, dtype="<i8")
            return NumberedColumn(before, numbers)
        return read_texts(file, self.text, start, stop)

    def blank(self, rows: int) -> BytesColumn:
        """See :class:`Name`."""
        return BytesColumn.empty(rows)


class Ranges(Name[Segments], frozen=True):
    """The name of the byte ranges of records."""

    def is_in(self, file: Arrays) -> bool:
        """See :class:`Name`."""
        return f"{self.text}.start" in file

    def read(self, file: Arrays, start: int, stop: int) -> Segments:
        """See :class:`Name`."""
        names = self._new_names(file, start, stop)
        if f"{self.text}.offsets" in file:
            offsets, start, stop = _run_of(file, f"{self.text}.offsets", start, stop)
        else:
            offsets = row_numbers(stop - start + 1)
        return Segments(
            offsets,
            file.array(f"{self.text}.start", start, stop, dtype="<i8"),
            file.array(f"{self.text}.length", start, stop, dtype="<i8"),
            file.array(f"{self.text}.literals", dtype="|u1"),
            names,
        )

    def _new_names(self, file: Arrays, start: int, stop: int) -> NewNames:
        if f"{self.text}.name_offsets" not in file:
            return NO_NEW_NAMES
        offsets, first, last = _run_of(file, f"{self.text}.name_offsets", start, stop)
        at = file.array(f"{self.text}.name_at", first, last, dtype="<i8")
        return NewNames(offsets, at, read_texts(file, f"{self.text}.names", first, last))

    def blank(self, rows: int) -> Segments:
        """See :class:`Name`."""
        none = np.zeros(0, np.int64)
        return Segments(np.zeros(rows + 1, np.int64), none, none, np.zeros(0, np.uint8))


def read_texts(file: Arrays, name: str, start: int, stop: int) -> BytesColumn:
    """Rows ``start:stop`` of the texts ``name``."""
    offsets, first, last = _run_of(file, f"{name}.offsets", start, stop)
    return BytesColumn(offsets, file.array(f"{name}.blob", first, last, dtype="|u1"))


def _run_of(file: Arrays, name: str, start: int, stop: int) -> tuple[Int64s, int, int]:
    """Return (the offsets ``start:stop + 1``, shifted to begin at 0; the first and the last of
    these offsets as stored)."""
    offsets = file.array(name, start, stop + 1, dtype="<i8")
    if not len(offsets) or (not file.is_private and (np.diff(offsets) < 0).any()):
        raise StorageError(f"{name} of a file of columns is damaged: a row ends before it begins")
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - first if first else offsets, first, last


class Table:
    """Columns with the same number of rows; read-only."""

    __slots__ = ("_columns", "_count")

    def __init__(self, count: int, columns: Mapping[str, Column] = _NOTHING) -> None:
        self._count = count
        self._columns = dict(columns)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: Name[Any]) -> bool:
        return name.text in self._columns

    def __getitem__(self, name: Name[C]) -> C:
        found: C = self._columns[name.text]  # type: ignore[assignment]
        return found

    def get(self, name: Name[C]) -> C | None:
        """The column of that name, or None."""
        found: C | None = self._columns.get(name.text)  # type: ignore[assignment]
        return found

    def filled(self, name: Name[C]) -> C:
        """The column of that name, or a blank one."""
        return self[name] if name in self else name.blank(self._count)

    def __getstate__(self) -> tuple[int, dict[str, Column], dict[str, NDArray[Any]]]:
        # Pickling would write a constant column at its full length.
        constant = {text: each[:1] for text, each in self._columns.items() if _is_constant(each)}
        others = {text: each for text, each in self._columns.items() if text not in constant}
        return self._count, others, constant

    def __setstate__(self, state: tuple[int, dict[str, Column], dict[str, NDArray[Any]]]) -> None:
        self._count, self._columns, constant = state
        for text, each in constant.items():
            self._columns[text] = np.broadcast_to(each, (self._count,))

    def with_(self, name: Name[C], column: C) -> Table:
        """The table with one more column, or with another column under an existing name."""
        if len(column) != self._count:
            raise InvariantError(f"{name.text} has {len(column)} rows, not {self._count}")
        return Table(self._count, {**self._columns, name.text: column})

    def beside(self, other: Table) -> Table:
        """The columns of both tables, which have the same number of rows."""
        if len(other) != self._count:
            raise InvariantError(f"tables have {self._count} and {len(other)} rows")
        return Table(self._count, {**self._columns, **other._columns})

    def without(self, *names: Name[Any]) -> Table:
        """The table without some columns."""
        gone = {name.text for name in names}
        columns = {text: each for text, each in self._columns.items() if text not in gone}
        return Table(self._count, columns)

    def only(self, names: Iterable[Name[Any]]) -> Table:
        """The table with only the columns in ``names``, as far as it has them."""
        columns = self._columns
        kept = {each.text: columns[each.text] for each in names if each.text in columns}
        return Table(self._count, kept)

    def take(self, rows: Rows) -> Table:
        """The rows ``rows`` in that order."""
        taken = _Taken(rows)
        return Table(len(rows), {text: taken.of(each) for text, each in self._columns.items()})

    def run(self, start: int, stop: int) -> Table:
        """Rows ``start:stop``; columns are views."""
        return Table(
            len(range(*slice(start, stop).indices(self._count))),
            {
                text: each[start:stop] if isinstance(each, np.ndarray) else each.run(start, stop)
                for text, each in self._columns.items()
            },
        )

    @staticmethod
    def concat(parts: Sequence[Table], names: Iterable[Name[Any]] = ()) -> Table:
        """The rows of all parts, which have the same columns. Rows of parts without a column of
        texts get empty texts. ``names``: the columns of the result if there are no parts."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return Table(0, {name.text: name.blank(0) for name in names})
        joined = _Joined(parts)
        texts = dict.fromkeys(text for part in parts for text in part._columns)
        return Table(sum(map(len, parts)), {text: joined.of(text) for text in texts})

    @staticmethod
    def read(
        file: Arrays,
        names: Iterable[Name[Any]],
        start: int,
        stop: int,
        *,
        optional: Iterable[Name[Any]] = (),
    ) -> Table:
        """Rows ``start:stop`` of the columns ``names``, and of the columns ``optional`` as far as
        ``file`` has them."""
        once = _ReadOnce(file)
        there = (*names, *(name for name in optional if name.is_in(file)))
        return Table(stop - start, {name.text: name.read(once, start, stop) for name in there})

    def arrays(self, *, is_private: bool = True) -> dict[str, NDArray[Any]]:
        """The columns as named arrays, for a file. A column with two names has the same arrays
        under both. ``is_private``: see ``Arrays``."""
        found: dict[str, NDArray[Any]] = {}
        known: dict[int, dict[str, NDArray[Any]]] = {}
        for text, column in self._columns.items():
            arrays = known.setdefault(id(column), _arrays(column, is_private))
            found.update({text + end: array for end, array in arrays.items()})
        return found


def _is_constant(column: Column) -> TypeGuard[NDArray[Any]]:
    return isinstance(column, np.ndarray) and column.strides == (0,) and len(column) > 0


def _arrays(column: Column, is_private: bool) -> dict[str, NDArray[Any]]:
    if isinstance(column, np.ndarray):
        return {"": column}
    if isinstance(column, Segments):
        return column.arrays()
    if is_private and isinstance(column, NumberedColumn) and not column.after:
        return {".before": np.frombuffer(column.before, np.uint8), ".numbers": column.numbers}
    return {".offsets": column.offsets, ".blob": column.blob}


class _ReadOnce:
    """A file from which the same rows of an array are read once, whatever its names."""

    def __init__(self, file: Arrays) -> None:
        self._file = file
        self._known: dict[tuple[object, int, int | None, str], NDArray[Any]] = {}

    @property
    def is_private(self) -> bool:
        return self._file.is_private

    def __contains__(self, name: str) -> bool:
        return name in self._file

    def place(self, name: str) -> object:
        return self._file.place(name)

    def array(
        self, name: str, start: int = 0, stop: int | None = None, *, dtype: str = ""
    ) -> NDArray[Any]:
        key = self._file.place(name), start, stop, dtype
        if key not in self._known:
            self._known[key] = self._file.array(name, start, stop, dtype=dtype)
        return self._known[key]


class _Taken:
    """Takes the same rows of several columns. An array with two names is taken only once."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._known: dict[int, Any] = {}  # by id: the columns live as long as this object

    def of(self, column: Column) -> Column:
        if id(column) not in self._known:
            self._known[id(column)] = self._of(column)
        found: Column = self._known[id(column)]
        return found

    def _of(self, column: Column) -> Column:
        if isinstance(column, np.ndarray):
            return self._numbers(column)
        if isinstance(column, Segments):
            return column.take(self._rows, numbers=self.of)
        if isinstance(column, NumberedColumn):
            return NumberedColumn(column.before, self.of(column.numbers), column.after)  # type: ignore[arg-type]
        return column.take(self._rows)

    def _numbers(self, column: NDArray[Any]) -> NDArray[Any]:
        if _is_constant(column):
            return np.broadcast_to(column[0], (len(self._rows),))
        if column.dtype != np.int64:
            return column[self._rows]
        if are_row_numbers(column):
            return self._rows.astype(np.int64, copy=False)
        return numbers_at(column, self._rows)


class _Joined:
    """Joins the parts of columns. An array with two names is joined only once."""

    def __init__(self, parts: Sequence[Table]) -> None:
        self._parts = parts
        self._known: dict[tuple[int, ...], NDArray[Any]] = {}

    def of(self, text: str) -> Column:
        columns: list[Any] = [each._columns[text] for each in self._parts if text in each._columns]
        if len(columns) < len(self._parts):
            if not isinstance(columns[0], BytesColumn):
                raise InvariantError(f"some parts of a table have no column {text}")
            columns = [
                part._columns.get(text, BytesColumn.empty(len(part))) for part in self._parts
            ]
        if isinstance(columns[0], np.ndarray):
            return self._numbers(columns)
        if isinstance(columns[0], Segments):
            return Segments.concat(columns, numbers=self._numbers)
        return BytesColumn.concat(columns)

    def _numbers(self, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
        key = tuple(map(id, arrays))
        if key not in self._known:
            self._known[key] = _concat(arrays)
        return self._known[key]


def _concat(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The arrays joined to one. If all numbers are equal, the joined array is broadcast from one
    number."""
    column = np.concatenate(arrays)
    if len(column) and column[0] == column[-1] and column.min() == column.max():
        return np.broadcast_to(column[:1].copy(), column.shape)
    return column
