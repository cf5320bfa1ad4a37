"""An operator of extraction that is not in the package: it meets the records of every shard, or the
job fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsort.errors import InvariantError
from tests.support.datasets import Member, Shard, files_of, write_shards
from tests.support.engine import count_of, keys_in, run_local, spec_of
from tests.support.internals import Batch, Operator, all_operators
from tests.support.tables import mixed_table, read_table, write_table

pytestmark = pytest.mark.usefixtures("workers_here")

DROPPED = "left_out_by_steps"


class LeaveOutOddHashes(Operator):
    def apply(self, batch: Batch) -> None:
        kept = np.asarray(batch.records.key_hash % 2 == 0)
        batch.keep(kept)
        batch.log.add(DROPPED, int((~kept).sum()), [])


@pytest.fixture
def odd_hashes_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = all_operators.needed
    monkeypatch.setattr(all_operators, "needed", lambda job: (LeaveOutOddHashes, *needed(job)))


@pytest.mark.whole
@pytest.mark.usefixtures("odd_hashes_left_out")
@pytest.mark.parametrize("shards", [12, 96])
def test_it_meets_the_records_of_few_and_of_many_small_shards(shards: int, tmp_path: Path) -> None:
    names = [f"{number:03}" for number in range(shards)]
    write_shards(
        tmp_path / "in",
        {f"in-{at}.tar": Shard((Member(f"{at}.jpg", at.encode()),)) for at in names},
    )
    report = run_local(tmp_path, spec_of(), workers=1)
    left = [key for data in files_of(tmp_path / "out").values() for key in keys_in(data)]
    assert 0 < len(left) < shards
    assert count_of(report, DROPPED)[0] == shards - len(left)


def test_it_meets_records_of_many_shards_in_one_batch_if_it_allows_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd_hashes_left_out: None
) -> None:
    names = [f"{number:03}" for number in range(96)]
    members = [[Member(f"{at}-{each}.jpg", at.encode()) for each in "abc"] for at in names]
    shards = zip(names, members, strict=True)
    write_shards(tmp_path / "in", {f"in-{at}.tar": Shard((*own,)) for at, own in shards})
    alone = run_local(tmp_path, spec_of(), workers=1)
    wanted = files_of(tmp_path / "out")
    monkeypatch.setattr(LeaveOutOddHashes, "in_runs", True)
    together = run_local(tmp_path, spec_of(output_bck="runs"), workers=1)
    assert files_of(tmp_path / "runs") == wanted
    assert count_of(together, DROPPED)[0] == count_of(alone, DROPPED)[0]
    assert together.order.flow == alone.order.flow


def test_it_meets_rows_of_tables_if_it_allows_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd_hashes_left_out: None
) -> None:
    monkeypatch.setattr(LeaveOutOddHashes, "in_rows", True)
    (tmp_path / "in").mkdir()
    write_table(tmp_path / "in" / "t-0.parquet", mixed_table(40, seed=1))
    fields: dict[str, Any] = {"input_extension": ".parquet", "key_field": "id"}
    report = run_local(tmp_path, spec_of(**fields))
    left = sum(read_table(path).num_rows for path in (tmp_path / "out").glob("*.parquet"))
    assert 0 < left < 40
    assert count_of(report, DROPPED)[0] == 40 - left


@pytest.mark.usefixtures("odd_hashes_left_out")
def test_a_job_of_rows_fails_if_an_operator_knows_none(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_table(tmp_path / "in" / "t-0.parquet", mixed_table(40, seed=1))
    fields: dict[str, Any] = {"input_extension": ".parquet", "key_field": "id"}
    with pytest.raises(InvariantError, match="LeaveOutOddHashes"):
        run_local(tmp_path, spec_of(**fields))
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("*.parquet"))


@pytest.mark.usefixtures("odd_hashes_left_out")
def test_records_that_it_leaves_out_are_counted_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.DROPPED", "left_out_by_odd_hash")
    names = [f"{number:03}" for number in range(12)]
    members = tuple(Member(f"{at}.jpg", at.encode()) for at in names)
    write_shards(tmp_path / "in", {"in-0.tar": Shard(members)})
    report = run_local(tmp_path, spec_of())
    assert count_of(report, "left_out_by_odd_hash")[0] > 0
    assert report.warnings == ()
