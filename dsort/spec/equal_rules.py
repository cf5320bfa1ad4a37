"""Rules about outputs whose shards have equal numbers of records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from dsort.errors import SpecProblem
from dsort.spec.parts import SpecFields

__all__ = ["EQUAL_RULES"]

_SIZES: Final = ("output_shard_size", "output_shard_records", "output_shard_count")


def _equal_shards_are_counted(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.equalize is None:
        return
    if spec.output_bck.is_stream:
        text = "cannot be combined with standard output, which is one shard of all records"
        yield SpecProblem("equalize", text, "write to a bucket")
        return
    uncounted = [target for target in spec.targets if target.asked_count is None]
    if uncounted or spec.keep_shards:
        text = "needs output_shard_count, a number or {multiple_of: 64}"
        several = f": {uncounted[0].name} has none" if uncounted and spec.outputs else ""
        yield SpecProblem("equalize", text + several)


def _multiples_share_evenly(spec: SpecFields) -> Iterator[SpecProblem]:
    for target in spec.targets:
        if target.asked_count is not None and target.count is None and target.is_at_most:
            text = "at_most cannot be combined with a multiple_of: shards share the records evenly"
            hint = "output_shard_size is what they have on average"
            yield SpecProblem("output_shard_size_is", text, hint)
            return


EQUAL_RULES: Final[
    tuple[tuple[tuple[str, ...], Callable[[SpecFields], Iterator[SpecProblem]]], ...]
] = (
    (
        ("equalize", "output_bck", "outputs", "keep_shards", "ekm", "ekm_file", *_SIZES),
        _equal_shards_are_counted,
    ),
    (("outputs", "output_shard_size_is", *_SIZES), _multiples_share_evenly),
)
"""(the fields that a rule is about, the function that finds the problems): see ``rules``."""
