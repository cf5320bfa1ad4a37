"""A job whose records are placed by their numbers, and whose coordinator dies while it writes: what
the first attempt counted is kept, and refused where it is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from dsort.errors import StorageError
from tests.support.coordinators import Coordinators
from tests.support.datasets import small_dataset
from tests.support.engine import spec_of
from tests.support.internals import (
    ClassCounts,
    check_class_table,
    class_table_bytes,
    classes_of_all,
)
from tests.support.surviving import assert_resumed_alike


@pytest.mark.exhaustive
def test_a_resumed_job_places_records_as_the_first_attempt_counted_them(
    begun: Coordinators, tmp_path: Path
) -> None:
    spec = spec_of(algorithm={"kind": "shuffle", "seed": 3, "interleave": {"by": "cls"}})
    inputs = {"in": small_dataset("in", shards=4, records=20)}
    made = assert_resumed_alike(begun, tmp_path, spec, inputs, kept="classes.col")
    assert made > 10


COUNTED = classes_of_all([[((0, b"a"), 2), ((0, b"b"), 1)], [], [((0, b"a"), 3)]])


def test_what_was_counted_is_read_back() -> None:
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
def test_counts_that_somebody_damaged_are_refused(damage: dict[str, np.ndarray]) -> None:  # type: ignore[type-arg]
    offsets, classes = COUNTED
    changed: ClassCounts = replace(classes, **damage)  # type: ignore[arg-type]
    with pytest.raises(StorageError, match=r"classes\.col is damaged"):
        check_class_table(class_table_bytes(offsets, changed), "classes.col", shards=3)
    with pytest.raises(StorageError, match="other shards"):
        check_class_table(class_table_bytes(*COUNTED), "classes.col", shards=2)
