"""Several sort keys of a record, joined, compare as they do one after the other."""

from __future__ import annotations

import random

import numpy as np

from tests.support.internals import BytesColumn, SortKeys, joined_keys, order_rows


def test_joined_keys_compare_as_they_do_one_by_one(rng: random.Random) -> None:
    texts = [b"", b"a", b"a\0", b"a\0\0", b"a\0\xff", b"ab", b"b", b"\0", b"\xff" * 9]
    for _ in range(20):
        count = 60
        rows = [
            (rng.randrange(3), rng.choice([0, 1, 2**64 - 1]), rng.choice(texts), rng.choice(texts))
            for _ in range(count)
        ]
        turned = [rng.random() < 0.5 for _ in range(2)]
        rank, words, first, second = zip(*rows, strict=True)
        one = SortKeys(
            count,
            rank=np.array(rank, np.uint8),
            words=np.array(words, np.uint64),
            text=BytesColumn.of(list(first)),
        )
        other = SortKeys(count, text=BytesColumn.of(list(second)))
        joined = joined_keys([one, other], decreasing=turned, has_texts=[True, True], count=count)
        order = [*range(count)]
        order.sort(key=lambda row: rows[row][3], reverse=turned[1])
        order.sort(key=lambda row: rows[row][1:3], reverse=turned[0])
        order.sort(key=lambda row: rows[row][0])
        found = order_rows(joined).tolist()
        assert [rows[row] for row in found] == [rows[row] for row in order]


def test_keys_without_texts_here_compare_with_those_that_have_some() -> None:
    few = SortKeys(2, words=np.array([5, 9], np.uint64))
    some = SortKeys(1, words=np.array([9], np.uint64), text=BytesColumn.of([b"x"]))
    parts = [
        joined_keys([each], decreasing=[False], has_texts=[True], count=each.count)
        for each in (few, some)
    ]
    assert order_rows(SortKeys.concat([parts[1], parts[0]])).tolist() == [1, 2, 0]
