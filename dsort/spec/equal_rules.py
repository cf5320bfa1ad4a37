"""Rules about outputs whose shards have equal numbers of records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dsort.errors import SpecProblem
from dsort.spec.checks import Rules
from dsort.spec.parts import SpecFields

__all__ = ["rule"]

rule = Rules()

_SIZES: Final = ("output_shard_size", "output_shard_records", "output_shard_count")


@rule
def _equal_shards_are_counted(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.equalize is None or spec.output_bck.is_stream:
        return
    uncounted = [target for target in spec.targets if target.asked_count is None]
    if uncounted or spec.keep_shards:
        text = "needs output_shard_count, a number or {multiple_of: 64}"
        several = f": {uncounted[0].name} has none" if uncounted and spec.outputs else ""
        yield SpecProblem("equalize", text + several)


@rule
def _multiples_share_evenly(spec: SpecFields) -> Iterator[SpecProblem]:
    for target in spec.targets:
        if target.asked_count is not None and target.count is None and target.is_at_most:
            text = "at_most cannot be combined with a multiple_of: shards share the records evenly"
            hint = "output_shard_size is what they have on average"
            yield SpecProblem("output_shard_size_is", text, hint)
            return
