"""Of records that are the same, the one stays that a plain-Python model says."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.datasets import Member, Shard, files_of, payloads_in, write_shards
from tests.support.engine import count_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.verified import assert_verified, verify_result

Record = tuple[str, dict[str, bytes]]
"""A key, and payloads by extension."""

WAYS = [
    Moved(movement="map", workers=2),
    Moved(movement="spill", workers=3, partitions=4, buffer_bytes=3000, order_seed=1),
    Moved(movement="spill", workers=2, nodes=2, partitions=3, losses=1, order_seed=2),
]


def drawn(root: Path, rng: random.Random) -> list[Record]:
    """Records whose payloads come out of a small bag, in two inputs."""
    bag = [b"", b"a", b"b" * 600, b"c" * 600, b"d" * 2000]
    records: list[Record] = []
    for place in ("web", "code"):
        shards = {}
        for number in range(3):
            part = []
            for key in rng.sample(range(60), 15):
                names = rng.sample(["jpg", "cls", "info.json"], rng.randrange(1, 4))
                part.append((f"k{key}", {name: rng.choice(bag) for name in names}))
            shards[f"s-{number}.tar"] = Shard(
                tuple(Member(f"{k}.{name}", d) for k, each in part for name, d in each.items())
            )
            records += part
        write_shards(root / place, shards)
    return records


def unique(records: list[Record], wanted: dict[str, Any]) -> list[Record]:
    def identity(record: Record) -> Any:
        key, members = record
        if wanted.get("by") != "content":
            return key
        named = wanted.get("extensions") or [*members]
        return tuple(sorted((name, data) for name, data in members.items() if name in named))

    kept: dict[Any, int] = {}
    for at, record in enumerate(records):
        same = identity(record) or ("alone", at)
        if wanted.get("keep") == "last" or same not in kept:
            kept[same] = at
    return [records[at] for at in sorted(kept.values())]


def spec_of(**fields: Any) -> dict[str, Any]:
    return {
        "inputs": [{"name": name, "input_bck": name} for name in ("web", "code")],
        "output_bck": "out",
        "output_format": "out-%d",
        "output_shard_records": 7,
        "algorithm": {"kind": "none"},
        **fields,
    }


def flat(records: list[Record]) -> list[tuple[str, bytes]]:
    return [(f"{key}.{name}", data) for key, each in records for name, data in each.items()]


CASES: list[dict[str, Any]] = [
    {"by": "key"},
    {"by": "key", "keep": "last"},
    {"by": "content"},
    {"by": "content", "keep": "last"},
    {"by": "content", "extensions": ["jpg"]},
    {"by": "content", "extensions": ["info.json", "cls"], "keep": "last"},
    {"by": "content", "extensions": ["nowhere"]},
]


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize("wanted", CASES, ids=str)
def test_one_of_records_that_are_the_same_stays(
    wanted: dict[str, Any], tmp_path: Path, rng: random.Random
) -> None:
    records = drawn(tmp_path, rng)
    expected = unique(records, wanted)
    reaction = {} if wanted["by"] == "key" else {"duplicate_keys": "ignore"}
    spec = spec_of(deduplicate=wanted, **reaction)
    report = run_inline(spec, tmp_path, WAYS[0])
    assert payloads_in(tmp_path / "out") == flat(expected)
    assert count_of(report, "deduplicated")[0] == len(records) - len(expected)
    results = []
    for number, moved in enumerate(WAYS):
        shuffled = {**spec, "algorithm": {"kind": "shuffle", "seed": 1}}
        report = run_inline({**shuffled, "output_bck": f"out{number}"}, tmp_path, moved)
        results.append(files_of(tmp_path / f"out{number}"))
    assert results[1:] == results[:1] * 2
    assert sorted(payloads_in(tmp_path / "out0")) == sorted(flat(expected))
    verified = verify_result(tmp_path, report.job_id, "out2")
    assert verified.problems == ()
    names = tmp_path / "out2" / (report.job_id and f".dsort/{report.job_id}/reactions.jsonl")
    lines = [json.loads(line) for line in names.read_text().splitlines()] if names.exists() else []
    assert len(lines) == len(records) - len(expected)
    assert all(line["kind"] == "deduplicated" for line in lines)


@pytest.mark.parametrize("keep", ["first", "last"])
def test_what_is_the_same_is_left_out_before_keys_are_settled(
    keep: str, tmp_path: Path, rng: random.Random
) -> None:
    records = drawn(tmp_path, rng)
    left = unique(records, {"by": "content", "keep": keep})
    expected = unique(left, {"by": "key"})
    spec = spec_of(deduplicate={"by": "content", "keep": keep}, duplicate_keys="drop")
    report = run_inline(spec, tmp_path, WAYS[1])
    assert payloads_in(tmp_path / "out") == flat(expected)
    assert count_of(report, "deduplicated")[0] == len(records) - len(left)
    assert count_of(report, "duplicate_keys_dropped")[0] == len(left) - len(expected)
    assert_verified(tmp_path, report.job_id)


def test_lines_that_are_the_same_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n{"x": 1}\n')
    (tmp_path / "in" / "b.jsonl").write_text('{"x": 2}\n{"x": 3}\n')
    spec = spec_of(deduplicate={"by": "content"}, input_extension=".jsonl")
    del spec["inputs"]
    report = run_inline({**spec, "input_bck": "in"}, tmp_path, WAYS[1])
    (path,) = (tmp_path / "out").glob("*.jsonl")
    assert path.read_text() == '{"x": 1}\n{"x": 2}\n{"x": 3}\n'
    assert_verified(tmp_path, report.job_id)


def test_a_shard_larger_than_the_buffer_is_compared_in_windows(
    tmp_path: Path, rng: random.Random
) -> None:
    payload = rng.randbytes(40_000)
    members = [Member(f"{n}.x", payload if n % 2 else payload[:-1] + b"!") for n in range(6)]
    write_shards(tmp_path / "web", {"s.tar": Shard(tuple(members))})
    write_shards(tmp_path / "code", {"s.tar": Shard((Member("9.x", payload),))})
    way = Moved(movement="spill", workers=1, partitions=2, buffer_bytes=10_000)
    run_inline(spec_of(deduplicate={"by": "content"}), tmp_path, way)
    assert [name for name, _ in payloads_in(tmp_path / "out")] == ["0.x", "1.x"]
