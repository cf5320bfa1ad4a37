"""Damaged shards of every container and codec, as whole jobs meet them: each is refused by name, or
what comes out is what readers of others find in it. ``python -m tests.support.mutants`` tries more
of them than a test run has time for."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.support.container_kinds import KINDS, Kind, some_records
from tests.support.inline_runtime import Moved
from tests.support.mutants import judge, mutant_of


@pytest.mark.sample(keep=10)
@pytest.mark.parametrize("target", ["same", ".tar"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suffix)
def test_a_damaged_shard_is_refused_by_name_or_read_as_others_read_it(
    kind: Kind, target: str, rng: random.Random, rounds: Callable[[int, int], int]
) -> None:
    whole = kind.write(some_records("fuzz", 13))
    if kind.raw_suffix == ".bin":
        target = "same"  # nothing else can be made of it
    for number in range(rounds(4, 60)):
        done, data = mutant_of(kind, whole, rng)
        move = Moved("spill", partitions=2, buffer_bytes=2048) if number % 2 else Moved("spill")
        verdict = judge(kind, data, target, move)
        assert verdict.is_fine, (done, verdict)
