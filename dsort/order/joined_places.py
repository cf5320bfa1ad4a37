"""The order of joined records where no single piece knows it: by content that one of them has, or
by where the first of them is in the inputs.

A pass before payload moves joins the records by hashes and finds what each is ordered by. Then the
coordinator ranks them, and every piece is given the place of its record: a word, spread evenly over
all that there are. So partitions need no splitters, and pieces of one record meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dsort.order.base import Algorithm

if TYPE_CHECKING:
    from dsort.data.columns import BytesColumn, Int64s, UInt64s
    from dsort.order.table import RecordTable


@dataclass(frozen=True, slots=True)
class JoinedPlaces(Algorithm):
    """Orders as ``inner`` does, by places that are known before."""

    inner: Algorithm

    kind: ClassVar[str] = "places"
    summary: ClassVar[str] = ""
    words: ClassVar[str] = ""
    spreads_evenly: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    @property
    def has_texts(self) -> bool:
        """The record keys are."""
        return True

    def says(self, table: RecordTable) -> BytesColumn:
        """What each piece says of the order of its record, as bytes that compare so: nothing where
        it has not the member that is asked for. ``ContentKeyError``."""
        import numpy as np

        from dsort.data.columns import BytesColumn
        from dsort.order.sort import joined_keys

        inner = self.inner
        has = np.zeros(len(table), np.bool_)
        for extension in inner.extensions:
            has |= table.rows_with(extension) >= 0
        if not has.any():
            return BytesColumn.empty(len(table))
        said = joined_keys(
            [inner.sort_keys(table.keeping(has))],
            decreasing=[inner.decreasing],
            has_texts=[inner.has_texts],
            count=int(has.sum()),
        ).text
        assert said is not None
        which = np.zeros(len(table), np.int64)
        which[has] = np.arange(1, len(said) + 1)
        return BytesColumn.concat([BytesColumn.of([b""]), said]).take(which)

    def unsaid(self, table: RecordTable) -> bytes:
        """What a record is ordered by of which no piece says anything. ``ContentKeyError`` if that
        is to end the job. ``table``: of the record, without members."""
        from dsort.order.sort import joined_keys

        if not self.inner.extensions:
            return b""
        found = joined_keys(
            [self.inner.sort_keys(table)],
            decreasing=[self.inner.decreasing],
            has_texts=[self.inner.has_texts],
            count=1,
        ).text
        assert found is not None
        return found[0]


def spread_places(said: BytesColumn, shard: Int64s, ordinal: Int64s) -> UInt64s:
    """The place of each record, ascending in their order: by what is ``said``, then by where its
    first piece is. Shapes ``(n,)``."""
    import numpy as np

    from dsort.data.index import SortKeys
    from dsort.order.sort import order_rows

    count = len(said)
    by_position = np.lexsort((ordinal, shard))
    keys = SortKeys(count, text=said).take(by_position)
    order = by_position[order_rows(keys, decreasing=False)]
    step = np.uint64((1 << 64) // max(count, 1) if count > 1 else 0)
    places = np.empty(count, np.uint64)
    places[order] = np.arange(count, dtype=np.uint64) * step
    return places
