"""``deduplicate: {by: {field: ...}}``: of records with one value of a field, one stays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsort.errors import TransformError
from tests.support.datasets import Member, Shard, write_shards
from tests.support.engine import count_of, records_out, refused, run_local, spec_of
from tests.support.internals import ManifestOutput, manifest_name, parse_manifest
from tests.support.verified import assert_verified

pytestmark = pytest.mark.usefixtures("workers_here")

TEXTS = ["cat", "dog", "cat", "Cat", "bird", "dog", "cat", "fish", "bird", "ant"]
FIRST = [0, 1, 3, 4, 7, 9]
LAST = [3, 5, 6, 7, 8, 9]


def by_field(field: str, **fields: Any) -> dict[str, Any]:
    keep = fields.pop("keep", "first")
    return spec_of(deduplicate={"by": {"field": field}, "keep": keep}, **fields)


def manifest_of(root: Path, job_id: str) -> Sequence[ManifestOutput]:
    return parse_manifest((root / "out" / manifest_name(job_id)).read_bytes()).outputs


def write_tars(root: Path) -> None:
    """Ten records in two shards, each with a ``.jpg`` of its own."""
    shards = {}
    for shard in range(2):
        members = []
        for number in range(shard * 5, shard * 5 + 5):
            said = json.dumps({"text": TEXTS[number], "n": number % 4}).encode()
            members += [Member(f"r{number}.jpg", b"%d" % number), Member(f"r{number}.json", said)]
        shards[f"in-{shard}.tar"] = Shard(tuple(members))
    write_shards(root / "in", shards)


@pytest.mark.parametrize("move", ["map", "spill"])
@pytest.mark.parametrize(
    ("field", "keep", "kept"),
    [
        ("json.text", "first", FIRST),
        ("json.text", "last", LAST),
        ("json.text.lowerAscii()", "first", [0, 1, 4, 7, 9]),
        ("json.n", "first", [0, 1, 2, 3]),
        ("size(json.text)", "first", [0, 4]),
        ("has(json.x) ? json.x : key", "first", list(range(10))),
    ],
)
def test_one_of_the_records_with_one_value_stays(
    tmp_path: Path, field: str, keep: str, kept: list[int], move: str
) -> None:
    write_tars(tmp_path)
    report = run_local(tmp_path, by_field(field, keep=keep), move=move, workers=2)
    names = [name for name in records_out(tmp_path) if name.endswith(".jpg")]
    assert names == [f"r{number}.jpg" for number in kept]
    assert count_of(report, "deduplicated")[0] == 10 - len(kept)
    assert_verified(tmp_path, report.job_id)


@pytest.mark.parametrize("move", ["auto", "spill"])
def test_rows_are_compared_by_a_column(tmp_path: Path, move: str) -> None:
    (tmp_path / "in").mkdir()
    for shard in range(2):
        some = slice(shard * 5, shard * 5 + 5)
        table = pa.table({"text": TEXTS[some], "n": list(range(10))[some]})
        pq.write_table(table, tmp_path / f"in/s-{shard}.parquet")
    for field, kept in (("text", FIRST), ('number("n") % 4', [0, 1, 2, 3])):
        spec = by_field(field, input_extension=".parquet", overwrite=True)
        report = run_local(tmp_path, spec, move=move)
        names = [tmp_path / "out" / shard.name for shard in manifest_of(tmp_path, report.job_id)]
        assert [row for name in names for row in pq.read_table(name)["n"].to_pylist()] == kept
        assert_verified(tmp_path, report.job_id)


def test_a_record_without_the_field_fails_the_job_and_is_named(tmp_path: Path) -> None:
    write_tars(tmp_path)
    shard = Shard((Member("odd.json", b"{}"), Member("odd.jpg", b"x")))
    write_shards(tmp_path / "in", {"in-2.tar": shard})
    with refused(tmp_path, TransformError, "record odd of shard in-2.tar", "has(json"):
        run_local(tmp_path, by_field("json.text"))
