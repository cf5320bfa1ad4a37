"""Short records are gathered in one piece, the same bytes as their slices."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsort.data.index import Segments
from dsort.workers.gathering import SHORT_BYTES_MAX, are_short, gathered
from dsort.workers.source import slices_of_sources


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


def test_long_records_and_those_with_literals_are_not_gathered() -> None:
    assert not are_short(segments_of([[(0, SHORT_BYTES_MAX + 1)]] * 5))
    assert are_short(segments_of([[(0, SHORT_BYTES_MAX)]] * 5))
    short = segments_of([[(0, 9)], [(-1, 1)]])
    literal = Segments(short.offsets, short.start, short.length, np.zeros(1, np.uint8))
    assert not are_short(literal)
