"""Shards with equal numbers of records: what ``equalize`` asks to leave out, or to repeat.

How many that are follows from how many records the inputs have for each output, and from how many
shards it has. Which ones is known where the inputs alone say what the order is; else by their
number, and that no other record is missing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dsort.data.columns import Int64s, UInt64s
from dsort.order.base import Algorithm
from dsort.order.sort import stable_argsort
from dsort.verification.cuts import ShardFacts
from dsort.verification.inputs import InputTable
from dsort.verification.outputs import OutputTable


def _groups(inputs: InputTable, outputs: OutputTable) -> list[tuple[int, Int64s, list[ShardFacts]]]:
    """(output, rows of the inputs that belong there, its shards)."""
    found = []
    for group in sorted({shard.place.group for shard in outputs.facts}):
        is_own = inputs.expected
        if inputs.group is not None:
            is_own = is_own & (inputs.group == group)
        own = [shard for shard in outputs.facts if shard.place.group == group]
        found.append((group, np.flatnonzero(is_own), own))
    return found


def without_last(
    inputs: InputTable, outputs: OutputTable, algorithm: Algorithm, words: UInt64s | None
) -> InputTable:
    """``inputs`` less the records that are left over behind the last shard, where the inputs say
    which these are."""
    if words is None and not algorithm.decided_by_inputs:
        return inputs
    expected = inputs.expected.copy()
    for _, rows, shards in _groups(inputs, outputs):
        left = len(rows) % len(shards)
        if words is not None:
            rows = rows[stable_argsort(words[rows])]
        expected[rows[len(rows) - left :]] = False
    return replace(inputs, expected=expected)


def without_unmatched(inputs: InputTable, outputs: OutputTable, source: Int64s) -> InputTable:
    """``inputs`` less as many records of each output as may be left out, of those that no output
    record is (``source``)."""
    used = np.zeros(len(inputs), np.bool_)
    used[source[source >= 0]] = True
    expected = inputs.expected.copy()
    for _, rows, shards in _groups(inputs, outputs):
        there = sum(shard.records for shard in shards)
        unused = rows[~used[rows]]
        if len(rows) - there == len(rows) % len(shards):
            expected[unused[: len(rows) % len(shards)]] = False
    return replace(inputs, expected=expected)
