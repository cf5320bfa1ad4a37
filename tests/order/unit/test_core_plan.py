"""The cut: when output shards close, by payload, by records or by count."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.internals import CutRule, OpenShard, OutputShard, cut_partition, merge_pieces


def cut(rule: CutRule, payloads: list[int], groups: list[int] | None = None) -> list[OutputShard]:
    pieces, _ = cut_partition(
        rule,
        0,
        groups=None if groups is None else np.array(groups, np.int32),
        payload_bytes=np.array(payloads, np.int64),
        stored_bytes=np.array(payloads, np.int64) + 512,
        members=np.ones(len(payloads), np.int32),
        state=OpenShard(),
    )
    return merge_pieces(pieces, rule=rule)


def records(shards: list[OutputShard]) -> list[int]:
    return [shard.records for shard in shards]


def test_a_shard_closes_once_its_payload_is_large_enough() -> None:
    assert records(cut(CutRule(size_bytes=10), [4, 4, 4, 10, 25, 9, 1])) == [3, 1, 1, 2]
    assert records(cut(CutRule(size_bytes=1), [5, 5])) == [1, 1]
    assert records(cut(CutRule(size_bytes=100), [5, 5])) == [2]


def test_headers_and_padding_do_not_count() -> None:
    shards = cut(CutRule(size_bytes=10), [5, 5, 5])
    assert [(shard.payload_bytes, shard.stored_bytes) for shard in shards] == [
        (10, 1034),
        (5, 517),
    ]


def test_records_without_payload_go_where_they_come() -> None:
    assert records(cut(CutRule(size_bytes=10), [0, 0, 10, 0, 0])) == [3, 2]


def test_the_last_name_of_a_template_takes_what_has_no_payload() -> None:
    rule = CutRule(size_bytes=10, shards_max=2)
    assert records(cut(rule, [10, 10, 0, 0])) == [1, 3]
    assert records(cut(rule, [10, 10])) == [1, 1]
    assert records(cut(CutRule(size_bytes=1, shards_max=1), [0, 0])) == [2]


def test_exactly_so_many_records_the_last_one_fewer() -> None:
    assert records(cut(CutRule(records=3), [1] * 8)) == [3, 3, 2]
    assert records(cut(CutRule(records=3), [1] * 6)) == [3, 3]


@pytest.mark.parametrize(
    ("total", "count", "wanted"),
    [(8, 3, [3, 3, 2]), (6, 3, [2, 2, 2]), (2, 4, [1, 1, 0, 0]), (0, 2, [0, 0]), (5, 1, [5])],
)
def test_a_count_is_kept_even_with_too_few_records(
    total: int, count: int, wanted: list[int]
) -> None:
    shards = cut(CutRule(count=count, records_total=total), [1] * total)
    assert records(shards) == wanted
    assert [shard.number for shard in shards] == [*range(count)]


def test_each_group_counts_its_own_shards() -> None:
    shards = cut(CutRule(records=2), [1] * 7, groups=[0, 0, 0, 2, 2, 5, 5])
    assert [(shard.group, shard.number, shard.records) for shard in shards] == [
        (0, 0, 2),
        (0, 1, 1),
        (2, 0, 2),
        (5, 0, 2),
    ]
    assert [shard.ordinal for shard in shards] == [0, 1, 2, 3]


def test_nothing_in_nothing_out() -> None:
    assert cut(CutRule(size_bytes=10), []) == []
    assert cut(CutRule(records=10), [], groups=[]) == []


def test_sizes_beyond_32_bits() -> None:
    shards = cut(CutRule(size_bytes=2**40), [2**39] * 5)
    assert records(shards) == [2, 2, 1]
    assert shards[0].payload_bytes == 2**40
    assert shards[1].pieces[0].row_start == 2
