"""The steps that there are, by kind, and how a job runs several of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

if TYPE_CHECKING:
    from dsort.data.members import MemberTable
    from dsort.data.records import FormedRecords
    from dsort.order.table import RecordTable

__all__ = ["STEPS", "apply_steps", "left_records", "register"]

STEPS: Final[dict[str, type[Step]]] = {
    step.kind: step
    for step in (
        Filter,
        KeepKeys,
        DropKeys,
        Sample,
        Require,
        Fields,
        Rekey,
        Map,
        FlatMap,
        Exec,
        Http,
    )
}
"""In the order in which messages list them."""


def register(step: type[Step]) -> None:
    """Add a step: specs that are read from now on may name it. Its module has to be there in worker
    processes, too. ``ValueError`` if there is one of its kind already."""
    if STEPS.setdefault(step.kind, step) is not step:
        raise ValueError(f"there is a step {step.kind!r} already")


def apply_steps(steps: Sequence[Step], records: RecordTable) -> tuple[RecordTable, dict[str, int]]:
    """(what all ``steps`` leave of the records of one shard, how many each kind left out)."""
    left_out: dict[str, int] = {}
    for step in steps:
        before = len(records)
        records = step.apply(records)
        if len(records) < before:
            left_out[step.kind] = left_out.get(step.kind, 0) + before - len(records)
    return records, left_out


def left_records(
    steps: Sequence[Step],
    shard: str,
    members: MemberTable,
    records: FormedRecords,
    read: Callable[[MemberTable, int], bytes],
) -> RecordTable:
    """What all ``steps`` leave of the ``records`` of ``shard``. ``read``: see ``RecordTable``."""
    from dsort.order.table import RecordTable

    return apply_steps(steps, RecordTable(shard, members, records, read))[0]
