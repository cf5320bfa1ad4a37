"""The cut of all partitions into output shards, as far as it has come."""

from __future__ import annotations

from dsort.job.extract import answers, retry_after_lost_scratch
from dsort.job.job import Job
from dsort.job.ordering import Ordering
from dsort.order.cut import CutRule, EncodedSizes, OpenShard
from dsort.order.mixing_counts import MixingTally
from dsort.order.output_shards import Pieces
from dsort.workers.tasks import CutDone, CutTask


def cut_partitions(
    job: Job, ordering: Ordering, rule: CutRule, encoded: EncodedSizes | None = None
) -> tuple[Pieces, MixingTally]:
    """The pieces of all partitions, each cut where the one before it ended, and how they mix the
    input shards. ``encoded``: for rules about encoded files."""
    cut = _Cut(job, ordering, rule, encoded)
    retry_after_lost_scratch(ordering, cut.go_on)
    return cut.pieces, cut.mixing


class _Cut:
    """Where a node is lost, what was cut before stays: a partition that is ordered again comes out
    in the same order. Partitions are cut one after the other, so it would be the longest wait."""

    def __init__(
        self, job: Job, ordering: Ordering, rule: CutRule, encoded: EncodedSizes | None
    ) -> None:
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
        sizes = self._encoded.between(before, after) if self._encoded is not None else None
        grid = self.mixing.grid(self._state)
        task = CutTask(partition, node, self._rule, self._state, grid, sizes, before)
        for _, cut in answers(self._job, [task]):
            assert isinstance(cut, CutDone)
            self.pieces.extend(cut.pieces)
            self.mixing.add(cut.mixing)
            self._state = cut.state
            self._before = after
