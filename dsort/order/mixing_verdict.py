"""Whether a shuffle is one: records of every input shard should be in every output shard, in
proportion to how many records both have.

The table of counts (see ``mixing_counts``) is compared with that by Pearson's chi-squared test of
independence, with the sums of its rows and columns as they are. In a random order the cut into
shards leaves the statistic as it is, for where a shard ends depends on nothing that comes after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dsort.data.columns import Int64s
from dsort.order.mixing import P_MIN, Mixing, Table, chi_squared_p_value, verdict_in_words
from dsort.order.mixing_counts import output_bin_shards

__all__ = ["EXPECTED_MIN", "counts_in_input_order", "judge_mixing", "mixing_of"]

EXPECTED_MIN: Final = 5.0
"""Records that every cell of the table is expected to have at least, for the test to hold (Cochran,
Some Methods for Strengthening the Common chi-squared Tests, Biometrics 10, 1954)."""


def judge_mixing(
    counts: Int64s, *, input_shards: int, output_shards: int, order: str
) -> Mixing | None:
    """What the table ``counts``, shape ``(input bins, output bins)``, says; None if it is empty.

    ``order``: the kind of the algorithm, or "key map" where one decides.
    """
    if counts.size == 0:
        return None
    chi2, degrees = _chi_squared(_merged(counts))
    p_value = chi_squared_p_value(chi2, degrees) if degrees else 1.0
    verdict = "too_few" if not degrees else "even" if p_value >= P_MIN else "uneven"
    return Mixing(
        input_shards=input_shards,
        output_shards=output_shards,
        input_bins=counts.shape[0],
        output_bins=counts.shape[1],
        output_bin_shards=output_bin_shards(output_shards),
        counts=_table(counts),
        before=_table(counts_in_input_order(counts.sum(axis=1), counts.sum(axis=0))),
        chi2=round(chi2, 3),
        degrees_of_freedom=degrees,
        p_value=p_value,
        verdict=verdict,
        words=verdict_in_words(verdict, chi2, degrees, p_value, order)
        if degrees
        else _why_too_few(counts, input_shards, output_shards),
    )


def mixing_of(told: Mapping[str, Any], *, order: str) -> Mixing | None:
    """A mixing from what is stored of it: ``input_shards``, ``output_shards`` and ``counts``.

    ``ValueError``, ``TypeError`` or ``KeyError`` if that is something else.
    """
    counts = np.array(told["counts"], np.int64)
    if counts.ndim != 2:
        raise ValueError("counts is no table")
    return judge_mixing(
        counts,
        input_shards=int(told["input_shards"]),
        output_shards=int(told["output_shards"]),
        order=order,
    )


def counts_in_input_order(from_input: Int64s, to_output: Int64s) -> Int64s:
    """The table of a copy in input order. ``from_input``, ``to_output``: how many records each
    input and each output has; their sums are equal."""
    ends_in, ends_out = np.cumsum(from_input), np.cumsum(to_output)
    begins_in, begins_out = ends_in - from_input, ends_out - to_output
    overlap = np.minimum.outer(ends_in, ends_out) - np.maximum.outer(begins_in, begins_out)
    kept: Int64s = np.maximum(overlap, 0).astype(np.int64)
    return kept


# -- the test ------------------------------------------------------------------------------------


def _merged(counts: Int64s) -> Int64s:
    """The table with neighbours merged until each cell is expected to have ``EXPECTED_MIN``; what
    has no records is left out. It may end with a single row or column."""
    table: Int64s = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    total = int(table.sum())
    while min(table.shape) > 1:
        rows, columns = table.sum(axis=1), table.sum(axis=0)
        if int(rows.min()) * int(columns.min()) >= EXPECTED_MIN * total:
            break
        # A bin that is much smaller than the others of its kind is the one to blame.
        row_share = rows.min() * len(rows) / total
        column_share = columns.min() * len(columns) / total
        if min(row_share, column_share) < 0.5:
            axis = 0 if row_share < column_share else 1
        else:
            axis = 0 if len(rows) > len(columns) else 1
        table = _smallest_merged(table, axis)
    return table


def _smallest_merged(table: Int64s, axis: int) -> Int64s:
    """The smallest row (axis 0) or column (1) and the smaller of its neighbours become one."""
    sums = table.sum(axis=1 - axis)
    smallest = int(sums.argmin())
    beside = [at for at in (smallest - 1, smallest + 1) if 0 <= at < len(sums)]
    other = min(beside, key=lambda at: int(sums[at]))
    begins = np.delete(np.arange(len(sums)), max(smallest, other))
    merged: Int64s = np.add.reduceat(table, begins, axis=axis)
    return merged


def _chi_squared(table: Int64s) -> tuple[float, int]:
    """(statistic, degrees of freedom) against independence; 0 degrees if there is no test."""
    rows, columns = table.shape
    if min(rows, columns) < 2:
        return 0.0, 0
    cells = table.astype(np.float64)
    expected: NDArray[np.float64] = np.outer(cells.sum(axis=1), cells.sum(axis=0)) / cells.sum()
    if expected.min() < EXPECTED_MIN:
        return 0.0, 0
    return float(((cells - expected) ** 2 / expected).sum()), (rows - 1) * (columns - 1)


def _why_too_few(counts: Int64s, input_shards: int, output_shards: int) -> str:
    sources = int(np.count_nonzero(counts.sum(axis=1)))
    targets = int(np.count_nonzero(counts.sum(axis=0)))
    records = int(counts.sum())
    if not records:
        return "There are no records, so there is nothing to tell."
    if sources == 1:
        return "All records come from one part of the input, so there is nothing to mix."
    if targets == 1:
        return "All records are in one output shard, so there is nothing to compare."
    return (
        f"Too few records to tell: {records:,} in all, of {input_shards:,} input and in "
        f"{output_shards:,} output shards."
    )


def _table(counts: Int64s) -> Table:
    return tuple(tuple(row) for row in counts.tolist())
