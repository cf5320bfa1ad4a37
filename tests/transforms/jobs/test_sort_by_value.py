"""``algorithm: {kind: value}``: records in the order of a field, or of another expression."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsort import api
from dsort.errors import ContentKeyError, SpecError, TransformError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
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


def test_a_value_may_be_one_of_several_sort_keys(tmp_path: Path) -> None:
    write_tars(tmp_path)
    keys = [
        {"kind": "value", "value": "size(json.text)", "decreasing": True},
        {"kind": "value", "value": "json.text"},
    ]
    report = run_local(tmp_path, spec_of(algorithm={"kind": "keys", "keys": keys}))
    names = [name for name in records_out(tmp_path) if name.endswith(".jpg")]
    assert names == [f"r{number}.jpg" for number in [5, 2, 0, 9, 6, 3, 8, 1, 7, 4]]
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


def test_lines_are_sorted_by_a_field_of_their_object(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"text": text, "n": number}) for number, text in enumerate(TEXTS)]
    (tmp_path / "in/a.jsonl").write_text("\n".join(lines) + "\n")
    report = run_local(tmp_path, by_value("size(json.text)", input_extension=".jsonl"))
    found = "".join(Path(name).read_text() for name in check(tmp_path, report.job_id))
    assert [json.loads(each)["n"] for each in found.splitlines()] == BY_LENGTH


def test_a_record_without_the_field_fails_the_job_and_is_named(tmp_path: Path) -> None:
    write_tars(tmp_path)
    with refused(tmp_path, TransformError, "record r0 of shard in-0.tar", "has(json"):
        run_local(tmp_path, by_value("json.nothing"))
    with refused(tmp_path, ContentKeyError, "record r0 of shard in-0.tar", "NaN"):
        run_local(tmp_path, by_value("0.0 / 0.0"))


@pytest.mark.parametrize("text", ["jpg", "shard", "ordinal + 1", "", None])
def test_a_value_that_outputs_do_not_show_is_refused(text: str | None) -> None:
    with pytest.raises(SpecError) as refused_spec:
        parse_spec(by_value(text))  # type: ignore[arg-type]
    assert [each.path for each in refused_spec.value.problems] == ["algorithm.value"]
