"""Short records are gathered in one piece, the same bytes as their slices; parts of rows are put
side by side, as protobuf stores them too, and arrays of Arrow are made of them without pandas."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsort.containers.tfrecord.example import bytes_features
from tests.support.commands import ROOT
from tests.support.internals import (
    SHORT_BYTES_MAX,
    BytesColumn,
    Segments,
    are_short,
    gathered,
    numbers_in,
    side_by_side,
    slices_of_sources,
)
from tests.support.tfrecords import example_bytes


def segments_of(pieces: list[list[tuple[int, int]]]) -> Segments:
    flat = [piece for record in pieces for piece in record]
    return Segments(
        np.cumsum([0, *map(len, pieces)]).astype(np.int64),
        np.array([start for start, _ in flat], np.int64),
        np.array([length for _, length in flat], np.int64),
        np.zeros(0, np.uint8),
    )


RECORDS = st.lists(
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 99)), min_size=1, max_size=3),
    min_size=2,
    max_size=20,
)


@given(RECORDS, st.randoms(use_true_random=False))
def test_what_is_gathered_is_what_the_slices_hold(
    pieces: list[list[tuple[int, int]]], rng: random.Random
) -> None:
    views = {each: memoryview(rng.randbytes(1000)) for each in (3, 5)}
    source = np.array([rng.choice((3, 5)) for _ in pieces], np.int32)
    segments = segments_of(pieces)
    assert are_short(segments)
    expected = b"".join(slices_of_sources(views, source, segments))
    assert bytes(gathered(views, source, segments)) == expected
    late = segments_of([[(start + 77, length) for start, length in each] for each in pieces])
    assert bytes(gathered(views, source, late, base=77)) == expected
    source[:] = 3
    expected = b"".join(slices_of_sources(views, source, segments))
    assert bytes(gathered({3: views[3]}, source, segments)) == expected


@pytest.mark.parametrize("view_bytes", [(60_000, 60_000), (90, 60_000), (120_000,)])
@pytest.mark.parametrize("longest", [40, 5000])
@pytest.mark.sample(keep=3)
def test_records_are_whole_whatever_lies_behind_them_in_the_view_and_before_them_in_the_result(
    view_bytes: tuple[int, ...], longest: int, rng: random.Random
) -> None:
    views = {at: memoryview(rng.randbytes(size)) for at, size in enumerate(view_bytes)}
    rows = []
    for number in range(20_000):
        source = rng.randrange(len(views))
        size = min(longest if number % 5000 == 9 else rng.randrange(40), view_bytes[source])
        end = view_bytes[source] if number % 7 == 0 else rng.randint(size, view_bytes[source])
        rows.append((source, end - size, size))
    segments = segments_of([[(start, size)] for _, start, size in rows])
    found = bytes(gathered(views, np.array([row[0] for row in rows], np.int32), segments))
    assert found == b"".join(views[at][start : start + size] for at, start, size in rows)
    none = segments_of([[(5, 0)], [(9, 0)]])
    assert bytes(gathered(views, np.zeros(2, np.int32), none)) == b""


@pytest.mark.parametrize("longest", [1, 9, 63, 64, 65, 99])
@pytest.mark.parametrize("empty", [4, 40])
def test_a_few_bytes_among_empty_records_are_gathered(
    longest: int, empty: int, rng: random.Random
) -> None:
    view = memoryview(rng.randbytes(150))
    lengths = [0] * empty + [longest] + [0] * empty
    segments = segments_of([[(rng.randrange(150 - size), size)] for size in lengths])
    start = int(segments.start[empty])
    found = bytes(gathered({0: view}, np.zeros(len(lengths), np.int32), segments))
    assert found == view[start : start + longest]


def test_long_records_and_those_with_literals_are_not_gathered() -> None:
    assert not are_short(segments_of([[(0, SHORT_BYTES_MAX + 1)]] * 5))
    assert are_short(segments_of([[(0, SHORT_BYTES_MAX)]] * 5))
    short = segments_of([[(0, 9)], [(-1, 1)]])
    literal = Segments(short.offsets, short.start, short.length, np.zeros(1, np.uint8))
    assert not are_short(literal)


@pytest.mark.parametrize(("longest", "width"), [(0, 3), (1, 3), (70, 3), (70, 9000)])
def test_parts_of_any_length_are_put_side_by_side(longest: int, width: int) -> None:
    source = random.Random(longest)

    def values(fixed: bool) -> list[bytes]:
        sizes = [width if fixed else source.randrange(longest + 1) for _ in range(40)]
        return list(map(source.randbytes, sizes))

    parts = [values(fixed=True), values(fixed=False), values(fixed=True), values(fixed=False)]
    columns: list[BytesColumn | bytes] = [BytesColumn.of(part) for part in parts]
    found = side_by_side([*columns, b"end"], 40).tolist()
    assert found == [b"".join(row) + b"end" for row in zip(*parts, strict=True)]


def test_features_of_any_size_are_stored_as_protobuf_stores_them() -> None:
    sizes = [0, 1, 100, 127, 128, 16_000, 70_000]
    heads = bytes_features(b"jpg", np.array(sizes)).tolist()
    for size, head in zip(sizes, heads, strict=True):
        example = example_bytes({"jpg": ("byte", b"v" * size)})
        assert example.endswith(head + b"v" * size)


@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1)), st.integers(0, 9), st.booleans())
def test_numbers_are_read_wherever_their_array_begins(
    values: list[int | None], first: int, is_short: bool
) -> None:
    array = pa.array(values, pa.int32() if is_short else pa.int64())[first:]
    numbers, is_known = numbers_in(array)
    assert is_known.tolist() == [each is not None for each in values[first:]]
    assert numbers.tolist() == [each or 0 for each in values[first:]]
    assert numbers.dtype == (np.int32 if is_short else np.int64)


def test_pandas_is_not_loaded_for_them() -> None:
    script = (
        "import sys, numpy as np, pyarrow as pa\n"
        "from dsort.data.arrow_arrays import arrow_bytes, arrow_numbers, numbers_in\n"
        "numbers_in(arrow_numbers(np.arange(3), np.arange(3) > 1))\n"
        "arrow_bytes([b'', None], pa.string())\n"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0
