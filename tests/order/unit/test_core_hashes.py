"""The permutation of a shuffle is defined, not drawn: these values must never change, or the same
spec, seed and inputs would give other shards than they gave before."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.internals import (
    SortKeys,
    any_twice,
    hash_keys,
    mix,
    order_rows,
    shard_seed,
    shuffle_words,
)


def test_a_key_is_hashed_with_xxh3() -> None:
    # The first is in XXH3's own test vectors.
    assert [*map(hex, hash_keys([b"", b"a", b"d/000001"], 3).tolist())] == [
        "0x2d06800538d394c2",
        "0xe6c632b61e964e1f",
        "0xe9e337756c7be15a",
    ]


def test_words_are_mixed_as_splitmix64_does() -> None:
    # The first is the first number of the generator that is seeded with 0.
    mixed = mix(np.array([0, 1, 2**64 - 1], np.uint64)).tolist()
    assert mixed == [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1, 0xE4D971771B652C20]


def test_seed_and_shard_decide_the_shards_number() -> None:
    assert shard_seed("42", "in-0.tar") == 0xDFC88DCA02AA49
    assert shard_seed("", "a/\udcff.tar") == 0x7441BF3D98DBBB3D


# --- a shuffle is as good as a uniform permutation -----------------------------------------------

SHARDS = RECORDS = 200


def shuffled(keys_of_shard: list[list[bytes]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The input shard of each record, in output order; a shard's records are of one class."""
    words = [
        shuffle_words(hash_keys(keys, len(keys)), shard_seed("7", f"train-{shard:05d}.tar"))
        for shard, keys in enumerate(keys_of_shard)
    ]
    order = order_rows(SortKeys(SHARDS * RECORDS, words=np.concatenate(words)))
    assert sorted(order.tolist()) == [*range(SHARDS * RECORDS)]
    return order


@pytest.mark.parametrize("numbering", ["through all shards", "anew in every shard"])
def test_classes_are_spread_as_by_a_uniform_permutation(numbering: str) -> None:
    anew = numbering == "anew in every shard"
    order = shuffled(
        [
            [b"%07d" % (number + (0 if anew else shard * RECORDS)) for number in range(RECORDS)]
            for shard in range(SHARDS)
        ]
    )
    total = SHARDS * RECORDS
    by_output = (order // RECORDS).reshape(SHARDS, RECORDS)
    # Distinct classes among 200 draws without replacement from 200 classes of 200 records: 126.8
    # on average, and the mean over 200 shards strays from it by less than 0.35 in one of 100 runs.
    distinct = np.array([len(np.unique(shard)) for shard in by_output])
    assert abs(distinct.mean() - 126.8) < 0.6
    assert distinct.min() > 105
    # Mean displacement of a uniform permutation is a third of its length.
    displacement = np.abs(order - np.arange(total)).mean() / total
    assert abs(displacement - 1 / 3) < 0.004


def test_where_a_record_comes_from_says_nothing_of_where_it_goes() -> None:
    order = shuffled([[b"%05d" % number for number in range(RECORDS)] for _ in range(SHARDS)])
    bins = 40
    size = SHARDS * RECORDS // bins
    table = np.zeros((bins, bins))
    np.add.at(table, (np.arange(SHARDS * RECORDS) // size, order // size), 1)
    expected = size / bins
    chi_square = float(((table - expected) ** 2 / expected).sum())
    # 39 x 39 degrees of freedom: mean 1521, standard deviation 55; margins are fixed.
    assert 1521 - 4 * 55 < chi_square < 1521 + 4 * 55


def test_records_of_one_name_do_not_sit_side_by_side() -> None:
    order = shuffled([[b"%05d" % number for number in range(RECORDS)] for _ in range(SHARDS)])
    names = order % RECORDS
    neighbours = int((names[1:] == names[:-1]).sum())
    assert abs(neighbours - SHARDS) < 5 * SHARDS**0.5  # by chance: one in 200


@pytest.mark.parametrize("count", [0, 1, 2, 4096, 4097, 60_000])
def test_a_hash_that_comes_twice_is_found_whatever_the_others_are(count: int) -> None:
    rng = np.random.default_rng(count)
    spread = rng.choice(1 << 40, count, replace=False).astype(np.uint64)
    for hashes in (mix(spread), spread, np.arange(count, dtype=np.uint64)):
        assert not any_twice(hashes)
        for row, other in ((0, count - 1), (count // 2, count // 3)):
            again = hashes.copy()
            if row != other and count > 1:
                again[row] = again[other]
                assert any_twice(again)
