"""A runtime without workers: every task is answered by arithmetic from the counts of a data set.

Nothing is read and nothing written. Tasks and answers pass through pickle, as they do between
processes. So their size is known, and the coordinator keeps copies of its own.
"""

from __future__ import annotations

import base64
import pickle
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec.structs import replace

from dsort.errors import InvariantError
from dsort.storage.limit import StoreLimits
from dsort.storage.s3.upload import ETAGS_KEPT_MAX, Receipt
from tests.support.internals import (
    CreateDone,
    CreateTask,
    CutDone,
    CutRule,
    CutTask,
    DuplicatesDone,
    DuplicatesTask,
    ExtractTask,
    FreeBytes,
    Int64s,
    LineFiles,
    MixingGrid,
    MixingPart,
    OpenShard,
    OrderDone,
    OrderRunTask,
    OrderTask,
    OutputPiece,
    OutputRuns,
    Piece,
    PublishDone,
    PublishTask,
    Request,
    RunOrdered,
    SealDone,
    ShardCreated,
    ShardExtracted,
    Tally,
    Task,
    TaskDone,
    WorkerSetup,
)

MEMBERS_A_RECORD = 2
OVERHEAD_BYTES = 1536
"""Two headers and padding of a record."""
FREE_BYTES = 1 << 60
"""The free scratch space of each node."""
UPLOAD_ID_CHARS, CHECKSUM_BYTES = 128, 4


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of data, and the number of workers. All records have one size; hashes spread them
    over partitions at random (seeded)."""

    shards: int
    records: int
    record_bytes: int  # payload
    output_shards: int
    nodes: int
    workers_a_node: int
    seed: int = 1

    @property
    def workers(self) -> int:
        """The number of workers on all nodes."""
        return self.nodes * self.workers_a_node

    @property
    def stored_bytes(self) -> int:
        """The size of a record in a shard."""
        return self.record_bytes + OVERHEAD_BYTES

    @property
    def shard_bytes(self) -> int:
        """The largest input shard."""
        return -(-self.records // self.shards) * self.stored_bytes + 1024

    @property
    def output_payload_bytes(self) -> int:
        """The ``output_shard_size`` that makes about as many output shards as are wanted."""
        return max(self.records // self.output_shards, 1) * self.record_bytes

    def records_of_shard(self, shard: int) -> int:
        """The number of records of a shard: an equal share, and one more in the first shards."""
        return self.records // self.shards + (shard < self.records % self.shards)

    def records_of_partitions(self, partitions: int) -> Int64s:
        """How many records hashes would put into each partition, shape ``(partitions,)``."""
        stream = np.random.Generator(np.random.SFC64(self.seed))
        even = np.full(partitions, 1 / partitions)
        return stream.multinomial(self.records, even).astype(np.int64)


@dataclass(slots=True)
class Traffic:
    """The messages between coordinator and workers. ``bytes_max``: the largest message of a
    kind."""

    count: Counter[str] = field(default_factory=Counter)
    bytes_total: Counter[str] = field(default_factory=Counter)
    bytes_max: Counter[str] = field(default_factory=Counter)
    worker_seconds: float = 0.0
    pickle_seconds: float = 0.0

    def note(self, kind: str, size_bytes: int) -> None:
        """Count one message."""
        self.count[kind] += 1
        self.bytes_total[kind] += size_bytes
        self.bytes_max[kind] = max(self.bytes_max[kind], size_bytes)


class ArithmeticRuntime:
    """See :class:`~dsort.runtime.base.Runtime`."""

    name = "arithmetic"

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.traffic = Traffic()
        self._partition_records: Int64s = np.zeros(0, np.int64)

    def workers_max(self) -> int:
        return self.scale.workers

    def nodes(self) -> int:
        return self.scale.nodes

    def where(self) -> str:
        return ""

    def start(self, setup: WorkerSetup, workers: int) -> None:
        """Divide the records among the partitions of the job. No worker is started."""
        self._partition_records = self.scale.records_of_partitions(setup.movement.partitions)

    def scratch_nodes(self) -> tuple[str, ...]:
        return tuple(f"{node:016x}" for node in range(self.scale.nodes))

    def share(self, name: str, data: bytes) -> None:
        for _ in range(self.scale.nodes):
            self.traffic.note("share", len(data))

    def ask(self, node: str, request: Request) -> Any:
        if isinstance(request, FreeBytes):
            return FREE_BYTES, self.scratch_nodes().index(node)
        if isinstance(request, LineFiles):
            return {}  # no reaction was needed
        raise InvariantError(f"{node} has no answer to {type(request).__name__}")

    def tell(self, node: str, request: Request) -> None:
        self.traffic.note(type(request).__name__, len(pickle.dumps(request, protocol=5)))

    def check_directory(self, path: str, token: str) -> tuple[str, ...]:
        """No probe runs, and no node is lost."""
        return ()

    def run(
        self, tasks: Iterable[Task], *, workers_max: int | None = None
    ) -> Iterator[tuple[Task, TaskDone]]:
        traffic = self.traffic
        for number, task in enumerate(tasks):
            began = time.process_time()
            traffic.note(type(task).__name__, len(pickle.dumps(task, protocol=5)))
            sent = time.process_time()
            answer = self._answer(task, number % self.scale.workers)
            answered = time.process_time()
            data = pickle.dumps(answer, protocol=5)
            traffic.note(type(answer).__name__, len(data))
            heard: TaskDone = pickle.loads(data)  # pickled by the line above
            traffic.worker_seconds += answered - sent
            traffic.pickle_seconds += sent - began + time.process_time() - answered
            yield task, heard

    def warnings(self) -> list[str]:
        """See :class:`~dsort.runtime.base.Runtime`."""
        return []

    def close(self, *, keep_scratch: bool = False) -> None:
        """Do nothing: there is no worker."""

    def _node(self, number: int) -> str:
        return f"{number % self.scale.nodes:016x}"

    def _answer(self, task: Task, worker: int) -> TaskDone:
        match task:
            case ExtractTask():
                return self._extract(task, worker)
            case DuplicatesTask():
                return DuplicatesDone(task.part, self._node(task.part), 0, ())
            case OrderTask():
                return self._order(task)
            case OrderRunTask():
                return RunOrdered(tuple(self._order(each) for each in task.partitions))
            case CutTask():
                rows = int(self._partition_records[task.partition])
                pieces, state = cut_evenly(task.rule, task.partition, rows, self.scale, task.state)
                mixing = mixed_evenly(task.mixing, task.state, pieces)
                return CutDone(task.partition, pieces, state, mixing)
            case CreateTask():
                return self._create(task)
            case PublishTask():
                return PublishDone(len(task.objects))
            case _:
                return SealDone({})

    def _extract(self, task: ExtractTask, worker: int) -> ShardExtracted:
        records = self.scale.records_of_shard(task.shard)
        return ShardExtracted(
            shard=task.shard,
            worker=worker,
            node=self._node(worker),
            records=records,
            members=records * MEMBERS_A_RECORD,
            payload_bytes=records * self.scale.record_bytes,
            stored_bytes=records * self.scale.stored_bytes,
            tally=Tally(),
        )

    def _order(self, task: OrderTask) -> OrderDone:
        records = int(self._partition_records[task.partition])
        return OrderDone(
            partition=task.partition,
            node=self._node(task.partition),
            records=records,
            dropped=0,
            payload_bytes=records * self.scale.record_bytes,
            stored_bytes=records * self.scale.stored_bytes,
        )

    def _create(self, task: CreateTask) -> CreateDone:
        return CreateDone(
            shards=tuple(
                ShardCreated(piece.ordinal, f"{piece.ordinal:016x}", _receipt(piece), "", -1)
                for piece in task.pieces
                if piece.last
            ),
            records=sum(piece.row_stop - piece.row_start for piece in task.pieces),
            bytes_written=sum(piece.stored_bytes for piece in task.pieces),
        )


def _receipt(piece: OutputPiece) -> str:
    """A receipt like that of a multipart upload of the shard: as long, and as unlike others."""
    parts = max(-(-piece.shard_bytes // StoreLimits().part_bytes), 1)
    etags = tuple(f'"{part:032x}"' for part in range(parts)) if parts <= ETAGS_KEPT_MAX else ()
    return Receipt(
        name=piece.name,
        upload_id=f"{piece.ordinal:0{UPLOAD_ID_CHARS}x}",
        size_bytes=piece.shard_bytes,
        began_s=1_700_000_000,
        part_count=parts,
        digest=f"{piece.ordinal:032x}-{parts}",
        etags=etags,
        checksums=base64.b64encode(bytes(CHECKSUM_BYTES * parts)).decode(),
    ).text()


def cut_evenly(
    rule: CutRule, partition: int, rows: int, scale: Scale, state: OpenShard
) -> tuple[list[Piece], OpenShard]:
    """The result of :func:`~dsort.order.cut.cut_partition` for ``rows`` records of one size."""
    pieces: list[Piece] = []
    row = 0
    while row < rows:
        wanted = _records_in(rule, scale, state.number)
        until = rows if wanted is None else min(row + wanted - state.records, rows)
        count = until - row
        piece = Piece(
            group=0,
            number=state.number,
            partition=partition,
            row_start=row,
            row_stop=until,
            offset=state.stored_bytes,
            members=count * MEMBERS_A_RECORD,
            payload_bytes=count * scale.record_bytes,
            stored_bytes=count * scale.stored_bytes,
        )
        pieces.append(piece)
        if wanted is not None and state.records + count == wanted:
            state = OpenShard(number=state.number + 1)
        else:
            state = replace(
                state,
                records=state.records + count,
                payload_bytes=state.payload_bytes + piece.payload_bytes,
                stored_bytes=state.stored_bytes + piece.stored_bytes,
                members=state.members + piece.members,
            )
        row = until
    return pieces, state


def mixed_evenly(grid: MixingGrid, state: OpenShard, pieces: list[Piece]) -> MixingPart:
    """The result of :func:`~dsort.order.mixing.count_part` for records of all input shards in
    turn."""
    runs = OutputRuns.of(grid, state, pieces)
    edges = np.array(runs.edges, np.int64)
    turns = np.arange(grid.input_bins)
    up_to = (edges[:, None] + turns) // grid.input_bins  # rows of each bin before each edge
    return MixingPart(runs.shift, runs.first, np.diff(up_to, axis=0), runs.output)


def _records_in(rule: CutRule, scale: Scale, number: int) -> int | None:
    if rule.size_bytes is None:
        return rule.records_in(number)
    if rule.shards_max is not None and number == rule.shards_max - 1:
        return None
    return max(-(-rule.size_bytes // scale.record_bytes), 1)
