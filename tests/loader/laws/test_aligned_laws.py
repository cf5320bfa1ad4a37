"""The law of columns: equal names of shards, equal keys, seed and cut by records give outputs whose
records stand at the same places, whatever the payload is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import dsort
from tests.support.datasets import Member, Shard, write_shards

pytestmark = pytest.mark.usefixtures("workers_here")

ALGORITHMS: list[dict[str, Any]] = [
    {"kind": "shuffle", "seed": 3},
    {"kind": "alphanumeric"},
    {"kind": "md5"},
    {"kind": "none"},
]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: str(each["kind"]))
@pytest.mark.parametrize("seed", range(3))
def test_columns_that_are_cut_alike_have_their_records_at_the_same_places(
    seed: int, algorithm: dict[str, Any], workers: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    keys = [
        [f"{rng.randrange(1000)}/{shard}-{number}" for number in range(rng.randrange(1, 30))]
        for shard in range(rng.randrange(1, 5))
    ]
    spec = {
        "output_format": "out-%03d",
        "output_shard_records": rng.randrange(1, 12),
        "algorithm": algorithm,
    }
    found = []
    for extension, bytes_max in (("jpg", 5_000), ("txt", 50)):
        shards = {
            f"s-{number}.tar": Shard(
                tuple(
                    Member(f"{key}.{extension}", rng.randbytes(rng.randrange(bytes_max)))
                    for key in own
                )
            )
            for number, own in enumerate(keys)
        }
        write_shards(tmp_path / f"{extension}-in", shards)
        options = dsort.RunOptions(root=tmp_path, workers=workers if extension == "txt" else 1)
        buckets = {"input_bck": f"{extension}-in", "output_bck": extension}
        report = dsort.run({**spec, **buckets}, options=options)
        found.append(
            [(each.shard, each.key) for each in dsort.read_shards(report, options=options)]
        )
    assert found[0] == found[1]
    assert len(found[0]) == sum(map(len, keys))
