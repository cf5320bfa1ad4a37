"""The interface of moves for creators: the rows of partitions in output order, with payload."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import Struct

from dsort.containers.base import Container
from dsort.moves.payload_files import PayloadBuffer
from dsort.pipeline.movement import Movement
from dsort.scratch.nodes import ScratchNodes
from dsort.scratch.tables import OrderedRows
from dsort.storage.bucket import Bucket

if TYPE_CHECKING:
    from dsort.moves.map import MappedInputs


class RowRun(NamedTuple):
    """Rows ``start:stop`` of a partition in output order."""

    partition: int
    start: int
    stop: int


class Payload(Protocol):
    """The rows of one partition."""

    partition: int

    def ordered(self, start: int, stop: int) -> OrderedRows:
        """The index of rows ``start:stop``."""


class RecordPayload(Payload, Protocol):
    """Rows whose payload is bytes of records. Rows of tables have a ``RowPayload``."""

    def slices(self, start: int, stop: int) -> Iterator[Sequence[memoryview]]:
        """Yield the bytes of rows ``start:stop`` as slices, several at a time. Slices are valid
        until the next ones are requested."""


class Move(Protocol):
    """Reads extracted payload back in one worker, for creators. ``skips_cache``: inputs are read
    past the page cache, and output shards are written past it, too."""

    skips_cache: bool

    def payloads(
        self, runs: Sequence[RowRun], nodes: Mapping[int, str], locations: str
    ) -> Generator[Payload, None, None]:
        """Yield the payload of one partition of ``runs`` after the other; each is closed at the
        next step. ``nodes``: the node that stores each partition in output order; ``locations``:
        the shared file with the node of each shard's index."""

    def close(self) -> None:
        """Close files, unmap inputs and end threads."""


class WorkerParts(Struct, frozen=True):
    """The parts of a worker that its extractor and its move use. ``mapped``: the mappings that the
    extractor leaves for the creator. ``seals``: converted records get their seals while they are
    written."""

    movement: Movement
    carrier: Container
    inputs: Bucket
    nodes: ScratchNodes
    buffer: PayloadBuffer
    mapped: MappedInputs
    seals: bool


def spans(runs: Iterable[RowRun]) -> list[RowRun]:
    """One run for each partition: from the first of its rows in ``runs`` to the last."""
    found = []
    for partition, some in groupby(runs, key=lambda run: run.partition):
        own = list(some)
        start, stop = min(run.start for run in own), max(run.stop for run in own)
        found.append(RowRun(partition, start, stop))
    return found
