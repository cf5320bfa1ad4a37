"""The job's input shards as its workers know them, and the mappings of those in use."""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsort.data.columns import BytesColumn
from dsort.errors import ChangedInputError, StorageError
from dsort.scratch.columns import columns_bytes
from dsort.scratch.index import IndexStore
from dsort.storage.bucket import Bucket, ReadObject

__all__ = ["INPUTS_FILE", "InputShard", "MappedInputs", "inputs_bytes", "open_input", "read_inputs"]

INPUTS_FILE = "inputs.col"
SPARE_FILES = 128
_NAMES = ("utf-8", "surrogateescape")
OPEN_TRIES_MAX = 3


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


def open_input(bucket: Bucket, name: str, size_bytes: int, etag: str) -> ReadObject:
    """Open an input shard; ``ChangedInputError`` unless it is what the job resolved.

    ``StorageError`` if a store tells of another size, and that it is the same object: what came is
    short, several times over."""
    for _ in range(OPEN_TRIES_MAX):
        source = bucket.open(name)
        told = source.info
        if told.is_still(size_bytes, etag):
            return source
        source.close()
        if told.etag != etag:
            raise ChangedInputError(
                f"input shard {name} changed while the job ran",
                hint="start the job again once nothing writes to its inputs",
            )
    raise StorageError(
        f"cannot read {name} in bucket {bucket.uri}: the store gives {told.size_bytes:,} of its "
        f"{size_bytes:,} bytes",
        hint="look at the store, and at proxies on the way to it",
    )


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
        source = open_input(self._bucket, expected.name, expected.size_bytes, expected.etag)
        view = source.mapping()
        if view is None:
            source.close()
            raise StorageError(
                f"input shard {expected.name} cannot be mapped here", hint="use --move spill"
            )
        self._open[shard] = (source, view)
        return view
