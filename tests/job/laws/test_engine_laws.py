"""The laws of a whole job, for random shards and specs: it does what a slow program in plain Python
says, byte for byte, however payload moves, and leaves nothing behind where it refuses."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from dsort.errors import DsortError
from tests.support.datasets import (
    Member,
    Shard,
    files_of,
    read_shard,
    small_dataset,
    tree_of,
    write_shards,
)
from tests.support.inline_runtime import Moved, plan_inline, run_inline
from tests.support.job_cases import movements, shards, specs
from tests.support.plain_dsort import Outcome, expected
from tests.support.sampling import examples

SETTINGS = settings(
    max_examples=examples(150),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def fresh(tmp_path: Path, inputs: dict[str, Shard]) -> Path:
    """A data root of this example's own, with the shards in its bucket ``in``."""
    root = Path(tempfile.mkdtemp(dir=tmp_path))
    (root / "in").mkdir()
    write_shards(root / "in", inputs)
    return root


def check(wanted: Outcome, spec: dict[str, Any], root: Path, moved: Moved) -> None:
    """Run the job and compare."""
    before = tree_of(root / "in")
    if wanted.errors:
        with pytest.raises(DsortError) as refused:
            run_inline(spec, root, moved)
        assert refused.type in wanted.errors
        left = [name for name in tree_of(root / "out") if not name.endswith("/")]
        assert [Path(name).name for name in left] in ([], ["report.json"])
    else:
        report = run_inline(spec, root, moved)
        check_shards(wanted, files_of(root / "out"))
        counted = {each.kind: each.count for each in report.reactions}
        assert counted == {kind: n for kind, n in wanted.counts.items() if n and kind in TOLD(spec)}
        assert report.records == sum(map(len, wanted.shards.values()))
    assert tree_of(root / "in") == before


def TOLD(spec: dict[str, Any]) -> set[str]:
    """All that is counted; a repeated key is not even looked for if it is to be ignored."""
    return {
        "corrupt_shards",
        "duplicate_keys_dropped",
        "duplicate_keys_renamed",
        "duplicated_records",
        "ekm_missing_key",
        "hardlinks_resolved",
        "incomplete_shards",
        "non_adjacent_records",
        "stray_members_dropped",
        "stray_members_kept",
        "unusual_padding",
        *(["duplicate_keys"] if spec["Config"]["duplicate_keys"] != "ignore" else []),
    }


def of_the_data(warnings: Sequence[str]) -> list[str]:
    """Without those of what happened on the way."""
    return [text for text in warnings if not text.startswith("a node was lost")]


def check_shards(wanted: Outcome, found: dict[str, bytes]) -> None:
    assert sorted(found) == sorted(wanted.shards)
    for name, records in wanted.shards.items():
        members = [member for record in records for member in record.members]
        stored = read_shard(found[name])
        meanings = [(m.name.encode("utf-8", "surrogateescape"), m.payload, m.kind) for m in stored]
        assert meanings == [member[:3] for member in members]
        raws = [m.raw if w[3] is not None else None for m, w in zip(stored, members, strict=True)]
        assert raws == [member[3] for member in members]


@SETTINGS
@given(shards(), specs(), movements())
def test_a_job_does_what_a_slow_program_says(
    tmp_path: Path, inputs: dict[str, Shard], spec: dict[str, Any], moved: Moved
) -> None:
    check(expected(spec, inputs), spec, fresh(tmp_path, inputs), moved)


@settings(SETTINGS, max_examples=examples(40))
@given(shards(corrupt=False), specs(), movements(), movements())
def test_a_plan_writes_nothing_and_foretells_the_job(
    tmp_path: Path, inputs: dict[str, Shard], spec: dict[str, Any], planning: Moved, moved: Moved
) -> None:
    root = fresh(tmp_path, inputs)
    wanted = expected(spec, inputs)
    (root / "out").mkdir()
    before = tree_of(root)
    if wanted.errors:
        with pytest.raises(DsortError) as refused:
            plan_inline(spec, root, planning)
        assert refused.type in wanted.errors
        assert tree_of(root) == before
        return
    plan = plan_inline(spec, root, planning)
    assert tree_of(root) == before
    report = run_inline(spec, root, moved)
    sizes = {name: len(data) for name, data in files_of(root / "out").items()}
    assert {shard.name: shard.file_bytes for shard in plan.shards} == sizes
    assert [shard.records for shard in plan.shards] == [*map(len, wanted.shards.values())]
    assert [shard.payload_bytes for shard in plan.shards] == [
        sum(record.payload_bytes for record in records) for records in wanted.shards.values()
    ]
    assert (
        plan.records,
        plan.totals.members,
        plan.totals.payload_bytes,
        plan.totals.file_bytes,
    ) == (
        report.records,
        report.totals.members,
        report.totals.payload_bytes,
        report.totals.file_bytes,
    )
    assert plan.reactions == report.reactions
    assert of_the_data(plan.warnings) == of_the_data(report.warnings)


@pytest.mark.parametrize("reaction", ["drop", "rename"])
@pytest.mark.parametrize(
    "moved", [Moved("map", workers=5), Moved("spill", workers=3, partitions=4)]
)
def test_keys_that_many_shards_have_are_settled_by_any_finder(
    reaction: str, moved: Moved, tmp_path: Path
) -> None:
    inputs = {
        f"in-{n}.tar": Shard(tuple(Member(f"{(n * 7 + k) % 30}.txt", b"%d" % n) for k in range(20)))
        for n in range(6)
    }
    spec = {"input_bck": "in", "output_bck": "out", "output_format": "o-%d"}
    spec |= {"algorithm": {"kind": "md5"}, "output_shard_records": 9}
    spec |= {"Config": {"duplicate_keys": reaction}}
    check(expected(spec, inputs), spec, fresh(tmp_path, inputs), moved)


@pytest.mark.parametrize("way", ["map", "spill"])
def test_a_node_may_be_lost_at_any_moment_of_a_job_that_checks_content(
    way: str, tmp_path: Path
) -> None:
    inputs = small_dataset("lost", shards=3, records=3)
    spec = {"input_bck": "in", "output_bck": "out", "output_format": "o-%d", "verify": "content"}
    spec |= {"algorithm": {"kind": "md5"}, "output_shard_records": 2}
    root = fresh(tmp_path, inputs)
    wanted = expected(spec, inputs)
    for moment in range(12):
        moved = Moved(way, workers=2, partitions=3, nodes=2, losses=1, order_seed=moment)
        run_inline(spec, root, moved, overwrite=True)
        check_shards(wanted, files_of(root / "out"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "algorithm",
    [
        {"kind": "shuffle", "seed": 1},
        {"kind": "alphanumeric", "decreasing": True},
        {"kind": "content", "extension": ".cls", "content_key_type": "int"},
    ],
    ids=lambda algorithm: algorithm["kind"],
)
def test_thousands_of_records_come_out_the_same_however_they_move(
    algorithm: dict[str, Any], tmp_path: Path
) -> None:
    inputs = small_dataset("thousands", shards=3, records=800, payload_bytes_max=200)
    spec = {"input_bck": "in", "output_bck": "out", "output_format": "o-%d"}
    spec |= {"algorithm": algorithm, "output_shard_size": 80_000}
    root = fresh(tmp_path, inputs)
    results = []
    for moved in (
        Moved("map"),
        Moved("map", workers=3, partitions=7, order_seed=1),
        Moved("range", workers=2, partitions=4, buffer_bytes=100_000, order_seed=3),
        Moved("spill", buffer_bytes=1 << 30),
        Moved("spill", workers=2, partitions=3, buffer_bytes=100_000, order_seed=2),
        Moved("spill", workers=5, partitions=40, buffer_bytes=1 << 20),
    ):
        run_inline(spec, root, moved, overwrite=True)
        results.append(files_of(root / "out"))
    check_shards(expected(spec, inputs), results[0])
    assert all(result == results[0] for result in results)
