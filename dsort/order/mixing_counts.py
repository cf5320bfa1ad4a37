"""Counts how many records went from each input shard to each output shard, and tests how evenly
they went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from dsort.data.columns import Int32s, Int64s
from dsort.order.cut import OpenShard, Piece
from dsort.order.mixing import P_MIN, Mixing, chi_squared_p_value

BINS_MAX = 64
"""The most bins of input shards, and of output shards, in the result."""
BINS_OPEN_MAX = 128
"""The most bins of output shards during counting."""
EXPECTED_MIN: Final = 5.0
"""The least number of records that must be expected in every cell for the test to hold (Cochran,
Some Methods for Strengthening the Common chi-squared Tests, Biometrics 10, 1954)."""


# -- counting ------------------------------------------------------------------------------------


def output_bin_shards(output_shards: int) -> int:
    """The number of output shards in a bin of the result (the last bin may have fewer)."""
    size = 1
    while -(-output_shards // size) > BINS_MAX:
        size *= 2
    return size


# Counting is bounded, whatever the number of records and shards. Input bins are known in advance:
# input shard `s` of `S` is in bin `s * bins // S`. The number of output shards is not known before
# the last partition is cut, so output bins are powers of two: output shard `o` is in bin `o >>
# shift`, and `shift` grows when there are too many. The result depends on the cut alone, never on
# the number of partitions.
class MixingGrid(Struct, frozen=True):
    """The bins for counting one partition. ``output``: ordinal of the output shard that takes the
    next record; ``shift``: output shards ``o`` with the same ``o >> shift`` are one bin."""

    input_shards: int
    output: int = 0
    shift: int = 0

    @property
    def input_bins(self) -> int:
        """The number of input bins."""
        return min(self.input_shards, BINS_MAX)

    def input_bin(self, shard: Int32s) -> Int32s | Int64s:
        """The bin of each input shard. 2 ns a row."""
        if self.input_shards <= BINS_MAX:
            return shard
        return shard.astype(np.int64) * BINS_MAX // self.input_shards


class MixingPart(Struct, frozen=True, eq=False):
    """The counts of one partition, shape ``(output bins, input bins)``, for the output bins from
    ``first`` on.

    ``output``: ordinal of the last output shard that has records of the partition.
    """

    shift: int
    first: int
    counts: Int64s
    output: int


class OutputRuns(Struct, frozen=True):
    """The begins of output bins in a partition's rows: bin ``first + n`` has the rows
    ``edges[n]:edges[n + 1]``. At most ``BINS_OPEN_MAX`` bins."""

    shift: int
    first: int
    edges: tuple[int, ...]
    output: int

    @staticmethod
    def of(grid: MixingGrid, state: OpenShard, pieces: Sequence[Piece]) -> OutputRuns:
        """The runs of one partition, which was cut from ``state`` on and has at least one piece."""
        begins = state.records > 0 and (pieces[0].group, pieces[0].number) != (
            state.group,
            state.number,
        )
        # Each piece of a partition goes to another output shard than the piece before it.
        first = grid.output + begins
        last = first + len(pieces) - 1
        shift = grid.shift
        while (last >> shift) - (first >> shift) >= BINS_OPEN_MAX:
            shift += 1
        starts = (
            max((number << shift) - first, 0)
            for number in range(first >> shift, (last >> shift) + 1)
        )
        edges = (*(pieces[at].row_start for at in starts), pieces[-1].row_stop)
        return OutputRuns(shift, first >> shift, edges, last)


def count_part(
    grid: MixingGrid, state: OpenShard, pieces: Sequence[Piece], shard: Int32s
) -> MixingPart:
    """Count one partition. ``shard``: the ordinals of the input shards of its rows, in output
    order, shape ``(n,)``."""
    runs = OutputRuns.of(grid, state, pieces)
    source = grid.input_bin(shard)
    counts = [
        np.bincount(source[start:stop], minlength=grid.input_bins)
        for start, stop in pairwise(runs.edges)
    ]
    return MixingPart(runs.shift, runs.first, np.array(counts, np.int64), runs.output)


class MixingTally(Struct, eq=False):
    """The counts of all partitions cut so far; parts have to come in the order of the cut."""

    input_shards: int
    _shift: int = 0
    _counts: Int64s = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    _output: int = -1

    def grid(self, state: OpenShard) -> MixingGrid:
        """The bins for counting the next partition, which is cut from ``state`` on."""
        is_open = state.records > 0
        output = self._output if is_open else self._output + 1
        return MixingGrid(self.input_shards, output, self._shift)

    def add(self, part: MixingPart) -> None:
        """Add the counts of the next partition."""
        counts, first = _folded(part.counts, part.first, part.shift, part.shift)
        shift = part.shift
        while first + len(counts) > BINS_OPEN_MAX:
            counts, first = _folded(counts, first, shift, shift + 1)
            shift += 1
        known, _ = _folded(self._counts, 0, self._shift, shift)
        total = np.zeros((max(first + len(counts), len(known)), counts.shape[1]), np.int64)
        total[first : first + len(counts)] = counts
        if len(known):
            total[: len(known)] += known
        self._counts, self._shift, self._output = total, shift, part.output

    def table(self, output_shards: int) -> Int64s:
        """All counts, shape ``(input bins, output bins)``, at most ``BINS_MAX`` each.

        ``output_shards``: the number of all shards, including those without records at the end.
        """
        size = output_bin_shards(output_shards)
        counts, _ = _folded(self._counts, 0, self._shift, size.bit_length() - 1)
        bins = -(-output_shards // size)
        table = np.zeros((bins, min(self.input_shards, BINS_MAX)), np.int64)
        if len(counts):
            table[: len(counts)] = counts
        return table.T.copy()


def _folded(counts: Int64s, first: int, shift: int, wanted: int) -> tuple[Int64s, int]:
    """(``counts`` of the bins from ``first`` on, converted to bins of shift ``wanted``; the first
    of these bins)."""
    if wanted == shift or not len(counts):
        return counts, first >> (wanted - shift)
    target = (first + np.arange(len(counts))) >> (wanted - shift)
    begins = np.flatnonzero(np.diff(target, prepend=-1))
    return np.add.reduceat(counts, begins, axis=0), int(target[0])


# -- the verdict ----------------------------------------------------------------------------------


def judge_mixing(counts: Int64s, *, input_shards: int, output_shards: int) -> Mixing | None:
    """The verdict on ``counts``, shape ``(input bins, output bins)``; None if it is empty."""
    if counts.size == 0:
        return None
    chi2, degrees = _chi_squared(_merged(counts).cells)
    p_value = chi_squared_p_value(chi2, degrees) if degrees else 1.0
    verdict = "too_few" if not degrees else "even" if p_value >= P_MIN else "uneven"
    return Mixing(
        input_shards=input_shards,
        output_shards=output_shards,
        input_bins=counts.shape[0],
        output_bins=counts.shape[1],
        output_bin_shards=output_bin_shards(output_shards),
        counts=tuple(tuple(row) for row in counts.tolist()),
        chi2=round(chi2, 3),
        degrees_of_freedom=degrees,
        p_value=p_value,
        verdict=verdict,
    )


def mixing_of(stored: Mapping[str, Any]) -> Mixing | None:
    """A mixing from its stored form: ``input_shards``, ``output_shards`` and ``counts``.

    ``ValueError``, ``TypeError`` or ``KeyError`` if ``stored`` has another form.
    """
    counts = np.array(stored["counts"], np.int64)
    if counts.ndim != 2:
        raise ValueError("counts is no table")
    return judge_mixing(
        counts,
        input_shards=int(stored["input_shards"]),
        output_shards=int(stored["output_shards"]),
    )


def counts_in_input_order(from_input: Int64s, to_output: Int64s) -> Int64s:
    """The table of a copy in input order. ``from_input``, ``to_output``: the number of records of
    each input and each output; their sums are equal."""
    ends_in, ends_out = np.cumsum(from_input), np.cumsum(to_output)
    begins_in, begins_out = ends_in - from_input, ends_out - to_output
    overlap = np.minimum.outer(ends_in, ends_out) - np.maximum.outer(begins_in, begins_out)
    kept: Int64s = np.maximum(overlap, 0).astype(np.int64)
    return kept


# -- the test ------------------------------------------------------------------------------------


class JudgedTable(Struct, frozen=True, eq=False):
    """The table that is tested. ``cells``: counts, with at least 2 rows and columns;
    ``input_bins``, ``output_bins``: the first and the last bin of each row and each column."""

    cells: Int64s
    input_bins: Int64s
    output_bins: Int64s

    def folded(self, counts: Int64s) -> Int64s:
        """Another table of the same bins; its counts are added up in these cells."""
        rows = np.add.reduceat(counts, self.input_bins[:, 0], axis=0)
        kept: Int64s = np.add.reduceat(rows, self.output_bins[:, 0], axis=1)
        return kept


# In a shuffle, records of every input shard are in every output shard, in proportion to the numbers
# of records of both. The table of counts is compared with these proportions by Pearson's
# chi-squared test of independence, with the sums of its rows and columns fixed. In a random order,
# the cut into shards does not change the statistic, because the end of a shard does not depend on
# later records.
def judged_table(counts: Int64s) -> JudgedTable | None:
    """The cells in which ``counts``, shape ``(input bins, output bins)``, are tested; None if there
    are too few records for a test."""
    if not counts.size:
        return None
    merged = _merged(counts)
    return merged if _chi_squared(merged.cells)[1] else None


def _merged(counts: Int64s) -> JudgedTable:
    """Merge neighbours in the table until each cell is expected to have ``EXPECTED_MIN``. Rows and
    columns without records are left out. The result may have a single row or column."""
    kept = [np.flatnonzero(counts.sum(axis=1 - axis) > 0) for axis in (0, 1)]
    table: Int64s = counts[np.ix_(*kept)]
    bins = [np.repeat(each[:, None], 2, axis=1).astype(np.int64) for each in kept]
    total = int(table.sum())
    while min(table.shape) > 1:
        rows, columns = table.sum(axis=1), table.sum(axis=0)
        if int(rows.min()) * int(columns.min()) >= EXPECTED_MIN * total:
            break
        # Merge on the axis that has a bin much smaller than its other bins.
        row_share = rows.min() * len(rows) / total
        column_share = columns.min() * len(columns) / total
        if min(row_share, column_share) < 0.5:
            axis = 0 if row_share < column_share else 1
        else:
            axis = 0 if len(rows) > len(columns) else 1
        table, bins[axis] = _smallest_merged(table, axis, bins[axis])
    return JudgedTable(table, *bins)


def _smallest_merged(table: Int64s, axis: int, bins: Int64s) -> tuple[Int64s, Int64s]:
    """Merge the smallest row (axis 0) or column (1) with the smaller of its neighbours. Return the
    table, and the first and last bin of each of its rows or columns."""
    sums = table.sum(axis=1 - axis)
    smallest = int(sums.argmin())
    beside = [at for at in (smallest - 1, smallest + 1) if 0 <= at < len(sums)]
    other = min(beside, key=lambda at: int(sums[at]))
    upper = max(smallest, other)
    begins = np.delete(np.arange(len(sums)), upper)
    merged: Int64s = np.add.reduceat(table, begins, axis=axis)
    joined = bins[begins]
    joined[upper - 1, 1] = bins[upper, 1]
    return merged, joined


def _chi_squared(table: Int64s) -> tuple[float, int]:
    """Return (statistic, degrees of freedom) of a test of independence; 0 degrees: no test."""
    rows, columns = table.shape
    if min(rows, columns) < 2:
        return 0.0, 0
    cells = table.astype(np.float64)
    expected: NDArray[np.float64] = np.outer(cells.sum(axis=1), cells.sum(axis=0)) / cells.sum()
    if expected.min() < EXPECTED_MIN:
        return 0.0, 0
    return float(((cells - expected) ** 2 / expected).sum()), (rows - 1) * (columns - 1)
