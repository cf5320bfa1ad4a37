"""Outputs hold what a plain-Python model deals out to them, behind any step."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import xxhash

from tests.support.datasets import read_shard, write_shards
from tests.support.engine import run_local, spec_of, verify_local
from tests.transforms.laws.test_step_laws import STEPS, Record, drawn, flat, mix, shards_of

pytestmark = pytest.mark.usefixtures("workers_here")

Choice = Callable[[Record], str]


def lot_of(text: str) -> float:
    """Where the hash of ``text`` falls, as a fraction of all hashes."""
    salt = xxhash.xxh3_64_intdigest(b"", seed=xxhash.xxh3_64_intdigest(b"outputs"))
    return mix(xxhash.xxh3_64_intdigest(text.encode()) ^ salt) / 2**64


def first_of(fractions: list[tuple[str, float]], lot: float) -> str:
    reached = 0.0
    for name, fraction in fractions:
        reached += fraction
        if lot < reached:
            return name
    return fractions[-1][0]


PARTS = [("train", 0.6), ("val", 0.3), ("test", 0.1)]
BY_FRACTION = [{"name": name, "fraction": fraction} for name, fraction in PARTS]
OUTPUTS: dict[str, tuple[dict[str, Any], Choice]] = {
    "by key": ({"outputs": BY_FRACTION}, lambda record: first_of(PARTS, lot_of(record[1]))),
    "in buckets of their own": (
        {
            "outputs": [
                BY_FRACTION[0],
                {**BY_FRACTION[1], "output_bck": "out/val"},
                {**BY_FRACTION[2], "output_bck": "out/test", "output_extension": ".tar.gz"},
            ],
        },
        lambda record: first_of(PARTS, lot_of(record[1])),
    ),
    "by shard": (
        {"outputs": BY_FRACTION, "split_by": "shard"},
        lambda record: first_of(PARTS, lot_of(record[0])),
    ),
    "by a number": (
        {"outputs": BY_FRACTION, "split_by": "size() % 7"},
        lambda record: first_of(PARTS, lot_of(str(sum(map(len, record[2].values())) % 7))),
    ),
    "by a number of each class": (
        {"outputs": BY_FRACTION, "stratify": 'has("cls")', "exact": True},
        lambda record: "",  # one record alone does not show it: see ``exact_choices``
    ),
    "by condition": (
        {
            "outputs": [
                {"name": "class", "when": 'has("cls")'},
                {"name": "deep", "when": 'key.contains("/") && size() > 1000'},
                {"name": "rest", "when": True},
            ]
        },
        lambda record: (
            "class"
            if "cls" in record[2]
            else "deep"
            if "/" in record[1] and sum(map(len, record[2].values())) > 1000
            else "rest"
        ),
    ),
}


def shares(total: int, missing: list[int], parts: list[Fraction]) -> list[int]:
    """``total`` records of a class, dealt out where most is ``missing`` yet."""
    found = [int(total * part) for part in parts]
    rest = [total * part - share for part, share in zip(parts, found, strict=True)]
    order = sorted(range(len(parts)), key=lambda at: (-missing[at], -rest[at], at))
    for at in order[: total - sum(found)]:
        found[at] += 1
        missing[at] -= 1
    return found


def exact_choices(records: list[Record]) -> list[str]:
    """The output of each record where ``exact`` and ``stratify: has("cls")`` are asked for."""
    parts = [Fraction(str(part)) for _, part in PARTS]
    classes: dict[bool, list[int]] = {}
    for row, record in enumerate(records):
        classes.setdefault("cls" in record[2], []).append(row)
    salted = sorted(classes, key=lambda each: xxhash.xxh3_64_intdigest(str(each).lower().encode()))
    total = len(records)
    wanted = [int(total * part) for part in parts]
    by_rest = sorted(range(3), key=lambda at: (wanted[at] - total * parts[at], at))
    for at in by_rest[: total - sum(wanted)]:
        wanted[at] += 1
    least = [sum(int(len(rows) * part) for rows in classes.values()) for part in parts]
    missing = [all_of_it - own for all_of_it, own in zip(wanted, least, strict=True)]
    choices = [""] * total
    for each in salted:
        rows = sorted(classes[each], key=lambda row: (lot_of(records[row][1]), row))
        names = [
            PARTS[at][0] for at, n in enumerate(shares(len(rows), missing, parts)) for _ in range(n)
        ]
        for row, name in zip(rows, names, strict=True):
            choices[row] = name
    return choices


def held(root: Path, name: str) -> list[tuple[str, bytes]]:
    """The members of one output, in order."""
    shards = {
        path.name: gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for path in (root / "out").rglob(f"{name}-*.tar*")
        if ".dsort" not in path.parts
    }
    return [
        (member.name, member.payload)
        for each in sorted(shards, key=lambda each: (len(each), each))
        for member in read_shard(shards[each])
    ]


@pytest.mark.sample(keep=6)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", OUTPUTS)
def test_each_output_holds_what_the_model_deals_out(
    name: str, step: str, tmp_path: Path, rng: random.Random
) -> None:
    records = drawn(rng)
    write_shards(tmp_path / "in", shards_of(records))
    fields, choice = OUTPUTS[name]
    left = STEPS[step][1](records)
    choices = exact_choices(left) if "exact" in fields else [choice(each) for each in left]
    spec = spec_of(
        transform={"steps": [STEPS[step][0]]},
        duplicate_keys="ignore",
        output_format="{split}-%d",
        **fields,
    )
    report = run_local(tmp_path, spec, move=rng.choice(["map", "spill"]))
    for each in fields["outputs"]:
        chosen = zip(left, choices, strict=True)
        own = [record for record, name in chosen if name == each["name"]]
        assert held(tmp_path, each["name"]) == flat(own)
    assert report.records == len(left)
    assert verify_local(tmp_path, report).problems == ()
