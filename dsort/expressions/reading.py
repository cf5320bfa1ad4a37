"""Evaluates expressions for the records of one shard.

Parts that need only the index are computed first, for a whole shard at once. Members are read only
for the records that these parts do not decide."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
from msgspec import Struct

from dsort.data.json_pointer import value_as_member
from dsort.expressions.closures import Closure, Problem, closure_of
from dsort.expressions.parser import Constant, Leaf, Node, Operation, nodes_of
from dsort.expressions.semantics import (
    NO_INTEGER,
    STEPS_MAX,
    Budget,
    EvaluationError,
    SpentError,
    not_a,
)
from dsort.sizes import format_bytes

if TYPE_CHECKING:
    from dsort.data.columns import Bools, Int64s, UInt8s
    from dsort.data.record_table import RecordTable

MEMBER_BYTES_MAX: Final = 1 << 20
"""The largest size of a member that is read. Parsed JSON takes up to 22 times its length."""

_READ_AT_ONCE: Final = 64
"""The number of members that are held as bytes at a time."""


class Reading:
    """The values of ``leaves`` for the records of one shard.

    Columns of the index are made when they are first needed. Members are read for the requested
    records, and kept until ``forget``."""

    def __init__(self, records: RecordTable, leaves: Sequence[Leaf]) -> None:
        self._records = records
        self._columns: dict[Leaf, list[Any]] = {}
        self._found: dict[tuple[str, ...], Int64s] = {}  # see ``_member_rows``
        self._rows: dict[Leaf, tuple[list[int], list[int], list[bool]]] = {}
        self._read: dict[Leaf, dict[int, Any]] = {leaf: {} for leaf in leaves if leaf.is_content}

    def forget(self) -> None:
        """Drop the members that were read. A later use reads them again."""
        for read in self._read.values():
            read.clear()

    def values(self, leaf: Leaf, rows: Sequence[int]) -> list[Any]:
        """The value of ``leaf`` for each of the records ``rows``, or a ``Problem``."""
        if not leaf.is_content:
            column = self._columns.get(leaf)
            if column is None:
                column = self._columns[leaf] = self._column(leaf)
            return [column[row] for row in rows]
        read = self._read[leaf]
        self._read_missing(leaf, read, [row for row in rows if row not in read])
        return [read[row] for row in rows]

    # -- the index --------------------------------------------------------------------------------

    def _column(self, leaf: Leaf) -> list[Any]:
        records = self._records
        count = len(records)
        match leaf.kind:
            case "key":
                return [key.decode("utf-8", "surrogateescape") for key in records.keys.tolist()]
            case "shard":
                return [records.shard] * count
            case "input":
                return [records.input] * count
            case "has":
                found: list[Any] = self.has(leaf.extensions).tolist()
                return found
        values: list[Any] = self.numbers(leaf).tolist()
        if leaf.kind == "size":
            problem = _missing(leaf)
            there = self.has(leaf.extensions).tolist()
            return [
                value if is_there else problem
                for value, is_there in zip(values, there, strict=True)
            ]
        return values

    def has(self, extensions: tuple[str, ...]) -> Bools:
        """Which records have a member with one of ``extensions``; shape ``(n,)``."""
        found: Bools = self._member_rows(extensions) >= 0
        return found

    def numbers(self, leaf: Leaf) -> Int64s:
        """The numbers of a leaf of the index, shape ``(n,)``; 0 for a record without the member."""
        records = self._records
        if leaf.kind == "ordinal":
            return np.arange(len(records))
        if leaf.kind == "total":
            return records.payload_bytes
        rows = self._member_rows(leaf.extensions)
        return np.where(rows >= 0, self._sizes_bytes(rows), 0)

    def _sizes_bytes(self, member_rows: Int64s) -> Int64s:
        """The sizes of the members in ``member_rows``, in the same shape; arbitrary where the row
        is -1 (no member)."""
        sizes = self._records.members.payload_bytes
        return sizes[member_rows] if len(sizes) else np.zeros(len(member_rows), np.int64)

    def _member_rows(self, extensions: tuple[str, ...]) -> Int64s:
        """For each record: the row of a member in the member table, or -1. The member has one of
        ``extensions``, the first of them that the record has."""
        known = self._found.get(extensions)
        if known is not None:
            return known
        found = self._records.rows_with(f".{extensions[0]}")
        for extension in extensions[1:]:
            found = np.where(found >= 0, found, self._records.rows_with(f".{extension}"))
        self._found[extensions] = found
        return found

    # -- members ----------------------------------------------------------------------------------

    def _read_missing(self, leaf: Leaf, read: dict[int, Any], rows: Sequence[int]) -> None:
        """Put the values of ``leaf`` for the records ``rows`` into ``read``."""
        places = self._rows.get(leaf)
        if places is None:
            places = self._rows[leaf] = self._places(leaf)
        member_rows, sizes_bytes, are_fields = places
        there = []
        for row in rows:
            if member_rows[row] < 0:
                read[row] = _missing(leaf)
            elif sizes_bytes[row] > MEMBER_BYTES_MAX:
                read[row] = Problem(
                    f"its {_shown(leaf)} member has {format_bytes(sizes_bytes[row])}; up to "
                    f"{format_bytes(MEMBER_BYTES_MAX)} is read"
                )
            else:
                there.append(row)
        for start in range(0, len(there), _READ_AT_ONCE):
            some = there[start : start + _READ_AT_ONCE]
            contents = self._records.contents([member_rows[row] for row in some])
            for row, content in zip(some, contents, strict=True):
                read[row] = parsed(leaf, content, is_field=are_fields[row])

    def _places(self, leaf: Leaf) -> tuple[list[int], list[int], list[bool]]:
        """For each record: (the row of its member, or -1; the size of the member; whether the leaf
        is a field of the member, because the record is nothing but JSON)."""
        found = self._member_rows(leaf.extensions)
        if not (found < 0).any():
            return found.tolist(), self._sizes_bytes(found).tolist(), [False] * len(found)
        are_fields = found < 0
        found = np.where(are_fields, self._records.json_alone(), found)
        return found.tolist(), self._sizes_bytes(found).tolist(), are_fields.tolist()


def parsed(leaf: Leaf, content: bytes | None, *, is_field: bool = False) -> Any:
    """The value of ``leaf`` in the content of its member (None: there is no member), or a
    ``Problem``. ``is_field``: the content is JSON, and the leaf is one of its fields."""
    try:
        if content is None:
            return _missing(leaf)
        return _field(leaf, content) if is_field else _PARSERS[leaf.kind](content)
    except ValueError as error:
        return Problem(f"its {_shown(leaf)} member is {error}")


def _field(leaf: Leaf, document: bytes) -> Any:
    """The value of ``leaf`` as a field of JSON, converted like a member with the same text."""
    found, fields = None, _json(document)
    if isinstance(fields, dict):
        found = next((fields[name] for name in leaf.extensions if name in fields), None)
    if found is None:
        return _missing(leaf)
    if leaf.kind == "json" or type(found) in _TYPES[leaf.kind]:
        return found
    return _PARSERS[leaf.kind](value_as_member(found) or b"")


def _missing(leaf: Leaf) -> Problem:
    return Problem(f"there is no {_shown(leaf)} member", is_missing=True)


def _shown(leaf: Leaf) -> str:
    return " or ".join(leaf.extensions)


def _json(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None


def _number(content: bytes) -> int:
    text = content.strip()
    digits = text[1:] if text[:1] in (b"-", b"+") else text
    if not digits.isdigit() or len(digits) > 19 or not -(1 << 63) <= int(text) < 1 << 63:
        raise ValueError(NO_INTEGER)
    return int(text)


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None


def _any_number(content: bytes) -> int | float:
    text = content.strip()
    if _INTEGER.fullmatch(text) and -(1 << 63) <= int(text) < 1 << 63:
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    raise ValueError("no number")


_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,19}")
_DECIMAL: Final = re.compile(
    rb"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,4})?"
)
_PARSERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "json": _json,
    "int": _number,
    "str": _text,
    "number": _any_number,
}
_TYPES: Final[dict[str, tuple[type, ...]]] = {"int": (int,), "str": (str,), "number": (int, float)}
"""The types of fields of JSON that need no parser, by the kind of leaf."""


FALSE, TRUE, WRONG = 0, 1, 2
_BOOL: Final = "true or false"


class Run:
    """Evaluates the nodes of one expression for the records of one shard. ``leaves``: the leaves of
    the expression. ``closures``: the closures of its nodes, by the id of the node, which are kept
    for other shards. ``problems``: why the expression cannot be computed for a record, by
    record."""

    def __init__(
        self, leaves: Sequence[Leaf], closures: dict[int, Closure], records: RecordTable
    ) -> None:
        self._closures = closures
        self._columns: dict[int, tuple[Bools, Bools] | None] = {}
        self.reading = Reading(records, leaves)
        self.problems: dict[int, str] = {}
        self._spent: dict[int, int] = {}  # record → steps that the parts so far have taken

    def truth(self, node: Node, rows: Int64s) -> UInt8s:
        """``FALSE``, ``TRUE`` or ``WRONG`` (cannot be computed) for each of the records
        ``rows``."""
        if isinstance(node, Operation):
            if node.operator in ("&&", "||"):
                return self._joined(node, rows)
            if node.operator == "!":
                truth = self.truth(node.operands[0], rows)
                truth[truth != WRONG] ^= 1
                return truth
        if id(node) not in self._columns:
            self._columns[id(node)] = bools_of(node, self.reading)
        columns = self._columns[id(node)]
        return self._each(node, rows) if columns is None else self._of_columns(node, rows, *columns)

    def _joined(self, node: Operation, rows: Int64s) -> UInt8s:
        """``&&`` and ``||``: each part is computed for the records that the parts before it do not
        decide, and parts that read no members come first."""
        decisive = TRUE if node.operator == "||" else FALSE
        truth = np.full(len(rows), 1 - decisive, np.uint8)
        open_ = np.arange(len(rows))
        for part in sorted(node.operands, key=_reads_members):
            found = self.truth(part, rows[open_])
            truth[open_[found == decisive]] = decisive
            truth[open_[found == WRONG]] = WRONG
            open_ = open_[found != decisive]
        return truth

    def _of_columns(self, node: Node, rows: Int64s, found: Bools, computed: Bools) -> UInt8s:
        truth: UInt8s = found[rows].astype(np.uint8)
        wrong = np.flatnonzero(~computed[rows])
        if len(wrong):  # computed again one by one, to find the problem of each
            truth[wrong] = self._each(node, rows[wrong])
        return truth

    def _each(self, node: Node, rows: Int64s) -> UInt8s:
        """``truth`` of ``node``, computed record by record."""
        truth = bytearray(len(rows))
        for at, value in enumerate(self._computed(node, rows.tolist())):
            if value is True:
                truth[at] = TRUE
            elif value is not False:
                wrong = value if isinstance(value, EvaluationError) else not_a(_BOOL, value)
                truth[at] = WRONG
                self.problems.setdefault(int(rows[at]), str(wrong))
        return np.frombuffer(truth, np.uint8)

    def values(self, node: Node, rows: Int64s) -> Iterator[Any]:
        """The value of ``node`` for each record, a text, a number, true or false; or the error."""
        for value in self._computed(node, rows.tolist()):
            fine = isinstance(value, (str, int, float, EvaluationError))
            yield value if fine else not_a("a text, a number, or true or false", value)

    def _computed(self, node: Node, rows: list[int]) -> Iterator[Any]:
        """The value of ``node`` for each of the records ``rows``, or the error."""
        leaves = tuple(dict.fromkeys(each for each in nodes_of(node) if isinstance(each, Leaf)))
        closure = self._closures.get(id(node))
        if closure is None:
            closure = closure_of(node, {leaf: place for place, leaf in enumerate(leaves, 1)})
            self._closures[id(node)] = closure
        budget, spent = Budget(), self._spent
        columns = [self.reading.values(leaf, rows) for leaf in leaves]
        for at, values in enumerate(zip(repeat(budget, len(rows)), *columns, strict=True)):
            if spent:
                budget.left -= spent.get(rows[at], 0)
            try:
                yield closure(values)  # type: ignore[arg-type]
            except EvaluationError as error:
                yield error
            except SpentError as error:
                yield EvaluationError(str(error))
            if budget.left != STEPS_MAX:
                spent[rows[at]] = STEPS_MAX - budget.left
                budget.left = STEPS_MAX


def _reads_members(node: Node) -> bool:
    return any(isinstance(each, Leaf) and each.is_content for each in nodes_of(node))


# --------------------------------------------------------------------------------------------------
# Computes expressions over the index for a whole shard at once, where they compare whole numbers
# that fit in 64 bits.


_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_EXACT = 1 << 53  # integers below are floats of the same value


class _Numbers(Struct, frozen=True, eq=False):
    """Integers: one for each record, or a single one for all records. ``least``, ``most``: their
    bounds as integers of Python, which have any length, so that every overflow is detected."""

    values: Int64s
    least: int
    most: int

    @classmethod
    def of(cls, values: Int64s) -> _Numbers:
        return cls(values, int(values.min(initial=0)), int(values.max(initial=0)))


def bools_of(node: Node, reading: Reading) -> tuple[Bools, Bools] | None:
    """(records for which ``node`` is true, records for which it can be computed), shapes ``(n,)``;
    None if ``node`` is no comparison of whole numbers, or if these may not fit in 64 bits."""
    if isinstance(node, Leaf) and node.kind == "has":
        found = reading.has(node.extensions)
        return found, np.ones(len(found), np.bool_)
    if not isinstance(node, Operation) or node.operator not in _COMPARISONS:
        return None
    known: list[Bools] = []
    first, second = (_numbers(each, reading, known) for each in node.operands)
    if first is None or second is None:
        return None
    compare = {
        "<": np.less,
        "<=": np.less_equal,
        ">": np.greater,
        ">=": np.greater_equal,
        "==": np.equal,
        "!=": np.not_equal,
    }[node.operator]
    found = compare(first.values, second.values)
    if not found.ndim:
        return None  # it depends on no record
    computed = np.ones(len(found), np.bool_)
    for each in known:
        computed &= each
    return found, computed


def _numbers(node: Node, reading: Reading, known: list[Bools]) -> _Numbers | None:
    """The numbers of ``node``; None as in ``bools_of``. Appends to ``known`` which records have a
    value, for each leaf below ``node`` that a record may lack."""
    if isinstance(node, Constant):
        value = node.value
        if type(value) is float and value.is_integer() and abs(value) < _EXACT:
            value = int(value)  # comparisons have the same result
        if type(value) is not int:
            return None
        return _Numbers(np.asarray(value, np.int64), value, value)
    if isinstance(node, Leaf) and node.kind in ("ordinal", "total", "size"):
        if node.kind == "size":
            known.append(reading.has(node.extensions))
        return _Numbers.of(reading.numbers(node))
    if not isinstance(node, Operation) or node.operator not in ("+", "-", "*"):
        return None
    if any(type(each.value) is float for each in node.operands if isinstance(each, Constant)):
        return None  # a sum of floats is rounded
    first, second = (_numbers(each, reading, known) for each in node.operands)
    if first is None or second is None:
        return None
    a, b = first, second
    if node.operator == "+":
        bounds = (a.least + b.least, a.most + b.most)
    elif node.operator == "-":
        bounds = (a.least - b.most, a.most - b.least)
    else:
        corners = [x * y for x in (a.least, a.most) for y in (b.least, b.most)]
        bounds = (min(corners), max(corners))
    if bounds[0] < -(1 << 63) or bounds[1] >= 1 << 63:
        return None  # evaluated record by record, the error names the one that is too large
    compute = {"+": np.add, "-": np.subtract, "*": np.multiply}[node.operator]
    return _Numbers(compute(a.values, b.values), *bounds)
