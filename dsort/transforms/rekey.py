"""The steps that give records new keys: ``rekey``, by a template, and the step of a join."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import MinLen

from dsort.errors import TransformError
from dsort.naming.names import archive_extension, key_problem, readable, shortened
from dsort.option_fields import OptionError, option
from dsort.transforms.base import Step

if TYPE_CHECKING:
    from dsort.data.columns import BytesColumn, Int64s
    from dsort.data.record_table import RecordTable
    from dsort.expressions.expression import Expression

PLACES = ("key", "base", "dir", "shard", "input", "n", "shard_n", "xxh3")
NUMBERS = ("n", "shard_n")
KEY_BYTES_MAX = 4096
"""The limit of a new key: as long as paths may be. Keys can grow, because templates repeat keys,
and steps repeat templates."""
_PLACE = r"\{([^{}:]*)(?::(0?\d{1,2})d)?\}|\{\{|\}\}|%(0?\d{1,2})?d"


def _checked(template: str) -> str:
    _pieces(template)
    return template


class Rekey(Step, frozen=True):
    """Makes keys by ``template``: text with ``{key}`` (the old key), ``{dir}`` and ``{base}`` (the
    parts before and after its last slash), ``{shard}`` (the input shard without suffix),
    ``{input}`` (the name of the input), ``{n}``, ``{n:06d}``, ``%06d`` (the number of the record in
    input order, from 0 on), ``{shard_n}`` (its number in its shard) and ``{xxh3}`` (the hash of its
    content, in 32 hexadecimal digits)."""

    kind: ClassVar[str] = "rekey"
    summary: ClassVar[str] = (
        "Give each record a new key, by a template: {key}, {dir}, {base}, {shard}, {input}, "
        "{n:06d} or %06d, {shard_n:06d}, {xxh3}."
    )
    bare: ClassVar[str] = "template"
    is_for_rows: ClassVar[bool] = True

    template: str = option(
        Annotated[str, MinLen(1)], "The template.", check=_checked, required="{shard}/{key}"
    )

    @property
    def refused_for_rows(self) -> str:
        """``{shard_n}``: rows are processed a batch at a time, not a shard at a time."""
        return "{shard_n}" if any(place == "shard_n" for _, place, _ in self._parts) else ""

    @property
    def reads_content(self) -> bool:
        """Whether the step reads the whole content of records."""
        return any(place == "xxh3" for _, place, _ in self._parts)

    @property
    def _parts(self) -> list[tuple[bytes, str, int]]:
        return _pieces(self.template)

    @property
    def needs_positions(self) -> bool:
        """Whether keys have numbers that count all records."""
        return any(place == "n" for _, place, _ in _pieces(self.template))

    def count_left(self, first: int, count: int) -> int:
        """All records stay."""
        return count

    def apply(self, records: RecordTable) -> RecordTable:
        """``records`` with their new keys."""
        import numpy as np

        from dsort.data.row_bytes import decimals, side_by_side

        directory, base = split_keys(records.keys)
        columns = {"key": records.keys, "dir": directory, "base": base}
        numbers = np.arange(len(records), dtype=np.int64)
        pieces = _pieces(self.template)
        places = [place for _, place, _ in pieces]
        if "xxh3" in places:
            columns["xxh3"] = _content_hashes(records)
        parts: list[BytesColumn | bytes] = []
        for text, place, width in pieces:
            if place == "shard":
                parts.append(_shard_name(records, apart="input" in places))
            elif place == "input":
                parts.append(_input_name(records))
            elif place in NUMBERS:
                parts.append(decimals(numbers + (records.first if place == "n" else 0), width))
            else:
                parts.append(columns[place] if place else text)
        _check_lengths(records, parts)
        new_keys = side_by_side(parts, len(records))
        check_new_keys(records, new_keys, self.kind)
        return records.with_keys(new_keys)


def _shard_name(records: RecordTable, *, apart: bool) -> bytes:
    """The shard without its suffix; with ``apart`` also without its input, because the template
    names the input separately."""
    name = records.shard.removesuffix(archive_extension(records.shard) or "")
    if apart:
        name = name.removeprefix(f"{records.input}/")
    return name.encode("utf-8", "surrogateescape")


def _input_name(records: RecordTable) -> bytes:
    if not records.input:
        raise TransformError(
            "rekey: {input} is the name of an input, and the input of this job has no name",
            hint="name them: inputs: [{name: web, input_bck: ...}]; or leave {input} out",
        )
    return records.input.encode()


def _content_hashes(records: RecordTable) -> BytesColumn:
    """For each record, the XXH3 (128 bits) of its members, joined, in hexadecimal digits."""
    import xxhash

    from dsort.data.columns import BytesColumn

    offsets, rows = records.records.member_offsets.tolist(), records.records.member_rows.tolist()
    found = []
    for first, stop in pairwise(offsets):
        state = xxhash.xxh3_128()
        for row in rows[first:stop]:
            state.update(records.content(row))
        found.append(state.hexdigest().encode())
    return BytesColumn.of(found)


def split_keys(keys: BytesColumn) -> tuple[BytesColumn, BytesColumn]:
    """For each key: (the part before its last slash, the part after it)."""
    from dsort.data.columns import cut_rows

    starts, base = keys.offsets[:-1], _base_starts(keys)
    return (
        cut_rows(keys.blob, starts, (base - starts - 1).clip(min=0)),
        cut_rows(keys.blob, base, keys.offsets[1:] - base),
    )


def _base_starts(keys: BytesColumn) -> Int64s:
    """Where in the blob the part after the last slash of each key begins."""
    import numpy as np

    starts, ends = keys.offsets[:-1], keys.offsets[1:]
    slashes = np.flatnonzero(keys.blob == ord("/"))
    if not len(slashes):
        return starts
    last = np.searchsorted(slashes, ends) - 1
    found = slashes[np.maximum(last, 0)]
    return np.where((last >= 0) & (found >= starts), found + 1, starts)


def _pieces(template: str) -> list[tuple[bytes, str, int]]:
    """The parts of the template, in order: (text, "", 0) or (b"", name of a place, number of
    digits). ``OptionError`` if this is no template."""
    found, at = [], 0
    for match in re.finditer(_PLACE, template):
        found.append((_text(template[at : match.start()]), "", 0))
        at = match.end()
        if match[0] in ("{{", "}}"):
            found.append((match[0][:1].encode(), "", 0))
            continue
        place, width = ("n", match[3]) if match[0][0] == "%" else (match[1], match[2])
        if place not in PLACES or (width and place not in NUMBERS):
            known = ", ".join(f"{{{name}}}" for name in PLACES)
            raise OptionError(f"has {match[0]}, which means nothing here", f"there are {known}")
        found.append((b"", place, int(width or 0)))
    return [*found, (_text(template[at:]), "", 0)]


def _text(text: str) -> bytes:
    if "{" in text or "}" in text:
        raise OptionError("has a brace without its partner", "write {{ or }} for a brace itself")
    if "\0" in text:
        raise OptionError("has a zero byte in it")
    return text.encode("utf-8", "surrogateescape")


def _check_lengths(records: RecordTable, parts: list[BytesColumn | bytes]) -> None:
    """``TransformError`` for a key that would be too long, before it is made."""
    import numpy as np

    lengths = np.zeros(len(records), np.int64)
    for part in parts:
        lengths += len(part) if isinstance(part, bytes) else part.lengths
    for row in np.flatnonzero(lengths > KEY_BYTES_MAX)[:1].tolist():
        raise TransformError(
            f"rekey: the new key of record {readable(records.keys[row])} of shard {records.shard} "
            f"would have {int(lengths[row]):,} bytes, more than {KEY_BYTES_MAX:,}"
        )


def check_new_keys(records: RecordTable, new_keys: BytesColumn, owner: str) -> None:
    """``TransformError`` for a key if readers would take its members for members of another record.
    ``owner``: the name of the step that makes the new keys."""
    import numpy as np

    blob, ends = new_keys.blob, new_keys.offsets[1:]
    base = _base_starts(new_keys)
    suspect = (base == ends) | (new_keys.lengths > KEY_BYTES_MAX)
    dots = np.flatnonzero(blob == ord("."))
    if len(dots):  # in the base, or two side by side anywhere, which may be a ".." directory
        key_of = np.searchsorted(ends, dots, side="right")
        suspect[key_of[(dots >= base[key_of]) | (np.diff(dots, append=-1) == 1)]] = True
    zeros = np.flatnonzero(blob == 0)  # may come from contents; keys that were read have none
    suspect[np.searchsorted(ends, zeros, side="right")] = True
    if len(blob):
        first = new_keys.offsets[:-1]
        suspect |= blob[np.minimum(first, len(blob) - 1)] == ord("/")
    for row in np.flatnonzero(suspect).tolist():
        if problem := _problem_of(new_keys[row]):
            raise TransformError(
                f"{owner}: the new key {shortened(readable(new_keys[row]))} of record "
                f"{readable(records.keys[row])} of shard {records.shard} {problem}",
                hint="{shard} and {dir} may have dots: put a slash behind them"
                if owner == "rekey"
                else "a key is a path without dots in its last part",
            )


def _problem_of(key: bytes) -> str:
    """In words, the fault of a key; "" if it is valid."""
    if len(key) > KEY_BYTES_MAX:
        return f"has {len(key):,} bytes, more than {KEY_BYTES_MAX:,}"
    return key_problem(key)


KEY, STEM = "key", "stem"


class JoinKey(Step, frozen=True):
    """``by``: for each input (its name), ``key``, ``stem`` or an expression."""

    by: tuple[tuple[str, str], ...]

    kind: ClassVar[str] = "join"
    summary: ClassVar[str] = "Give each record the value by which it is joined as its key."

    @property
    def options(self) -> Any:
        """For each input, the value by which its records are joined."""
        return dict(self.by)

    def apply(self, records: RecordTable) -> RecordTable:
        """``records`` with their new keys."""
        by = dict(self.by)[records.input]
        if by == KEY:
            return records
        keys = split_keys(records.keys)[1] if by == STEM else _values(records, by)
        check_new_keys(records, keys, "join")
        return records.with_keys(keys)


def join_expression(text: str) -> Expression:
    """The expression for ``by: text``, where ``text`` is not ``key`` or ``stem``. ``OptionError``
    if it is no expression."""
    from dsort.expressions.expression import Expression

    return Expression.of(text, wanted="")


def _values(records: RecordTable, text: str) -> BytesColumn:
    from dsort.data.columns import BytesColumn

    owner = f"join: by of the input {records.input}:"
    found = []
    values = join_expression(text).values_of(records, owner)
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise TransformError(
                f"{owner} record {readable(records.keys[row])} of shard {records.shard}: "
                f"{value!r} is neither text nor a whole number",
                hint="string(...) converts",
            )
        found.append(str(value).encode("utf-8", "surrogateescape"))
    return BytesColumn.of(found)
