"""The lineage of one output shard waits in a bucket, where others may write."""

from __future__ import annotations

import numpy as np
import pytest

from dsort.errors import StorageError
from tests.support.internals import BytesColumn, columns_bytes, lineage_of


def stored(**changed: object) -> bytes:
    columns: dict[str, object] = {
        "shard": np.array([0, 1], np.int32),
        "stored_bytes": np.array([512, 1024], np.int64),
        "content_hash": np.array([1, 2], np.uint64),
        "keys": BytesColumn.of([b"a", b"bc"]),
        "origin_start": np.array([0, -1], np.int64),
        "origin_bytes": np.array([512, 1024], np.int64),
    }
    left = {name: each for name, each in (columns | changed).items() if each is not None}
    return columns_bytes(left)  # type: ignore[arg-type]


def test_rows_are_read_as_they_were_stored() -> None:
    rows = lineage_of(stored(), "it", inputs=2)
    assert len(rows) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"shard": np.array([0, 2], np.int32)},
        {"shard": np.array([-1, 0], np.int32)},
        {"shard": np.array([0, 1], np.int64)},
        {"stored_bytes": np.array([512], np.int64)},
        {"content_hash": None},
        {"keys": None},
        {"keys": None, "keys.before": np.zeros(9, np.uint8), "keys.numbers": np.zeros(2, np.int64)},
    ],
)
def test_rows_that_dsort_does_not_store_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(StorageError):
        lineage_of(stored(**changed), "it", inputs=2)
