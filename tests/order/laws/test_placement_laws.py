"""Interleaved classes and batches of similar records are what a plain-Python model says."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from fractions import Fraction
from math import isqrt
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from dsort import api
from dsort.errors import ContentKeyError
from dsort.options import RunOptions
from tests.order.laws.test_order_laws import (
    MOVED,
    SEED,
    Record,
    drawn,
    runs_alike,
    shuffle_word,
    spec_of,
    verified,
)
from tests.support.datasets import Member, Shard, files_of, write_shards
from tests.support.inline_runtime import run_inline
from tests.support.internals import ClassPlaces, Interleave, manifest_name
from tests.support.refusals import raises
from tests.transforms.laws.test_step_laws import mix

WORDS = 2**64
Labelled = list[tuple[str, str]]


def place_of(number: int, total: int, seed: int) -> int:
    """The permutation as its page says it, one number at a time."""
    rows = isqrt(total - 1) + 1 if total > 1 else 1
    columns = -(-total // rows)
    while True:
        if number < 2 and rows * columns > 1:
            number ^= mix((seed + 16) % WORDS) & 1
        row, column = divmod(number, columns)
        for turn in range(16):
            own = mix((seed + turn) % WORDS)
            if turn % 2:
                column = (column + (mix(own ^ row) >> 32)) % columns
            else:
                row = (row + (mix(own ^ column) >> 32)) % rows
        number = row * columns + column
        if number < total:
            return number


def class_seed(name: str, group: int = 0) -> int:
    outer = xxhash.xxh3_64_intdigest(f"class {SEED}".encode())
    return xxhash.xxh3_64_intdigest(b"%d\0%b" % (group, name.encode()), seed=outer)


def interleaved(records: list[Record], name: str = "label") -> list[Record]:
    members: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        members[str(record[2][name])].append(record)
    words = []
    for label, each in members.items():
        step = (WORDS - 1) // len(each)
        for number, record in enumerate(each):
            place = place_of(number, len(each), class_seed(label))
            words.append((place * step + shuffle_word(*record[:2]) % step, record))
    return [record for _, record in sorted(words, key=lambda pair: pair[0])]


def batched(records: list[Record], size: int, window: int, name: str = "score") -> list[Record]:
    total, window = len(records), window - window % size
    seed, step = class_seed(""), (WORDS - 1) // -(-total // window)
    places = {place_of(at, total, seed): record for at, record in enumerate(records)}
    outer = xxhash.xxh3_64_intdigest(f"batches {SEED}".encode())
    found: list[Record] = []
    for start in range(0, total, window):
        own = sorted(
            range(start, min(start + window, total)), key=lambda at: (places[at][2][name], at)
        )
        batches = [own[at : at + size] for at in range(0, len(own), size)]
        rest = [] if len(own) % size == 0 else batches.pop()
        text = f"0 {start // window * step}"
        order = sorted(
            range(len(batches)),
            key=lambda at: xxhash.xxh3_64_intdigest(f"{text} {at}".encode(), seed=outer),
        )
        found += [places[at] for batch in [*(batches[at] for at in order), rest] for at in batch]
    return found


def named(records: list[Record]) -> Labelled:
    return [(key, said["label"]) for _, key, said in records]


@pytest.mark.parametrize("by", ["cls", "json.label", "string(json.label)"])
def test_interleaved_classes_are_where_the_model_has_them(
    by: str, tmp_path: Path, rng: random.Random
) -> None:
    records = drawn(tmp_path, rng)
    algorithm = {"kind": "shuffle", "seed": SEED, "interleave": {"by": by}}
    assert runs_alike(tmp_path, spec_of(algorithm)) == named(interleaved(records))


def interleaved_classes(hashes: list[list[int]]) -> list[int]:
    """The class of each record of the output; ``hashes``: of the records of each class, by their
    places among all of the class."""
    words = []
    for number, own in enumerate(hashes):
        places = ClassPlaces(np.arange(len(own)), np.full(len(own), len(own)))
        found = Interleave(by="cls").sort_keys(cast(Any, own), places, np.array(own, np.uint64))
        assert found.words is not None
        words += [(word, number) for word in found.words.tolist()]
    return [number for _, number in sorted(words)]


def most_apart(order: list[int], classes: int) -> list[tuple[Fraction, Fraction]]:
    """For each class: by how many records any stretch from the beginning, and any stretch at all,
    differs at most from the share of the class in all records."""
    total, found = len(order), []
    for number in range(classes):
        own = np.cumsum(np.array(order) == number)
        apart = np.append(0, own * total - np.arange(1, total + 1) * own[-1])  # in whole numbers
        most, least = int(apart.max()), int(apart.min())
        found.append((Fraction(max(most, -least), total), Fraction(most - least, total)))
    return found


def bound(count: int, total: int, classes: int) -> Fraction:
    """What docs/specs/order.md says of a stretch from the beginning; any other has twice that."""
    return 1 + Fraction(count, total) * (classes - 2) if classes > 1 else Fraction(0)


def test_each_stretch_has_the_classes_in_proportion(rng: random.Random) -> None:
    for _ in range(60):
        counts = [rng.choice([1, 3, 10, 80, 200]) for _ in range(rng.randint(1, 12))]
        # As hashes are, or as far from even as can be.
        values = rng.choice([[rng.randrange(WORDS) for _ in range(500)], [0, WORDS - 1]])
        hashes = [[rng.choice(values) for _ in range(count)] for count in counts]
        order = interleaved_classes(hashes)
        apart = most_apart(order, len(counts))
        for count, (begun, anywhere) in zip(counts, apart, strict=True):
            most = bound(count, sum(counts), len(counts))
            assert begun <= most, (counts, begun, most)
            assert anywhere <= 2 * most, (counts, anywhere, most)


def test_the_bound_of_a_stretch_is_nearly_reached() -> None:
    """The most common of many classes is where it is off by most."""
    counts = [1000] + [10] * 20
    first = [[0] * count for count in counts]
    first[0] = [WORDS - 2] * 1000
    begun, _ = most_apart(interleaved_classes(first), len(counts))[0]
    most = bound(1000, sum(counts), len(counts))
    assert most * Fraction(9, 10) < begun <= most
    assert begun > 15


def test_classes_of_one_size_are_off_by_less_than_four(rng: random.Random) -> None:
    for classes in (2, 3, 10, 40):
        hashes = [[rng.randrange(WORDS) for _ in range(30)] for _ in range(classes)]
        for _, anywhere in most_apart(interleaved_classes(hashes), classes):
            assert anywhere < 4


@pytest.mark.parametrize("similar", ["json.score", "json.score + 0.0"])
def test_batches_have_the_records_that_the_model_gives(
    similar: str, tmp_path: Path, rng: random.Random
) -> None:
    records = drawn(tmp_path, rng)
    batches = {"records": 4, "similar": similar, "window": 30}
    algorithm = {"kind": "shuffle", "seed": SEED, "batches": batches}
    spec = spec_of(algorithm, output_shard_records=8)
    assert runs_alike(tmp_path, spec) == named(batched(records, 4, 30))


INTERLEAVED = {"kind": "shuffle", "seed": SEED, "interleave": {"by": "cls"}}
BATCHED = {
    "kind": "shuffle",
    "seed": SEED,
    "batches": {"records": 3, "similar": "json.score", "window": 25},
}


@pytest.mark.parametrize("algorithm", [INTERLEAVED, BATCHED], ids=["interleave", "batches"])
def test_each_output_has_places_of_its_own(
    algorithm: Any, tmp_path: Path, rng: random.Random
) -> None:
    records = drawn(tmp_path, rng)
    spec = spec_of(algorithm, duplicate_keys="rename")
    spec["outputs"] = [
        {"name": "low", "when": 'ext("json").score < 1', "output_format": "a-%d"},
        {"name": "high", "when": "rest", "output_format": "b-%d"},
    ]
    del spec["output_format"]
    low = sum(record[2]["score"] < 1 for record in records)
    found = runs_alike(tmp_path, spec)
    labels = Counter(record[2]["label"] for record in records if record[2]["score"] < 1)
    assert Counter(label for _, label in found[:low]) == labels


def test_a_verified_order_is_that_of_the_seed(tmp_path: Path, rng: random.Random) -> None:
    drawn(tmp_path, rng)
    for number, algorithm in enumerate((INTERLEAVED, BATCHED)):
        report = run_inline(spec_of(algorithm, output_bck=f"out{number}"), tmp_path, MOVED[0])
        path = tmp_path / f"out{number}" / manifest_name(report.job_id)
        manifest = path.read_bytes().replace(b'"seed": "7"', b'"seed": "8"')
        problems = api.verify(manifest, options=RunOptions(root=tmp_path)).problems
        assert {each.kind for each in problems} == {"order"}


def test_rows_are_placed_as_records_are(tmp_path: Path, rng: random.Random) -> None:
    (tmp_path / "in").mkdir()
    records: list[Record] = []
    for number in range(4):
        rows = [
            {"__key__": f"{number}-{row}", "label": rng.choice("abc"), "score": rng.random()}
            for row in range(25)
        ]
        name = f"in-{number}.parquet"
        records += [(name, str(row["__key__"]), row) for row in rows]
        table = pa.Table.from_pylist(rows)
        pq.write_table(table, tmp_path / "in" / name, row_group_size=7)
    batches = {**BATCHED, "batches": {**BATCHED["batches"], "similar": "score"}}  # type: ignore[dict-item]
    for case, (algorithm, wanted) in enumerate(
        (
            ({**INTERLEAVED, "interleave": {"by": "label"}}, interleaved(records)),
            (batches, batched(records, 3, 25)),
        )
    ):
        suffixes = {"input_extension": ".parquet", "output_extension": ".parquet"}
        spec = spec_of(algorithm, **suffixes)
        for number, moved in enumerate(MOVED[1:]):
            bucket = f"out{case}{number}"
            report = run_inline({**spec, "output_bck": bucket}, tmp_path, moved)
            verified(tmp_path, bucket, report)
        assert files_of(tmp_path / f"out{case}0") == files_of(tmp_path / f"out{case}1")
        paths = (tmp_path / f"out{case}0").glob("*.parquet")
        ordered = sorted(paths, key=lambda each: (len(each.name), each))
        found = [row for path in ordered for row in pq.read_table(path).to_pylist()]
        assert found == [record[2] for record in wanted]


def test_classes_that_are_shards_are_found_evenly_mixed(tmp_path: Path, rng: random.Random) -> None:
    files = {}
    for number in range(4):
        members = [(f"{number}-{at}.cls", b"%d" % number) for at in range(400)]
        files[f"in-{number}.tar"] = Shard(tuple(Member(*each) for each in members))
    write_shards(tmp_path / "in", files)
    spec = spec_of(INTERLEAVED, output_shard_records=100)
    report = run_inline(spec, tmp_path, MOVED[0])
    assert report.order.mixing is not None
    assert report.order.mixing.verdict == "even"
    batches = {"records": 20, "similar": "cls", "window": 800}
    spec = spec_of({"kind": "shuffle", "seed": 1, "batches": batches}, output_shard_records=100)
    report = run_inline({**spec, "output_bck": "similar"}, tmp_path, MOVED[0])
    assert report.order.mixing is not None
    assert report.order.mixing.verdict == "uneven"


def test_records_without_a_class_or_a_number(tmp_path: Path, rng: random.Random) -> None:
    records = drawn(tmp_path, rng)
    kept = {**INTERLEAVED, "interleave": {"by": "json.none", "missing": "keep"}}
    one_class = [(*each[:2], {**each[2], "none": ""}) for each in records]
    found = runs_alike(tmp_path, spec_of(kept))
    assert found == named(interleaved(one_class, "none"))
    for algorithm, field in (
        ({"interleave": {"by": "json.none"}}, "field none"),
        ({"interleave": {"by": "txt"}}, ".txt"),
        ({"interleave": {"by": "json:"}}, ".json:"),
        ({"batches": {"records": 3, "similar": "json.label"}}, "field label"),
        ({"batches": {"records": 3, "similar": 'json.label + ""'}}, 'json.label + ""'),
    ):
        spec = spec_of({"kind": "shuffle", **algorithm}, output_bck="none")
        with raises(ContentKeyError, field):
            run_inline(spec, tmp_path, MOVED[0])


def test_lines_are_placed_as_records_are(tmp_path: Path, rng: random.Random) -> None:
    (tmp_path / "in").mkdir()
    records: list[Record] = []
    for number in range(4):
        name = f"in-{number}.jsonl"
        rows = [{"id": f"{number}-{row}", "label": rng.randrange(3)} for row in range(20)]
        (tmp_path / "in" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        records += [(name, str(row["id"]), row) for row in rows]
    algorithm = {**INTERLEAVED, "interleave": {"by": "json.label"}}
    spec = spec_of(algorithm, input_extension=".jsonl", key_field="id")
    for number, moved in enumerate(MOVED):
        report = run_inline({**spec, "output_bck": f"out{number}"}, tmp_path, moved)
        verified(tmp_path, f"out{number}", report)
        paths = (tmp_path / f"out{number}").glob("*.jsonl")
        ordered = sorted(paths, key=lambda each: (len(each.name), each))
        lines = [line for path in ordered for line in path.read_text().splitlines()]
        assert [json.loads(line) for line in lines] == [each[2] for each in interleaved(records)]


def test_copies_of_a_mix_are_of_the_class_of_their_record(
    tmp_path: Path, rng: random.Random
) -> None:
    drawn(tmp_path, rng)
    spec = spec_of(INTERLEAVED, inputs=[{"name": "in", "input_bck": "in", "repeat": 3}])
    del spec["input_bck"], spec["input_format"]
    found = runs_alike(tmp_path, spec)
    assert len(found) == 300
    third = Counter(label for _, label in found[:100])
    whole = Counter(label for _, label in found)
    assert all(abs(third[label] - count / 3) < 7 for label, count in whole.items())


def test_what_is_no_class_is_refused(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn(tmp_path, rng)
    by = {"kind": "shuffle", "interleave": {"by": "jpg"}}
    monkeypatch.setattr("dsort.job.surveys.partitions.CLASSES_MAX", 20)
    with raises(ContentKeyError, "20"):
        run_inline(spec_of(by), tmp_path, MOVED[0])
    monkeypatch.setattr("dsort.order.placement.CLASS_BYTES_MAX", 100)
    with raises(ContentKeyError, "jpg", "100 bytes"):
        run_inline(spec_of(by), tmp_path, MOVED[0])
