"""Order: do sort keys, made from the outputs' own records, ever go backwards?

The comparison is plain and slow on purpose (a microsecond a record): values that Python compares,
one after the other, and none of the words and buckets that a job sorts with.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsort.data.columns import Bools
from dsort.order.content import ContentValueError, content_key
from dsort.order.rule import SortRule
from dsort.verification.read import ShardRecords
from dsort.workers.source import ShardBytes

__all__ = ["OrderSeen", "OrderWatch", "SortValue", "natural_value", "sort_values"]

_RANKS = {"first": 0, "last": 2}
_TOKENS = re.compile(rb"([0-9]+)")


@dataclass(frozen=True, slots=True)
class SortValue:
    """What a record is sorted by: records of a lower rank first, then by value (None: by none)."""

    rank: int
    value: Any

    def comes_after(self, other: SortValue, *, decreasing: bool) -> bool:
        """Whether this has to come after ``other``, and not merely may."""
        if self.rank != other.rank:
            return self.rank > other.rank
        if self.value is None or self.value == other.value:
            return False
        after: bool = self.value > other.value
        return after is not decreasing


@dataclass(frozen=True, slots=True, eq=False)
class OrderSeen:
    """``ties``: records that equal the one before them; ``backwards``: those that should stand
    before it."""

    ties: Bools
    backwards: list[int]


class OrderWatch:
    """Watches the records of all outputs go by, shard by shard, each template by itself."""

    def __init__(self, rule: SortRule) -> None:
        self._rule = rule
        self._last: dict[int, SortValue | None] = {}

    @property
    def by_inputs(self) -> bool:
        """Whether only the inputs say what the order is: of ``none`` and ``shuffle``."""
        return self._rule.kind in ("none", "shuffle")

    def look(self, group: int, shard: ShardBytes, records: ShardRecords) -> OrderSeen:
        """Look at the next shard of a template."""
        ties = np.zeros(len(records), np.bool_)
        backwards: list[int] = []
        if self.by_inputs:
            return OrderSeen(ties, backwards)
        last = self._last.get(group)
        for record, value in enumerate(sort_values(self._rule, shard, records)):
            if last is not None and value is not None:
                if last.comes_after(value, decreasing=self._rule.decreasing):
                    backwards.append(record)
                elif last == value:
                    ties[record] = True
            last = value
        self._last[group] = last
        return OrderSeen(ties, backwards)


def sort_values(
    rule: SortRule, shard: ShardBytes, records: ShardRecords
) -> Sequence[SortValue | None]:
    """What each record of an output shard is sorted by; None where its content says nothing."""
    keys = records.keys.tolist()
    if rule.kind == "md5":
        return [SortValue(1, hashlib.md5(key, usedforsecurity=False).digest()) for key in keys]
    if rule.kind == "alphanumeric":
        return [SortValue(1, natural_value(key) if rule.natural else key) for key in keys]
    return [_content(rule, shard, records, record) for record in range(len(records))]


def natural_value(key: bytes) -> tuple[object, ...]:
    """A value that compares as ``key`` does where runs of digits count as numbers: a run stands
    where the digit ``0`` would; keys that differ in leading zeros only compare as they are."""
    parts: list[tuple[int, int, bytes]] = []
    for position, part in enumerate(_TOKENS.split(key)):
        if position % 2:
            number = part.lstrip(b"0")  # of equal length, numbers compare as their digits do
            parts.append((ord("0"), len(number), number))
        else:
            parts.extend((byte, 0, b"") for byte in part)
    return tuple(parts), key


def _content(
    rule: SortRule, shard: ShardBytes, records: ShardRecords, record: int
) -> SortValue | None:
    extension = rule.content_extension.encode("utf-8", "surrogateescape")
    members = records.members
    value: int | float | bytes | None = None
    for row in records.rows_of(record):
        if members.names[row][int(records.key_bytes[row]) :] == extension:
            content = shard.at(int(members.payload_start[row]), int(members.payload_bytes[row]))
            try:
                value = content_key(content, rule)
            except KeyError:
                value = None
            except ContentValueError:
                return None
    if value is not None:
        return SortValue(1, value)
    rank = _RANKS.get(rule.content_missing)
    return None if rank is None else SortValue(rank, None)
