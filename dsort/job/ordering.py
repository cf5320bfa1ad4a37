"""The partitions of a job in output order: the node of each, and which ones are spent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from dsort.errors import InvariantError
from dsort.job.extraction import Extraction, answers
from dsort.job.job import Job
from dsort.scratch.spill import RemoveSpill
from dsort.workers.tasks import OrderDone, OrderRunTask, OrderTask, RunOrdered, Task

RUNS_A_WORKER = 4
"""Tasks to order partitions for each worker, so that all workers end at about the same time."""
RUN_ROWS_MAX = 1 << 15
"""The most rows of all partitions of a run, of some 100 bytes each."""
FREED_SHARE = 32
"""The journal is written at least each time that one part in this many of the partitions is spent,
so that scratch shrinks as the outputs grow."""


class Ordering(Struct, eq=False):
    """All partitions of one extraction. ``drop``: the shared file of records to leave out, or "".

    ``facts``: what is known of each partition, for good; ``_scratch_nodes``: the node that has it
    in order now. ``_spent``: partitions whose records are all written.
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
        """Order the partitions that are not in order. If shards are on other nodes by now than when
        a partition was ordered, its order stays the same: readers of its spill use the new
        places."""
        self.extraction.complete()
        missing = [
            partition
            for partition in range(self.partitions)
            if partition not in self._scratch_nodes and partition not in self._spent
        ]
        for _, done in answers(self.job, self._tasks(missing)):
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

    def in_order(self) -> list[OrderDone]:
        """The facts of all partitions, in their order."""
        return [self.facts[partition] for partition in range(self.partitions)]

    def located(self) -> list[OrderDone]:
        """The facts of all partitions, with the nodes that have them now."""
        return [replace(facts, node=self.node_of(facts.partition)) for facts in self.in_order()]

    def spend(self, partitions: tuple[int, ...]) -> None:
        """Mark partitions whose records are all written: their spill is removed as soon as the
        journal has these records as written, because a resumed job could not write them again."""
        self._spent.update(partitions)
        if self.extraction.stage.spill:
            self._unfreed.update(partitions)
            if len(self._unfreed) * FREED_SHARE >= self.partitions:
                self.job.attempt.flush()
        self.free()

    def want_all(self) -> None:
        """From now on spent partitions have to be in order, too: written records are compared with
        them, for which their spill is not needed."""
        self._spent.clear()

    def free(self) -> None:
        """Remove the spill of spent partitions, as far as that is allowed yet."""
        if self._unfreed and self.job.attempt.is_recorded:
            freed = tuple(sorted(self._unfreed))
            self._unfreed.clear()
            for node, workers in self.extraction.spilled_by().items():
                self.job.runtime.tell(node, RemoveSpill(freed, workers))

    def _tasks(self, missing: Sequence[int]) -> Iterator[Task]:
        """The tasks that order partitions. Small partitions with rows on several nodes are ordered
        in runs: a request to a node takes longer than to read, sort and store a thousand rows."""
        job, most = self.job, 1
        if job.runtime.nodes() > 1 and job.pipeline.join is None:
            records = sum(facts.records for facts in self.extraction.done.values())
            rows = records // max(self.partitions, 1) + 1
            enough = len(missing) // (RUNS_A_WORKER * job.movement.workers)
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
            raise InvariantError(f"partition {facts.partition} has {now} now, it had {before}")
        if known is facts and self.job.reporter.state.phase == "plan":
            self.job.reporter.advance(records=facts.records, bytes_done=facts.stored_bytes)
