"""The struct that describes how a job mixed its records, and its line of text. Every command loads
this module, so it does not load NumPy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

P_MIN: Final = 0.001
"""If a table is less probable by chance, its verdict is ``uneven``."""
RECURRENCE_MAX: Final = 30
"""The most degrees of freedom for which p-values are exact."""
P_SHOWN_MIN: Final = 1e-6

Table = tuple[tuple[int, ...], ...]


class Mixing(Struct, frozen=True):
    """How one job mixed its records.

    ``counts[i][o]``: records that came from input bin ``i`` to output bin ``o``, in ``input_bins``
    rows of ``output_bins``. A bin is neighbouring shards: input bin ``i`` begins with shard
    ``ceil(i * input_shards / input_bins)``, output bin ``o`` with shard ``o * output_bin_shards``.

    ``chi2``, ``degrees_of_freedom``, ``p_value``: the result of the test; 0, 0 and 1 without a
    test. ``verdict``: even | uneven | too_few.
    """

    input_shards: int
    output_shards: int
    input_bins: int
    output_bins: int
    output_bin_shards: int
    counts: Table
    chi2: float
    degrees_of_freedom: int
    p_value: float
    verdict: str

    def document(self) -> dict[str, object]:
        """The form for manifests and journals."""
        return asdict(self)

    def __repr__(self) -> str:
        return f"<Mixing {self.verdict}: {self.input_bins} x {self.output_bins} bins>"


def chi_squared_p_value(chi2: float, degrees_of_freedom: int) -> float:
    """The probability that the statistic is at least ``chi2`` by chance alone.

    Exact up to 30 degrees of freedom, by the recurrence 26.4.8 of Abramowitz and Stegun, Handbook
    of Mathematical Functions, 1964. Above that, it is the approximation of Wilson and Hilferty (The
    Distribution of Chi-Square, Proceedings of the National Academy of Sciences 17, 1931), by which
    the cube root of chi2 / k is nearly normal, with mean 1 - 2 / (9 k) and variance 2 / (9 k).
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


def mixing_line(stored: Mapping[str, Any]) -> str:
    """A short text for a stored mixing: the verdict, the p-value, and the limit for it."""
    verdict = str(stored["verdict"])
    if verdict == "too_few":
        return "too few records or shards to tell"
    return f"{verdict} ({_p_text(float(stored['p_value']))}; uneven: p < {P_MIN})"


def _p_text(p_value: float) -> str:
    return f"p = {p_value:.2g}" if p_value >= P_SHOWN_MIN else f"p < {P_SHOWN_MIN:f}"
