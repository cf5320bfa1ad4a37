"""The laws of a whole job, over every container and codec: nothing is lost, records come in the
order that was asked for, shards have the sizes that were asked for, the bytes are the same
however the job is done, and a damaged shard is refused by name or read as others read it.
Readers are none of ours (``tests/support/container_kinds.py``)."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.options import RunOptions
from tests.support.container_kinds import KINDS, Kind, Reading, Rec, some_records
from tests.support.engine import spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import JobReport
from tests.support.mutants import judge, mutant_of

SIZES = (17, 0, 9, 30)
"""Records of each input shard."""
SHUFFLE = {"kind": "shuffle", "seed": "laws"}
ORDERS: dict[str, dict[str, Any]] = {
    "shuffled": SHUFFLE,
    "sorted": {"kind": "alphanumeric"},
    "reversed": {"kind": "alphanumeric", "decreasing": True},
    "kept": {"kind": "none"},
}
WAYS = (
    Moved("map"),
    Moved("spill", workers=2, partitions=3, buffer_bytes=6000, order_seed=1),
    Moved("spill", workers=3, partitions=2, nodes=3, losses=1, order_seed=2),
)
"""The second one's buffers hold no whole shard."""


def inputs_of(kind: Kind, root: Path) -> list[list[Rec]]:
    """The records of each shard in the bucket ``in``, which is made."""
    (root / "in").mkdir(parents=True)
    shards = []
    for number, count in enumerate(SIZES):
        if count == 0 and kind.raw_suffix in (".mds", ".parquet", ".arrow", ".arrows"):
            count = 1  # an empty one has other columns, or is none
        shards.append(some_records(f"{number}", count))
        (root / "in" / f"s-{number}{kind.suffix}").write_bytes(kind.write(shards[-1]))
    if kind.beside:
        (root / "in" / kind.beside[0]).write_bytes(kind.beside[1])
    return shards


def job_of(kind: Kind, order: str, **fields: Any) -> dict[str, Any]:
    return spec_of(
        **{
            "input_format": {"template": f"s-{{0..{len(SIZES) - 1}}}"},
            "input_extension": kind.suffix,
            "output_extension": kind.output_suffix,
            "output_shard_records": 8,
            "algorithm": ORDERS[order],
            "incomplete_shards": "warn",  # a tar without members is one
            **(
                {"key_field": kind.key_field}
                if kind.key_field and kind.key_field != "__key__"
                else {}
            ),
            **fields,
        }
    )


def shards_in(kind: Kind, bucket: Path) -> dict[str, bytes]:
    """The output shards in their order."""
    paths = [path for path in bucket.iterdir() if path.name.startswith("out-")]
    return {path.name: path.read_bytes() for path in sorted(paths, key=_number)}


def _number(path: Path) -> int:
    return int(path.name.split(".")[0].removeprefix("out-"))


def read_all(kind: Kind, shards: dict[str, bytes]) -> list[Reading]:
    reader = kind if kind.output_suffix == kind.suffix else _plain(kind)
    return [reader.read(data) for data in shards.values()]


def _plain(kind: Kind) -> Kind:
    return next(each for each in KINDS if each.suffix == kind.output_suffix)


def ways_of(kind: Kind) -> tuple[Moved, ...]:
    """How a job may be done: what is decoded, or made of rows, cannot be mapped."""
    return WAYS[1:] if kind.codec or kind.is_table else WAYS


def verified(root: Path, bucket: str) -> list[dict[str, Any]]:
    """What the manifest lists, which verifies."""
    (manifest,) = (root / bucket / ".dsort").glob("*/manifest.json")
    assert not api.verify(manifest.read_bytes(), options=RunOptions(root=root)).problems
    listed: list[dict[str, Any]] = json.loads(manifest.read_bytes())["outputs"]
    return listed


@pytest.mark.sample(keep=len(KINDS))
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suffix)
def test_every_record_comes_out_once_in_its_order_in_the_same_bytes_however_it_is_done(
    kind: Kind, order: str, tmp_path: Path
) -> None:
    inputs_of(kind, tmp_path)
    given = [
        record
        for path in sorted((tmp_path / "in").glob("s-*"))
        for record in kind.read(path.read_bytes())
    ]
    results = []
    for number, moved in enumerate(ways_of(kind)):
        spec = job_of(kind, order, output_bck=f"out-{number}")
        report: JobReport = run_inline(spec, tmp_path, moved)
        results.append(shards_in(kind, tmp_path / f"out-{number}"))
        assert report.records == len(given)
    read = read_all(kind, results[0])
    found = [record for shard in read for record in shard]
    assert Counter(found) == Counter(given)
    assert all(result == results[0] for result in results)
    assert [len(shard) for shard in read] == [8] * (len(given) // 8) + [len(given) % 8] * (
        len(given) % 8 > 0
    )
    if order == "kept":
        assert found == given
    elif order == "shuffled":
        assert found != given
    elif kind.key_of:
        keys = list(map(kind.key_of, found))
        assert keys == sorted(keys, reverse=order == "reversed")
    verified(tmp_path, "out-0")


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suffix)
def test_another_seed_is_another_order_and_the_same_seed_the_same(
    kind: Kind, tmp_path: Path
) -> None:
    inputs_of(kind, tmp_path)
    results = []
    for number, seed in enumerate(("a", "a", "b")):
        algorithm = {"kind": "shuffle", "seed": seed}
        spec = job_of(kind, "kept", algorithm=algorithm, output_bck=f"out-{number}")
        run_inline(spec, tmp_path, ways_of(kind)[0])
        results.append(shards_in(kind, tmp_path / f"out-{number}"))
    assert results[0] == results[1]
    assert results[0] != results[2]
    one, other = (Counter(r for s in read_all(kind, each) for r in s) for each in results[1:])
    assert one == other


RULES = ("at_least", "at_most", "both", "count", "file")


def has_known_size(kind: Kind) -> bool:
    """Before it is written: what is encoded has none."""
    return not kind.codec and not kind.is_table


@pytest.mark.sample(keep=6)
@pytest.mark.parametrize(
    ("kind", "rule"),
    [(k, rule) for k in KINDS for rule in RULES if rule != "file" or has_known_size(k)],
    ids=lambda each: each if isinstance(each, str) else each.suffix,
)
def test_shards_are_as_large_as_was_asked_for(kind: Kind, rule: str, tmp_path: Path) -> None:
    inputs_of(kind, tmp_path)
    size_max = 1500
    rules: dict[str, dict[str, Any]] = {
        "at_least": {"output_shard_size": size_max},
        "at_most": {"output_shard_size": size_max, "output_shard_size_is": "at_most"},
        "both": {"output_shard_size": size_max, "output_shard_records": 4},
        "count": {"output_shard_count": 5},
        "file": {
            "output_shard_size": 8000,
            "output_shard_size_is": "at_most",
            "output_shard_size_counts": "file",
        },
    }
    spec = job_of(kind, "shuffled", **{"output_shard_records": None, **rules[rule]})
    spec = {name: value for name, value in spec.items() if value is not None}
    report = run_inline(spec, tmp_path, ways_of(kind)[0])
    shards = shards_in(kind, tmp_path / "out")
    counts = [len(shard) for shard in read_all(kind, shards)]
    listed = verified(tmp_path, "out")
    payloads = [shard["payload_bytes"] for shard in listed]
    assert sum(counts) == report.records
    assert [shard["file_bytes"] for shard in listed] == [len(data) for data in shards.values()]
    assert [shard["records"] for shard in listed] == counts
    match rule:
        case "at_least":
            assert all(payload >= size_max for payload in payloads[:-1])
            assert len(shards) > 3
        case "at_most":
            fits = zip(payloads, counts, strict=True)
            assert all(payload <= size_max or count == 1 for payload, count in fits)
        case "both":
            assert max(counts) <= 4
            assert len(shards) >= report.records // 4
        case "count":
            assert len(shards) == 5
            assert max(counts) - min(counts) <= 1
        case "file":
            sizes = zip(map(len, shards.values()), counts, strict=True)
            assert all(size <= 8000 or count == 1 for size, count in sizes)


@pytest.mark.sample(keep=len(KINDS))
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
