"""The simulated petabyte: arithmetic stands in for workers without changing what is planned, and
nothing that the coordinator does grows faster than the shards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dsort.errors import InvariantError, ObjectNotFoundError
from tests.support.arithmetic_workers import ArithmeticRuntime, Scale, cut_evenly
from tests.support.internals import CutRule, ExtractTask, OpenShard, Piece, Stage, cut_partition
from tests.support.null_bucket import LIST_PAGE, NullBucket
from tests.support.simulation import Simulated, report_of, simulate

SMALL = Scale(
    shards=1000, records=100_000, record_bytes=1000, output_shards=300, nodes=2, workers_a_node=3
)
HUNDREDTH = Scale(
    shards=1000,
    records=10_000_000,
    record_bytes=1_000_000,
    output_shards=10_000,
    nodes=4,
    workers_a_node=4,
)
"""A hundredth of 10^5 shards, 10^9 records and 10^6 output shards."""


@pytest.fixture(scope="module")
def small() -> Simulated:
    return simulate(SMALL)


# --- workers by arithmetic


@pytest.mark.parametrize(
    "rule",
    [
        CutRule(size_bytes=2500),
        CutRule(size_bytes=3000),
        CutRule(size_bytes=1),
        CutRule(size_bytes=2500, shards_max=4),
        CutRule(records=7),
        CutRule(count=9, records_total=60),
    ],
)
def test_partitions_of_equal_records_are_cut_as_the_core_cuts_them(rule: CutRule) -> None:
    ours: list[Piece] = []
    theirs: list[Piece] = []
    state = their_state = OpenShard()
    for bucket, rows in enumerate((20, 1, 0, 39)):
        pieces, state = cut_evenly(rule, bucket, rows, SMALL, state)
        ours += pieces
        payload = np.full(rows, SMALL.record_bytes, np.int64)
        stored = np.full(rows, SMALL.stored_bytes, np.int64)
        pieces, their_state = cut_partition(
            rule,
            bucket,
            groups=None,
            payload_bytes=payload,
            stored_bytes=stored,
            members=np.full(rows, 2, np.int32),
            state=their_state,
        )
        theirs += pieces
    assert ours == theirs
    assert state == their_state


def test_records_are_spread_over_shards_and_partitions_without_loss() -> None:
    scale = Scale(7, 1000, 1000, 10, nodes=1, workers_a_node=2)
    assert sum(scale.records_of_shard(shard) for shard in range(7)) == 1000
    partitions = scale.records_of_partitions(13)
    assert (len(partitions), int(partitions.sum())) == (13, 1000)
    assert (scale.records_of_partitions(13) == partitions).all()


def test_messages_are_counted_by_kind() -> None:
    runtime = ArithmeticRuntime(SMALL)
    tasks = [ExtractTask(n, f"{n}.tar", 1, "e", Stage("index", 7, spill=True)) for n in range(3)]
    done = [answer.records for _, answer in runtime.run(tasks)]  # type: ignore[union-attr]
    assert done == [100, 100, 100]
    assert runtime.traffic.count == {"ExtractTask": 3, "ShardExtracted": 3}
    assert 0 < runtime.traffic.bytes_max["ExtractTask"] < 1000


# --- the bucket that holds nothing


def test_a_null_bucket_lists_what_is_not_there_and_counts_requests() -> None:
    bucket = NullBucket("s3://in", shards=2 * LIST_PAGE + 1, shard_bytes=10)
    found = list(bucket.list())
    assert len(found) == 2 * LIST_PAGE + 1
    assert bucket.stat(found[-1].name) == found[-1]
    assert bucket.stat_many([found[0].name, "none"]) == {found[0].name: found[0]}
    with pytest.raises(ObjectNotFoundError):
        bucket.stat("shard-9999999.tar")
    assert bucket.requests == {"list": 6, "head": 2}


def test_a_null_bucket_keeps_small_objects_and_forgets_payload() -> None:
    bucket = NullBucket("s3://out")
    assert bucket.write_new(".dsort/j/lease", b"a")
    assert not bucket.write_new(".dsort/j/lease", b"b")
    assert bucket.read(".dsort/j/lease") == b"a"
    with bucket.stage(".dsort/j/staged/0") as staged:
        staged.write_at(0, [b"12345"])
        with pytest.raises(InvariantError):
            staged.write_at(9, [b"gap"])
        assert staged.finish()
    bucket.discard(".dsort/j/")
    assert list(bucket.list(".dsort/")) == []
    assert bucket.bytes_written == 6


# --- the coordinator


def test_a_simulated_job_plans_every_record(small: Simulated) -> None:
    assert small.output_shards == pytest.approx(SMALL.output_shards, rel=0.02)
    assert list(small.phase_seconds) == ["resolve", "extract", "plan", "create", "commit"]
    assert small.messages["ExtractTask"]["count"] == SMALL.shards
    assert 0 < small.messages["OrderRunTask"]["count"] <= small.partitions // 2
    assert small.requests["complete"] >= small.output_shards


def test_no_message_grows_with_the_number_of_shards(small: Simulated) -> None:
    large = simulate(replace(SMALL, shards=4 * SMALL.shards))
    for kind, facts in large.messages.items():
        if kind == "share":
            continue  # once to each node: the inputs, and where they are
        # Numbers take a few bytes more as they get larger.
        assert facts["bytes_max"] <= small.messages[kind]["bytes_max"] + 64, kind


@pytest.mark.exhaustive
def test_a_hundredth_of_a_petabyte_takes_seconds_and_little_memory() -> None:
    result = simulate(HUNDREDTH)
    report = report_of(result)
    assert result.output_shards == pytest.approx(10_000, rel=0.01)
    assert report["seconds"] < 20  # measured: 1
    assert max(result.rss_bytes.values()) - result.rss_bytes["resolve"] < 200 << 20
    # Inputs and outputs once, and a little for the control plane.
    control = sum(count for kind, count in result.requests.items() if kind != "complete")
    assert control < HUNDREDTH.shards + HUNDREDTH.output_shards
