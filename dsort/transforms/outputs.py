"""Which of a job's outputs a record goes to: by a hash of what it says, or by expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsort.errors import TransformError
from dsort.naming.names import readable

if TYPE_CHECKING:
    from dsort.data.columns import Int32s, UInt64s
    from dsort.expressions.expression import Expression
    from dsort.order.table import RecordTable

__all__ = ["KEY", "Division"]

KEY = "key"
"""What fractions are by unless a spec says something else."""

_SALT = "outputs"  # the lots of ``sample`` and of a shuffle have nothing to do with these


@dataclass(frozen=True, slots=True)
class Division:
    """How records are dealt out to the outputs ``names``.

    By ``fractions``: a record goes where the hash of what ``by`` says of it (None: its key) falls,
    as a fraction of all hashes; so it stays there as the data grow. By ``conditions``: to the first
    whose condition (None: always) is true of it."""

    names: tuple[str, ...]
    fractions: tuple[float, ...] = ()
    conditions: tuple[Expression | None, ...] = ()
    by: Expression | None = None

    @property
    def weights(self) -> tuple[float, ...]:
        """What share of the records each output may have, as far as that is known beforehand."""
        return self.fractions or (1 / len(self.names),) * len(self.names)

    def numbers(self, records: RecordTable) -> Int32s:
        """The output of each of ``records``, from 0 on, shape ``(n,)``. ``TransformError`` for one
        that no condition is true of, or of which that cannot be said."""
        return self._by_condition(records) if self.conditions else self._by_hash(records)

    def _by_hash(self, records: RecordTable) -> Int32s:
        import numpy as np

        from dsort.data.hashes import mix, shard_seed

        lots = mix(self._hashes(records) ^ np.uint64(shard_seed(_SALT, "")))
        borders = np.array(_borders(self.fractions), np.uint64)
        return np.searchsorted(borders, lots, side="right").astype(np.int32)

    def _hashes(self, records: RecordTable) -> UInt64s:
        from dsort.data.columns import BytesColumn
        from dsort.data.numbered import hash_column

        if self.by is None:
            return hash_column(records.keys)
        values = self.by.values_of(records, "split_by")
        return hash_column(BytesColumn.of([_text_of(value) for value in values]))

    def _by_condition(self, records: RecordTable) -> Int32s:
        import numpy as np

        numbers = np.full(len(records), -1, np.int32)
        for number, condition in enumerate(self.conditions):
            rows = np.flatnonzero(numbers < 0)
            if condition is None:
                numbers[rows] = number
            elif len(rows):
                owner = f"outputs: when of {self.names[number]}:"
                # Of the whole table: ``ordinal`` counts the records that went elsewhere, too.
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
    """Where the hashes of the next output begin, for all but the first: exact, so that it is one
    number on every machine."""
    from fractions import Fraction  # loads decimals, which specs do without

    exact = [Fraction(str(each)) for each in fractions]
    total, reached, borders = sum(exact), Fraction(0), []
    for each in exact[:-1]:
        reached += each
        borders.append(min(int(reached / total * 2**64), 2**64 - 1))
    return borders


def _text_of(value: object) -> bytes:
    """A value as bytes that are hashed: equal for equal values, and for no others of one kind."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return str(value).encode()
