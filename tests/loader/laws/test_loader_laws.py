"""The laws of a loader's order: every record once an epoch, for any readers, and however often the
number of ranks changes on the way."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.internals import EpochOrder, OrderKind, Position, Remainder, Steps

COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)
FORWARD = st.sampled_from(["sequential", "shards", "window(2)", "window(3)", "window(40)"])
KINDS = FORWARD | st.just("records")
SEEDS = st.integers(0, 2**31)


def order_of(counts: list[int], seed: int, epoch: int, kind: str) -> EpochOrder:
    return EpochOrder(np.array(counts, np.int64), "digest", seed, epoch, OrderKind.parse(kind))


def located(order: EpochOrder, places: np.ndarray) -> list[tuple[int, int]]:
    shards, rows = order.locate(places)
    return list(zip(shards.tolist(), rows.tolist(), strict=True))


@given(COUNTS, KINDS, SEEDS, st.integers(0, 9))
def test_an_epoch_has_every_record_once(
    counts: list[int], kind: str, seed: int, epoch: int
) -> None:
    order = order_of(counts, seed, epoch, kind)
    found = located(order, np.arange(order.records))
    assert sorted(found) == [(s, row) for s, n in enumerate(counts) for row in range(n)]


@given(COUNTS, FORWARD, SEEDS, st.integers(0, 9))
def test_each_shard_is_read_forward(counts: list[int], kind: str, seed: int, epoch: int) -> None:
    order = order_of(counts, seed, epoch, kind)
    found = located(order, np.arange(order.records))
    for shard in range(len(counts)):
        rows = [row for own, row in found if own == shard]
        assert rows == sorted(rows)


@given(COUNTS, KINDS, SEEDS, st.randoms(use_true_random=False))
def test_any_places_are_found_alone_as_they_are_together(
    counts: list[int], kind: str, seed: int, rng: random.Random
) -> None:
    whole = order_of(counts, seed, 3, kind)
    every = located(whole, np.arange(whole.records))
    some = rng.sample(range(whole.records), min(whole.records, 5))
    again = order_of(counts, seed, 3, kind)
    assert located(again, np.array(some, np.int64)) == [every[place] for place in some]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    for kind in ("shards", "window(4)", "records"):
        orders = {
            tuple(located(order_of([5] * 16, seed, epoch, kind), np.arange(80)))
            for seed in range(3)
            for epoch in range(3)
        }
        assert len(orders) == 9, kind
    one = located(order_of([5] * 16, 1, 0, "sequential"), np.arange(80))
    assert one == sorted(one)


@given(
    st.integers(1, 300),
    st.integers(0, 299),
    st.integers(1, 7),
    st.integers(1, 9),
    st.sampled_from(["drop_last", "pad", "wrap"]),
)
def test_all_ranks_have_as_many_steps_and_between_them_each_place_once(
    records: int, seen: int, world_size: int, batch_size: int, remainder: Remainder
) -> None:
    begin = Position(2, seen % records)
    ranks = [
        Steps(records, begin, rank, world_size, batch_size, remainder) for rank in range(world_size)
    ]
    (count,) = {steps.count for steps in ranks}
    places = np.sort(np.concatenate([steps.places(0, count) for steps in ranks]))
    stop = begin.records_seen + count * world_size * batch_size
    assert places.tolist() == list(range(begin.records_seen, stop))
    if remainder == "drop_last":
        assert records - world_size * batch_size < stop <= records or not count
    else:
        assert records <= stop < records + world_size * batch_size
    after = ranks[0].after(count)
    wrapped = Position(2 + stop // records, stop % records)
    assert after == (wrapped if remainder == "wrap" else Position(3, 0))


@given(st.integers(50, 400), SEEDS)
def test_a_stream_that_changes_its_ranks_reads_each_record_once_an_epoch(
    records: int, seed: int
) -> None:
    rng = random.Random(seed)
    at, read = Position(0, 0), []
    while at.epoch < 2:
        world_size, batch_size = rng.randrange(1, 6), rng.randrange(1, 8)
        ranks = [
            Steps(records, at, rank, world_size, batch_size, "wrap") for rank in range(world_size)
        ]
        steps = rng.randrange(1, ranks[0].count + 1)
        for step in range(steps):
            for own in ranks:
                read += (own.places(step, step + 1) + at.epoch * records).tolist()
        at = ranks[0].after(steps)
    assert read == list(range(len(read)))
