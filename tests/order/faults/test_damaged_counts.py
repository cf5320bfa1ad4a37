"""What an attempt counted and left for the next is read back, and refused where it is damaged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dsort.errors import StorageError
from dsort.transforms.rekey import Rekey
from dsort.transforms.steps import Sample
from tests.support.internals import (
    ClassCounts,
    Positions,
    check_class_table,
    class_table_bytes,
    classes_of_all,
)
from tests.support.refusals import raises

COUNTED = classes_of_all([[((0, b"a"), 2), ((0, b"b"), 1)], [], [((0, b"a"), 3)]])


def test_counts_of_classes_are_read_back() -> None:
    check_class_table(class_table_bytes(*COUNTED), "classes.col", shards=3)
    assert COUNTED[1].first.tolist() == [0, 0, 2]
    assert COUNTED[1].total.tolist() == [5, 1, 5]


@pytest.mark.parametrize(
    "damage",
    [
        {"count": np.array([2, 0, 3])},
        {"first": np.array([0, -1, 2])},
        {"first": np.array([0, 0, 3])},
        {"total": np.array([5, 1, 1 << 53])},
        {"count": np.array([2, 1, 3], np.int32)},
        {"group": np.zeros(3, np.int64)},
    ],
    ids=str,
)
def test_damaged_counts_of_classes_are_refused(damage: dict[str, np.ndarray]) -> None:  # type: ignore[type-arg]
    offsets, classes = COUNTED
    changed: ClassCounts = replace(classes, **damage)  # type: ignore[arg-type]
    with raises(StorageError, "classes.col"):
        check_class_table(class_table_bytes(offsets, changed), "classes.col", shards=3)
    with raises(StorageError, "classes.col"):
        check_class_table(class_table_bytes(*COUNTED), "classes.col", shards=2)


@pytest.mark.parametrize(
    "value",
    [b"[[1,2]]", b"[[1,1,1]]", b'[["1",2],[1,2]]', b"[[-1,2],[1,2]]", b"{}", b"[[1", b"[1,2]"],
)
def test_damaged_numbers_of_records_are_refused(value: bytes) -> None:
    data = b'{"value": ' + value + b', "files": {}}'
    steps = [Rekey.of("%d"), Sample.of({"fraction": 0.5}), Rekey.of("%d")]
    job: Any = SimpleNamespace(
        job_id="some-job",
        pipeline=SimpleNamespace(steps=steps),
        inputs=[None, None],
        attempt=SimpleNamespace(retained=lambda name: data),
    )
    with raises(StorageError, "positions.json"):
        Positions(job)
