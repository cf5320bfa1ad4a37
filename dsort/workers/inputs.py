"""The job's input shards as its workers know them, and the mappings of those in use."""

from __future__ import annotations

import pickle
import resource
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsort.errors import ChangedInputError, StorageError
from dsort.storage.base import Bucket, ReadObject
from dsort.storage.os_errors import StorageErrors

__all__ = ["InputShard", "MappedInputs", "read_inputs", "write_inputs"]

INPUTS_FILE = "inputs.pickle"
SPARE_FILES = 128


@dataclass(frozen=True, slots=True)
class InputShard:
    """One resolved input shard. ``etag`` pins its content for the length of the job."""

    name: str
    size_bytes: int
    mtime_ns: int
    etag: str


def write_inputs(scratch: Path, inputs: Sequence[InputShard]) -> None:
    """Store the job's inputs where its workers find them."""
    with StorageErrors(f"write {INPUTS_FILE}", str(scratch)):
        (scratch / INPUTS_FILE).write_bytes(pickle.dumps(list(inputs), protocol=5))


def read_inputs(scratch: Path) -> list[InputShard]:
    """The inputs that ``write_inputs`` stored."""
    with StorageErrors(f"read {INPUTS_FILE}", str(scratch)):
        loaded: list[InputShard] = pickle.loads((scratch / INPUTS_FILE).read_bytes())
    return loaded


class MappedInputs:
    """Mapped input shards by ordinal; the least recently used are let go beyond ``open_max``."""

    def __init__(self, bucket: Bucket, scratch: Path, *, open_max: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = open_max + SPARE_FILES
        if soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        self.open_max = max(min(open_max, soft - SPARE_FILES), 1)
        self._bucket = bucket
        self._scratch = scratch
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
            self._inputs = read_inputs(self._scratch)
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
