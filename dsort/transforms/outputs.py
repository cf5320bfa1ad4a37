"""Which of a job's outputs a record goes to: by a hash of what it says, or by expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsort.errors import TransformError
from dsort.naming.names import readable
from dsort.transforms.borders import LOT_BITS

if TYPE_CHECKING:
    from dsort.data.columns import Int32s, UInt64s
    from dsort.expressions.expression import Expression
    from dsort.order.table import RecordTable
    from dsort.transforms.strata import ClassOf

__all__ = ["KEY", "Division"]

KEY = "key"
"""What fractions are by unless a spec says something else."""

_SALT = "outputs"  # the lots of ``sample`` and of a shuffle have nothing to do with these


@dataclass(frozen=True, slots=True)
class Division:
    """How records are dealt out to the outputs ``names``.

    By ``fractions``: a record goes where the hash of what ``by`` says of it (None: its key) falls,
    as a fraction of all hashes; so it stays there as the data grow. By ``conditions``: to the first
    whose condition (None: always) is true of it.

    ``exact``: the numbers of records are as near to the fractions as whole numbers are; with
    ``classes``, those of each class are. Then where records go is said by ``Borders`` in the order
    of their ``lots``."""

    names: tuple[str, ...]
    fractions: tuple[float, ...] = ()
    conditions: tuple[Expression | None, ...] = ()
    by: Expression | None = None
    exact: bool = False
    classes: ClassOf | None = None

    @property
    def is_counted(self) -> bool:
        """Whether the numbers of records have to be known before it is known where each goes."""
        return self.exact or self.classes is not None

    @property
    def extensions(self) -> tuple[str, ...]:
        """The members that expressions ask about, without their dots: of rows, the columns."""
        asked = [each for each in (*self.conditions, self.by) if each is not None]
        return tuple(dict.fromkeys(name for each in asked for name in each.extensions))

    @property
    def weights(self) -> tuple[float, ...]:
        """What share of the records each output may have, as far as that is known beforehand."""
        return self.fractions or (1 / len(self.names),) * len(self.names)

    def numbers(self, records: RecordTable) -> Int32s:
        """The output of each of ``records``, from 0 on, shape ``(n,)``. ``TransformError`` for one
        that no condition is true of, or of which that cannot be said."""
        return self._by_condition(records) if self.conditions else self._by_hash(records)

    def lots(self, records: RecordTable, *, are_rows: bool = False) -> UInt64s:
        """The class of each record and the lot that it draws in it, of ``LOT_BITS`` bits; shape
        ``(n, 2)``. ``are_rows``: of a table, as rows."""
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
