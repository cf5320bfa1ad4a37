"""What a movement gives creators: the rows of partitions in output order, with their payload."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dsort.containers.base import Container
from dsort.moves.payload_files import PayloadBuffer
from dsort.pipeline.movement import Movement
from dsort.scratch.nodes import ScratchNodes
from dsort.scratch.ordered import OrderedRows
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
    """Rows whose payload is bytes of records; rows of tables are a ``RowPayload``."""

    def slices(self, start: int, stop: int) -> Iterator[Sequence[memoryview]]:
        """The bytes of rows ``start:stop`` as slices, some at a time, valid until the next step."""


class Move(Protocol):
    """How one worker gets payload back that was extracted: for creators. ``skips_cache``: output
    shards are written past the page cache, too."""

    skips_cache: bool

    def payloads(
        self, runs: Sequence[RowRun], nodes: Mapping[int, str], locations: str
    ) -> Generator[Payload, None, None]:
        """The payload of one partition of ``runs`` after the other, closed at the next step.
        ``nodes``: the node that has each partition in order; ``locations``: the shared file that
        says which node has each shard's index."""

    def close(self) -> None:
        """Let go of files, mappings and threads."""


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What a worker has for a move. ``mapped``: what its extractor leaves. ``seals``: converted
    records get their seals when they are written."""

    movement: Movement
    carrier: Container
    inputs: Bucket
    nodes: ScratchNodes
    buffer: PayloadBuffer
    mapped: MappedInputs
    seals: bool


def spans(runs: Iterable[RowRun]) -> list[RowRun]:
    """One partition after the other, from the first row that ``runs`` have of it to the last."""
    found = []
    for partition, some in groupby(runs, key=lambda run: run.partition):
        own = list(some)
        start, stop = min(run.start for run in own), max(run.stop for run in own)
        found.append(RowRun(partition, start, stop))
    return found
