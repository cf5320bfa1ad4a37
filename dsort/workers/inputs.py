"""The job's input shards as its workers know them, and the mappings of those in use."""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsort.core.columns import BytesColumn
from dsort.errors import ChangedInputError, StorageError
from dsort.storage.base import Bucket, ReadObject
from dsort.workers.column_file import columns_bytes
from dsort.workers.index_store import IndexStore

__all__ = ["INPUTS_FILE", "InputShard", "MappedInputs", "inputs_bytes", "read_inputs"]

INPUTS_FILE = "inputs.col"
SPARE_FILES = 128
_NAMES = ("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class InputShard:
    """One resolved input shard. ``etag`` pins its content for the length of the job."""

    name: str
    size_bytes: int
    mtime_ns: int
    etag: str


def inputs_bytes(inputs: Sequence[InputShard]) -> bytes:
    """The job's inputs as the file ``INPUTS_FILE``, which all homes get."""
    return columns_bytes(
        {
            "names": _texts(shard.name for shard in inputs),
            "size_bytes": np.array([shard.size_bytes for shard in inputs], np.int64),
            "mtime_ns": np.array([shard.mtime_ns for shard in inputs], np.int64),
            "etags": _texts(shard.etag for shard in inputs),
        }
    )


def read_inputs(store: IndexStore) -> list[InputShard]:
    """The inputs that were shared."""
    file = store.columns(INPUTS_FILE)
    names = [name.decode(*_NAMES) for name in file.bytes_column("names").tolist()]
    count = len(names)
    etags = [etag.decode(*_NAMES) for etag in file.bytes_column("etags", 0, count).tolist()]
    sizes = file.array("size_bytes", 0, count).tolist()
    times = file.array("mtime_ns", 0, count).tolist()
    return list(map(InputShard, names, sizes, times, etags))


def _texts(values: Iterable[str]) -> BytesColumn:
    return BytesColumn.of([value.encode(*_NAMES) for value in values])


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
        if not source.info.is_still(expected.size_bytes, expected.etag):
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
