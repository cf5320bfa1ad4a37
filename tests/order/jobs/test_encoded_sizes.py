"""Shards that end by the size of their compressed files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.containers.jobs.test_encoded_shards import check, outputs, stored
from tests.support.datasets import Member, Shard
from tests.support.engine import spec_of
from tests.support.inline_runtime import Moved, plan_inline, run_inline

SIZE_BYTES = 1 << 20
TEXT = b" ".join(b"%x" % (n * n * 7919) for n in random.Random(4).choices(range(4000), k=300_000))


def text(draw: random.Random, size_bytes: int) -> bytes:
    start = draw.randrange(len(TEXT) - size_bytes)
    return TEXT[start : start + size_bytes]


def prepared(root: Path, *, shard_bytes: int, record_bytes: int = 3000) -> dict[str, Any]:
    """Four shards, of text and of noise in turns, and a spec for shards by compressed bytes."""
    draw = random.Random(5)
    files = {}
    for number in range(4):
        members = []
        for record in range(shard_bytes // record_bytes):
            size = draw.randrange(record_bytes // 2, 2 * record_bytes)
            payload = draw.randbytes(size) if number % 2 else text(draw, size)
            members.append(Member(f"{number}{record:06d}.bin", payload))
        files[f"s-{number}.tar"] = Shard(tuple(members)).data
    names = stored(root, files)
    return spec_of(
        input_format={"objnames": names},
        output_format="out-%05d",
        output_extension=".tgz",
        output_shard_records=None,
        output_shard_size=SIZE_BYTES,
        output_shard_size_counts="file",
    )


SHUFFLE = {"algorithm": {"kind": "shuffle", "seed": 3}}


@pytest.mark.parametrize("order", [{}, SHUFFLE], ids=["none", "shuffle"])
def test_compressed_files_are_as_large_as_asked_for(tmp_path: Path, order: dict[str, Any]) -> None:
    spec = {**prepared(tmp_path, shard_bytes=4 << 20), **order, "output_shard_size": 3 << 20}
    planned = plan_inline(spec, tmp_path, Moved("spill", partitions=3))
    report = run_inline(spec, tmp_path, Moved("map"))
    sizes = [len(data) for data in outputs(tmp_path, ".tgz")]
    assert len(sizes) >= 4
    assert sizes[:-1] == pytest.approx([3 << 20] * (len(sizes) - 1), rel=0.01)
    assert [shard.file_bytes for shard in planned.shards] == pytest.approx(sizes, rel=0.01)
    assert report.totals.file_bytes == sum(sizes)
    assert report.warnings == ()
    check(tmp_path)


def test_shards_of_a_compressed_size_also_keep_other_limits(tmp_path: Path) -> None:
    spec = prepared(tmp_path, shard_bytes=1 << 20)
    spec |= {"output_shard_records": 200, "output_shard_size_is": "at_most"}
    report = run_inline(spec, tmp_path, Moved("map"))
    sizes = [len(data) for data in outputs(tmp_path, ".tgz")]
    assert max(sizes) <= 1.02 * SIZE_BYTES
    assert report.output_shards > 4
    assert report.warnings == ()
    check(tmp_path)


def test_a_template_shares_out_compressed_bytes(tmp_path: Path) -> None:
    spec = prepared(tmp_path, shard_bytes=2 << 20)
    spec |= {"output_format": "out-{0..2}", "output_shard_size": None}
    run_inline(spec, tmp_path, Moved("map"))
    sizes = [len(data) for data in outputs(tmp_path, ".tgz")]
    assert len(sizes) == 3
    assert max(sizes) < 1.05 * min(sizes)
    check(tmp_path)


def test_a_record_that_is_larger_has_a_shard_of_its_own(tmp_path: Path) -> None:
    draw = random.Random(2)
    members = [Member(f"{n}.bin", draw.randbytes(2 << 20 if n == 1 else 9000)) for n in range(4)]
    spec = prepared(tmp_path, shard_bytes=0)
    spec |= {
        "input_format": {"objnames": stored(tmp_path, {"l.tar": Shard(tuple(members)).data})},
        "output_shard_size_is": "at_most",
    }
    report = run_inline(spec, tmp_path, Moved("map"))
    sizes = [len(data) for data in outputs(tmp_path, ".tgz")]
    assert [size > SIZE_BYTES for size in sizes] == [False, True, False]
    assert ["larger than output_shard_size" in each for each in report.warnings] == [True]
