"""Columns of numbered texts are what a column of the same bytes is, and so are their hashes; a
tally counts everything and names a few; a worker's heap is kept between tasks of a phase."""

from __future__ import annotations

import json
import pickle
import platform
import subprocess
import sys

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tests.support.internals import (
    SAMPLES_MAX,
    BytesColumn,
    NumberedColumn,
    Tally,
    are_all_rows,
    are_positions,
    hash_column,
    numbered_hashes,
    row_numbers,
)

NUMBERS = st.lists(st.integers(0, 10**9 - 1), max_size=20)
BORDERS = np.array([0, 1, 9_999, 10_000, 99_999_999, 100_000_000, 999_999_999], np.int64)


@pytest.mark.parametrize("length", range(81))
def test_hashes_are_those_of_the_library_whatever_the_length(length: int) -> None:
    before = bytes((7 * length + 31 * place) % 256 for place in range(length))
    column = NumberedColumn(before, BORDERS)
    expected = [xxhash.xxh3_64_intdigest(b"%b%09d" % (before, n)) for n in BORDERS.tolist()]
    assert hash_column(column).tolist() == expected
    ended = NumberedColumn(before, BORDERS, b".json")
    assert hash_column(ended).tolist() == [xxhash.xxh3_64_intdigest(t) for t in ended.tolist()]


@pytest.mark.parametrize("length", range(1, 81))
def test_hashes_of_rows_of_one_length_are_those_of_the_library(length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, 9000 * length, np.uint8)
    column = BytesColumn(np.arange(9001, dtype=np.int64) * length, data)
    found = hash_column(column)
    for row in (0, 1, 8191, 8192, 8999):
        assert int(found[row]) == xxhash.xxh3_64_intdigest(column[row])


def test_more_rows_than_are_hashed_at_once_have_their_own_hashes() -> None:
    numbers = np.arange(40_000)[::-1] * 24_999
    found = numbered_hashes(b"train-00017-", numbers)
    picked = [0, 8191, 8192, 16_383, 39_999]
    assert found[picked].tolist() == [
        xxhash.xxh3_64_intdigest(b"train-00017-%09d" % numbers[row]) for row in picked
    ]


@pytest.mark.parametrize("length", [2, 8, 20, 50])
def test_positions_from_the_first_one_on_are_hashed_as_others_are(length: int) -> None:
    before, numbers = b"x" * length, np.arange(25_000)
    column = NumberedColumn(before, numbers)
    expected = [xxhash.xxh3_64_intdigest(b"%b%09d" % (before, n)) for n in numbers.tolist()]
    assert hash_column(column).tolist() == expected
    assert are_positions(column)
    assert not are_positions(column.run(1, 25_000))
    assert not are_positions(BytesColumn.of(column.run(0, 3).tolist()))


def test_row_numbers_are_known_again_and_nothing_else_is_taken_for_them() -> None:
    numbers, fewer = row_numbers(1000), row_numbers(900)
    assert fewer.tolist() == list(range(900))
    assert np.shares_memory(numbers, fewer)
    for count, rows in ((1000, numbers), (900, fewer), (0, row_numbers(0)), (7, np.arange(7))):
        assert are_all_rows(rows, count)
    other = [numbers[1:], numbers[::-1], numbers[::2], numbers[1:] + 1, np.zeros(3, np.int64)]
    assert not any(are_all_rows(rows, len(rows)) for rows in other)
    assert not are_all_rows(fewer, 1000)
    assert row_numbers(5000).tolist() == list(range(5000))
    assert are_all_rows(numbers, 1000)  # of which others are known now


@given(st.binary(max_size=30), NUMBERS, st.binary(max_size=6), st.data())
def test_a_numbered_column_does_what_a_column_of_its_bytes_does(
    before: bytes, numbers: list[int], after: bytes, data: st.DataObject
) -> None:
    column = NumberedColumn(before, np.array(numbers, np.int64), after)
    plain = BytesColumn.of([b"%b%09d%b" % (before, number, after) for number in numbers])
    rows = np.array(data.draw(st.lists(st.integers(0, max(len(numbers) - 1, 0)))), np.int64)
    rows = rows[: len(rows) if numbers else 0]
    start = data.draw(st.integers(0, len(numbers)))
    for mine, theirs in (
        (column, plain),
        (column.take(rows), plain.take(rows)),
        (column.run(start, len(numbers)), plain.run(start, len(numbers))),
        (BytesColumn.concat([column, plain]), BytesColumn.concat([plain, plain])),
        (pickle.loads(pickle.dumps(column)), plain),
    ):
        assert mine.tolist() == theirs.tolist()
        assert mine.offsets.tolist() == theirs.offsets.tolist()
        assert mine.blob.tobytes() == theirs.blob.tobytes()
        assert mine.lengths.tolist() == theirs.lengths.tolist()
        assert (len(mine), mine.width) == (len(theirs), theirs.width)
        assert [mine[row] for row in range(len(mine))] == theirs.tolist()


def test_counts_add_up_and_the_first_names_are_kept() -> None:
    tally = Tally()
    tally.add("b", 2, ["x", "y"])
    tally.add("a")
    tally.add("b", 3, ["z"])
    assert list(tally) == [("a", 1, ()), ("b", 5, ("x", "y", "z"))]


@pytest.mark.parametrize("count", [0, -1])
def test_nothing_is_no_kind(count: int) -> None:
    tally = Tally()
    tally.add("a", count, ["x"])
    assert list(tally) == []


def test_no_more_names_are_taken_than_are_kept() -> None:
    names = iter(map(str, range(100)))
    tally = Tally()
    tally.add("a", 100, names)
    assert tally.samples["a"] == [*map(str, range(SAMPLES_MAX))]
    assert int(next(names)) <= SAMPLES_MAX + 1


def test_merging_is_adding() -> None:
    first, second = Tally(), Tally()
    first.add("a", 1, ["x"])
    second.add("a", 20, map(str, range(20)))
    second.add("c", 2)
    first.merge(second)
    assert list(first) == [
        ("a", 21, ("x", *map(str, range(SAMPLES_MAX - 1)))),
        ("c", 2, ()),
    ]
    assert second.counts == {"a": 20, "c": 2}


ARRAYS = """
import json, resource, sys
from pathlib import Path
import numpy as np
from dsort.workers.worker import Heap

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def faults_of(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        np.ones(3 << 17)  # 3 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

heap = Heap(int(sys.argv[1]))
heap.enter("extract")
faults_of(1)
again = faults_of(10)
kept = resident_bytes()
heap.enter("create")
print(json.dumps({"faults": again, "given_back_bytes": kept - resident_bytes()}))
"""


def figures_of(buffer_bytes: int) -> dict[str, int]:
    line = [sys.executable, "-c", ARRAYS, str(buffer_bytes)]
    found: dict[str, int] = json.loads(subprocess.run(line, capture_output=True, check=True).stdout)
    return found


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no settings")
def test_arrays_of_one_phase_reuse_memory_and_the_next_phase_begins_without_it() -> None:
    found = figures_of(64 << 20)
    assert found["faults"] < 100
    assert found["given_back_bytes"] > 2 << 20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no settings")
def test_a_worker_with_little_memory_keeps_little() -> None:
    assert figures_of(2 << 20)["faults"] > 1000
