"""A partition that lies in the shards of two tasks comes out whole, if each reads its own records
of it alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import OrderedRows, narrowed, spill

SPREAD = Moved("spill", workers=3, partitions=4, nodes=3, losses=1, losses_in="CreateTask")
WAYS = [
    Moved("spill", workers=3, partitions=2, nodes=2),
    Moved("spill", workers=2, partitions=3, buffer_bytes=300_000, nodes=2),
    replace(SPREAD, order_seed=1),
]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records of any length are read alone: how many were, of each partition of which some were."""
    found: list[int] = []

    def told(rows: OrderedRows, first: int, stop: int) -> OrderedRows:
        own = narrowed(rows, first, stop)
        if own is not rows:
            found.append(stop - first)
        return own

    monkeypatch.setattr(spill, "RECORD_BYTES_MIN", 1)
    monkeypatch.setattr(spill, "narrowed", told)
    return found


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("moved", WAYS)
@pytest.mark.parametrize(
    "fields",
    [{"output_shard_records": 13}, {"equalize": "drop", "output_shard_count": 7}],
    ids=["records", "equal"],
)
def test_the_bytes_are_those_of_a_job_that_reads_them_all(
    moved: Moved, fields: dict[str, object], tmp_path: Path, narrow: list[int]
) -> None:
    write_shards(tmp_path / "in", small_dataset("shared", shards=5, records=40))
    given = {"output_shard_records": None, "verify": "content", **fields}
    shuffle = {"kind": "shuffle", "seed": "7"}
    spec = {k: v for k, v in spec_of(algorithm=shuffle, **given).items() if v is not None}
    run_inline(spec, tmp_path, Moved())
    wanted = files_of(tmp_path / "out")
    run_inline(spec, tmp_path, moved, overwrite=True)
    assert files_of(tmp_path / "out") == wanted
    assert narrow
