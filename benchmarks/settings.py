"""The extent of a measurement, and the result of a suite."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.data import PROFILES, DataSet, Request, make_data
from benchmarks.results import Run, Skip

__all__ = ["Measured", "Settings", "data_of"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The extent of a measurement. ``contenders``: empty for the default of each suite and
    profile."""

    directory: Path
    is_quick: bool
    total_bytes: int
    shards: int
    limited_total_bytes: int
    rounds: int
    slow_rounds: int
    workers: int
    planning_rows: int
    timeout_seconds: float
    profiles: tuple[str, ...] = tuple(PROFILES)
    contenders: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    until_s: float = math.inf
    """After this ``time.monotonic``, only first rounds begin."""

    def wants(self, *row: str) -> bool:
        """Whether a row is to be measured: a suite, perhaps a profile, perhaps a contender."""
        return not self.only or any(_covers(pattern, row) for pattern in self.only)

    def profiles_of(self, suite: str) -> list[str]:
        """The profiles of a suite that compares on tars."""
        return [name for name in self.profiles if self.wants(suite, name)]


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a suite."""

    runs: list[Run]
    skips: list[Skip]


def _covers(pattern: str, row: Sequence[str]) -> bool:
    """``containers/3k`` covers that suite, that profile and each of its contenders."""
    parts = pattern.split("/")
    return all(fnmatchcase(name, part) for name, part in zip(row, parts, strict=False))


def data_of(settings: Settings, profile: str, total_bytes: int, shards: int) -> DataSet:
    """The data of a profile, which is made if it does not exist."""
    request = Request(profile, total_bytes, shards)
    print(f"data {request.directory_name}", file=sys.stderr, flush=True)
    return make_data(settings.directory, request)
