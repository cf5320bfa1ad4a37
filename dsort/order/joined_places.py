"""The order of joined records if a single piece does not decide it: by content that one of the
pieces has, or by the position of the first piece in the inputs.

A pass before payload moves joins the records by hashes, and finds the value that each is ordered
by. The coordinator ranks these values, and every piece gets the place of its record: a word, spread
evenly over all words. So partitions need no splitters, and the pieces of a record meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dsort.order.base import Algorithm

if TYPE_CHECKING:
    from dsort.data.columns import BytesColumn, Int64s, UInt64s
    from dsort.data.record_table import RecordTable


class JoinedPlaces(Algorithm, frozen=True, kw_only=False):
    """Orders records as ``inner`` does, by places that are computed before."""

    inner: Algorithm

    kind: ClassVar[str] = "places"
    summary: ClassVar[str] = ""
    words: ClassVar[str] = ""
    spreads_evenly: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    @property
    def has_texts(self) -> bool:
        """True: the record keys are texts."""
        return True

    def says(self, table: RecordTable) -> BytesColumn:
        """The value in each piece that decides the order of its record, as bytes that compare in
        that order; empty if the piece lacks the member. ``ContentKeyError`` if it is invalid."""
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
        """The value of a record if none of its pieces has one. ``ContentKeyError`` if this has to
        fail the job. ``table``: has the record, without members."""
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
    """The place of each record, ascending in their order: by the values ``said``, then by the
    position of the first piece. Shapes ``(n,)``."""
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
