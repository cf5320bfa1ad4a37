"""How a job mixed its records, as a value and in words. Free of NumPy: every command loads this."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

__all__ = ["P_MIN", "Mixing", "Table", "chi_squared_p_value", "mixing_line", "verdict_in_words"]

P_MIN: Final = 0.001
"""A table that chance makes less often is called uneven."""
RECURRENCE_MAX: Final = 30
"""Degrees of freedom up to which p-values are exact."""
P_SHOWN_MIN: Final = 1e-6

Table = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Mixing:
    """How one job mixed its records.

    ``counts[i][o]``: records that came from input bin ``i`` to output bin ``o``; ``before``: the
    same if they had been copied in input order into shards of the same numbers of records. Both
    have ``input_bins`` rows of ``output_bins``. A bin is neighbouring shards: input bin ``i``
    begins with shard ``ceil(i * input_shards / input_bins)``, output bin ``o`` with shard
    ``o * output_bin_shards``.

    ``chi2``, ``degrees_of_freedom``, ``p_value``: of the test, 0, 0 and 1 where it cannot be made.
    ``verdict``: even | uneven | too_few; ``words``: the same in a sentence or two.
    """

    input_shards: int
    output_shards: int
    input_bins: int
    output_bins: int
    output_bin_shards: int
    counts: Table
    before: Table
    chi2: float
    degrees_of_freedom: int
    p_value: float
    verdict: str
    words: str

    def __repr__(self) -> str:
        return f"<Mixing {self.verdict}: {self.input_bins} x {self.output_bins} bins>"

    def stored(self) -> dict[str, Any]:
        """As it is kept: without ``before``, which follows from the counts."""
        names = (each.name for each in fields(self))
        return {name: getattr(self, name) for name in names if name != "before"}


def chi_squared_p_value(chi2: float, degrees_of_freedom: int) -> float:
    """How often chance alone makes the statistic at least ``chi2``.

    Exact up to 30 degrees of freedom, by the recurrence 26.4.8 of Abramowitz and Stegun, Handbook
    of Mathematical Functions, 1964. Above that the approximation of Wilson and Hilferty (The
    Distribution of Chi-Square, Proceedings of the National Academy of Sciences 17, 1931): the cube
    root of chi2 / k is nearly normal, with mean 1 - 2 / (9 k) and variance 2 / (9 k).
    """
    if chi2 <= 0:
        return 1.0
    if degrees_of_freedom <= RECURRENCE_MAX:
        return _p_value_by_recurrence(chi2 / 2, degrees_of_freedom)
    spread = 2 / (9 * degrees_of_freedom)
    normal = ((chi2 / degrees_of_freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return math.erfc(normal / math.sqrt(2)) / 2


def _p_value_by_recurrence(half: float, degrees: int) -> float:
    total = math.erfc(math.sqrt(half)) if degrees % 2 else math.exp(-half)
    for known in range(2 - degrees % 2, degrees, 2):
        total += math.exp(known / 2 * math.log(half) - half - math.lgamma(known / 2 + 1))
    return min(total, 1.0)


# -- in words ------------------------------------------------------------------------------------


def mixing_line(stored: Mapping[str, Any]) -> str:
    """A stored mixing in half a line: the verdict, and the limit that it was measured against."""
    verdict = str(stored["verdict"])
    if verdict == "too_few":
        return "too few records or shards to tell"
    return f"{verdict} ({_p_text(float(stored['p_value']))}; uneven: p < {P_MIN})"


def _p_text(p_value: float) -> str:
    return f"p = {p_value:.2g}" if p_value >= P_SHOWN_MIN else f"p < {P_SHOWN_MIN:f}"


def _figures(chi2: float, degrees: int, p_value: float) -> str:
    p_text = _p_text(p_value)
    return f"chi-squared {chi2:.0f} for {_count(degrees, 'degree')} of freedom, {p_text}"


def verdict_in_words(
    verdict: str, chi2: float, degrees_of_freedom: int, p_value: float, reason: str
) -> str:
    """``even`` or ``uneven`` in a sentence or two. ``reason``: what decides the order, as a clause;
    empty where it is chance."""
    figures = _figures(chi2, degrees_of_freedom, p_value)
    if verdict == "uneven" and reason:
        return (
            f"Not a shuffle: {reason}, and output shards hold more records of some input shards "
            f"than of others: {figures}."
        )
    aside = f", though {reason}" if reason else ""
    if verdict == "even" and p_value > 1 - P_MIN:
        return (
            f"Each output shard holds records of all input shards in proportion{aside}, and more "
            f"exactly so than by chance: {figures}."
        )
    if verdict == "even":
        text = f"Each output shard holds records of all input shards in proportion{aside}"
    else:
        text = "Output shards hold more records of some input shards than of others"
    return f"{text}: {figures}. An even shuffle gives p below {P_MIN} once in a thousand jobs."


def _count(value: int, noun: str) -> str:
    return f"{value:,} {noun}{'' if value == 1 else 's'}"
