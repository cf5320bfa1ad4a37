"""Records of several inputs become those that a plain-Python model joins."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.datasets import Member, Shard, files_of, read_shard, write_shards
from tests.support.engine import count_of, run_local
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import reactions_name
from tests.support.verified import verify_result
from tests.transforms.laws.test_step_laws import STEPS
from tests.transforms.laws.test_step_laws import drawn as drawn_for_steps

Record = tuple[str, dict[str, bytes]]
"""A key, and payloads by extension."""

WAYS = [
    Moved(movement="map", workers=2, partitions=3),
    Moved(movement="spill", workers=3, partitions=4, buffer_bytes=3000, order_seed=1),
    Moved(movement="spill", workers=2, nodes=2, partitions=5, losses=1, order_seed=2),
    Moved(movement="range", workers=1, buffer_bytes=64 << 10, hops=False),
]
EXTENSIONS = {"old": ["jpg", "seg.png"], "labels": ["cls", "json"], "masks": ["png"]}


def drawn(root: Path, rng: random.Random) -> dict[str, list[Record]]:
    """The records of three inputs, no two of which have all keys; some members are long."""
    inputs: dict[str, list[Record]] = {}
    for name, extensions in EXTENSIONS.items():
        records: list[Record] = []
        for key in rng.sample(range(40), 30):
            some = extensions[: rng.randrange(1, len(extensions) + 1)]
            payloads = {each: rng.randbytes(rng.choice([0, 5, 700])) for each in some}
            payloads |= {"json": b'{"id": "n%d"}' % key} if "json" in payloads else {}
            records.append((f"{name[0] if key % 2 else 'd'}/n{key}", payloads))
        shards = {
            f"s-{number}.tar": Shard(
                tuple(Member(f"{k}.{e}", data) for k, own in part for e, data in own.items())
            )
            for number, part in enumerate((records[:7], records[7:19], records[19:]))
        }
        write_shards(root / name, shards)
        inputs[name] = records
    return inputs


def joined(
    inputs: dict[str, list[Record]], nonmatch: dict[str, str], by: Callable[[str], str]
) -> dict[str, list[tuple[str, bytes]]]:
    """Members, in order, by key."""
    keys = {by(key) for records in inputs.values() for key, _ in records}
    found: dict[str, list[tuple[str, bytes]]] = {}
    for key in keys:
        parts = {
            name: [own for other, own in records if by(other) == key]
            for name, records in inputs.items()
        }
        if all(nonmatch[name] == "none" or parts[name] for name in inputs):
            members = [each for own in parts.values() for part in own for each in part.items()]
            found[key] = [(f"{key}.{extension}", data) for extension, data in members]
    return found


def spec_of(inputs: dict[str, str], by: str = "key", **fields: Any) -> dict[str, Any]:
    return {
        "inputs": [
            {"name": name, "input_bck": name, "join": {"nonmatch": nonmatch}}
            for name, nonmatch in inputs.items()
        ],
        "join": {"by": by},
        "output_bck": "out",
        "output_format": "out-%03d",
        "output_shard_records": 7,
        **fields,
    }


def found_in(root: Path, bucket: str = "out") -> list[list[tuple[str, bytes]]]:
    """The members of each record, in order."""
    records: list[list[tuple[str, bytes]]] = []
    key = None
    for _, data in sorted(files_of(root / bucket).items()):
        for member in read_shard(data):
            stem = member.name.split(".")[0]
            if stem != key:
                records.append([])
            key = stem
            records[-1].append((member.name, member.payload))
    return records


def problems(root: Path, job_id: str, bucket: str = "out") -> list[str]:
    report = verify_result(root, job_id, bucket)
    return [str(each) for each in report.problems]


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("kind", ["shuffle", "alphanumeric", "md5"])
@pytest.mark.parametrize("by", ["key", "stem"])
def test_records_of_one_key_become_one_record(
    kind: str, by: str, tmp_path: Path, rng: random.Random
) -> None:
    inputs = drawn(tmp_path, rng)
    results = []
    nonmatch = {name: rng.choice(["skip", "none"]) for name in inputs}
    expected = joined(inputs, nonmatch, {"key": str, "stem": lambda k: k.split("/")[1]}[by])
    algorithm = {"kind": kind} | ({"seed": 1} if kind == "shuffle" else {})
    for number, moved in enumerate(WAYS):
        spec = spec_of(nonmatch, by, algorithm=algorithm, output_bck=f"out{number}")
        report = run_inline(spec, tmp_path, moved)
        results.append(files_of(tmp_path / f"out{number}"))
        assert problems(tmp_path, report.job_id, f"out{number}") == []
    assert results[1:] == results[:1] * 3
    found = found_in(tmp_path, "out0")
    assert sorted(found) == sorted(expected.values())
    if kind == "alphanumeric":
        assert found == [expected[key] for key in sorted(expected)]
    assert report.records == len(expected)
    assert report.totals.members == sum(map(len, expected.values()))
    left_out = count_of(report, "left_out_by_join")[0]
    everything = joined(inputs, dict.fromkeys(inputs, "none"), str)
    if by == "key":
        assert left_out == len(everything) - len(expected)
    names = tmp_path / "out3" / reactions_name(report.job_id)
    lines = [json.loads(line) for line in names.read_text().splitlines()] if left_out else []
    assert len(lines) == left_out
    assert all(line["kind"] == "left_out_by_join" for line in lines)


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("conflict", ["first", "last"])
@pytest.mark.parametrize("kind", ["shuffle", "alphanumeric"])
def test_of_members_with_one_extension_one_input_s_stays(
    conflict: str, kind: str, tmp_path: Path, rng: random.Random
) -> None:
    inputs = drawn(tmp_path, rng)
    more = [(key, {"jpg": b"more", "cls": b"9"}) for key, _ in inputs["masks"][:20]]
    more += [(key, {"png": b"m", "txt": b""}) for key, _ in inputs["old"][:15]]
    more = [*dict(more).items()]
    members = [Member(f"{key}.{e}", data) for key, own in more for e, data in own.items()]
    write_shards(tmp_path / "more", {"s.tar": Shard(tuple(members))})
    inputs["more"] = more
    nonmatch = {"old": "skip", "labels": "none", "masks": "none", "more": "none"}
    expected: dict[str, list[tuple[str, bytes]]] = {}
    for key, all_members in joined(inputs, nonmatch, str).items():
        by_name: dict[str, int] = {}
        for at, (name, _) in enumerate(all_members):
            if conflict == "last" or name not in by_name:
                by_name[name] = at
        expected[key] = [all_members[at] for at in sorted(by_name.values())]
    results = []
    for number, moved in enumerate(WAYS[:3]):
        algorithm = {"kind": kind} | ({"seed": 1} if kind == "shuffle" else {})
        spec = spec_of(nonmatch, algorithm=algorithm, output_bck=f"out{number}")
        spec |= {"join": {"conflict": conflict}, "verify": "content", "lineage": "jsonl"}
        report = run_inline(spec, tmp_path, moved)
        results.append(files_of(tmp_path / f"out{number}"))
        assert problems(tmp_path, report.job_id, f"out{number}") == []
    assert results[1:] == results[:1] * 2
    assert sorted(found_in(tmp_path, "out0")) == sorted(expected.values())
    everything = joined(inputs, nonmatch, str)
    gone = sum(map(len, everything.values())) - sum(map(len, expected.values()))
    assert count_of(report, "conflicts_left_out")[0] == gone > 0
    names = (tmp_path / "out2" / reactions_name(report.job_id)).read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in names]
    assert kinds.count("conflicts_left_out") == gone
    assert kinds.count("left_out_by_join") == count_of(report, "left_out_by_join")[0] > 0


@pytest.mark.sample(keep=5)
@pytest.mark.parametrize("step", STEPS)
def test_what_a_step_leaves_of_each_input_is_joined(
    step: str, tmp_path: Path, rng: random.Random, workers_here: None
) -> None:
    records: list[tuple[str, str, dict[str, bytes]]] = []
    for name in ("a", "b", "c"):
        own = [(f"{name}/in.tar", *each[1:]) for each in _unique(drawn_for_steps(rng))]
        members = [Member(f"{k}.{e}", data) for _, k, each in own for e, data in each.items()]
        write_shards(tmp_path / name, {"in.tar": Shard(tuple(members))})
        records += own
    conflict = rng.choice(["first", "last"])
    expected: dict[str, dict[str, bytes]] = {}
    for _, key, each in STEPS[step][1](records):
        members = expected.setdefault(key, {})
        for extension, data in each.items():
            if conflict == "last":
                members.pop(extension, None)
            members.setdefault(extension, data)
    spec = spec_of(dict.fromkeys("abc", "none"), algorithm={"kind": "alphanumeric"})
    spec |= {"join": {"conflict": conflict}, "transform": {"steps": [STEPS[step][0]]}}
    report = run_local(tmp_path, spec, move=rng.choice(["map", "spill"]))
    wanted = [
        (f"{key}.{extension}", data)
        for key in sorted(expected)
        for extension, data in expected[key].items()
    ]
    assert [each for record in found_in(tmp_path) for each in record] == wanted
    assert report.records == len(expected)
    assert problems(tmp_path, report.job_id) == []


def _unique(
    records: list[tuple[str, str, dict[str, bytes]]],
) -> list[tuple[str, str, dict[str, bytes]]]:
    return [*{key: (shard, key, members) for shard, key, members in records}.values()]
