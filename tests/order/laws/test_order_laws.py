"""Orders by several keys are what a plain-Python model says, whatever workers and memory."""

from __future__ import annotations

import json
import pickle
import random
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from dsort.errors import ContentKeyError
from dsort.spec.load import parse_spec
from tests.support.datasets import Member, Shard, files_of, payloads_in, write_shards
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import JobReport
from tests.support.refusals import raises
from tests.support.verified import assert_verified
from tests.transforms.laws.test_step_laws import mix

Record = tuple[str, str, dict[str, Any]]
"""Shard, key, and what its JSON says."""

MOVED = [
    Moved(movement="map", workers=2, partitions=3),
    Moved(movement="spill", workers=3, partitions=5, buffer_bytes=3000, order_seed=1),
    Moved(movement="spill", workers=2, nodes=2, partitions=4, losses=1, order_seed=2),
]
SEED = "7"


def drawn(root: Path, rng: random.Random, shards: int = 4, each: int = 25) -> list[Record]:
    """Records with a label, a score and a length; keys are those of other shards, too."""
    records: list[Record] = []
    files = {}
    for number in range(shards):
        name, members = f"in-{number}.tar", []
        for key in sorted(
            rng.sample([f"{letter}/{n}" for letter in "ab" for n in range(40)], each)
        ):
            said = {
                "label": rng.choice(["cat", "dog", "d", "", "owl\u0000x"]),
                "score": rng.choice([-1.5, 0, 0.25, 1e300, 3]),
                "length": rng.choice([0, 1, 7, 2**70, -(2**65), 512]),
            }
            records.append((name, key, said))
            members += [
                Member(f"{key}.cls", said["label"].encode()),
                Member(f"{key}.json", json.dumps(said).encode()),
                Member(f"{key}.jpg", rng.randbytes(rng.randrange(400))),
            ]
        files[name] = Shard(tuple(members))
    write_shards(root / "in", files)
    return records


def shuffle_word(shard: str, key: str, seed: str = SEED) -> int:
    outer = xxhash.xxh3_64_intdigest(seed.encode())
    inner = xxhash.xxh3_64_intdigest(shard.encode(), seed=outer)
    return mix(xxhash.xxh3_64_intdigest(key.encode()) ^ inner)


def spec_of(algorithm: Any, **fields: Any) -> dict[str, Any]:
    return {
        "input_bck": "in",
        "input_format": "in-{0..3}",
        "output_bck": "out",
        "output_format": "out-%d",
        "output_shard_records": 9,
        "duplicate_keys": "ignore",
        "algorithm": algorithm,
        **fields,
    }


def keys_in(root: Path, bucket: str) -> list[tuple[str, str]]:
    """(key, label) of all records of a result, in order."""
    return [
        (name.removesuffix(".json"), json.loads(data)["label"])
        for name, data in payloads_in(root / bucket)
        if name.endswith(".json")
    ]


def verified(root: Path, bucket: str, report: JobReport) -> None:
    assert_verified(root, report.job_id, bucket)


def runs_alike(root: Path, spec: dict[str, Any]) -> list[tuple[str, str]]:
    """The records of the one result that all runtimes make, which is verified."""
    results = []
    for number, moved in enumerate(MOVED):
        bucket = f"out{number}"
        report = run_inline({**spec, "output_bck": bucket}, root, moved)
        results.append(files_of(root / bucket))
    verified(root, bucket, report)
    assert results[1:] == results[:1] * 2
    return keys_in(root, "out0")


class Backwards:
    """What compares the other way round."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: Backwards) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Backwards) and bool(other.value == self.value)


SHUFFLE, BY_KEY = {"kind": "shuffle"}, {"kind": "alphanumeric"}
CONTENT = {"kind": "content", "extension": ".json"}
CLASS = {"kind": "content", "extension": ".cls", "content_key_type": "string"}
SCORE = {**CONTENT, "json_field": "score", "content_key_type": "float"}
LENGTH = {**CONTENT, "json_field": "length", "content_key_type": "int"}

CASES: list[tuple[list[Any], Callable[[Record], Any]]] = [
    ([CLASS, SHUFFLE], lambda r: (r[2]["label"], shuffle_word(*r[:2]))),
    (
        [{**SCORE, "decreasing": True}, LENGTH],
        lambda r: (Backwards(r[2]["score"]), r[2]["length"]),
    ),
    (
        [{**CLASS, "decreasing": True}, {**LENGTH, "decreasing": True}, BY_KEY],
        lambda r: (Backwards(r[2]["label"]), Backwards(r[2]["length"]), r[1]),
    ),
    (
        [{**LENGTH, "bins": [0, 7, 512]}, {**SCORE, "bins": [0.25]}, SHUFFLE],
        lambda r: (
            bisect_right([0, 7, 512], r[2]["length"]),
            bisect_right([0.25], r[2]["score"]),
            shuffle_word(*r[:2]),
        ),
    ),
]


@pytest.mark.parametrize(("keys", "key_of"), CASES, ids=range(len(CASES)))
def test_several_keys_order_as_python_does(
    keys: list[Any], key_of: Callable[[Record], Any], tmp_path: Path, rng: random.Random
) -> None:
    records = drawn(tmp_path, rng)
    spec = spec_of({"keys": keys, "seed": SEED})
    wanted = [(key, said["label"]) for _, key, said in sorted(records, key=key_of)]
    assert runs_alike(tmp_path, spec) == wanted


def test_records_without_a_value_stand_where_each_key_says(
    tmp_path: Path, rng: random.Random
) -> None:
    records = drawn(tmp_path, rng)
    missing = {"json_field": "score.deep", "content_key_missing": "first"}
    keys = [{**SCORE, **missing}, {**CLASS, "decreasing": True}, {**LENGTH, "decreasing": True}]
    by_label = sorted(records, key=lambda r: (Backwards(r[2]["label"]), Backwards(r[2]["length"])))
    found = runs_alike(tmp_path, spec_of({"keys": keys}))
    assert found == [(key, said["label"]) for _, key, said in by_label]
    spec = spec_of({"keys": [CLASS, {**SCORE, "json_field": "no.such"}]})
    with raises(ContentKeyError, "field no.such"):
        run_inline({**spec, "output_bck": "none"}, tmp_path, MOVED[0])


def test_rows_are_ordered_by_several_columns(tmp_path: Path, rng: random.Random) -> None:
    (tmp_path / "in").mkdir()
    rows: list[dict[str, Any]] = []
    for number in range(4):
        part = [
            {
                "__key__": f"{number}-{row}",
                "label": rng.choice(["cat", None, "dog"]),
                "score": rng.choice([1.5, -2.0, 10.0]),
            }
            for row in range(20)
        ]
        rows += part
        pq.write_table(pa.Table.from_pylist(part), tmp_path / "in" / f"in-{number}.parquet")
    label = {**CLASS, "extension": ".label", "content_key_missing": "last"}
    score = {"kind": "content", "extension": ".score", "content_key_type": "float"}
    spec = spec_of(
        {"keys": [label, {**score, "decreasing": True}, BY_KEY]},
        input_extension=".parquet",
        output_extension=".parquet",
    )
    for number, moved in enumerate(MOVED[1:]):
        report = run_inline({**spec, "output_bck": f"out{number}"}, tmp_path, moved)
        verified(tmp_path, f"out{number}", report)
    assert files_of(tmp_path / "out0") == files_of(tmp_path / "out1")
    paths = sorted((tmp_path / "out0").glob("*.parquet"), key=lambda each: (len(each.name), each))
    found = [row for path in paths for row in pq.read_table(path).to_pylist()]
    wanted = sorted(
        rows,
        key=lambda r: (r["label"] is None, r["label"] or "", -r["score"], r["__key__"]),
    )
    assert found == wanted


def test_each_output_is_ordered_by_the_keys(tmp_path: Path, rng: random.Random) -> None:
    records = drawn(tmp_path, rng)
    spec = spec_of({"keys": [SCORE, SHUFFLE], "seed": SEED})
    when = 'ext("json").label == "cat"'
    spec["outputs"] = [
        {"name": "cats", "when": when, "output_format": "a-%d"},
        {"name": "rest", "when": "rest", "output_format": "b-%d"},
    ]
    del spec["output_format"]
    found = runs_alike(tmp_path, spec)
    by_key = sorted(records, key=lambda r: (r[2]["score"], shuffle_word(*r[:2])))
    labels = [(key, said["label"]) for _, key, said in by_key]
    cats = [pair for pair in labels if pair[1] == "cat"]
    assert found == cats + [pair for pair in labels if pair[1] != "cat"]


def test_only_keys_with_a_shuffle_draw_a_seed(tmp_path: Path, rng: random.Random) -> None:
    drawn(tmp_path, rng)
    plain = run_inline(spec_of({"keys": [BY_KEY]}), tmp_path, MOVED[0])
    shuffled = run_inline(spec_of({"keys": [CLASS, SHUFFLE]}, overwrite=True), tmp_path, MOVED[0])
    assert plain.order.seed is None
    assert shuffled.order.seed is not None


def test_a_spec_with_keys_is_sent_and_written_whole() -> None:
    given = {**SCORE, "decreasing": True, "bins": [0.5, 2]}
    spec = parse_spec(spec_of({"keys": [given, SHUFFLE], "seed": 3})).spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    written = spec.canonical()
    assert parse_spec(written).spec == spec
    assert written["algorithm"]["keys"][1] == {"kind": "shuffle"}


@pytest.mark.parametrize("algorithm", [SHUFFLE, {"keys": [SHUFFLE]}], ids=str)
def test_rows_whose_keys_come_again_are_shuffled_alike_whatever_is_read_at_once(
    algorithm: dict[str, Any], tmp_path: Path, rng: random.Random
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        rows = [{"__key__": f"k{rng.randrange(5)}", "x": rng.randbytes(50)} for _ in range(200)]
        table = pa.Table.from_pylist(rows)
        pq.write_table(table, tmp_path / "in" / f"in-{number}.parquet", row_group_size=20)
    suffixes = {"input_extension": ".parquet", "output_extension": ".parquet"}
    spec = spec_of({**algorithm, "seed": SEED}, **suffixes)
    spec |= {"input_format": "in-{0..1}", "output_shard_records": 1000}
    tables = []
    for number, buffer_bytes in enumerate((1 << 20, 8000)):
        moved = Moved("spill", workers=2, partitions=3, buffer_bytes=buffer_bytes)
        bucket = f"out{number}"
        report = run_inline({**spec, "output_bck": bucket}, tmp_path, moved)
        verified(tmp_path, bucket, report)
        tables.append(pq.read_table(tmp_path / bucket / "out-0.parquet").to_pylist())
    assert tables[0] == tables[1]
