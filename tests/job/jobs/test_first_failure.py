"""The shard that an error names is the first one that is wrong, whatever the number of workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsort.errors import CorruptShardError, DuplicateError
from tests.support.datasets import Member, Shard, write_shards
from tests.support.engine import record, run_local, shard_of, spec_of

LARGE = 24 << 20


def test_a_large_corrupt_shard_is_named_before_small_ones_behind_it(tmp_path: Path) -> None:
    large = Shard((Member("a.bin", os.urandom(LARGE)), *record("b"))).data
    at = large.index(b"b.jpg\0")
    shards = {"in-0.tar": large[:at] + b"c" + large[at + 1 :]}
    shards |= {f"in-{number}.tar": b"no header" * 100 for number in range(1, 6)}
    write_shards(tmp_path / "in", shards)
    for workers in (1, 2, 3):
        with pytest.raises(CorruptShardError) as caught:
            run_local(tmp_path, spec_of(verify="content"), workers=workers)
        assert caught.value.shard == "in-0.tar", workers


def test_of_shards_with_a_repeated_name_the_first_is_named(tmp_path: Path) -> None:
    twice = Shard((Member("z.bin", os.urandom(LARGE)), *record("a"), *record("b"), *record("a")))
    shards = {"in-0.tar": shard_of("x"), "in-1.tar": twice}
    shards |= {f"in-{n}.tar": Shard((*record(f"{n}"), *record(f"{n}"))) for n in range(2, 7)}
    write_shards(tmp_path / "in", shards)
    for workers in (1, 2, 3):
        with pytest.raises(DuplicateError, match=r"in-1\.tar: a\.jpg"):
            run_local(tmp_path, spec_of(duplicated_records="abort"), workers=workers)
