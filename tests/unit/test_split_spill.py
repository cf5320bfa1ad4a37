"""Runs of rows that fit in a buffer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsort.workers.split_spill import runs_that_fit


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 60))
def test_runs_hold_all_rows_and_as_many_as_fit(sizes: list[int], room: int) -> None:
    bounds = runs_that_fit(np.array(sizes, np.int64), room).tolist()
    assert (bounds[0], bounds[-1]) == (0, len(sizes))
    for start, stop in pairwise(bounds):
        assert sum(sizes[start:stop]) <= room or stop == start + 1
        assert stop == len(sizes) or sum(sizes[start : stop + 1]) > room
