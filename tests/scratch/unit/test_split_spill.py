"""Runs of rows that fit in a buffer, and a partition that is spilled once more in such runs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.internals import (
    RANGES,
    STORED_BYTES,
    PayloadBuffer,
    Scratch,
    Segments,
    SplitSpill,
    Table,
    runs_that_fit,
)

pytestmark = pytest.mark.disk


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 60))
def test_runs_hold_all_rows_and_as_many_as_fit(sizes: list[int], room: int) -> None:
    bounds = runs_that_fit(np.array(sizes, np.int64), room).tolist()
    assert (bounds[0], bounds[-1]) == (0, len(sizes))
    for start, stop in pairwise(bounds):
        assert sum(sizes[start:stop]) <= room or stop == start + 1
        assert stop == len(sizes) or sum(sizes[start : stop + 1]) > room


class Noting:
    """The spill of a partition, which notes what is read of it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []

    def read_into(self, view: memoryview, offset: int) -> None:
        self.reads.append((offset, offset + len(view)))
        view[:] = self.data[offset : offset + len(view)]


def test_short_records_of_a_partition_that_does_not_fit_are_read_in_sequence(
    tmp_path: Path,
) -> None:
    rng, buffer = np.random.default_rng(1), PayloadBuffer(64 << 10)
    lengths = rng.integers(50, 150, 20_000)  # two megabytes: 31 times the buffer
    starts = np.cumsum(lengths) - lengths
    spill = Noting(rng.bytes(int(lengths.sum())))
    order = rng.permutation(len(lengths))
    segments = Segments(
        np.arange(len(order) + 1), starts[order], lengths[order], np.zeros(0, np.uint8)
    )
    columns = {STORED_BYTES.text: lengths[order], RANGES.text: segments}
    rows = Table(len(order), columns)
    reader: Any = spill
    with Scratch(tmp_path / "scratch", make=True) as scratch:
        split = SplitSpill(reader, rows, (0, len(order)), buffer, scratch)
        found = [bytes(each) for some in split.slices(0, len(order)) for each in some]
        split.close()
    wanted = (spill.data[start:][:length] for start, length in zip(*_of(segments), strict=True))
    assert b"".join(found) == b"".join(wanted)
    assert spill.reads == sorted(spill.reads)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spill.reads)), "no byte twice"
    assert len(spill.reads) <= 2 * len(spill.data) // buffer.size_bytes, "not record by record"


def _of(segments: Segments) -> tuple[list[int], list[int]]:
    return segments.start.tolist(), segments.length.tolist()
