"""Steps leave what a plain-Python model of them leaves, alone and two after each other."""

from __future__ import annotations

import itertools
import os
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from tests.support.datasets import Member, Shard, files_of, payloads_in, read_shard, write_shards
from tests.support.engine import run_local, spec_of, verify_local

pytestmark = pytest.mark.usefixtures("workers_here")

Members = dict[str, bytes]
Record = tuple[str, str, Members]
"""A shard, a key, and payloads by extension."""
Model = Callable[[list[Record]], list[Record]]

KEYS = [f"{place}{word}" for place in ("", "d/", "d.d/") for word in "abcdefgh"]
EXTENSIONS = ("jpg", "cls", "seg.png", "info.json")
LISTED = ["a", "d/b", "d.d/c", "nowhere", "e"]


def mix(word: int) -> int:
    """SplitMix64's output function, from its description."""
    mask = 2**64 - 1
    z = (word + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def lot_of(shard: str, key: str, seed: str) -> float:
    outer = xxhash.xxh3_64_intdigest(f"sample {seed}".encode())
    inner = xxhash.xxh3_64_intdigest(shard.encode(), seed=outer)
    return mix(xxhash.xxh3_64_intdigest(key.encode()) ^ inner) / 2**64


def sampled(fraction: float, by: str, seed: str) -> Model:
    return lambda records: [
        each
        for each in records
        if lot_of(each[0] if by == "record" else "", each[1], seed) < fraction
    ]


def with_fields(change: Callable[[Members], Members]) -> Model:
    def changed(records: list[Record]) -> list[Record]:
        found = [(shard, key, change(members)) for shard, key, members in records]
        return [each for each in found if each[2]]

    return changed


def renamed(names: dict[str, str]) -> Callable[[Members], Members]:
    return lambda members: {names.get(name, name): data for name, data in members.items()}


def only(*names: str) -> Callable[[Members], Members]:
    return lambda members: {name: data for name, data in members.items() if name in names}


def but(dropped: str, members: Members) -> Members:
    return {name: data for name, data in members.items() if name != dropped}


def content_hash(members: Members) -> str:
    return xxhash.xxh3_128_hexdigest(b"".join(members.values()))


def rekeyed(name_of: Callable[[str, str, int], str]) -> Model:
    def changed(records: list[Record]) -> list[Record]:
        found = []
        for shard, group in itertools.groupby(records, key=lambda each: each[0]):
            for number, (_, key, members) in enumerate(group):
                found.append((shard, name_of(shard.removesuffix(".tar"), key, number), members))
        return found

    return changed


STEPS: dict[str, tuple[dict[str, Any], Model]] = {
    "keep": (
        {"keep_keys": {"keys": LISTED}},
        lambda records: [each for each in records if each[1] in LISTED],
    ),
    "drop": (
        {"drop_keys": {"keys": LISTED}},
        lambda records: [each for each in records if each[1] not in LISTED],
    ),
    "half": ({"sample": {"fraction": 0.5}}, sampled(0.5, "key", "0")),
    "half by record": (
        {"sample": {"fraction": 0.6, "by": "record", "seed": "x"}},
        sampled(0.6, "record", "x"),
    ),
    "all": ({"sample": {"fraction": 1}}, sampled(1.0, "key", "0")),
    "none": ({"sample": {"fraction": 0}}, sampled(0.0, "key", "0")),
    "fields": (
        {"fields": {"keep": ["jpg", "info:info.json"]}},
        with_fields(
            lambda members: renamed({"info.json": "info"})(only("jpg", "info.json")(members))
        ),
    ),
    "rename": (
        {"fields": {"rename": {"seg.png": "mask.png", "jpg": "x"}, "drop": ["cls"]}},
        with_fields(
            lambda members: renamed({"seg.png": "mask.png", "jpg": "x"})(but("cls", members))
        ),
    ),
    "require": (
        {"require": {"extensions": ["jpg;seg.png", "cls"]}},
        lambda records: [
            each for each in records if {"jpg", "seg.png"} & {*each[2]} and "cls" in each[2]
        ],
    ),
    "filter": (
        {"filter": 'has("jpg") && size("jpg") < 2_000 || key.startsWith("d/")'},
        lambda records: [
            each
            for each in records
            if ("jpg" in each[2] and len(each[2]["jpg"]) < 2000) or each[1].startswith("d/")
        ],
    ),
    "rekey": (
        {"rekey": "{shard}/{shard_n:04d}-{base}"},
        rekeyed(lambda shard, key, n: f"{shard}/{n:04d}-{key.rpartition('/')[2]}"),
    ),
    "slice": (
        {"slice": "3:25:2"},
        lambda records: records[3:25:2],
    ),
    "slice to the end": (
        {"slice": "7:"},
        lambda records: records[7:],
    ),
    "number": (
        {"rekey": "%03d"},
        lambda records: [
            (shard, f"{number:03d}", members) for number, (shard, _, members) in enumerate(records)
        ],
    ),
    "number and hash": (
        {"rekey": "{n}/{xxh3}"},
        lambda records: [
            (shard, f"{number}/{content_hash(members)}", members)
            for number, (shard, _, members) in enumerate(records)
        ],
    ),
    "rekey in braces": (
        {"rekey": "{{{shard_n}}}{dir}/{base}"},
        rekeyed(
            lambda shard, key, n: f"{{{n}}}{'/'.join(key.split('/')[:-1])}/{key.split('/')[-1]}"
        ),
    ),
}


def drawn(rng: random.Random) -> list[Record]:
    """The records of three shards. Keys of a shard differ."""
    records = []
    for shard in ("in-0.tar", "in-1.tar", "in.2.tar"):
        for key in rng.sample(KEYS, rng.randrange(len(KEYS))):
            names = rng.sample(EXTENSIONS, rng.randrange(1, len(EXTENSIONS)))
            sizes = [rng.randrange(3000) for _ in names]
            members = dict(zip(names, map(rng.randbytes, sizes), strict=True))
            records.append((shard, key, members))
    return records


def shards_of(records: list[Record]) -> dict[str, Shard]:
    shards: dict[str, list[Member]] = {"in-0.tar": [], "in-1.tar": [], "in.2.tar": []}
    for shard, key, members in records:
        shards[shard] += [Member(f"{key}.{name}", data) for name, data in members.items()]
    return {name: Shard(members) for name, members in shards.items()}


def flat(records: list[Record]) -> list[tuple[str, bytes]]:
    return [(f"{key}.{name}", data) for _, key, each in records for name, data in each.items()]


def in_zip(path: Path) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        return [(entry.filename, archive.read(entry)) for entry in archive.infolist()]


def in_tar(path: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive]
        return [(name, file.read()) for name, file in members if file is not None]


PAIRS = [
    (one, other)
    for one, other in itertools.product(STEPS, STEPS)
    if not {one, other} <= {"keep", "none"}
]


@pytest.mark.sample(keep=12)
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_steps_leave_what_the_model_of_them_leaves(
    one: str, other: str, tmp_path: Path, rng: random.Random
) -> None:
    records = drawn(rng)
    write_shards(tmp_path / "in", shards_of(records))
    wanted = STEPS[other][1](STEPS[one][1](records))
    steps = [STEPS[one][0], STEPS[other][0]]
    spec = spec_of(transform={"steps": steps}, duplicate_keys="ignore")
    report = run_local(tmp_path, spec, move=rng.choice(["map", "spill"]))
    assert payloads_in(tmp_path / "out") == flat(wanted)
    assert report.records == len(wanted)
    assert verify_local(tmp_path, report).problems == ()


@pytest.mark.parametrize("output", [".zip", ".tar.gz"])
@pytest.mark.parametrize("name", ["fields", "rename", "rekey"])
def test_members_of_other_containers_get_their_new_names(
    name: str, output: str, tmp_path: Path, rng: random.Random
) -> None:
    records = drawn(rng)
    write_shards(tmp_path / "in", shards_of(records))
    spec = spec_of(
        transform={"steps": [STEPS[name][0]]}, duplicate_keys="ignore", output_extension=output
    )
    run_local(tmp_path, spec)
    paths = sorted((tmp_path / "out").glob("out-*"), key=lambda each: (len(each.name), each))
    found = [
        pair for path in paths for pair in (in_zip(path) if output == ".zip" else in_tar(path))
    ]
    assert found == flat(STEPS[name][1](records))


def test_a_smaller_sample_is_part_of_a_larger_one(tmp_path: Path) -> None:
    shard = Shard([Member(f"{number:04d}.x", os.urandom(3)) for number in range(2000)])
    write_shards(tmp_path / "in", {"in-0.tar": shard})
    kept = []
    for fraction in (0.1, 0.5):
        spec = spec_of(
            transform={"steps": [{"sample": {"fraction": fraction}}]},
            output_shard_records=5000,
            output_format=f"out-{fraction}-%d",
        )
        run_local(tmp_path, spec)
        (data,) = [
            data
            for name, data in files_of(tmp_path / "out").items()
            if name.startswith(f"out-{fraction}-")
        ]
        kept.append({member.name for member in read_shard(data)})
    assert kept[0] < kept[1]
    assert [len(each) / 2000 for each in kept] == pytest.approx([0.1, 0.5], abs=0.05)


def full(rng: random.Random) -> list[Record]:
    """The records of three shards, of which each has every extension somewhere."""
    records: list[Record] = []
    for shard in ("in-0.tar", "in-1.tar", "in.2.tar"):
        for number, key in enumerate(rng.sample(KEYS, 9)):
            names = EXTENSIONS if not number else rng.sample(EXTENSIONS, rng.randrange(1, 4))
            members = {name: b"\xff" + rng.randbytes(rng.randrange(900)) for name in names}
            records.append((shard, key, members))
    return records


def rows_in(path: Path) -> list[tuple[str, Members]]:
    found = []
    for row in pq.read_table(path).to_pylist():
        key = row.pop("__key__")
        cells = {
            name: each["bytes"] if isinstance(each, dict) else each for name, each in row.items()
        }
        found.append((key, {name: each for name, each in cells.items() if each is not None}))
    return found


ACROSS = ("keep", "half by record", "slice", "require", "fields", "rename", "rekey", "number")


@pytest.mark.sample(keep=4)
@pytest.mark.parametrize("name", ACROSS)
def test_steps_leave_the_same_where_members_become_rows_and_rows_members(
    name: str, tmp_path: Path, rng: random.Random
) -> None:
    records = full(rng)
    write_shards(tmp_path / "in", shards_of(records))
    step, model = STEPS[name]
    steps = {"steps": [step]}
    spec = spec_of(transform=steps, duplicate_keys="ignore", output_extension=".parquet")
    run_local(tmp_path, spec)
    paths = sorted((tmp_path / "out").glob("*.parquet"), key=lambda each: (len(each.name), each))
    found = [row for path in paths for row in rows_in(path)]
    assert found == [(key, members) for _, key, members in model(records)]

    plain = spec_of(output_extension=".parquet", duplicate_keys="ignore", output_bck="rows")
    run_local(tmp_path, plain | {"output_shard_records": 1000})
    (table,) = (tmp_path / "rows").glob("*.parquet")
    table.rename(table.with_name("in.parquet"))
    back = spec_of(
        input_bck="rows",
        output_bck="back",
        input_format={"objnames": ["in.parquet"]},
        input_extension=".parquet",
        output_extension=".tar",
        duplicate_keys="ignore",
        transform=steps,
    )
    run_local(tmp_path, back)
    paths = sorted((tmp_path / "back").glob("*.tar"), key=lambda each: (len(each.name), each))
    members = [pair for path in paths for pair in in_tar(path)]
    wanted = model([("in.parquet", key, each) for _, key, each in records])
    assert sorted(members) == sorted((n.replace("in.parquet", "in"), d) for n, d in flat(wanted))


FOR_ROWS = tuple(
    name for name, (step, _) in STEPS.items() if "{shard_n" not in str(step.get("rekey", ""))
)
ROW_SCHEMA = pa.schema([("__key__", pa.string()), *((name, pa.binary()) for name in EXTENSIONS)])


@pytest.mark.sample(keep=6)
@pytest.mark.parametrize(("one", "other"), [*itertools.product(FOR_ROWS, FOR_ROWS)])
def test_two_steps_leave_what_the_model_of_them_leaves_where_rows_stay_rows(
    one: str, other: str, tmp_path: Path, rng: random.Random
) -> None:
    records = [
        (shard.replace(".tar", ".parquet"), key, {name: members[name] for name in ordered})
        for shard, key, members in drawn(rng)
        if (ordered := [name for name in EXTENSIONS if name in members])
    ]
    (tmp_path / "in").mkdir()
    for shard in ("in-0.parquet", "in-1.parquet", "in.2.parquet"):
        rows = [{"__key__": key, **each} for place, key, each in records if place == shard]
        table = pa.Table.from_pylist(rows, ROW_SCHEMA)
        pq.write_table(table, tmp_path / "in" / shard, row_group_size=5)
    wanted = STEPS[other][1](STEPS[one][1](records))
    steps = [STEPS[one][0], STEPS[other][0]]
    spec = spec_of(
        input_extension=".parquet",
        duplicate_keys="ignore",
        algorithm={"kind": rng.choice(["none", "shuffle"])},
        transform={"steps": steps},
        verify=rng.choice(["none", "content"]),
    )
    report = run_local(tmp_path, spec)
    found = [row for path in (tmp_path / "out").glob("*.parquet") for row in rows_in(path)]
    assert sorted(map(repr, found)) == sorted(repr((key, each)) for _, key, each in wanted)
    assert report.records == len(wanted)
    assert verify_local(tmp_path, report).problems == ()
