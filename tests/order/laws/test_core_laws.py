"""Laws of order, partitions and duplicates: columns against plain Python, whatever is in them."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cmp_to_key

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.internals import (
    BytesColumn,
    Partitioning,
    SortKeys,
    Splitters,
    UInt64s,
    big_int_words,
    find_duplicates,
    float_words,
    hash_keys,
    int_words,
    natural_keys,
    new_keys,
    order_rows,
    pick_splitters,
    repeated_hashes,
    split_name,
    split_names,
    stable_argsort,
)
from tests.support.sampling import examples

SETTINGS = settings(max_examples=examples(150))

TEXTS = st.one_of(
    st.binary(max_size=30),
    st.text("ab\0\xff", max_size=20).map(lambda text: text.encode("latin-1")),
    st.sampled_from(
        [b"", b"\0", b"\0\0", b"a", b"a\0", b"\xff" * 8, b"prefix/", b"prefix/long" * 9]
    ),
)
WORDS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 5),
    st.sampled_from([0, 1, 2**16, 2**32, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]),
)
INTS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3), st.sampled_from([-(2**63), 2**63 - 1])
)
FLOATS = st.one_of(
    st.floats(allow_nan=False),
    st.sampled_from([0.0, -0.0, float("inf"), float("-inf"), 5e-324, -5e-324, 1.5, -1.5]),
)


def words_of(values: list[int]) -> UInt64s:
    return np.array(values, np.uint64)


def python_order(keys: list[object], *, decreasing: bool) -> list[int]:
    return sorted(range(len(keys)), key=keys.__getitem__, reverse=decreasing)  # type: ignore[arg-type]


# --- record keys ---------------------------------------------------------------------------------

NAMES = st.one_of(st.text("a./", max_size=8).map(str.encode), st.binary(max_size=12))


@SETTINGS
@given(st.lists(NAMES, max_size=12))
def test_names_are_split_at_the_first_dot_of_the_last_part(names: list[bytes]) -> None:
    found = split_names(BytesColumn.of(names))
    wanted = []
    for name in names:
        directory, slash, base = name.rpartition(b"/")
        stem, dot, extension = base.partition(b".")
        stray = not (stem and dot)
        key = name if stray else directory + slash + stem
        wanted.append((len(key), stray))
        assert split_name(name) == (key, b"" if stray else extension)
    assert [*zip(found.key_bytes.tolist(), found.stray.tolist(), strict=True)] == wanted


# --- order ---------------------------------------------------------------------------------------


@SETTINGS
@given(st.lists(TEXTS, max_size=25), st.booleans())
def test_texts_are_ordered_as_bytes(values: list[bytes], decreasing: bool) -> None:
    keys = SortKeys(len(values), text=BytesColumn.of(values))
    found = order_rows(keys, decreasing=decreasing).tolist()
    assert found == python_order([*values], decreasing=decreasing)


@SETTINGS
@given(st.lists(TEXTS, min_size=1, max_size=25), st.booleans())
def test_texts_of_which_few_are_long_are_ordered_as_bytes(
    values: list[bytes], decreasing: bool
) -> None:
    values = [*values, values[0] + bytes(1000), values[0], values[0] + bytes(1000), b"z"]
    keys = SortKeys(len(values), text=BytesColumn.of(values))
    found = order_rows(keys, decreasing=decreasing).tolist()
    assert found == python_order([*values], decreasing=decreasing)


@SETTINGS
@given(st.lists(INTS, max_size=25), st.booleans())
def test_integers_are_ordered_as_numbers(values: list[int], decreasing: bool) -> None:
    keys = SortKeys(len(values), words=int_words(np.array(values, np.int64)))
    found = order_rows(keys, decreasing=decreasing).tolist()
    assert found == python_order([*values], decreasing=decreasing)


BIG_INTS = st.one_of(
    INTS,
    st.integers(-(2**70), 2**70),
    st.builds(lambda sign, bits, more: sign * ((1 << bits) + more),
              st.sampled_from([-1, 1]), st.integers(60, 2000), st.integers(-1, 1)),
)  # fmt: skip


@SETTINGS
@given(st.lists(st.lists(BIG_INTS, max_size=8), max_size=5), st.booleans())
def test_integers_of_any_size_are_ordered_as_numbers_whatever_shard_they_are_in(
    shards: list[list[int]], decreasing: bool
) -> None:
    parts = [
        SortKeys(len(part), words=w, text=t) for part in shards for w, t in [big_int_words(part)]
    ]
    found = order_rows(SortKeys.concat(parts), decreasing=decreasing).tolist()
    values = [value for part in shards for value in part]
    assert found == python_order([*values], decreasing=decreasing)


@SETTINGS
@given(st.lists(FLOATS, max_size=25), st.booleans())
def test_floats_are_ordered_as_numbers_and_zeros_are_one(
    values: list[float], decreasing: bool
) -> None:
    keys = SortKeys(len(values), words=float_words(np.array(values, np.float64)))
    found = order_rows(keys, decreasing=decreasing).tolist()
    assert found == python_order([*values], decreasing=decreasing)


@SETTINGS
@given(st.lists(st.text("a019 z", max_size=8).map(str.encode), max_size=20))
def test_natural_order_takes_runs_of_digits_for_numbers(keys: list[bytes]) -> None:
    found = order_rows(SortKeys(len(keys), text=natural_keys(keys))).tolist()
    assert found == sorted(range(len(keys)), key=cmp_to_key(lambda a, b: natural(keys[a], keys[b])))


def natural(a: bytes, b: bytes) -> int:
    """-1, 0 or 1, character by character, numbers as one."""
    i = j = 0
    while i < len(a) and j < len(b):
        x, y = a[i : i + 1], b[j : j + 1]
        if x.isdigit() and y.isdigit():
            m, n = i, j
            while a[m : m + 1].isdigit():
                m += 1
            while b[n : n + 1].isdigit():
                n += 1
            p, q = int(a[i:m]), int(b[j:n])
            if p != q:
                return -1 if p < q else 1
            i, j = m, n
            continue
        x, y = (b"0" if each.isdigit() else each for each in (x, y))
        if x != y:
            return -1 if x < y else 1
        i, j = i + 1, j + 1
    rest = (i < len(a)) - (j < len(b))
    return rest or (a > b) - (a < b)


@st.composite
def sort_keys(
    draw: st.DrawFn,
) -> tuple[SortKeys, list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Sort keys with any columns; what never turns round of each, and what does."""
    count = draw(st.integers(0, 20))
    some = draw(st.sets(st.sampled_from(["group", "rank", "words", "text"])))

    def column(name: str, values: st.SearchStrategy[object]) -> list[object] | None:
        return draw(st.lists(values, min_size=count, max_size=count)) if name in some else None

    group, rank = column("group", st.integers(-1, 3)), column("rank", st.integers(0, 2))
    words, text = column("words", WORDS), column("text", TEXTS)
    keys = SortKeys(
        count,
        group=None if group is None else np.array(group, np.int32),
        rank=None if rank is None else np.array(rank, np.uint8),
        words=None if words is None else np.array(words, np.uint64),
        text=None if text is None else BytesColumn.of(text),  # type: ignore[arg-type]
    )
    fixed = [c for c in (group, rank) if c is not None]
    turning = [c for c in (words, text) if c is not None]
    rows = range(count)
    return (
        keys,
        [tuple(c[r] for c in fixed) for r in rows],
        [tuple(c[r] for c in turning) for r in rows],
    )


def slow_order(
    fixed: list[tuple[object, ...]], turning: list[tuple[object, ...]], *, decreasing: bool
) -> list[int]:
    rows = python_order([*turning], decreasing=decreasing)
    return sorted(rows, key=fixed.__getitem__)  # type: ignore[arg-type]


@SETTINGS
@given(sort_keys(), st.booleans())
def test_groups_and_ranks_come_first_and_never_turn_round(
    drawn: tuple[SortKeys, list[tuple[object, ...]], list[tuple[object, ...]]], decreasing: bool
) -> None:
    keys, fixed, turning = drawn
    found = order_rows(keys, decreasing=decreasing).tolist()
    assert found == slow_order(fixed, turning, decreasing=decreasing)


@SETTINGS
@given(st.lists(WORDS, max_size=10), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_the_sort_is_stable_however_many_rows_tie(few: list[int], times: int, seed: int) -> None:
    values = np.random.default_rng(seed).permutation(np.repeat(words_of(few), times))
    assert stable_argsort(values).tolist() == np.argsort(values, kind="stable").tolist()


@settings(max_examples=examples(10))
@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 3, 100, 4000]))
def test_the_sort_is_stable_on_many_rows_with_a_few_ties(seed: int, ties: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2**64, 5000, np.uint64)
    values[rng.integers(0, 5000, ties)] = values[rng.integers(0, 5000, ties)]
    assert stable_argsort(values).tolist() == np.argsort(values, kind="stable").tolist()


@settings(max_examples=examples(10))
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 8, 30]))
def test_the_sort_tells_words_apart_by_their_lowest_bits(seed: int, bits: int) -> None:
    rng = np.random.default_rng(seed)
    near = rng.integers(0, 2**bits, 3000, np.uint64)
    values = rng.choice(np.array([0, 2**63, 2**64 - 2**30], np.uint64), 3000) + near
    assert stable_argsort(values).tolist() == np.argsort(values, kind="stable").tolist()


# --- partitions -----------------------------------------------------------------------------------


@SETTINGS
@given(st.lists(WORDS, max_size=30), st.integers(1, 50), st.booleans())
def test_hashes_part_evenly_and_in_order(words: list[int], count: int, decreasing: bool) -> None:
    keys = SortKeys(len(words), words=words_of(words))
    found = Partitioning(count, decreasing).assign(keys, 0, np.arange(len(words)))
    assert all(0 <= partition < count for partition in found.tolist())
    in_order = found[order_rows(keys, decreasing=decreasing)].tolist()
    assert in_order == sorted(in_order)
    even = [word * count >> 64 for word in words]
    # The border between two partitions may be off by the low half of a word.
    wanted = [count - 1 - partition if decreasing else partition for partition in even]
    assert all(abs(a - b) <= 1 for a, b in zip(found.tolist(), wanted, strict=True))


@SETTINGS
@given(sort_keys(), st.booleans(), st.integers(1, 6), st.data())
def test_buckets_never_disagree_with_the_order_whatever_the_splitters(
    drawn: tuple[SortKeys, list[tuple[object, ...]], list[tuple[object, ...]]],
    decreasing: bool,
    shards: int,
    data: st.DataObject,
) -> None:
    keys, _, _ = drawn
    n = keys.count
    shard = np.sort(
        np.array(data.draw(st.lists(st.integers(0, shards - 1), min_size=n, max_size=n)), np.int64)
    )
    ordinal = np.arange(n) - np.searchsorted(shard, shard)
    order = order_rows(keys, decreasing=decreasing)
    chosen = data.draw(st.sets(st.integers(0, n - 1), max_size=5) if n else st.just(set[int]()))
    rows = order[sorted(chosen)]
    splitters = Splitters(keys.take(rows), shard[rows], ordinal[rows])
    partitioning = Partitioning(len(rows) + 1, decreasing, splitters)
    partition = np.zeros(n, np.int32)
    for each in range(shards):
        own = np.flatnonzero(shard == each)
        partition[own] = partitioning.assign(keys.take(own), each, ordinal[own])
    wanted = np.zeros(n, np.int32)
    for place in chosen:  # a partition begins with its splitter
        wanted[order[place:]] += 1
    assert partition.tolist() == wanted.tolist()


@SETTINGS
@given(sort_keys(), st.booleans(), st.integers(1, 8), st.data())
def test_picked_splitters_part_the_weight_about_evenly(
    drawn: tuple[SortKeys, list[tuple[object, ...]], list[tuple[object, ...]]],
    decreasing: bool,
    count: int,
    data: st.DataObject,
) -> None:
    keys, _, _ = drawn
    n = keys.count
    weights = np.array(data.draw(st.lists(st.integers(1, 9), min_size=n, max_size=n)), np.int64)
    zeros, rows = np.zeros(n, np.int64), np.arange(n)
    splitters = pick_splitters(keys, zeros, rows, weights, count, decreasing=decreasing)
    assert splitters.keys.count <= count - 1
    partitioning = Partitioning(splitters.keys.count + 1, decreasing, splitters)
    partition = partitioning.assign(keys, 0, rows) if n else zeros
    heaviest = max(np.bincount(partition, weights).tolist(), default=0)
    assert heaviest <= weights.sum() / count + 2 * max(weights.tolist(), default=0)


# --- duplicates ----------------------------------------------------------------------------------

KEYS = st.lists(st.text("ab-1", max_size=3).map(str.encode), max_size=15)


def slow_duplicates(identities: list[object]) -> list[tuple[int, int]]:
    seen: Counter[object] = Counter()
    found = []
    for row, identity in enumerate(identities):
        if seen[identity]:
            found.append((row, seen[identity]))
        seen[identity] += 1
    return found


@SETTINGS
@given(KEYS)
def test_duplicates_are_those_that_an_earlier_row_equals(keys: list[bytes]) -> None:
    found = find_duplicates(BytesColumn.of(keys), hash_keys(keys, len(keys)))
    assert [*zip(found.rows.tolist(), found.nth.tolist(), strict=True)] == slow_duplicates([*keys])


@SETTINGS
@given(KEYS, st.data())
def test_keys_whose_hashes_collide_are_distinguished(
    keys: list[bytes], data: st.DataObject
) -> None:
    of_key: defaultdict[bytes, int] = defaultdict(lambda: data.draw(st.integers(0, 2)))
    salted = [data.draw(st.sampled_from([0, 0, 0, 5])) for _ in keys]  # a stray of the same name
    hashes = [of_key[key] + salt for key, salt in zip(keys, salted, strict=True)]
    found = find_duplicates(BytesColumn.of(keys), words_of(hashes))
    wanted = slow_duplicates([*zip(keys, hashes, strict=True)])
    assert [*zip(found.rows.tolist(), found.nth.tolist(), strict=True)] == wanted


@SETTINGS
@given(st.lists(WORDS))
def test_repeated_hashes_are_those_that_come_twice(words: list[int]) -> None:
    wanted = sorted(word for word, times in Counter(words).items() if times > 1)
    assert repeated_hashes(words_of(words)).tolist() == wanted


@SETTINGS
@given(KEYS)
def test_new_keys_are_free_and_counted_from_one(keys: list[bytes]) -> None:
    hashes = hash_keys(keys, len(keys))
    found = find_duplicates(BytesColumn.of(keys), hashes)
    old = [keys[row] for row in found.rows.tolist()]
    fresh = new_keys(old, found.nth, np.unique(hashes))
    assert len({*fresh, *keys}) == len(fresh) + len({*keys})
    taken = {*keys}
    for key, new, nth in zip(old, fresh, found.nth.tolist(), strict=True):
        number = nth
        while (wanted := key + b"-%d" % number) in taken:
            number += 1
        assert new == wanted
        taken.add(new)
