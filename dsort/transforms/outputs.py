"""Which of a job's outputs a record belongs to: by a hash of its key or content, or by expressions.
A lot is a random number that a record draws, here made from that hash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from dsort.errors import TransformError
from dsort.naming.names import readable
from dsort.transforms.borders import LOT_BITS

if TYPE_CHECKING:
    from dsort.data.columns import Int32s, UInt64s
    from dsort.data.record_table import RecordTable
    from dsort.expressions.expression import Expression
    from dsort.transforms.strata import ClassOf

__all__ = ["KEY", "Division"]

KEY = "key"
"""What fractions are by, unless a spec sets something else."""

_SALT = "outputs"  # makes these lots independent of those of ``sample`` and of a shuffle


class Division(Struct, frozen=True):
    """How records are distributed to the outputs ``names``.

    With ``fractions``: the hash of the value of ``by`` for a record (None: of its key), as a
    fraction of all hashes, decides its output; so a record stays in its output when the data grow.
    With ``conditions``: a record belongs to the first output whose condition (None: always) is true
    for it.

    ``exact``: the numbers of records are as near to the fractions as whole numbers can be; with
    ``classes``, this holds in each class. Then ``Borders`` decide the output of each record, by the
    order of the ``lots``."""

    names: tuple[str, ...]
    fractions: tuple[float, ...] = ()
    conditions: tuple[Expression | None, ...] = ()
    by: Expression | None = None
    exact: bool = False
    classes: ClassOf | None = None

    @property
    def is_counted(self) -> bool:
        """Whether records have to be counted before the output of each is known."""
        return self.exact or self.classes is not None

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions, without dots, of the members that expressions use; for rows, the
        columns."""
        asked = [each for each in (*self.conditions, self.by) if each is not None]
        return tuple(dict.fromkeys(name for each in asked for name in each.extensions))

    @property
    def weights(self) -> tuple[float, ...]:
        """The share of the records that each output may have, as far as it is known beforehand."""
        return self.fractions or (1 / len(self.names),) * len(self.names)

    def numbers(self, records: RecordTable) -> Int32s:
        """The output of each of ``records``, from 0 on, shape ``(n,)``. ``TransformError`` for a
        record for which no condition is true, or for which one cannot be evaluated."""
        return self._by_condition(records) if self.conditions else self._by_hash(records)

    def lots(self, records: RecordTable, *, are_rows: bool = False) -> UInt64s:
        """The class of each record and the lot that it draws in that class, of ``LOT_BITS`` bits;
        shape ``(n, 2)``. ``are_rows``: whether the records are rows of a table."""
        import numpy as np

        found = np.zeros((len(records), 2), np.uint64)
        if self.classes is not None:
            found[:, 0] = self.classes.hashes(records, are_rows=are_rows)
        found[:, 1] = self._drawn(records) >> np.uint64(64 - LOT_BITS)
        return found

    def _drawn(self, records: RecordTable) -> UInt64s:
        import numpy as np

        from dsort.data.hashes import mix, shard_seed

        return mix(self._hashes(records) ^ np.uint64(shard_seed(_SALT, "")))

    def _by_hash(self, records: RecordTable) -> Int32s:
        import numpy as np

        lots = self._drawn(records)
        borders = np.array(_borders(self.fractions), np.uint64)
        return np.searchsorted(borders, lots, side="right").astype(np.int32)

    def _hashes(self, records: RecordTable) -> UInt64s:
        if self.by is None:
            from dsort.data.numbered import hash_column

            return hash_column(records.keys)
        from dsort.data.hashes import hash_keys
        from dsort.expressions.expression import text_of_value

        values = self.by.values_of(records, "split_by")
        return hash_keys(map(text_of_value, values), len(values))

    def _by_condition(self, records: RecordTable) -> Int32s:
        import numpy as np

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
    from fractions import Fraction  # loads decimal, which specs do not need

    exact = [Fraction(str(each)) for each in fractions]
    total, reached, borders = sum(exact), Fraction(0), []
    for each in exact[:-1]:
        reached += each
        borders.append(min(int(reached / total * 2**64), 2**64 - 1))
    return borders
