"""Of weighed inputs comes out what a plain-Python model says, whatever workers and memory."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from math import ceil, floor
from pathlib import Path
from typing import Any

import pytest
import xxhash

from dsort.errors import MixError
from tests.support.datasets import Member, Shard, files_of, payloads_in, write_shards
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import shares_of_total
from tests.support.refusals import raises
from tests.support.verified import verify_result
from tests.transforms.laws.test_step_laws import mix

Record = tuple[str, bytes]
"""A key and the payload of its one member."""
INPUTS = {"web": 3, "code": 2, "tiny": 1}


def lot_of(name: str, key: str, seed: str) -> int:
    outer = xxhash.xxh3_64_intdigest(f"mix {seed}".encode())
    inner = xxhash.xxh3_64_intdigest(name.encode(), seed=outer)
    return mix(xxhash.xxh3_64_intdigest(key.encode()) ^ inner)


def drawn(
    root: Path, rng: random.Random, bag: list[bytes] | None = None
) -> dict[str, list[Record]]:
    """The records of three inputs, in input order. Some keys are in several shards; if payloads
    come out of a ``bag``, payloads are, too."""
    records: dict[str, list[Record]] = {}
    for name, shards in INPUTS.items():
        records[name], files = [], {}
        for number in range(shards):
            keys = rng.sample([f"{letter}{n}" for letter in "ab" for n in range(40)], 25)
            drawn = (rng.choice(bag) if bag else rng.randbytes(rng.randrange(600)) for _ in keys)
            part = list(zip(keys, drawn, strict=True))
            files[f"s-{number}.tar"] = Shard(tuple(Member(f"{k}.x", data) for k, data in part))
            records[name] += part
        write_shards(root / name, files)
    return records


def repeated(records: list[Record], counts: list[int]) -> list[Record]:
    return [
        (key if number == 0 else f"{key}~{number}", data)
        for (key, data), count in zip(records, counts, strict=True)
        for number in range(count)
    ]


def by_weight(name: str, records: list[Record], weight: str) -> list[Record]:
    exact = Fraction(weight)
    rest = exact - floor(exact)
    lots = [Fraction(lot_of(name, key, "0"), 2**64) for key, _ in records]
    return repeated(records, [floor(exact) + (lot < rest) for lot in lots])


def exactly(name: str, records: list[Record], wanted: int, seed: str = "0") -> list[Record]:
    counts = [wanted // len(records)] * len(records)
    by_lot = sorted(range(len(records)), key=lambda at: (lot_of(name, records[at][0], seed), at))
    for at in by_lot[: wanted % len(records)]:
        counts[at] += 1
    return repeated(records, counts)


def spec_of(given: dict[str, dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {
        "inputs": [{"name": name, "input_bck": name, **given.get(name, {})} for name in INPUTS],
        "output_bck": "out",
        "output_format": "out-%d",
        "output_shard_records": 31,
        "algorithm": {"kind": "none"},
        "duplicate_keys": "ignore",
        **fields,
    }


def found_in(root: Path, bucket: str = "out") -> list[Record]:
    return [(name.removesuffix(".x"), data) for name, data in payloads_in(root / bucket)]


WAYS = [
    Moved(movement="map", workers=2),
    Moved(movement="spill", workers=3, partitions=4, buffer_bytes=3000, order_seed=1),
    Moved(movement="spill", workers=2, nodes=2, partitions=3, losses=1, order_seed=2),
    Moved(movement="range", workers=2, partitions=3, buffer_bytes=64 << 10, order_seed=3),
]


def check(root: Path, spec: dict[str, Any], wanted: list[Record]) -> None:
    """In the order of the inputs it is just that; shuffled the same, alike in all ways."""
    report = run_inline(spec, root, WAYS[0])
    assert found_in(root) == wanted
    flow = report.order.flow
    assert flow is not None
    assert len(wanted) == sum(flow.read.values()) + sum(flow.added.values()) - sum(
        flow.dropped.values()
    )
    assert report.records == len(wanted)
    shuffled = {**spec, "algorithm": {"kind": "shuffle", "seed": 3}}
    results = []
    for number, moved in enumerate(WAYS):
        report = run_inline({**shuffled, "output_bck": f"out{number}"}, root, moved)
        results.append(files_of(root / f"out{number}"))
        assert Counter(found_in(root, f"out{number}")) == Counter(wanted)
    assert results[1:] == results[:1] * (len(WAYS) - 1)
    verified = verify_result(root, report.job_id, f"out{len(WAYS) - 1}")
    assert verified.problems == ()


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("weights", [("2.5", "0.25", "1"), ("0.1", "3", "1.999"), ("1", "1", "7")])
def test_weights_say_how_often_records_come_out(
    weights: tuple[str, ...], tmp_path: Path, rng: random.Random
) -> None:
    records = drawn(tmp_path, rng)
    given = dict(zip(INPUTS, weights, strict=True))
    wanted = [r for name in INPUTS for r in by_weight(name, records[name], given[name])]
    check(tmp_path, spec_of({name: {"weight": float(w)} for name, w in given.items()}), wanted)


def test_numbers_of_records_are_exact(tmp_path: Path, rng: random.Random) -> None:
    records = drawn(tmp_path, rng)
    given = {"web": {"records": 17}, "code": {"records": 123}, "tiny": {"repeat": 3}}
    wanted = [
        *exactly("web", records["web"], 17),
        *exactly("code", records["code"], 123),
        *repeated(records["tiny"], [3] * 25),
    ]
    check(tmp_path, spec_of(given), wanted)


def test_records_with_one_key_are_chosen_by_their_place(tmp_path: Path, rng: random.Random) -> None:
    """The lot is drawn by the key, which may be in every shard."""
    records = [("same", rng.randbytes(9)) for _ in range(5)]
    for name in INPUTS:
        write_shards(
            tmp_path / name,
            {f"s-{n}.tar": Shard([Member("same.x", r[1])]) for n, r in enumerate(records)},
        )
    given = {name: {"records": count} for name, count in zip(INPUTS, (1, 3, 7), strict=True)}
    wanted = [r for name in INPUTS for r in exactly(name, records, given[name]["records"])]
    check(tmp_path, spec_of(given), wanted)


MIXES: list[dict[str, Any]] = [
    {"records": 100},
    {"records": 400, "replacement": True, "seed": "other"},
    {"stop": "first_exhausted"},
    {"stop": "all_exhausted"},
]


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("mixed", MIXES, ids=str)
def test_a_mix_has_exact_numbers(mixed: dict[str, Any], tmp_path: Path, rng: random.Random) -> None:
    records = drawn(tmp_path, rng)
    weights = {"web": Fraction("0.7"), "code": Fraction("0.2"), "tiny": Fraction("0.1")}
    lengths = [len(records[name]) / weights[name] for name in INPUTS]
    if "records" in mixed:
        shares = shares_of_total(mixed["records"], list(weights.values()))
        assert sum(shares) == mixed["records"]
    elif mixed["stop"] == "first_exhausted":
        shares = [floor(min(lengths) * weight) for weight in weights.values()]
        assert all(share <= len(records[n]) for n, share in zip(INPUTS, shares, strict=True))
    else:
        shares = [ceil(max(lengths) * weight) for weight in weights.values()]
        assert all(share >= len(records[n]) for n, share in zip(INPUTS, shares, strict=True))
    seed = mixed.get("seed", "0")
    wanted = [
        r
        for name, share in zip(INPUTS, shares, strict=True)
        for r in exactly(name, records[name], share, seed)
    ]
    given = {name: {"weight": float(weight)} for name, weight in weights.items()}
    check(tmp_path, spec_of(given, mix=mixed), wanted)


def unique(records: dict[str, list[Record]], by: str, keep: str) -> dict[str, list[Record]]:
    """Of records of all inputs that are the same by key or by content, the first or the last."""
    places = [(name, at) for name in INPUTS for at in range(len(records[name]))]
    kept: dict[Any, tuple[str, int]] = {}
    for name, at in places if keep == "first" else reversed(places):
        kept.setdefault(records[name][at][by == "content"], (name, at))
    left = set(kept.values())
    return {
        name: [each for at, each in enumerate(records[name]) if (name, at) in left]
        for name in INPUTS
    }


WEIGHTS = {"web": "0.7", "code": "1", "tiny": "0.25"}


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize("how", ["weights", "numbers", "records", "first_exhausted"])
@pytest.mark.parametrize("by", ["key", "content"])
@pytest.mark.parametrize("keep", ["first", "last"])
def test_records_are_weighed_that_deduplicate_leaves(
    how: str, by: str, keep: str, tmp_path: Path, rng: random.Random
) -> None:
    """A record that a mix leaves out is not replaced by one that was equal to it."""
    records = drawn(tmp_path, rng, bag=[rng.randbytes(rng.randrange(600)) for _ in range(150)])
    left = unique(records, by, keep)
    assert all(left.values())
    fields: dict[str, Any] = {"deduplicate": {"by": by, "keep": keep}}
    base = spec_of({})
    if by == "key":
        del base["duplicate_keys"]
    given: dict[str, dict[str, Any]] = {n: {"weight": float(w)} for n, w in WEIGHTS.items()}
    counts = {name: len(left[name]) for name in INPUTS}
    shares: dict[str, int] = {}
    if how == "numbers":
        shares = {name: (counts[name] + 1) // 2 for name in INPUTS}
        given = {name: {"records": share} for name, share in shares.items()}
    elif how == "records":
        total = min(counts.values())
        parts = shares_of_total(total, [Fraction(w) for w in WEIGHTS.values()])
        shares, fields["mix"] = dict(zip(INPUTS, parts, strict=True)), {"records": total}
    elif how == "first_exhausted":
        rounds = min(counts[name] / Fraction(WEIGHTS[name]) for name in INPUTS)
        shares = {name: floor(rounds * Fraction(WEIGHTS[name])) for name in INPUTS}
        fields["mix"] = {"stop": "first_exhausted"}
    wanted = []
    for name in INPUTS:
        if how == "weights":
            wanted += by_weight(name, left[name], WEIGHTS[name])
        elif shares[name]:
            wanted += exactly(name, left[name], shares[name])
    inputs = [{"name": name, "input_bck": name, **given[name]} for name in INPUTS]
    check(tmp_path, {**base, "inputs": inputs, **fields}, wanted)


def test_an_input_with_too_few_records_is_named(tmp_path: Path, rng: random.Random) -> None:
    drawn(tmp_path, rng)
    with raises(MixError, "100 records", "input web", "75"):
        run_inline(spec_of({}, mix={"records": 300}), tmp_path, WAYS[0])


def test_shares_add_up_and_are_as_near_as_whole_numbers_can_be(rng: random.Random) -> None:
    for _ in range(300):
        weights = [Fraction(rng.randrange(1, 1000), 100) for _ in range(rng.randrange(1, 9))]
        total = rng.randrange(10_000)
        shares = shares_of_total(total, weights)
        assert sum(shares) == total
        for share, weight in zip(shares, weights, strict=True):
            assert abs(share - total * weight / sum(weights)) < 1


def test_a_larger_number_takes_what_a_smaller_one_takes(tmp_path: Path, rng: random.Random) -> None:
    drawn(tmp_path, rng)
    kept = []
    for count in (10, 40):
        given = {name: {"records": count if name == "web" else 1} for name in INPUTS}
        run_inline(spec_of(given, output_bck=f"out{count}"), tmp_path, WAYS[0])
        kept.append({payload for _, payload in found_in(tmp_path, f"out{count}")})
    assert kept[0] < kept[1]
