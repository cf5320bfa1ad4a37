"""All steps by their kind, and how a job runs several of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from dsort.transforms.base import Step
from dsort.transforms.code import FlatMap, Map
from dsort.transforms.fields import Fields
from dsort.transforms.filter import Filter
from dsort.transforms.key_lists import DropKeys, KeepKeys
from dsort.transforms.programs import Exec, Http
from dsort.transforms.rekey import Rekey
from dsort.transforms.require import Require
from dsort.transforms.sample import Sample
from dsort.transforms.slice import Slice

if TYPE_CHECKING:
    from dsort.order.table import RecordTable

__all__ = ["STEPS", "Applied", "apply_steps", "register", "step_words"]

STEPS: Final[dict[str, type[Step]]] = {
    step.kind: step
    for step in (
        Filter,
        KeepKeys,
        DropKeys,
        Sample,
        Slice,
        Require,
        Fields,
        Rekey,
        Map,
        FlatMap,
        Exec,
        Http,
    )
}
"""The steps by kind, in the order in which messages list them."""


def register(step: type[Step]) -> None:
    """Add a step: specs that are read from now on may name it. Worker processes have to load its
    module, too. ``ValueError`` if there is another step of this kind already."""
    if STEPS.setdefault(step.kind, step) is not step:
        raise ValueError(f"there is a step {step.kind!r} already")


@dataclass(frozen=True, slots=True)
class Applied:
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
