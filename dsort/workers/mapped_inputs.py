"""Mapped input shards, as the extractor of a worker leaves them and its creator finds them.

To map a gigabyte that is in the page cache takes 0.13 s of processor time, nearly all of it to put
its pages into the page tables and to take them out again. So what a worker has looked at stays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from dsort.errors import StorageError
from dsort.scratch.index import IndexStore
from dsort.storage.bucket import Bucket
from dsort.storage.process_limits import files_that_fit
from dsort.workers.source import InputShard, open_input, read_inputs


class MappedInputs:
    """Mapped input shards by ordinal; the least recently used are let go beyond ``open_max``."""

    def __init__(self, bucket: Bucket, store: IndexStore, *, open_max: int) -> None:
        self.open_max = files_that_fit(open_max)
        self._bucket = bucket
        self._store = store
        self._inputs: list[InputShard] = []
        self._views: OrderedDict[int, memoryview] = OrderedDict()
        self._kept: set[int] = set()

    def keep(self, shard: int, view: memoryview) -> None:
        """``view`` is the mapping of a shard that was just extracted."""
        self._views[shard] = view
        self._views.move_to_end(shard)
        self._kept.add(shard)
        self._let_go(self.open_max)

    def views(self, shards: Iterable[int]) -> Mapping[int, memoryview]:
        """The content of each named shard; at most ``open_max`` of them in one call."""
        wanted = list(shards)
        found = {shard: self._view(shard) for shard in wanted}
        self._let_go(max(self.open_max, len(wanted)))
        return found

    def close(self) -> None:
        """Let go of all of them."""
        self._views.clear()

    def _let_go(self, open_max: int) -> None:
        while len(self._views) > open_max:
            shard, _view = self._views.popitem(last=False)
            self._kept.discard(shard)

    def _view(self, shard: int) -> memoryview:
        view = self._views.get(shard)
        if view is not None and shard not in self._kept:
            self._views.move_to_end(shard)
            return view
        if not self._inputs:
            self._inputs = read_inputs(self._store)
        expected = self._inputs[shard]
        # What was extracted is looked at again as well: its file may be another by now.
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
