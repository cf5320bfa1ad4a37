"""The job's input shards as its workers know them, and the mappings of those in use."""

from __future__ import annotations

import pickle
import resource
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dsort.errors import ChangedInputError, StorageError
from dsort.storage.base import Bucket, ReadObject
from dsort.workers.index_store import IndexStore

__all__ = ["INPUTS_FILE", "InputShard", "MappedInputs", "inputs_bytes", "read_inputs"]

INPUTS_FILE = "inputs.pickle"
SPARE_FILES = 128


@dataclass(frozen=True, slots=True)
class InputShard:
    """One resolved input shard. ``etag`` pins its content for the length of the job."""

    name: str
    size_bytes: int
    mtime_ns: int
    etag: str


def inputs_bytes(inputs: Sequence[InputShard]) -> bytes:
    """The job's inputs as the file ``INPUTS_FILE``, which all homes get."""
    return pickle.dumps(list(inputs), protocol=5)


def read_inputs(store: IndexStore) -> list[InputShard]:
    """The inputs that were shared."""
    loaded: list[InputShard] = pickle.loads(store.file_bytes(INPUTS_FILE))
    return loaded


class MappedInputs:
    """Mapped input shards by ordinal; the least recently used are let go beyond ``open_max``."""

    def __init__(self, bucket: Bucket, store: IndexStore, *, open_max: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = open_max + SPARE_FILES
        if soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        self.open_max = max(min(open_max, soft - SPARE_FILES), 1)
        self._bucket = bucket
        self._store = store
        self._inputs: list[InputShard] = []
        self._open: OrderedDict[int, tuple[ReadObject, memoryview]] = OrderedDict()

    def views(self, shards: Iterable[int]) -> Mapping[int, memoryview]:
        """The content of each named shard; at most ``open_max`` of them in one call."""
        wanted = list(shards)
        found = {shard: self._view(shard) for shard in wanted}
        while len(self._open) > max(self.open_max, len(wanted)):
            _, (source, _view) = self._open.popitem(last=False)
            source.close()
        return found

    def close(self) -> None:
        """Let go of all of them."""
        for source, _view in self._open.values():
            source.close()
        self._open.clear()

    def _view(self, shard: int) -> memoryview:
        if shard in self._open:
            self._open.move_to_end(shard)
            return self._open[shard][1]
        if not self._inputs:
            self._inputs = read_inputs(self._store)
        expected = self._inputs[shard]
        source = self._bucket.open(expected.name)
        if (source.info.size_bytes, source.info.etag) != (expected.size_bytes, expected.etag):
            source.close()
            raise ChangedInputError(
                f"input shard {expected.name} changed while the job ran",
                hint="start the job again once nothing writes to its inputs",
            )
        view = source.mapping()
        if view is None:
            source.close()
            raise StorageError(
                f"input shard {expected.name} cannot be mapped here", hint="use --move spill"
            )
        self._open[shard] = (source, view)
        return view
