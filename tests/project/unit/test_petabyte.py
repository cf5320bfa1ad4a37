"""The simulated petabyte: arithmetic stands in for workers without changing what is planned, and
nothing that the coordinator does grows faster than the shards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.arithmetic_workers import Scale, cut_evenly
from tests.support.internals import CutRule, OpenShard, Piece, cut_partition
from tests.support.record_tables import rows_to_cut, stored_only
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
        payload, stored = [SMALL.record_bytes] * rows, [SMALL.stored_bytes] * rows
        table = rows_to_cut(payload, stored, [2] * rows)
        pieces, their_state = cut_partition(rule, bucket, table, their_state, stored_only)
        theirs += pieces
    assert ours == theirs
    assert state == their_state


# --- the bucket that holds nothing


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
