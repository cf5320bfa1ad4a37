"""Shards with equal numbers of records: what is left out is what the spec says, however payload
moves, and ``dsort verify`` knows it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsort.cli.summary import reader_lines
from dsort.errors import InputError
from tests.support.datasets import small_dataset
from tests.support.engine import count_of, spec_of
from tests.support.inline_runtime import Moved, plan_inline
from tests.support.job_cases import movements
from tests.support.refusals import raises
from tests.support.results import FinishedJob, finished_job, kinds
from tests.support.sampling import examples

SETTINGS = settings(
    max_examples=examples(6),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
ORDERS: list[dict[str, Any]] = [
    {"kind": "shuffle", "seed": 1},
    {"kind": "none"},
    {"kind": "alphanumeric", "decreasing": True},
    {"kind": "content", "extension": ".cls", "content_key_type": "int"},
]


def keys_of(job: FinishedJob) -> list[list[str]]:
    """The keys in each shard."""
    return [[record[0].name.split(".")[0] for record in job.records(name)] for name in job.names]


def run(
    tmp_path: Path, count: Any, moved: Moved | None = None, *, records: int = 12, **spec: Any
) -> FinishedJob:
    root = Path(tempfile.mkdtemp(dir=tmp_path))
    (root / "in").mkdir()
    data = small_dataset(5, records=records, payload_bytes_max=300)
    return finished_job(root, data, {"output_shard_count": count, **spec}, moved)


@SETTINGS
@given(st.integers(1, 40), st.sampled_from(ORDERS), movements())
def test_what_is_left_over_goes_and_nothing_else(
    tmp_path: Path, count: int, order: dict[str, Any], moved: Moved
) -> None:
    plain = [key for shard in keys_of(run(tmp_path, count, algorithm=order)) for key in shard]
    if count > len(plain):
        with raises(InputError):
            run(tmp_path, count, moved, algorithm=order, equalize="drop")
        return
    job = run(tmp_path, count, moved, algorithm=order, equalize="drop")
    each = len(plain) // count
    assert keys_of(job) == [plain[at * each : (at + 1) * each] for at in range(count)]
    left = plain[each * count :]
    assert count_of(job.report, "left_out_to_equalize")[0] == len(left)
    assert job.report.records == each * count
    assert named(job, "left_out_to_equalize") == left
    assert job.verify().ok


def named(job: FinishedJob, kind: str) -> list[str]:
    """The keys that ``reactions.jsonl`` has of a kind."""
    path = job.manifest["reactions_file"]
    lines = (job.outputs / path).read_text().splitlines() if path else []
    return [row["name"] for row in map(json.loads, lines) if row["kind"] == kind]


def test_names_of_other_reactions_stay(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    data = small_dataset(5, records=4)
    job = finished_job(
        tmp_path,
        data | {"in-9.tar": data["in-0.tar"]},
        {"output_shard_count": 5, "equalize": "drop", "duplicate_keys": "drop"},
    )
    assert len(named(job, "duplicate_keys_dropped")) == 4
    assert len(named(job, "left_out_to_equalize")) == 2
    assert job.verify().ok


def test_verify_finds_other_records_in_equal_shards(tmp_path: Path) -> None:
    for order in ORDERS:
        job = run(tmp_path, 5, algorithm=order, equalize="drop")
        first, last = job.names[0], job.names[-1]
        records = job.records(last)
        job.rewrite(last, [*records[:-1], job.records(first)[1]])
        assert {*kinds(job.verify())} & {"doubled_record", "missing_record"}, order
        job.rewrite(last, records[:-1])
        assert "cut" in kinds(job.verify()), order


def test_each_of_several_outputs_is_equal_by_itself(tmp_path: Path) -> None:
    outputs = [{"name": "a", "fraction": 0.6}, {"name": "b", "fraction": 0.4}]
    job = run(
        tmp_path,
        4,
        Moved("spill", partitions=3),
        output_format="{split}-%d",
        outputs=outputs,
        equalize="drop",
        algorithm=ORDERS[0],
    )
    sizes = [len(shard) for shard in keys_of(job)]
    assert len({*sizes[:4]}) == len({*sizes[4:]}) == 1
    assert job.verify().ok


def test_a_count_may_be_a_multiple(tmp_path: Path) -> None:
    def shards(**spec: Any) -> list[int]:
        job = run(tmp_path, {"multiple_of": 4}, algorithm=ORDERS[0], **spec)
        assert job.verify().ok
        return [len(shard) for shard in keys_of(job)]

    assert shards() == [9] * 4
    assert shards(output_shard_records=5) == [5] * 4 + [4] * 4
    assert shards(output_shard_records=5, equalize="drop") == [4] * 8
    by_size = shards(output_shard_size=1000)
    assert len(by_size) % 4 == 0
    assert max(by_size) - min(by_size) <= 1
    assert len(shards(output_shard_size=1000, output_shard_size_counts="file")) > len(by_size)


def test_plan_and_manifest_say_how_many_can_read_the_result(tmp_path: Path) -> None:
    job = run(tmp_path, {"multiple_of": 6}, output_shard_records=4)
    wanted = {"output": "", "shards": 12, "records_min": 3, "records_max": 3}
    assert job.manifest["readers"] == [{**wanted, "workers": [1, 2, 3, 4, 6, 12]}]
    unequal = {"output_bck": "other", "output_shard_count": 5}
    plan = plan_inline(spec_of(**unequal, output_shard_records=None), job.root)
    (readers,) = plan.plan.readers
    assert (readers.records_min, readers.records_max, readers.workers) == (7, 8, (1, 5))
    (line,) = reader_lines(plan.plan.readers)
    assert line == ("readers", "world size x workers of 1, 5; 7 to 8 records a shard")
