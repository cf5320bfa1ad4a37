"""The partitions of a job in output order: the node of each, and whether all its records are
written. Also the cut of partitions into output shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from dsort.data.columns import Int64s
from dsort.data.index import ORDINAL, SHARD
from dsort.data.json_values import Count
from dsort.data.tally import SAMPLES_MAX, Tally
from dsort.errors import InputError, InvariantError
from dsort.job.extraction import Extraction, answers, retry_after_lost_scratch
from dsort.job.job import Fact, Job
from dsort.naming.names import readable
from dsort.order.cut import NOT_MEASURED, CutRule, EncodedSizes, OpenShard, OutputShard, Piece
from dsort.order.mixing_counts import MixingTally
from dsort.order.output_shards import Pieces, merge_pieces
from dsort.scratch.logs import reaction_line
from dsort.scratch.requests import KeysAt, OrderedRowsOf
from dsort.scratch.tables import OrderedRows
from dsort.workers.tasks import (
    CutDone,
    CutTask,
    MeasureDone,
    MeasureTask,
    OrderDone,
    OrderRunTask,
    OrderTask,
    OutputPiece,
    RunOrdered,
    Task,
)

RUNS_A_WORKER = 4
"""Tasks to order partitions for each worker, so that all workers end at about the same time."""
RUN_ROWS_MAX = 1 << 15
"""The most rows in all partitions of a run. A row takes about 100 bytes."""
FREED_SHARE = 32
"""The journal is flushed each time that one partition in this many is spent, so that scratch
shrinks as the outputs grow."""


class Ordering(Struct, eq=False):
    """All partitions of one extraction. ``drop``: the shared file of records to leave out, or "".

    ``facts``: the facts of each partition that stay the same if it is ordered again;
    ``_scratch_nodes``: the node that has its ordered rows now. ``_spent``: partitions whose records
    are all written.
    """

    job: Job
    extraction: Extraction
    drop: str = ""
    facts: dict[int, OrderDone] = field(default_factory=dict)
    _scratch_nodes: dict[int, str] = field(default_factory=dict)
    _spent: set[int] = field(default_factory=set)
    _unfreed: set[int] = field(default_factory=set)

    @property
    def locations(self) -> str:
        """The shared file that lists the node of each shard."""
        return self.extraction.locations

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self.extraction.stage.partitions

    def complete(self) -> None:
        """Order the partitions that are not in order. If shards have moved to other nodes since a
        partition was ordered, its order stays the same: readers of its spill use the new places."""
        self.extraction.complete()
        missing = [
            partition
            for partition in range(self.partitions)
            if partition not in self._scratch_nodes and partition not in self._spent
        ]
        for _, done in answers(self.job, self._tasks(missing), Struct):
            assert isinstance(done, (OrderDone, RunOrdered))
            for facts in done.partitions if isinstance(done, RunOrdered) else (done,):
                self._take(facts)

    def lose(self, node: str) -> None:
        """See :class:`~dsort.job.extraction.Restaged`."""
        self.extraction.lose(node)
        for partition, its_node in list(self._scratch_nodes.items()):
            if its_node == node:
                del self._scratch_nodes[partition]

    def node_of(self, partition: int) -> str:
        """The node that has a partition in order."""
        return self._scratch_nodes[partition]

    def placed(self, pieces: Iterable[OutputPiece]) -> tuple[tuple[tuple[int, str], ...], str]:
        """(the node of each partition in ``pieces``, the node with most of these partitions)."""
        weights: Counter[str] = Counter()
        nodes = {}
        for piece in pieces:
            if piece.partition >= 0:
                nodes[piece.partition] = self.node_of(piece.partition)
                weights[nodes[piece.partition]] += piece.stored_bytes
        return tuple(nodes.items()), next((node for node, _ in weights.most_common(1)), "")

    def in_order(self) -> list[OrderDone]:
        """The facts of all partitions, in their order."""
        return [self.facts[partition] for partition in range(self.partitions)]

    def located(self) -> list[OrderDone]:
        """The facts of all partitions, with the nodes that have them now."""
        return [replace(facts, node=self.node_of(facts.partition)) for facts in self.in_order()]

    def spend(self, partitions: tuple[int, ...]) -> None:
        """Mark partitions whose records are all written. Their spill is removed only when the
        journal lists the written shards, because until then a resumed job would have to write them
        again."""
        self._spent.update(partitions)
        if self.extraction.stage.spill:
            self._unfreed.update(partitions)
            # Not once for each partition: a flush waits until the disk has all data that was
            # written.
            if len(self._unfreed) * FREED_SHARE >= self.partitions:
                self.job.attempt.journal.flush()
        self.free()

    def want_all(self) -> None:
        """Regard no partition as spent, so that partitions are ordered again where they are needed.
        Written records are then compared with the index, which takes no spill."""
        self._spent.clear()

    def free(self) -> None:
        """Remove the spill of spent partitions, if the journal has no entries that wait to be
        written."""
        if self._unfreed and not self.job.attempt.journal.is_waiting:
            from dsort.scratch.spill import RemoveSpill  # most jobs spill nothing

            freed = tuple(sorted(self._unfreed))
            self._unfreed.clear()
            for node, workers in self.extraction.spilled_by().items():
                self.job.runtime.tell(node, RemoveSpill(freed, workers))

    def _tasks(self, missing: Sequence[int]) -> Iterator[Task]:
        """The tasks that order partitions. Small partitions with rows on several nodes are ordered
        in runs: a request to a node takes longer than reading, sorting and storing a thousand
        rows."""
        job, most = self.job, 1
        if job.runtime.nodes() > 1 and not job.pipeline.join:
            records = sum(facts.records for facts in self.extraction.done.values())
            rows = records // max(self.partitions, 1) + 1
            enough = len(missing) // (RUNS_A_WORKER * job.found.movement.workers)
            most = max(min(RUN_ROWS_MAX // rows, enough), 1)
        tasks = [OrderTask(partition, self.locations, self.drop) for partition in missing]
        for at in range(0, len(tasks), most):
            run = tuple(tasks[at : at + most])
            yield run[0] if most == 1 else OrderRunTask(run)

    def _take(self, facts: OrderDone) -> None:
        self._scratch_nodes[facts.partition] = facts.node
        known = self.facts.setdefault(facts.partition, facts)
        before, now = (
            (each.records, each.dropped, each.stored_bytes, each.payload_bytes, each.join)
            for each in (known, facts)
        )
        if before != now:
            raise InvariantError(
                f"partition {facts.partition} was ordered again: {now} now, {before} before"
            )
        if known is facts and self.job.reporter.state.phase == "plan":
            self.job.reporter.advance(records=facts.records, bytes_done=facts.stored_bytes)


# The cut shares records out as evenly as it can; `equalize` does not write the records that are
# left over. The cut puts these behind the last shard of each output.
LEFT_OUT = "left_out_to_equalize"
SIZES_FILE = "encoded-sizes.json"
RUNS_MAX = 16384
RUNS_A_SHARD = 16
"""There are at most ``RUNS_MAX`` runs, or this many for each output shard if that is more."""
TASKS_A_WORKER = 4


def cut_partitions(
    job: Job, ordering: Ordering, rule: CutRule, encoded: EncodedSizes = NOT_MEASURED
) -> tuple[Pieces, MixingTally]:
    """(the pieces of all partitions, how they mix the input shards). The cut of a partition begins
    where the cut of the partition before it ended. ``encoded``: for rules about encoded files."""
    cut = _Cut(job, ordering, rule, encoded)
    retry_after_lost_scratch(ordering, cut.go_on)
    return cut.pieces, cut.mixing


class _Cut:
    """The cut of all partitions, one after the other. If a node is lost, the cuts so far stay
    valid, because a partition that is ordered again has the same order. Of all work in this module,
    the cut takes the longest."""

    def __init__(self, job: Job, ordering: Ordering, rule: CutRule, encoded: EncodedSizes) -> None:
        self.pieces = Pieces()
        self.mixing = MixingTally(len(job.inputs))
        self._job = job
        self._ordering = ordering
        self._rule = rule
        self._encoded = encoded
        self._state = OpenShard()
        self._next = 0
        self._before = 0

    def go_on(self) -> None:
        """Cut the partitions that are not cut yet."""
        for facts in self._ordering.in_order()[self._next :]:
            if facts.records:
                self._cut(facts.partition, facts.stored_bytes)
            self._next += 1

    def _cut(self, partition: int, stored_bytes: int) -> None:
        before, after = self._before, self._before + stored_bytes
        node = self._ordering.node_of(partition)
        sizes = self._encoded.between(before, after)
        grid = self.mixing.grid(self._state)
        task = CutTask(partition, node, self._rule, self._state, grid, sizes, before)
        for _, cut in answers(self._job, [task], CutDone):
            self.pieces.extend(cut.pieces)
            self.mixing.add(cut.mixing)
            self._state = cut.state
            self._before = after


def cut_rule(job: Job, ordered: Sequence[OrderDone], encoded: EncodedSizes) -> CutRule:
    """The rule for where shards end, for records in order."""
    targets = job.pipeline.targets
    if job.pipeline.result.keeps_shards:
        return CutRule(inputs=len(job.inputs))
    if job.pipeline.placed_by.shards:
        return CutRule(counts=job.pipeline.placed_by.counts)
    totals = _totals(ordered, len(targets))
    stored = np.cumsum([0, *totals[:, 2].tolist()])
    measured = np.diff(encoded.at(stored)) if encoded else totals[:, 2]
    rules = []
    for group, target in enumerate(targets):
        records_total, payload_bytes, bytes_total = totals[group].tolist()
        if target.is_measured:
            bytes_total = int(measured[group])
        counted_bytes = bytes_total if target.counts_file else payload_bytes
        count = target.count_for(records_total, counted_bytes)
        if job.pipeline.result.equalizes and count:
            records_total = equal_total(records_total, count, target.name)
        rule = job.outcome.names.cut_rule(
            group,
            size_bytes=target.size_bytes,
            records=target.records,
            count=count,
            bytes_total=counted_bytes,
            records_total=records_total,
            counts_file=target.counts_file,
            at_most=target.is_at_most,
        )
        rule = replace(rule, header_bytes=target.header_bytes)
        rules.append(rule if target.is_measured else replace(rule, is_plain=True))
    return rules[0] if len(rules) == 1 else CutRule(of_outputs=tuple(rules))


def equal_total(records: int, count: int, name: str) -> int:
    """The largest number, at most ``records``, that can be divided equally among ``count`` shards.
    ``InputError`` if each would have none. ``name``: the name of the output, "" for a single
    one."""
    if records and records < count:
        whose = f"output {name}" if name else "the result"
        raise InputError(
            f"{whose} has {records:,} records for {count:,} shards: equalize: drop would leave "
            "no record",
            hint="set a smaller output_shard_count",
        )
    return records - records % count


def _totals(ordered: Sequence[OrderDone], outputs: int) -> Int64s:
    """(records, payload bytes, stored bytes) of each output; shape ``(outputs, 3)``."""
    totals = np.zeros((outputs, 3), np.int64)
    for facts in ordered:
        own = facts.by_output
        if outputs == 1:
            own = ((facts.records, facts.payload_bytes, facts.stored_bytes),)
        for group, sums in enumerate(own):
            totals[group] += sums
    return totals


class Equalized(Struct, frozen=True):
    """``pieces``: the pieces of all output shards, in their order. ``left_out``: how many records
    are in no output shard; ``lines``: their names, for ``reactions.jsonl``."""

    pieces: list[Piece]
    left_out: int
    tally: Tally
    lines: tuple[bytes, ...]


def equal_pieces(ordering: Ordering, pieces: Iterable[Piece], rule: CutRule) -> Equalized:
    """The pieces of a cut in which all shards of an output have the same number of records."""
    # Fewer records are left out than there are shards, so their names take little memory.
    found: list[Piece] = []
    left: list[Piece] = []
    for piece in pieces:
        count = rule.of_group(piece.group).count or 0
        (found if piece.number < count else left).append(piece)
    names = _names(ordering, left)
    tally = Tally()
    if names:
        samples = [f"{shard}: {key}" for shard, key in names[:SAMPLES_MAX]]
        tally.add(LEFT_OUT, len(names), samples)
    lines = tuple(reaction_line(LEFT_OUT, shard=shard, name=key) for shard, key in names)
    return Equalized(found, len(names), tally, lines)


def _names(ordering: Ordering, pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """(input shard, key) of each record of ``pieces``."""
    job, extraction = ordering.job, ordering.extraction
    parts: list[tuple[int, int]] = []
    by_shard: dict[int, list[int]] = {}
    for piece in pieces:
        request = OrderedRowsOf(piece.partition, piece.row_start, piece.row_stop)
        ordered: OrderedRows = job.runtime.ask(ordering.node_of(piece.partition), request)
        rows, offsets = ordered.rows, ordered.record_offsets
        first = offsets[:-1] if ordered.has_pieces else slice(None)
        for shard, ordinal in zip(
            rows[SHARD][first].tolist(), rows[ORDINAL][first].tolist(), strict=True
        ):
            parts.append((shard, ordinal))
            by_shard.setdefault(shard, []).append(ordinal)
    locations = extraction.shard_locations()
    keys: dict[tuple[int, int], bytes] = {}
    for shard, ordinals in by_shard.items():
        wanted = np.unique(np.array(ordinals, np.int64))
        file = int(locations.file_of[shard])
        node = locations.nodes[locations.node_of[file]]
        found = job.runtime.ask(node, KeysAt(extraction.stage.name, file, shard, wanted)).tolist()
        keys.update(zip(((shard, each) for each in wanted.tolist()), found, strict=True))
    return [(job.inputs[place[0]].name, readable(keys[place])) for place in parts]


def run_rule(job: Job, stored_bytes: int) -> CutRule:
    """The rule for where runs end. The records of a run are encoded together. ``stored_bytes``: the
    size of all records."""
    encoders = [
        target.codec.encoder(target.codec_level) for target in job.pipeline.targets if target.codec
    ]
    piece_bytes = max(encoder.piece_bytes for encoder in encoders)
    sizes = [target.size_bytes or stored_bytes for target in job.pipeline.targets]
    shards = stored_bytes // max(min(sizes), 1)
    runs = max(RUNS_MAX, RUNS_A_SHARD * shards)
    pieces = max(-(-stored_bytes // (piece_bytes * runs)), 1)
    return CutRule(size_bytes=piece_bytes * pieces, counts_file=True, at_most=True)


class _SizesStored(Struct):
    stored: list[Count]
    encoded: list[Count]


# All records are encoded once before the cut, in output order and in runs of about a piece of the
# codec, and only the lengths are kept. The runs depend on the order alone, so the same job ends its
# shards at the same records. The pieces of a shard begin at other records than the runs, which
# changes the sizes little if a shard has many pieces.
def encoded_sizes(ordering: Ordering, stored_bytes: int) -> EncodedSizes:
    """The sizes of the records after encoding by the codec, in the order of the records. Sizes that
    an earlier attempt measured are used again: the plan must stay the same, and scratch may lack
    records that are written. ``StorageError`` if the stored sizes are damaged."""

    def rows(sizes: EncodedSizes) -> _SizesStored:
        return _SizesStored(sizes.stored.tolist(), sizes.encoded.tolist())

    def of_rows(kept: _SizesStored) -> EncodedSizes:
        stored, encoded = (np.array(row, np.int64) for row in (kept.stored, kept.encoded))
        if stored.shape != encoded.shape or int(stored[-1]) != stored_bytes:
            raise ValueError("it is about other records")
        if stored[0] or encoded[0] or (np.diff(stored) < 0).any() or (np.diff(encoded) < 0).any():
            raise ValueError("its numbers do not ascend from 0 on")
        return EncodedSizes(stored, encoded)

    def measure() -> EncodedSizes:
        rule = run_rule(ordering.job, stored_bytes)
        runs = merge_pieces(cut_partitions(ordering.job, ordering, rule)[0])
        return retry_after_lost_scratch(ordering, lambda: _measured_sizes(ordering, runs))

    return Fact(SIZES_FILE, _SizesStored, of_rows, rows).settle(ordering.job, measure)


def _measured_sizes(ordering: Ordering, runs: Sequence[OutputShard]) -> EncodedSizes:
    found = np.zeros(len(runs), np.int64)
    for task, done in answers(ordering.job, _measuring(ordering, runs), MeasureDone):
        ordinals = list(dict.fromkeys(piece.ordinal for piece in task.pieces))
        if len(ordinals) != len(done.encoded_bytes):
            raise InvariantError("a worker measured other runs than those of its task")
        found[ordinals] = done.encoded_bytes
    stored = np.fromiter((run.stored_bytes for run in runs), np.int64, len(runs))
    return EncodedSizes(*(np.concatenate([[0], np.cumsum(sizes)]) for sizes in (stored, found)))


def _measuring(ordering: Ordering, runs: Sequence[OutputShard]) -> Iterator[MeasureTask]:
    """The tasks that measure ``runs``. Neighbours go to one worker, because they share
    partitions."""
    job, total = ordering.job, sum(run.stored_bytes for run in runs)
    share = max(total // (job.found.movement.workers * TASKS_A_WORKER), 1)
    pieces, taken = list[OutputPiece](), 0
    for at, run in enumerate(runs):
        pieces += pieces_of(run, job.output_of(run.group))
        taken += run.stored_bytes
        if taken >= share or at == len(runs) - 1:
            nodes, best = ordering.placed(pieces)
            yield MeasureTask(tuple(pieces), ordering.locations, nodes, best)
            pieces, taken = [], 0


def pieces_of(
    shard: OutputShard, output: int, *, token: str = "", name: str = "", shard_bytes: int = -1
) -> list[OutputPiece]:
    """The pieces of an output shard as workers write them. A shard without records has one piece,
    which belongs to no partition."""
    parts = shard.pieces or (Piece(shard.group, shard.number, -1, 0, 0, shard.head_bytes, 0, 0, 0),)
    return [
        OutputPiece(
            token=token,
            name=name,
            ordinal=shard.ordinal,
            shard_bytes=shard_bytes,
            partition=part.partition,
            row_start=part.row_start,
            row_stop=part.row_stop,
            offset=part.offset,
            stored_bytes=part.stored_bytes,
            last=part is parts[-1],
            output=output,
        )
        for part in parts
    ]
