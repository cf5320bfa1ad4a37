"""Jobs that read records where they are, as they write them: the same bytes, or a clear refusal."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dsort.errors import SpecError
from tests.support.datasets import Member, Shard, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.refusals import raises

pytestmark = pytest.mark.disk

KIB = 1 << 10


@pytest.fixture
def large_records(tmp_path: Path) -> Path:
    """Three shards of records of 100 KiB and 2 MiB."""
    rng = random.Random(3)
    shards = {}
    for number in range(3):
        members = []
        for key in range(6):
            size = 2048 * KIB if key == 3 else rng.randint(60 * KIB, 140 * KIB)
            members += [Member(f"{number}-{key}.jpg", rng.randbytes(size))]
            members += [Member(f"{number}-{key}.cls", b"%d" % (key % 3))]
        shards[f"in-{number}.tar"] = Shard(tuple(members))
    write_shards(tmp_path / "in", shards)
    return tmp_path


def spec_for(**fields: Any) -> dict[str, Any]:
    return spec_of(algorithm={"kind": "shuffle", "seed": 4}, output_shard_records=5, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"verify": "content"},
        {"lineage": "jsonl"},
        {"output_extension": ".zip"},
        {
            "output_format": "{split}-{n}",
            "outputs": [
                {"name": "a", "fraction": 0.5, "output_extension": ".zip"},
                {"name": "b", "fraction": 0.5},
            ],
        },
    ],
)
def test_a_job_that_looks_at_all_payload_first_is_refused(
    fields: dict[str, Any], large_records: Path
) -> None:
    with raises(SpecError, hint="--move spill"):
        run_local(large_records, spec_for(**fields), move="range")


@pytest.mark.parametrize(
    ("payload_bytes", "is_quick", "move"),
    [(200 * KIB, True, "range"), (200 * KIB, False, "spill"), (31 * KIB, True, "spill")],
)
def test_what_does_not_fit_goes_by_range_if_records_are_large_and_the_disk_seeks(
    payload_bytes: int, is_quick: bool, move: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = (48 << 20) // (payload_bytes + 600)
    members = tuple(Member(f"{key:06}.jpg", bytes(payload_bytes)) for key in range(count))
    write_shards(tmp_path / "in", {"in-0.tar": Shard(members)})
    asked: list[int] = []

    def answers(opened: object, record_bytes: int) -> bool:
        asked.append(record_bytes)
        return is_quick

    monkeypatch.setattr("dsort.job.setup.probes._answers_quickly", answers)
    report = run_local(tmp_path, spec_for(), memory_max_bytes=92 << 20, workers=1)
    assert report.run.move == move
    assert asked == ([payload_bytes + 512] if payload_bytes > 32 * KIB else [])
