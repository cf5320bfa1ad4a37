"""Decides the output of each record, by a hash of its key or content, or by expressions. Decides
how many copies of a record come out: a whole number, and by a hash of its key perhaps one more. A
lot is a random number that a record draws, here made from such a hash."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np
import xxhash
from msgspec import Struct

from dsort.data.columns import Int64s, UInt64s
from dsort.data.hashes import hash_keys, mix, shard_seed
from dsort.errors import TransformError
from dsort.naming.names import readable, shortened

if TYPE_CHECKING:
    from dsort.data.columns import Int32s
    from dsort.data.record_table import RecordTable
    from dsort.expressions.expression import Expression


def lots_of(key_hash: UInt64s, seed: str, input_name: str) -> UInt64s:
    """The lot (random number) that each record of an input draws, by its key alone: shape
    ``(n,)``."""
    return mix(key_hash ^ np.uint64(shard_seed(f"mix {seed}", input_name)))


class CopyRule(Struct, frozen=True):
    """Each record of a shard is output ``least`` times. It is output once more if its lot is below
    ``below`` (2**64: always), or equals ``below`` while its ordinal is below ``tied_before``."""

    input_name: str
    seed: str
    least: int
    below: int
    tied_before: int = 0

    def counts(self, key_hash: UInt64s) -> Int64s:
        """How often each record of the shard comes out, in their order."""
        lots = lots_of(key_hash, self.seed, self.input_name)
        if self.below >= 1 << 64:
            return np.full(len(lots), self.least + 1, np.int64)
        counts = np.where(lots < np.uint64(self.below), self.least + 1, self.least)
        counts = counts.astype(np.int64)
        if self.tied_before:
            counts[: self.tied_before][lots[: self.tied_before] == np.uint64(self.below)] += 1
        return counts


def shares_of_total(total: int, weights: Sequence[Fraction]) -> list[int]:
    """Divide ``total`` by ``weights`` into whole numbers whose sum is ``total``. The rest goes to
    the largest fractions, and among equal ones to the first."""
    whole = sum(weights, Fraction(0))
    exact = [total * weight / whole for weight in weights]
    shares = [int(each) for each in exact]
    by_rest = sorted(range(len(shares)), key=lambda at: (shares[at] - exact[at], at))
    for at in by_rest[: total - sum(shares)]:
        shares[at] += 1
    return shares


def shares_in_classes(
    totals: Sequence[int], weights: Sequence[Fraction], *, exact: bool
) -> list[list[int]]:
    """Divide the ``totals`` of several classes by ``weights``, each as ``shares_of_total`` does.

    ``exact``: the shares of one weight in all classes add up to the share of this weight in the sum
    of ``totals``. To that end, the rest of a class goes to the shares that are furthest below their
    sum so far (by Gale and Ryser, this always succeeds). A share is off by at most one."""
    if not exact:
        return [shares_of_total(total, weights) for total in totals]
    if not totals:
        return []
    shared = lcm(*(weight.denominator for weight in weights))
    parts = [int(weight * shared) for weight in weights]  # whole numbers are ten times as fast
    whole = sum(parts)
    shares = [[total * part // whole for part in parts] for total in totals]
    wanted = shares_of_total(sum(totals), weights)
    missing = [
        all_of_it - sum(own)
        for all_of_it, own in zip(wanted, zip(*shares, strict=True), strict=True)
    ]
    for total, own in zip(totals, shares, strict=True):
        left = total - sum(own)
        if not left:
            continue
        order = sorted(
            range(len(parts)), key=lambda at: (-missing[at], -(total * parts[at] % whole), at)
        )
        for at in order[:left]:
            own[at] += 1
            missing[at] -= 1
    return shares


def shares_of_stop(stop: str, records: Sequence[int], weights: Sequence[Fraction]) -> list[int]:
    """Shares in proportion to ``weights``, for inputs with these numbers of ``records``.
    ``first_exhausted`` uses all records of one input, and no record twice; ``all_exhausted`` uses
    each record at least once."""
    lengths = [count / weight for count, weight in zip(records, weights, strict=True)]
    if stop == "first_exhausted":
        length = min(lengths)
        return [int(length * weight) for weight in weights]
    length = max(lengths)
    return [-int(-length * weight // 1) for weight in weights]


BORDERS_MAX: Final = 1 << 20
"""The limit for the borders of all classes together, which are held and sent to each node."""
LOT_BITS: Final = 63
POSITION_BITS: Final = 64
ORDINAL_BITS: Final = 40
"""A position is the ordinal of the shard and, in this many lower bits, the ordinal of the
record."""


def positions_of(shard: int | Int64s, ordinal: Int64s) -> UInt64s:
    """The position of each record in the inputs as one number, ascending in input order. ``shard``:
    the ordinal of the shard, for all records or for each; ``ordinal``: the ordinal of each record
    in its shard."""
    return (np.uint64(shard) << np.uint64(ORDINAL_BITS)) | ordinal.astype(np.uint64)


class Borders(Struct, frozen=True, eq=False):
    """``classes``: hashes, ascending, shape ``(s,)``. ``lot``, ``position``: for each class, the
    lot and the position of the first record of the second output, of the third, and so on; shape
    ``(s, outputs - 1)``. Records with smaller lots, or with the same lot and smaller positions,
    belong to an earlier output."""

    classes: UInt64s
    lot: UInt64s
    position: UInt64s

    def numbers(self, lots: UInt64s, positions: UInt64s) -> Int64s:
        """The output of each record, from 0 on. ``lots``: the class and the lot of each, shape
        ``(n, 2)``. Records of a class that was not counted get the first output; they are left out
        later."""
        found = np.zeros(len(lots), np.int64)
        if not len(lots) or not len(self.classes):
            return found
        at = np.minimum(np.searchsorted(self.classes, lots[:, 0]), len(self.classes) - 1)
        lot = lots[:, 1]
        for border in range(self.lot.shape[1]):
            first = self.lot[at, border]
            found += lot > first
            tied = np.flatnonzero(lot == first)
            found[tied] += positions[tied] >= self.position[at[tied], border]
        found[self.classes[at] != lots[:, 0]] = 0
        return found


KEY = "key"
"""The default of ``split_by``: fractions divide records by a hash of their keys."""

_SALT = "outputs"  # makes these lots independent of those of ``sample`` and of a shuffle


class Division(Struct, frozen=True):
    """How records are distributed to the outputs ``names``; its truth value is False if there is
    only one output.

    With ``fractions``: a hash of the value of ``by`` for a record (None: of its key) decides its
    output, so a record stays in its output when the data grow. With ``conditions``: a record
    belongs to the first output whose condition (None: always) is true for it.

    ``exact``: the numbers of records are as near to the fractions as whole numbers can be; with
    ``classes``, this holds in each class. Then ``Borders`` decide the output of each record, by the
    order of the ``lots``."""

    names: tuple[str, ...] = ()
    fractions: tuple[float, ...] = ()
    conditions: tuple[Expression | None, ...] = ()
    by: Expression | None = None
    exact: bool = False
    classes: ClassOf | None = None

    def __bool__(self) -> bool:
        return bool(self.names)

    @property
    def is_counted(self) -> bool:
        """Whether records have to be counted before their outputs are known."""
        return self.exact or self.classes is not None

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions, without dots, of the members that expressions use; for rows, the
        columns."""
        asked = [each for each in (*self.conditions, self.by) if each is not None]
        return tuple(dict.fromkeys(name for each in asked for name in each.extensions))

    @property
    def weights(self) -> tuple[float, ...]:
        """The share of the records that each output may have. With conditions, all shares are
        equal, because no share is known beforehand."""
        return self.fractions or tuple(1 / len(self.names) for _ in self.names)

    def numbers(self, records: RecordTable) -> Int32s:
        """The output of each of ``records``, from 0 on, shape ``(n,)``. ``TransformError`` for a
        record if no condition is true for it, or if a condition cannot be evaluated."""
        return self._by_condition(records) if self.conditions else self._by_hash(records)

    def lots(self, records: RecordTable, *, are_rows: bool = False) -> UInt64s:
        """The class of each record, and the lot of ``LOT_BITS`` bits that it draws in its class;
        shape ``(n, 2)``. ``are_rows``: whether the records are rows of a table."""
        found = np.zeros((len(records), 2), np.uint64)
        if self.classes is not None:
            found[:, 0] = self.classes.hashes(records, are_rows=are_rows)
        found[:, 1] = self._drawn(records) >> np.uint64(64 - LOT_BITS)
        return found

    def _drawn(self, records: RecordTable) -> UInt64s:
        return mix(self._hashes(records) ^ np.uint64(shard_seed(_SALT, "")))

    def _by_hash(self, records: RecordTable) -> Int32s:
        lots = self._drawn(records)
        borders = np.array(_borders(self.fractions), np.uint64)
        return np.searchsorted(borders, lots, side="right").astype(np.int32)

    def _hashes(self, records: RecordTable) -> UInt64s:
        if self.by is None:
            from dsort.data.numbered import hash_column

            return hash_column(records.keys)
        from dsort.expressions.expression import text_of_value

        values = self.by.values_of(records, "split_by")
        return hash_keys(map(text_of_value, values), len(values))

    def _by_condition(self, records: RecordTable) -> Int32s:
        numbers = np.full(len(records), -1, np.int32)
        for number, condition in enumerate(self.conditions):
            rows = np.flatnonzero(numbers < 0)
            if condition is None:
                numbers[rows] = number
            elif len(rows):
                owner = f"outputs: when of {self.names[number]}:"
                # Evaluated on the whole table: ``ordinal`` counts records of other outputs, too.
                numbers[rows[condition.true_of(records, owner, rows)]] = number
        homeless = np.flatnonzero(numbers < 0)
        if len(homeless):
            raise TransformError(
                f"outputs: {len(homeless):,} records of shard {records.shard} go to no output, the "
                f"first is {readable(records.keys[int(homeless[0])])}",
                hint="give the last output when: true, or leave such records out by a filter",
            )
        return numbers


def _borders(fractions: Sequence[float]) -> list[int]:
    """The first hash of each output but the first. Computed exactly, so that it is the same number
    on every machine."""
    exact = [Fraction(str(each)) for each in fractions]
    total, reached, borders = sum(exact), Fraction(0), []
    for each in exact[:-1]:
        reached += each
        borders.append(min(int(reached / total * 2**64), 2**64 - 1))
    return borders


_MEMBER: Final = r"[A-Za-z_][A-Za-z0-9_-]*"
_OF_INDEX: Final = frozenset({"key", "shard", "input", "ordinal", "true", "false"})
_NONE: Final = b"\0none"  # no content is hashed with this salt
_CLASS_BYTES_MAX: Final = 1 << 16
"""The largest size of a member whose content is a class."""
_READ_AT_ONCE: Final = 64
_SHARED: Final = "name something that several records share"


class MemberClass(Struct, frozen=True):
    """Classes by the content of the member with this extension, without surrounding white space; of
    records that are nothing but JSON, by the field of that name; in tables, by the column of that
    name, in which nulls are a class."""

    extension: str

    def hashes(self, records: RecordTable, *, are_rows: bool) -> UInt64s:
        """A hash of the class of each record (64 bits), shape ``(n,)``. ``TransformError`` names a
        record without a class."""
        from dsort.expressions.reading import MEMBER_BYTES_MAX

        found = records.rows_with(f".{self.extension}")
        are_fields = found < 0
        found = np.where(are_fields, records.json_alone(), found) if are_fields.any() else found
        there = np.flatnonzero(found >= 0)
        if not are_rows and len(there) < len(found):
            hint = "require leaves such records out"
            self._refuse(records, int(np.flatnonzero(found < 0)[0]), "no", hint)
        sizes = records.members.payload_bytes[found[there]]
        large = sizes > np.where(are_fields[there], MEMBER_BYTES_MAX, _CLASS_BYTES_MAX)
        if not are_rows and large.any():
            self._refuse(records, int(there[np.flatnonzero(large)[0]]), "a large", _SHARED)
        hashes = np.full(len(found), xxhash.xxh3_64_intdigest(_NONE), np.uint64)
        for start in range(0, len(there), _READ_AT_ONCE):
            some = there[start : start + _READ_AT_ONCE]
            contents = records.contents(found[some].tolist())
            for at in np.flatnonzero(are_fields[some]).tolist():
                contents[at] = self._field(records, int(some[at]), contents[at])
            hashes[some] = hash_keys((each.strip() for each in contents), len(some))
        return hashes

    def _field(self, records: RecordTable, record: int, document: bytes) -> bytes:
        """The class of a record that is the JSON ``document``."""
        from dsort.data.json_pointer import (  # loads regular expressions
            JsonSyntaxError,
            field_as_member,
        )

        try:
            value = field_as_member(document, self.extension)
        except JsonSyntaxError as error:
            self._refuse(records, record, "no", f"its .json member is {error}")
        if value is None:
            self._refuse(records, record, "no", "filter: 'has(json.label)' leaves such records out")
        if len(value) > _CLASS_BYTES_MAX:
            self._refuse(records, record, "a large", _SHARED)
        return value

    def _refuse(self, records: RecordTable, record: int, what: str, hint: str) -> NoReturn:
        raise TransformError(
            f"stratify: record {readable(records.keys[record])} of shard {records.shard} has "
            f"{what} {shortened(self.extension)}",
            hint=hint,
        )


class ValueClass(Struct, frozen=True):
    """Classes by the value of an expression."""

    value: Expression

    def hashes(self, records: RecordTable, *, are_rows: bool) -> UInt64s:
        """See :class:`MemberClass`."""
        from dsort.expressions.expression import text_of_value

        values = self.value.values_of(records, "stratify")
        return hash_keys(map(text_of_value, values), len(values))


ClassOf = MemberClass | ValueClass


def class_by(text: str) -> ClassOf:
    """The classes of ``stratify: text``, which is the name of a member or column, or an expression.
    ``OptionError`` if it is neither."""
    if re.fullmatch(_MEMBER, text) and text not in _OF_INDEX:
        return MemberClass(text)
    from dsort.expressions.expression import Expression

    return ValueClass(Expression.of(text, wanted=""))
