"""Counting how records were mixed: of each bin of input shards, how many came to each bin of
output shards. Bounded, whatever the number of records and shards.

Input bins are known beforehand: input shard ``s`` of ``S`` is in bin ``s * bins // S``. How many
output shards there will be is not known before the last bucket is cut, so output bins are powers of
two: output shard ``o`` is in bin ``o >> shift``, and ``shift`` grows when there are too many. What
comes out depends on the cut alone, never on how many buckets there were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from dsort.data.columns import Int32s, Int64s
from dsort.order.cut import OpenShard, Piece

__all__ = [
    "BINS_MAX",
    "MixingGrid",
    "MixingPart",
    "MixingTally",
    "OutputRuns",
    "count_part",
    "output_bin_shards",
]

BINS_MAX = 64
"""Of input and of output shards in the result."""
BINS_OPEN_MAX = 128
"""Of output shards while they are counted."""


def output_bin_shards(output_shards: int) -> int:
    """How many output shards a bin of the result has (the last bin may have fewer)."""
    size = 1
    while -(-output_shards // size) > BINS_MAX:
        size *= 2
    return size


@dataclass(frozen=True, slots=True)
class MixingGrid:
    """How to count one bucket. ``output``: ordinal of the output shard that takes the next record;
    ``shift``: output shards ``o`` with the same ``o >> shift`` are one bin."""

    input_shards: int
    output: int = 0
    shift: int = 0

    @property
    def input_bins(self) -> int:
        """How many there are."""
        return min(self.input_shards, BINS_MAX)

    def input_bin(self, shard: Int32s) -> Int32s | Int64s:
        """The bin of each input shard. 2 ns a row."""
        if self.input_shards <= BINS_MAX:
            return shard
        return shard.astype(np.int64) * BINS_MAX // self.input_shards


@dataclass(frozen=True, slots=True, eq=False)
class MixingPart:
    """The counts of one bucket, shape ``(output bins, input bins)``, of the bins from ``first`` on.

    ``output``: ordinal of the last output shard that it has a part of.
    """

    shift: int
    first: int
    counts: Int64s
    output: int


@dataclass(frozen=True, slots=True)
class OutputRuns:
    """Where in a bucket's rows output bins begin: bin ``first + n`` has ``edges[n]:edges[n + 1]``.
    At most ``BINS_OPEN_MAX`` bins."""

    shift: int
    first: int
    edges: tuple[int, ...]
    output: int

    @staticmethod
    def of(grid: MixingGrid, state: OpenShard, pieces: Sequence[Piece]) -> OutputRuns:
        """Of the pieces of one bucket (there is at least one) that was cut from ``state`` on."""
        begins = state.records > 0 and (pieces[0].group, pieces[0].number) != (
            state.group,
            state.number,
        )
        # Each piece of a bucket is of another output shard than the one before it.
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
    """Count one bucket. ``shard``, shape ``(n,)``: ordinals of the input shards of its rows, in
    output order."""
    runs = OutputRuns.of(grid, state, pieces)
    source = grid.input_bin(shard)
    counts = [
        np.bincount(source[start:stop], minlength=grid.input_bins)
        for start, stop in pairwise(runs.edges)
    ]
    return MixingPart(runs.shift, runs.first, np.array(counts, np.int64), runs.output)


@dataclass(slots=True, eq=False)
class MixingTally:
    """The counts of all buckets cut so far; parts have to come in the order of the cut."""

    input_shards: int
    _shift: int = 0
    _counts: Int64s = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    _output: int = -1

    def grid(self, state: OpenShard) -> MixingGrid:
        """How to count the next bucket, which is cut from ``state`` on."""
        is_open = state.records > 0
        output = self._output if is_open else self._output + 1
        return MixingGrid(self.input_shards, output, self._shift)

    def add(self, part: MixingPart) -> None:
        """Take in the counts of the next bucket."""
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

        ``output_shards``: all of them, those without records at the end included.
        """
        size = output_bin_shards(output_shards)
        counts, _ = _folded(self._counts, 0, self._shift, size.bit_length() - 1)
        bins = -(-output_shards // size)
        table = np.zeros((bins, min(self.input_shards, BINS_MAX)), np.int64)
        if len(counts):
            table[: len(counts)] = counts
        return table.T.copy()


def _folded(counts: Int64s, first: int, shift: int, wanted: int) -> tuple[Int64s, int]:
    """``counts`` of the bins from ``first`` on, in bins of shift ``wanted``; and the first one."""
    if wanted == shift or not len(counts):
        return counts, first >> (wanted - shift)
    target = (first + np.arange(len(counts))) >> (wanted - shift)
    begins = np.flatnonzero(np.diff(target, prepend=-1))
    return np.add.reduceat(counts, begins, axis=0), int(target[0])
