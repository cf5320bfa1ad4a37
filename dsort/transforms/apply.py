"""How a job runs several steps on the records of a shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dsort.transforms.base import Step

if TYPE_CHECKING:
    from dsort.data.record_table import RecordTable

__all__ = ["Applied", "apply_steps", "step_words"]


class Applied(Struct, frozen=True):
    """The result of steps on one shard: the ``records`` that stay; how many records each kind of
    step left out (``left_out``), and each step (``dropped``, by its words in ``step_words``); and
    how many reached each step that needs positions (``counts``)."""

    records: RecordTable
    left_out: Mapping[str, int]
    counts: tuple[int, ...]
    dropped: Mapping[str, int]


def step_words(number: int, step: Step) -> str:
    """A step of a job in words, with its place among all steps."""
    return f"step {number + 1} {step.kind}"


def apply_steps(
    steps: Sequence[Step], records: RecordTable, firsts: Sequence[int] | None = None
) -> Applied:
    """Apply all ``steps`` to the records of one shard. ``firsts``: for each step that needs
    positions, the number of the first record that reaches it. Stops at the first such step without
    a number."""
    left_out: dict[str, int] = {}
    counts: list[int] = []
    dropped: dict[str, int] = {}
    for number, step in enumerate(steps):
        before = len(records)
        if step.needs_positions:
            counts.append(before)
            if firsts is None or len(firsts) < len(counts):
                break
            records = replace(records, first=firsts[len(counts) - 1])
        records = step.apply(records)
        if len(records) < before:
            left_out[step.kind] = left_out.get(step.kind, 0) + before - len(records)
            dropped[step_words(number, step)] = before - len(records)
    return Applied(records, left_out, tuple(counts), dropped)
