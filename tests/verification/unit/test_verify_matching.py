"""Matching, by itself: what is left over of inputs and outputs; and that verification asks nothing
that a job has planned."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import ROOT
from tests.support.internals import (
    InputTable,
    Int64s,
    RecordRows,
    UInt64s,
    match_records,
    sort_out,
)


def column(values: Sequence[int]) -> UInt64s:
    return np.array(values, np.uint64)


def digests(values: Sequence[int]) -> UInt64s:
    """A digest for each value, the same for the same value."""
    return np.array([(value * 7 + 1, value) for value in values], np.uint64).reshape(-1, 2)


def table(keys: Sequence[int], contents: Sequence[int], dropped: Sequence[int] = ()) -> InputTable:
    expected = np.ones(len(keys), np.bool_)
    expected[list(dropped)] = False
    return InputTable(
        shards=("in.tar",),
        rows=RecordRows(np.array([0, len(keys)])),
        key_hash=column(keys),
        digests=digests(contents),
        members=np.ones(len(keys), np.int32),
        group=np.zeros(len(keys), np.int32),
        expected=expected,
    )


def matches(inputs: InputTable, found: UInt64s, order: Sequence[int] = ()) -> Int64s:
    rows = np.array(order or range(len(inputs)), np.int64)
    return match_records(inputs, found, rows, np.zeros(len(found), np.int32))


@pytest.mark.parametrize(
    ("keys", "contents", "expected"),
    [
        ([1, 2], [1, 2], {"missing": [2]}),
        ([1, 2, 3, 3], [1, 2, 3, 3], {"doubled": [3]}),
        ([1, 2, 30], [1, 2, 30], {"missing": [2], "foreign": [2]}),
        ([1, 2, 3], [1, 2, 9], {"changed": [2], "changed_from": [2]}),
        ([1, 2, 3, 3], [1, 2, 8, 9], {"split": [2, 3]}),
        ([1, 2, 3, 3], [1, 2, 3, 9], {"foreign": [3]}),
        ([1, 2, 3, 4], [1, 2, 3, 4], {"dropped": [3]}),
        ([], [], {"missing": [0, 1, 2]}),
    ],
)
def test_what_is_left_over_is_distinguished(
    keys: list[int], contents: list[int], expected: dict[str, list[int]]
) -> None:
    inputs = table([1, 2, 3, 4], [1, 2, 3, 4], dropped=[3])
    source = matches(inputs, digests(contents))
    left = sort_out(inputs, column(keys), digests(contents), source)
    found = {name: getattr(left, name).tolist() for name in left.__slots__}
    assert {name: rows for name, rows in found.items() if rows} == expected


def test_changed_records_of_one_key_have_a_partner_each() -> None:
    inputs = table([5, 5, 6, 5], [1, 2, 3, 4])
    source = matches(inputs, digests([11, 3, 12]))
    left = sort_out(inputs, column([5, 6, 5]), digests([11, 3, 12]), source)
    assert (left.changed.tolist(), left.changed_from.tolist()) == ([0, 2], [0, 1])
    assert left.missing.tolist() == [3]


def test_verification_uses_nothing_that_a_job_has_planned() -> None:
    """It would believe what it is there to doubt."""
    planning = {
        "dsort.job.commit",
        "dsort.job.coordinator",
        "dsort.order.sort",
        "dsort.order.cut",
        "dsort.job.plan",
        "dsort.workers.creator",
        "dsort.workers.extractor",
        "dsort.scratch.index",
        "dsort.workers.orderer",
        "dsort.workers.sealer",
    }
    used = set()
    for path in [
        ROOT / "dsort/verification/verify.py",
        *(ROOT / "dsort/verification").glob("*.py"),
    ]:
        for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                used.add(node.module)
    assert "dsort.verification.compare" in used
    assert not used & planning
