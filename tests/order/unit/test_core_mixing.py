"""How records were mixed: every record is counted once whatever the partitions, an even shuffle
passes, an unmixed order does not, and with too few records the verdict is open."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from tests.support.internals import (
    BINS_MAX,
    BINS_OPEN_MAX,
    CutRule,
    Int32s,
    Int64s,
    Mixing,
    MixingTally,
    OpenShard,
    OutputShard,
    Piece,
    chi_squared_p_value,
    count_part,
    counts_in_input_order,
    cut_partition,
    judge_mixing,
    merge_pieces,
    mixing_line,
    output_bin_shards,
)
from tests.support.record_tables import rows_to_cut, stored_only


def cut_and_count(
    shard: Int32s, edges: list[int], rule: CutRule, groups: Int32s | None = None
) -> tuple[MixingTally, list[OutputShard]]:
    """Cut rows of the given input shards, in partitions between ``edges``, and count them."""
    tally = MixingTally(int(shard.max(initial=0)) + 1)
    pieces: list[Piece] = []
    state = OpenShard()
    for partition, (start, stop) in enumerate(pairwise(edges)):
        if start == stop:
            continue
        ones = [1] * (stop - start)
        group = None if groups is None else groups[start:stop].tolist()
        rows = rows_to_cut(ones, ones, ones, groups=group)
        found, after = cut_partition(rule, partition, rows, state, stored_only)
        part = count_part(tally.grid(state), state, found, shard[start:stop])
        assert len(part.counts) <= BINS_OPEN_MAX
        tally.add(part)
        pieces += found
        state = after
    return tally, merge_pieces(pieces, rule=rule)


def counted_one_by_one(shard: Int32s, sizes: list[int], input_shards: int) -> Int64s:
    """The table that a loop over the rows gives."""
    size = output_bin_shards(len(sizes))
    bins_in, bins_out = min(input_shards, BINS_MAX), -(-len(sizes) // size)
    table = np.zeros((bins_in, bins_out), np.int64)
    output = np.repeat(np.arange(len(sizes)), sizes)
    for source, target in zip(shard.tolist(), output.tolist(), strict=True):
        table[source * bins_in // input_shards, target // size] += 1
    return table


@given(
    records=st.integers(1, 700),
    input_shards=st.integers(1, 150),
    a_shard=st.integers(1, 40),
    grouped=st.booleans(),
    cuts=st.lists(st.floats(0, 1), max_size=5),
    seed=st.integers(0, 1 << 30),
)
def test_every_record_is_counted_in_its_place_however_many_partitions_there_are(
    records: int, input_shards: int, a_shard: int, grouped: bool, cuts: list[float], seed: int
) -> None:
    stream = np.random.default_rng(seed)
    shard = stream.integers(0, input_shards, records).astype(np.int32)
    shard[-1] = input_shards - 1
    groups = np.sort(stream.integers(0, 4, records)).astype(np.int32) if grouped else None
    edges = [0, *sorted(int(cut * records) for cut in cuts), records]
    tally, outputs = cut_and_count(shard, edges, CutRule(records=a_shard), groups)
    table = tally.table(len(outputs))
    sizes = [each.records for each in outputs]
    assert table.tolist() == counted_one_by_one(shard, sizes, input_shards).tolist()
    assert max(table.shape) <= BINS_MAX


@pytest.mark.parametrize("output_shards", [1, 64, 65, 128, 129, 1000, 100_000])
def test_output_bins_are_as_small_as_can_be(output_shards: int) -> None:
    size = output_bin_shards(output_shards)
    bins = -(-output_shards // size)
    assert bins <= BINS_MAX
    assert size == 1 or bins > BINS_MAX // 2


# --- the verdict


def judged(shard: Int32s, input_shards: int, a_shard: int) -> Mixing:
    """Of rows that are cut into shards of ``a_shard`` records."""
    tally, outputs = cut_and_count(
        shard, [0, len(shard) // 3, len(shard)], CutRule(records=a_shard)
    )
    mixing = judge_mixing(
        tally.table(len(outputs)), input_shards=input_shards, output_shards=len(outputs)
    )
    assert mixing is not None
    return mixing


@given(
    seed=st.integers(0, 1 << 30),
    sizes=st.lists(st.integers(0, 60), min_size=2, max_size=90),
    a_shard=st.integers(1, 300),
)
def test_a_real_shuffle_passes_and_counts_every_record(
    seed: int, sizes: list[int], a_shard: int
) -> None:
    sizes[-1] += 1
    shard = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    np.random.default_rng(seed).shuffle(shard)
    mixing = judged(shard, len(sizes), a_shard)
    assert mixing.p_value > 1e-6
    assert sum(map(sum, mixing.counts)) == len(shard)
    assert (len(mixing.counts), len(mixing.counts[0])) == (mixing.input_bins, mixing.output_bins)
    assert (mixing.verdict == "too_few") == (mixing.degrees_of_freedom == 0)


def test_p_values_of_shuffles_are_spread_evenly() -> None:
    stream = np.random.default_rng(20260131)
    values = []
    for _ in range(200):
        shard = np.repeat(np.arange(20, dtype=np.int32), 50)
        stream.shuffle(shard)
        values.append(judged(shard, 20, 100).p_value)
    tenths = np.histogram(values, bins=10, range=(0, 1))[0]
    assert tenths.min() >= 8, values  # 20 are expected in each, give or take 4
    assert tenths.max() <= 36, values


def test_the_order_of_the_input_is_no_shuffle() -> None:
    shard = np.repeat(np.arange(64, dtype=np.int32), 100)
    mixing = judged(shard, 64, 100)
    counts = np.array(mixing.counts)
    before = counts_in_input_order(counts.sum(axis=1), counts.sum(axis=0))
    assert counts.tolist() == before.tolist()
    assert (mixing.verdict, mixing.p_value) == ("uneven", 0.0)
    assert mixing_line(asdict(mixing)) == "uneven (p < 0.000001; uneven: p < 0.001)"


@pytest.mark.parametrize(
    "counts",
    [
        [[0, 0], [0, 0]],
        [[7, 90]],
        [[7, 90], [0, 0]],
        [[900], [90]],
        [[5, 4], [4, 4]],
    ],
)
def test_too_little_to_tell_is_said(counts: list[list[int]]) -> None:
    table = np.array(counts)
    rows, columns = table.shape
    mixing = judge_mixing(table, input_shards=rows, output_shards=columns)
    assert mixing is not None
    assert (mixing.verdict, mixing.chi2, mixing.degrees_of_freedom) == ("too_few", 0.0, 0)
    assert mixing_line(asdict(mixing)) == "too few records or shards to tell"


def test_small_bins_are_merged_until_the_test_holds() -> None:
    # One input shard of a single record costs one row, not the test.
    counts = np.full((6, 6), 100)
    counts[3] = [0, 0, 1, 0, 0, 0]
    mixing = judge_mixing(counts, input_shards=6, output_shards=6)
    assert mixing is not None
    assert (mixing.degrees_of_freedom, mixing.verdict) == (4 * 5, "even")
    assert len(mixing.counts) == 6


@pytest.mark.parametrize(
    ("degrees", "at_5_percent", "at_a_thousandth"),
    [
        (1, 3.841, 10.828),
        (2, 5.991, 13.816),
        (10, 18.307, 29.588),
        (30, 43.773, 59.703),
        (40, 55.758, 73.402),
        (100, 124.342, 149.449),
        (1000, 1074.679, 1143.917),
    ],
)
def test_p_values_are_those_of_the_tables(
    degrees: int, at_5_percent: float, at_a_thousandth: float
) -> None:
    assert chi_squared_p_value(at_5_percent, degrees) == pytest.approx(0.05, rel=0.002)
    assert chi_squared_p_value(at_a_thousandth, degrees) == pytest.approx(0.001, rel=0.03)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=8),
    st.lists(st.integers(0, 50), min_size=1, max_size=8),
)
def test_a_copy_in_input_order_keeps_all_sums(sources: list[int], targets: list[int]) -> None:
    sources.append(max(sum(targets) - sum(sources), 0))
    targets.append(max(sum(sources) - sum(targets), 0))
    table = counts_in_input_order(np.array(sources), np.array(targets))
    assert table.sum(axis=1).tolist() == sources
    assert table.sum(axis=0).tolist() == targets
