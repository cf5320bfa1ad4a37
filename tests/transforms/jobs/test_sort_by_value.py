"""``algorithm: {kind: value}``: records in the order of a field, or of another expression."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsort import api
from dsort.errors import ContentKeyError, TransformError
from dsort.options import RunOptions
from tests.support.datasets import Member, Shard, write_shards
from tests.support.engine import records_out, refused, run_local, spec_of
from tests.support.internals import manifest_name, parse_manifest

pytestmark = pytest.mark.usefixtures("workers_here")

VALUES: list[Any] = [3, "b", -1.5, 10, "a", 2**60, 0, "B", 1e300, True]
IN_ORDER = [2, 6, 9, 0, 3, 5, 8, 7, 4, 1]
TEXTS = ["four", "a", "three", "bb", "", "sixsix", "äöü", "x", "yy", "zzz"]
BY_LENGTH = [4, 1, 7, 3, 8, 6, 9, 0, 2, 5]


def by_value(text: str, **fields: Any) -> dict[str, Any]:
    return spec_of(algorithm={"kind": "value", "value": text}, **fields)


def check(root: Path, job_id: str) -> list[str]:
    """Verify a result. Returns the paths of its shards, in order."""
    manifest = (root / "out" / manifest_name(job_id)).read_bytes()
    assert api.verify(manifest, options=RunOptions(root=root)).problems == ()
    return [str(root / "out" / each.name) for each in parse_manifest(manifest).outputs]


def write_tars(root: Path) -> None:
    """Ten records in two shards, each with a ``.jpg`` of its own."""
    shards = {}
    for shard in range(2):
        members = []
        for number in range(shard * 5, shard * 5 + 5):
            said = {"value": VALUES[number], "text": TEXTS[number]}
            members.append(Member(f"r{number}.jpg", bytes(9 - number)))
            members.append(Member(f"r{number}.json", json.dumps(said).encode()))
        shards[f"in-{shard}.tar"] = Shard(tuple(members))
    write_shards(root / "in", shards)


@pytest.mark.parametrize("move", ["map", "spill", "range"])
@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("json.value", IN_ORDER),
        ("size(json.text)", BY_LENGTH),
        ('size("jpg")', list(range(9, -1, -1))),
        ("has(json.nothing) ? 1 : key", list(range(10))),
    ],
)
def test_records_come_in_the_order_of_the_value(
    tmp_path: Path, text: str, order: list[int], move: str
) -> None:
    write_tars(tmp_path)
    report = run_local(tmp_path, by_value(text), move=move, workers=2)
    names = [name for name in records_out(tmp_path) if name.endswith(".jpg")]
    assert names == [f"r{number}.jpg" for number in order]
    check(tmp_path, report.job_id)


def test_rows_of_a_table_are_sorted_by_a_column(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for shard in range(2):
        some = slice(shard * 5, shard * 5 + 5)
        table = pa.table({"text": TEXTS[some], "n": list(range(10))[some]})
        pq.write_table(table, tmp_path / f"in/s-{shard}.parquet")
    ways = (("size(text)", BY_LENGTH), ('-number("n")', list(range(9, -1, -1))))
    for text, order in (
        *ways,
        ('size("text") * 100 + number("n")', [4, 1, 7, 3, 8, 9, 0, 2, 5, 6]),
    ):
        report = run_local(tmp_path, by_value(text, input_extension=".parquet", overwrite=True))
        rows = [row for name in check(tmp_path, report.job_id) for row in pq.read_table(name)["n"]]
        assert [row.as_py() for row in rows] == order


def test_a_record_without_the_field_fails_the_job_and_is_named(tmp_path: Path) -> None:
    write_tars(tmp_path)
    with refused(tmp_path, TransformError, "record r0 of shard in-0.tar", "has(json"):
        run_local(tmp_path, by_value("json.nothing"))
    with refused(tmp_path, ContentKeyError, "record r0 of shard in-0.tar", "NaN"):
        run_local(tmp_path, by_value("0.0 / 0.0"))
