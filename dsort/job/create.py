"""The create phase: write output shards, stage and seal them. None of them is visible yet."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from dsort.data.columns import Int64s, TextsByNumber
from dsort.job.extraction import answers, retry_after_lost_scratch
from dsort.job.job import Job, parse_kept
from dsort.job.order import Ordering, pieces_of
from dsort.job.plan import Plan
from dsort.log_lines import logger_of
from dsort.results.layout import sidecars_prefix, staged_prefix
from dsort.scratch.logs import ShardCreated
from dsort.sidecars.kinds import kinds_of
from dsort.storage.routed import bucket_for
from dsort.workers.companions import LINEAGE
from dsort.workers.tasks import (
    CreateDone,
    CreateTask,
    OutputPiece,
    SealDone,
    SealTask,
    StagedShard,
)

SEALED_FILE = "sealed.json"
RUNS_A_WORKER = 4
SMALL_RUNS_A_WORKER = 16
TOGETHER_BYTES = 16 << 20
TOGETHER_MAX = 64
"""The most mapped output shards that one task writes: each is open until the task is done."""
SEALED_AT_ONCE_MAX = 64

log = logger_of("job")


class CreatedShards(MutableMapping[int, ShardCreated]):
    """Created shards by ordinal, in a third of the memory that a dictionary would take. Receipts
    take most of the memory."""

    def __init__(self) -> None:
        self._texts = TextsByNumber()
        self._file_bytes = array("q")

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[int]:
        return iter(self._texts)

    def __contains__(self, ordinal: object) -> bool:
        return ordinal in self._texts

    def __getitem__(self, ordinal: int) -> ShardCreated:
        checksum, digests, receipt = self._texts[ordinal].split("\0", 2)
        return ShardCreated(ordinal, checksum, receipt, digests, self._file_bytes[ordinal])

    def __setitem__(self, ordinal: int, shard: ShardCreated) -> None:
        self._texts[ordinal] = f"{shard.xxh3}\0{shard.digests}\0{shard.receipt}"
        more = ordinal + 1 - len(self._file_bytes)
        if more > 0:
            self._file_bytes.extend([-1] * more)  # shards come in any order
        self._file_bytes[ordinal] = shard.file_bytes

    def __delitem__(self, ordinal: int) -> None:
        del self._texts[ordinal]

    def checksum(self, ordinal: int) -> str:
        """The XXH3 of one shard, read without making a ``ShardCreated``: a commit needs only
        checksums and receipts."""
        return self._texts[ordinal].partition("\0")[0]

    def receipt(self, ordinal: int) -> str:
        """The receipt of one shard, which publishing needs."""
        return self._texts[ordinal].split("\0", 2)[2]

    def file_bytes(self) -> Int64s:
        """The size of each shard in bytes, shape ``(n,)``; -1 if it is unknown. No shard may be
        missing."""
        return np.array(self._file_bytes, np.int64)


class Created(Struct, eq=False):
    """The staged output shards, by ordinal. ``rechecked``: ordinals of shards of an earlier
    attempt. Their bytes are read again before they are trusted."""

    shards: CreatedShards = field(default_factory=CreatedShards)
    rechecked: frozenset[int] = frozenset()

    def as_written(self, plan: Plan) -> Plan:
        """The plan with the actual sizes of its output shards, which are all staged."""
        written, planned = self.shards.file_bytes(), plan.shards.column("measured_bytes")
        measured_bytes = np.where(written >= 0, written, planned)
        return replace(plan, shards=plan.shards.with_columns(measured_bytes=measured_bytes))


def create(job: Job, plan: Plan, ordering: Ordering, created: Created) -> None:
    """Write and stage all output shards that are not in ``created`` yet.

    The spill of a partition is removed once all its records are written, so that scratch shrinks as
    the outputs grow.
    """
    done = np.fromiter(created.shards, np.int64, len(created.shards))
    for shard in plan.shards.at(done):
        job.reporter.advance(shards=1, records=shard.records, bytes_done=shard.stored_bytes)
    while len(created.shards) < len(plan.shards):
        retry_after_lost_scratch(ordering, lambda: _create_missing(job, plan, ordering, created))
    if ordering.extraction.stage.spill:
        # Without a spill, the commit flushes the journal: each flush waits until the disk has all
        # data that was written.
        job.attempt.journal.flush()
        ordering.free()


def _create_missing(job: Job, plan: Plan, ordering: Ordering, created: Created) -> None:
    runs = _create_runs(job, plan, created)
    missing = len(plan.shards) - len(created.shards)
    log.debug("%d output shards are written in %d runs", missing, len(runs))
    readers = _readers(plan, runs)
    tasks = _create_tasks(job, plan, runs, ordering)
    for task, done in answers(job, tasks, CreateDone, workers_max=job.creators_max):
        for shard in done.shards:
            created.shards[shard.ordinal] = shard
            # The journal need not store the entry at once: a later attempt also reads the workers'
            # own logs.
            job.attempt.journal.append(shard)
        spent = []
        for partition, _ in task.nodes:
            readers[partition] -= 1
            if not readers[partition]:
                spent.append(partition)
        ordering.spend(tuple(spent))
        finished = sum(piece.last for piece in task.pieces)
        job.reporter.advance(shards=finished, records=done.records, bytes_done=done.bytes_written)


def _create_tasks(
    job: Job, plan: Plan, runs: Sequence[Int64s], ordering: Ordering
) -> Iterator[CreateTask]:
    """Yields one task at a time: the pieces of a million shards would take as much memory as their
    receipts."""
    on_the_way, prefix = job.buckets.some_seal_on_finish, staged_prefix(job.job_id)
    result = job.pipeline.result
    encoded = job.pipeline.carrier.is_columnar or not job.found.movement.way.moves_payload
    unsized = [encoded or form.is_late for form in job.pipeline.outputs]
    for run in runs:
        pieces: list[OutputPiece] = []
        for shard in plan.shards.at(run):
            output = job.output_of(shard.group)
            size = -1 if unsized[output] else shard.container_bytes
            token, name = f"{prefix}{shard.ordinal}", plan.names[shard.ordinal]
            pieces += pieces_of(shard, output, token=token, name=name, shard_bytes=size)
        nodes, best = ordering.placed(pieces)
        yield CreateTask(
            pieces=tuple(pieces),
            locations=ordering.locations,
            nodes=nodes,
            node=best,
            digests=result.digests if on_the_way else (),
            check_content=on_the_way and result.checks_content,
            schema=plan.schema,
            late_schemas=plan.late_schemas,
            sidecars=(
                *(each.kind for each in kinds_of(result.sidecars) if each.has_shard_files),
                *((LINEAGE,) if result.keeps_lineage else ()),
            ),
            sidecars_prefix=sidecars_prefix(job.job_id),
        )


def _create_runs(job: Job, plan: Plan, created: Created) -> list[Int64s]:
    """The ordinals of the missing output shards, split into runs. One worker writes the shards of a
    run one after the other; no shard is in two runs.

    ``map``: one shard per run, or several small shards. ``spill``: neighbours, because they share
    partitions, and a partition is read whole; a partition that lies across two runs is read twice.
    There are enough runs to keep all workers busy to the end.
    """
    is_missing = np.ones(len(plan.shards), bool)
    is_missing[np.fromiter(created.shards, np.int64, len(created.shards))] = False
    missing = np.flatnonzero(is_missing)
    stored = plan.shards.column("stored_bytes")[missing]
    if job.found.movement.way.keeps_mappings:
        return runs_of_small(missing, stored, job.found.movement.workers)
    runs_max = job.found.movement.workers * RUNS_A_WORKER
    total, written = max(int(stored.sum()), 1), 0
    begins: list[int] = []
    for at, size in enumerate(stored.tolist()):
        if written * runs_max >= len(begins) * total:
            begins.append(at)
        written += size
    return np.split(missing, begins[1:])


def _readers(plan: Plan, runs: Sequence[Int64s]) -> Int64s:
    """How many runs need each partition, shape ``(partitions,)``."""
    run_of = np.full(len(plan.shards), -1, np.int64)
    for number, run in enumerate(runs):
        run_of[run] = number
    shard, partition = plan.shards.partitions()
    run = run_of[shard]
    count = int(partition.max(initial=-1)) + 1
    pairs = np.sort(run[run >= 0] * max(count, 1) + partition[run >= 0])
    # np.unique loads numpy.ma: 50 million instructions.
    wanted = pairs[np.diff(pairs, prepend=-1) > 0]
    return np.bincount(wanted % max(count, 1), minlength=count)


def runs_of_small(ordinals: Int64s, stored_bytes: Int64s, workers: int) -> list[Int64s]:
    """Runs of mapped shards: one large shard, or several small ones. A task takes 0.3 ms of the
    coordinator's time, and the worker waits meanwhile. Columns have shape ``(n,)``."""
    total = int(stored_bytes.sum())
    together_bytes = min(TOGETHER_BYTES, total // (workers * SMALL_RUNS_A_WORKER))
    begins: list[int] = []
    room, free = 0, 0
    for at, size in enumerate(stored_bytes.tolist()):
        if size > room or not free:
            begins.append(at)
            room, free = together_bytes, TOGETHER_MAX
        room, free = room - size, free - 1
    return np.split(ordinals, begins[1:])


def seal(job: Job, plan: Plan, ordering: Ordering, created: Created) -> Mapping[int, str]:
    """Make all staged shards durable and check them. Returns their digests by ordinal, if the
    shards were read.

    If the store has sealed the shards while they were written, nothing is left to do. ``ordering``:
    used only to check content.
    """
    bucket = job.buckets.outputs
    if bucket.seals_on_finish:
        if not job.pipeline.result.digests:
            return {}
        return {ordinal: shard.digests for ordinal, shard in created.shards.items()}
    digests = _sealed_before(job, created)
    if job.buckets.some_seal_on_finish:
        for ordinal, shard in created.shards.items():
            if bucket_for(bucket, plan.names[ordinal]).seals_on_finish:
                digests[ordinal] = shard.digests
    _advance(job, plan, digests)
    seal_missing = partial(_seal_missing, job, plan, ordering, created, digests)
    if job.pipeline.result.checks_content:
        ordering.want_all()
        retry_after_lost_scratch(ordering, seal_missing)
    else:
        seal_missing()
    return digests


def _seal_missing(
    job: Job, plan: Plan, ordering: Ordering, created: Created, digests: dict[int, str]
) -> None:
    late, prefix = [form.is_late for form in job.pipeline.outputs], staged_prefix(job.job_id)
    shards = [
        StagedShard(
            ordinal=shard.ordinal,
            token=f"{prefix}{shard.ordinal}",
            name=plan.names[shard.ordinal],
            output=job.output_of(shard.group),
            shard_bytes=shard.file_bytes,
            checksum=created.shards.checksum(shard.ordinal),
            # Records that are converted late have other bytes than those that were hashed.
            pieces=tuple((p.partition, p.row_start, p.row_stop) for p in shard.pieces)
            if job.pipeline.result.checks_content and not late[job.output_of(shard.group)]
            else (),
            reread=shard.ordinal in created.rechecked,
            head_bytes=shard.head_bytes,
        )
        for shard in plan.shards
        if shard.ordinal not in digests
    ]
    step = min(max(len(shards) // job.found.movement.workers, 1), SEALED_AT_ONCE_MAX)
    batches = (tuple(shards[at : at + step]) for at in range(0, len(shards), step))
    wanted = job.pipeline.result.digests
    tasks = (SealTask(batch, _partition_nodes(ordering, batch), wanted) for batch in batches)
    for task, done in answers(job, tasks, SealDone):
        sealed = {shard.ordinal: done.digests.get(shard.ordinal, "") for shard in task.shards}
        digests.update(sealed)
        _advance(job, plan, sealed)


def _advance(job: Job, plan: Plan, sealed: Iterable[int]) -> None:
    chosen = np.fromiter(sealed, np.int64)
    job.reporter.advance(
        shards=len(chosen),
        records=int(plan.shards.column("records")[chosen].sum()),
        bytes_done=int(plan.shards.file_bytes[chosen].sum()),
    )


def keep_sealed(job: Job, created: Created, digests: Mapping[int, str]) -> None:
    """Store, for later attempts, which shards are sealed: if the coordinator dies in the commit,
    some shards have their names already, and are not sealed again."""
    if not job.buckets.outputs.seals_on_finish:
        rows = [[at, created.shards[at].receipt, text] for at, text in digests.items()]
        job.attempt.retain(SEALED_FILE, json.dumps(rows).encode())


def _sealed_before(job: Job, created: Created) -> dict[int, str]:
    """The digests of the shards that an earlier attempt sealed, by ordinal."""
    data = job.attempt.retained(SEALED_FILE)
    if not data:
        return {}
    rows = parse_kept(data, f"{SEALED_FILE} of job {job.job_id}", list[tuple[int, str, str]])
    return {  # other shards are sealed again
        ordinal: digests
        for ordinal, receipt, digests in rows
        if ordinal in created.rechecked and created.shards[ordinal].receipt == receipt
    }


def _partition_nodes(
    ordering: Ordering, shards: tuple[StagedShard, ...]
) -> tuple[tuple[int, str], ...]:
    partitions = {partition for shard in shards for partition, _, _ in shard.pieces}
    return tuple((partition, ordering.node_of(partition)) for partition in sorted(partitions))
