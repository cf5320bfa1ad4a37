"""The cut of all partitions into output shards, as far as it has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dsort.data.columns import Int64s
from dsort.errors import InputError
from dsort.job.extraction import answers, retry_after_lost_scratch
from dsort.job.job import Job
from dsort.job.ordering import Ordering
from dsort.order.cut import CutRule, EncodedSizes, OpenShard
from dsort.order.mixing_counts import MixingTally
from dsort.order.output_shards import Pieces
from dsort.workers.tasks import CutDone, CutTask, OrderDone


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


def cut_rule(job: Job, ordered: Sequence[OrderDone], encoded: EncodedSizes | None) -> CutRule:
    """When shards end, of records that are in order."""
    targets, spec = job.spec.targets, job.spec
    if spec.keep_shards:
        return CutRule(inputs=len(job.inputs))
    totals = _totals(ordered, len(targets))
    stored = np.cumsum([0, *totals[:, 2].tolist()])
    measured = totals[:, 2] if encoded is None else np.diff(encoded.at(stored))
    rules = []
    for group, target in enumerate(targets):
        records_total, payload_bytes, bytes_total = totals[group].tolist()
        if target.is_measured:
            bytes_total = int(measured[group])
        counted_bytes = bytes_total if target.counts_file else payload_bytes
        count = target.count_for(records_total, counted_bytes)
        if spec.equalize is not None and count:
            records_total = equal_total(records_total, count, target.name)
        rule = job.names.cut_rule(
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
    """How many of ``records`` can be shared out so that all of ``count`` shards have as many.
    ``InputError`` if each would have none. ``name``: of the output, "" of the only one."""
    if records and records < count:
        whose = f"output {name}" if name else "the result"
        raise InputError(
            f"{whose} has {records:,} records for {count:,} shards: equalize: drop would leave "
            "none of them",
            hint="a smaller output_shard_count",
        )
    return records - records % count


def _totals(ordered: Sequence[OrderDone], outputs: int) -> Int64s:
    """(records, payload, stored bytes) of each output; shape ``(outputs, 3)``."""
    totals = np.zeros((outputs, 3), np.int64)
    for facts in ordered:
        own = facts.by_output
        if outputs == 1:
            own = ((facts.records, facts.payload_bytes, facts.stored_bytes),)
        for group, sums in enumerate(own):
            totals[group] += sums
    return totals
