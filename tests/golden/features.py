"""A small job for each feature of a spec, and for each pair of features that a spec may have."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from docs.generate.combinations_page import FEATURES, SameFieldError, refusal, spec_with
from dsort import api
from dsort.options import RunOptions
from tests.golden.jobs import GoldenJob
from tests.support.datasets import Member, Shard, write_shards

__all__ = ["allowed_features", "feature_job"]

RECORDS: Final = 12
SMALL: Final[Mapping[str, Any]] = {
    "output_shard_size": 4000,
    "output_format": "shard-%03d",
    "mix": {"records": 8},
    "output_shard_count": 3,
}
"""Fields whose values are those of real jobs in the table of features."""


def _record(key: str, rng: random.Random) -> list[Member]:
    length = rng.randrange(5)
    document = {"length": length, "key": key}
    return [
        Member(f"{key}.jpg", rng.randbytes(100 + rng.randrange(400))),
        Member(f"{key}.cls", b"%d" % rng.randrange(6)),
        Member(f"{key}.json", json.dumps(document).encode()),
    ]


def _shard(seed: str, keys: Sequence[str]) -> Shard:
    rng = random.Random(f"features {seed}")
    return Shard(tuple(member for key in keys for member in _record(key, rng)))


def _texts(keys: Sequence[str]) -> Shard:
    return Shard(tuple(Member(f"{key}.txt", key.encode()) for key in keys))


def _prepare(names: Sequence[str]) -> Any:
    def prepare(root: Path) -> None:
        keys = [f"a{number:03}" for number in range(3 * RECORDS)]
        random.Random(1).shuffle(keys)
        own = {f"s-{at}": keys[at * RECORDS : (at + 1) * RECORDS] for at in range(3)}
        shards = {f"{name}.tar": _shard(name, some) for name, some in own.items()}
        if "`ingest`" in names:
            files = [member for shard in shards.values() for member in shard.members]
            (root / "in").mkdir()
            for member in files:
                (root / "in" / member.name).write_bytes(member.payload)
        else:
            write_shards(root / "in", shards)
        write_shards(root / "one", shards)
        if "`join`" in names:
            others: dict[str, Shard | bytes] = {
                f"t-{at}.tar": _texts(keys[at::2]) for at in range(2)
            }
        else:
            others = {"t-0.tar": _shard("t", [f"ab{number:03}" for number in range(RECORDS)])}
        write_shards(root / "two", others)
        if "`like` another result" in names:
            api.run(_other(names), options=RunOptions(root=root, workers=1))

    return prepare


def _spec(names: Sequence[str]) -> dict[str, Any]:
    spec = spec_with(*names)
    for name, value in SMALL.items():
        if spec.get(name) is not None and not (name == "output_format" and "{" in spec[name]):
            spec[name] = value
    kind = "none" if {"keep_shards", "like"} & spec.keys() else "shuffle"
    algorithm = spec.setdefault("algorithm", {"kind": kind})
    if algorithm["kind"] == "shuffle":
        spec["algorithm"] = {**algorithm, "seed": 26}
    if "like" in spec:
        spec["ekm_missing_key"] = "warn"
    if "join" in spec:
        spec["join"] = {**spec["join"], "nonmatch": "skip"}
    for step in (spec.get("transform") or {}).get("steps", ()):
        if "map" in step:
            step["map"] = {"python": "tests.support.user_functions:same"}
        if "filter" in step and "join" in spec:
            step["filter"] = f'has("txt") || has("cls") && {step["filter"]}'
    return spec


def _other(names: Sequence[str]) -> dict[str, Any]:
    """The result that a job of these features is like: it has the same steps."""
    return {
        "input_bck": "one",
        "output_bck": "like",
        "output_format": "like-%d",
        "output_shard_records": 5,
        "algorithm": {"kind": "md5"},
        "transform": _spec(names).get("transform"),
    }


def feature_job(name: str) -> GoldenJob:
    """``name``: of the features, with `` + `` between them."""
    names = name.split(" + ")
    return GoldenJob(name, _spec(names), _prepare(names))


def allowed_features() -> Iterator[str]:
    """The names of jobs of one feature, and of two that a spec may have together."""
    for names in (*((name,) for name in FEATURES), *combinations(FEATURES, 2)):
        try:
            refused = refusal(*names)
        except SameFieldError:
            continue
        if not refused:
            yield " + ".join(names)
