"""``map``: output shards are slices of the mapped input shards.

Mapping a gigabyte that is in the page cache takes 0.13 s of processor time, nearly all of it for
adding pages to the page tables and removing them. So a worker's creator uses the mappings that its
extractor leaves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np

from dsort.data.columns import Int32s
from dsort.data.index import RANGES, SHARD, STORED_BYTES
from dsort.errors import StorageError
from dsort.moves.base import RowRun, WorkerParts, spans
from dsort.moves.input_shard import SLICES_AT_ONCE_MAX, InputShard, open_input, read_inputs
from dsort.moves.slices import (
    Gatherer,
    are_short,
    renamed_slices,
    rows_at_once,
    slices_of_sources,
    slices_with_literals,
)
from dsort.scratch.index import IndexStore
from dsort.scratch.requests import OrderedRowsOf
from dsort.scratch.tables import OrderedRows
from dsort.storage.bucket import Bucket
from dsort.storage.process_limits import files_that_fit

ROWS_KEPT_MAX = 1 << 16
"""The most rows that are read from the index together, of several output shards of one task.
Reading the rows of each shard separately took a third of the time of creating shards of 1 KB."""
FEW_ROWS_MAX = 256
WITH_LITERALS_AT_ONCE = 8192
"""The most records with literals that are processed at a time. They need more vectorised steps,
which cost 0.1 µs a record if only 2,048 records are processed at a time."""


class MappedInputs:
    """Mapped input shards by ordinal. Beyond ``open_max``, the least recently used are unmapped."""

    def __init__(self, bucket: Bucket, store: IndexStore, *, open_max: int) -> None:
        self.open_max = files_that_fit(open_max)
        self._bucket = bucket
        self._store = store
        self._views: OrderedDict[int, memoryview] = OrderedDict()
        self._kept: set[int] = set()

    @cached_property
    def _inputs(self) -> list[InputShard]:
        return read_inputs(self._store)

    def keep(self, shard: int, view: memoryview) -> None:
        """Keep ``view``, the mapping of a shard that was just extracted."""
        self._views[shard] = view
        self._views.move_to_end(shard)
        self._kept.add(shard)
        self._let_go(self.open_max)

    def views(self, shards: Iterable[int]) -> Mapping[int, memoryview]:
        """The mapping of each of ``shards``; at most ``open_max`` of them in one call."""
        wanted = list(shards)
        found = {shard: self._view(shard) for shard in wanted}
        # After all look-ups: earlier, this might drop a view that is still in ``wanted``.
        self._let_go(max(self.open_max, len(wanted)))
        return found

    def close(self) -> None:
        """Unmap all shards."""
        self._views.clear()

    def _let_go(self, open_max: int) -> None:
        while len(self._views) > open_max:
            shard, _view = self._views.popitem(last=False)
            self._kept.discard(shard)

    def _view(self, shard: int) -> memoryview:
        view = self._views.get(shard)
        # This method has mapped the shard, and checked it then.
        if view is not None and shard not in self._kept:
            self._views.move_to_end(shard)
            return view
        expected = self._inputs[shard]
        # The mapping of an extracted shard is checked, too: its file may have been replaced.
        with open_input(self._bucket, expected.name, expected.size_bytes, expected.etag) as source:
            view = view or source.mapping()
        if view is None:
            raise StorageError(
                f"input shard {expected.name} cannot be mapped here", hint="use --move spill"
            )
        self._kept.discard(shard)
        self._views[shard] = view
        self._views.move_to_end(shard)
        return view


class MappedPayload:
    """Records as slices of the mapped input shards."""

    def __init__(self, span: RowRun, node: str, parts: WorkerParts) -> None:
        """``span``: from the first to the last record that will be requested."""
        self.partition = span.partition
        self._span = span
        self._node = node
        self._nodes = parts.nodes
        self._inputs = parts.mapped
        names = parts.carrier.names
        self._overwriting = names and names.overwriting
        self._seals = parts.carrier.seals if parts.seals else None

    def slices(self, start: int, stop: int) -> Iterator[Sequence[memoryview]]:
        """Yield the slices of records ``start:stop``, some records at a time."""
        rows = self.ordered(start, stop).rows
        count, ranges = len(rows), rows[RANGES]
        sources = len(_numbers_in(rows[SHARD]))
        # Each record of a step may be in another shard.
        step = min(SLICES_AT_ONCE_MAX, self._inputs.open_max)
        if are_short(ranges) and sources <= self._inputs.open_max:
            step = rows_at_once(ranges, sources)
        elif len(ranges.literals):
            step = min(WITH_LITERALS_AT_ONCE, self._inputs.open_max)
        gatherer = Gatherer()
        for at in range(0, count, step):
            some = slice(at, min(at + step, count))
            source = rows[SHARD][some]
            views = self._inputs.views(_numbers_in(source))
            segments = ranges if count <= step else ranges.run(some.start, some.stop)
            if len(segments.names):
                assert self._overwriting
                stored = rows[STORED_BYTES][some]
                yield from renamed_slices(self._overwriting, views, source, segments, stored)
            elif are_short(segments):
                yield [gatherer.gathered(views, source, segments)]
            elif len(segments.literals):
                stored = rows[STORED_BYTES][some]
                yield from slices_with_literals(views, source, segments, stored, self._seals)
            else:
                yield slices_of_sources(views, source, segments)

    def ordered(self, start: int, stop: int) -> OrderedRows:
        """See :class:`~dsort.moves.base.Payload`."""
        _, first, last = self._span
        if last - first > ROWS_KEPT_MAX:
            return self._asked(start, stop)
        return self._whole.run(start - first, stop - first)

    @cached_property
    def _whole(self) -> OrderedRows:
        return self._asked(self._span.start, self._span.stop)

    def _asked(self, start: int, stop: int) -> OrderedRows:
        return self._nodes.ask(self._node, OrderedRowsOf(self.partition, start, stop))


class MapMove:
    """Payload stays in the input shards, which are mapped."""

    skips_cache = False
    payload: ClassVar[type[MappedPayload]] = MappedPayload

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts

    def payloads(
        self, runs: Sequence[RowRun], nodes: Mapping[int, str], locations: str
    ) -> Generator[MappedPayload, None, None]:
        """See :class:`~dsort.moves.base.Move`."""
        for span in spans(runs):
            yield self.payload(span, nodes[span.partition], self._parts)

    def close(self) -> None:
        """See :class:`~dsort.moves.base.Move`."""
        self._parts.mapped.close()


def _numbers_in(source: Int32s) -> list[int]:
    """The distinct numbers in a column, in order. Counting each number up to the largest would take
    longer than writing a shard of few records."""
    if len(source) <= FEW_ROWS_MAX:
        return sorted(set(source.tolist()))
    return np.flatnonzero(np.bincount(source)).tolist()
