"""When output shards end: one rule, or one for each of several outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsort.job.job import Job
from dsort.order.cut import CutRule, EncodedSizes
from dsort.workers.tasks import OrderDone

__all__ = ["cut_rule"]


def cut_rule(
    job: Job, ordered: Sequence[OrderDone], counted_total: int, encoded: EncodedSizes | None
) -> CutRule:
    """When shards end. ``counted_total``: bytes of all records, as they are counted."""
    targets, spec = job.spec.targets, job.spec
    if spec.keep_shards:
        return CutRule(inputs=len(job.inputs))
    counts_file = spec.output_shard_size_counts == "file"
    totals = [(sum(facts.records for facts in ordered), counted_total)]
    if len(targets) > 1:
        totals = _totals_of_outputs(ordered, len(targets), counts_file=counts_file)
    if encoded is not None and len(targets) > 1:
        borders = np.cumsum([0, *(bytes_total for _, bytes_total in totals)])
        sizes = np.diff(encoded.at(borders)).tolist()
        totals = [(records, size) for (records, _), size in zip(totals, sizes, strict=True)]
    rules = tuple(
        job.names.cut_rule(
            group,
            size_bytes=target.size_bytes,
            records=target.records,
            count=target.count,
            bytes_total=bytes_total,
            records_total=records_total,
            counts_file=counts_file,
            at_most=spec.output_shard_size_is == "at_most" and bool(target.size_bytes),
        )
        for group, (target, (records_total, bytes_total)) in enumerate(
            zip(targets, totals, strict=True)
        )
    )
    return rules[0] if len(rules) == 1 else CutRule(of_outputs=rules)


def _totals_of_outputs(
    ordered: Sequence[OrderDone], outputs: int, *, counts_file: bool
) -> list[tuple[int, int]]:
    """(records, bytes as they are counted) of each output."""
    totals = np.zeros((outputs, 3), np.int64)
    for facts in ordered:
        for group, sums in enumerate(facts.by_output):
            totals[group] += sums
    counted = totals[:, 2 if counts_file else 1]
    return list(zip(totals[:, 0].tolist(), counted.tolist(), strict=True))
