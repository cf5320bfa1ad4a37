"""When output shards end: one rule, or one for each of several outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dsort.data.columns import Int64s
from dsort.errors import InputError
from dsort.job.job import Job
from dsort.order.cut import CutRule, EncodedSizes
from dsort.workers.tasks import OrderDone


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
