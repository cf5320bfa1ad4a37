"""The records of an output shard: where one ends that says so nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.support.datasets import Member, Shard
from tests.support.internals import (
    Bools,
    RecordSizes,
    ShardRecords,
    UInt64s,
    hash_keys,
    joined_digests,
    output_records,
)
from tests.support.tar_reading import scan


@dataclass
class Known:
    """Inputs that know some keys several times."""

    sizes: Mapping[bytes, RecordSizes] = field(default_factory=dict)

    @property
    def repeated(self) -> UInt64s:
        return np.sort(hash_keys(list(self.sizes), len(self.sizes)))

    def has(self, digests: UInt64s) -> Bools:
        known = {
            digest for each in self.sizes.values() for found in each.values() for digest in found
        }
        return np.array([tuple(digest) in known for digest in digests.tolist()], np.bool_)

    def of_key(self, key_hash: int) -> RecordSizes:
        hashes = hash_keys(list(self.sizes), len(self.sizes)).tolist()
        return dict(zip(hashes, self.sizes.values(), strict=True)).get(key_hash, {})


def digests_of(count: int) -> UInt64s:
    """A different digest for each member."""
    return np.arange(2 * count, dtype=np.uint64).reshape(-1, 2)


def records_in(names: list[str], known: Known = Known({})) -> ShardRecords:
    members = scan("s.tar", Shard(tuple(Member(name, b"x") for name in names)).data)
    return output_records(members, digests_of(len(names)), known)


def lengths(records: ShardRecords) -> list[int]:
    return [len(records.rows_of(row)) for row in range(len(records))]


def one(first: int, count: int) -> tuple[int, int]:
    """The digest of a record of the members from ``first`` on."""
    digests = digests_of(first + count)[first:]
    high, low = joined_digests(digests, np.array([0, count]))[0].tolist()
    return high, low


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], []),
        (["a.jpg", "a.cls", "b.jpg"], [2, 1]),
        (["a.jpg", "b.jpg", "a.cls"], [1, 1, 1]),
        (["a.jpg", "a.cls", "a.jpg", "a.cls"], [2, 2]),
        (["a.jpg", "a.jpg", "a.cls"], [1, 2]),
        (["a", "a", "a.jpg", "a.b.jpg"], [1, 1, 2]),
        (["d/a.jpg", "a.jpg", ".a", "d/.a.jpg", "d/.a.txt"], [1, 1, 1, 1, 1]),
    ],
)
def test_a_new_key_or_a_name_that_comes_again_begins_a_record(
    names: list[str], expected: list[int]
) -> None:
    records = records_in(names)
    assert lengths(records) == expected
    assert lengths(records_in(names, Known())) == expected


def test_the_inputs_tell_records_apart_that_names_do_not() -> None:
    names = ["a.jpg", "a.cls", "a.txt", "a.png"]
    assert lengths(records_in(names)) == [4]
    known = Known({b"a": {1: frozenset({one(0, 1), one(3, 1)}), 2: frozenset({one(1, 2)})}})
    assert lengths(records_in(names, known)) == [1, 2, 1]


def test_where_the_inputs_know_nothing_names_decide() -> None:
    names = ["b.jpg", "a.jpg", "a.cls", "a.jpg", "a.txt"]
    known = Known({b"a": {2: frozenset({one(3, 2)})}})
    assert lengths(records_in(names, known)) == [1, 2, 2]


def test_a_record_is_identified_by_all_of_its_members_in_order() -> None:
    records = records_in(["a.jpg", "a.cls", "b.jpg"])
    assert records.keys.tolist() == [b"a", b"b"]
    assert [tuple(row) for row in records.digests.tolist()] == [one(0, 2), one(2, 1)]
    assert one(0, 2) != one(1, 2)
