"""Steps that look at columns leave the rows that a plain-Python model says."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from dsort.errors import TransformError
from tests.support.engine import count_of, verify_local
from tests.support.inline_runtime import Moved, run_inline
from tests.support.refusals import raises

Row = dict[str, Any]
SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "score": pa.float64(),
        "label": pa.string(),
        "count": pa.int64(),
        "meta": pa.struct({"lang": pa.string(), "tags": pa.list_(pa.string())}),
        "image": pa.binary(),
    }
)


def drawn(root: Path, rng: random.Random, suffix: str = ".parquet") -> list[Row]:
    (root / "in").mkdir()
    rows: list[Row] = []
    for number in range(3):
        part = [
            {
                "id": f"{number}-{at}",
                "score": rng.choice([None, -1.5, 0.25, 3.0, 1e20]),
                "label": rng.choice([None, "cat", "dog", "12"]),
                "count": rng.choice([None, 0, -7, 2**40]),
                "meta": rng.choice(
                    [None, {"lang": "de", "tags": ["a", "b"]}, {"lang": None, "tags": []}]
                ),
                "image": rng.choice([None, b"", rng.randbytes(rng.randrange(2000))]),
            }
            for at in range(30)
        ]
        rows += part
        table = pa.Table.from_pylist(part, schema=SCHEMA)
        path = root / "in" / f"in-{number}{suffix}"
        if suffix == ".parquet":
            pq.write_table(table, path, row_group_size=7)
        else:
            with pa.ipc.new_file(path, SCHEMA) as writer:
                writer.write_table(table, max_chunksize=7)
    return rows


def spec_of(**fields: Any) -> dict[str, Any]:
    return {
        "input_bck": "in",
        "input_format": "in-{0..2}",
        "input_extension": ".parquet",
        "output_bck": "out",
        "output_format": "out-%d",
        "output_shard_records": 10,
        "key_field": "id",
        "algorithm": {"kind": "none"},
        **fields,
    }


def rows_in(directory: Path) -> list[Row]:
    paths = [*directory.glob("out-*.parquet"), *directory.glob("out-*.arrow")]
    found: list[Row] = []
    for path in sorted(paths, key=lambda each: (len(each.name), each)):
        is_parquet = path.suffix == ".parquet"
        table = pq.read_table(path) if is_parquet else pa.ipc.open_file(path).read_all()
        found += table.to_pylist()
    return found


CASES: dict[str, tuple[dict[str, Any], Callable[[Row], bool]]] = {
    "require": (
        {"require": {"extensions": ["score;count", "label"]}},
        lambda row: (row["score"], row["count"]) != (None, None) and row["label"] is not None,
    ),
    "numbers": (
        {"filter": 'has("score") && number("score") > 0.2'},
        lambda row: row["score"] is not None and row["score"] > 0.2,
    ),
    "texts": (
        {"filter": 'has("label") && text("label") in ["cat", "12"] || !has("count")'},
        lambda row: row["label"] in ("cat", "12") or row["count"] is None,
    ),
    "objects": (
        {"filter": 'has(json("meta").lang) && "b" in json("meta").tags'},
        lambda row: row["meta"] is not None and "b" in row["meta"]["tags"],
    ),
    "sizes and the index": (
        {"filter": 'has("image") && size("image") < 900 || shard == "in-1.parquet"'},
        lambda row: (
            (row["image"] is not None and len(row["image"]) < 900) or row["id"].startswith("1-")
        ),
    ),
    "integers": (
        {"filter": 'has("count") && ext("count") < 1 && key.endsWith("4")'},
        lambda row: row["count"] is not None and row["count"] < 1 and row["id"].endswith("4"),
    ),
}
MOVED = [
    Moved("spill", workers=2, partitions=3, buffer_bytes=1 << 20),
    Moved("spill", workers=3, partitions=2, buffer_bytes=12_000, order_seed=1),
]


@pytest.mark.parametrize("name", CASES)
def test_rows_stay_of_which_the_step_is_true(name: str, tmp_path: Path, rng: random.Random) -> None:
    suffix = rng.choice([".parquet", ".arrow"])
    rows = drawn(tmp_path, rng, suffix)
    step, is_true = CASES[name]
    if suffix != ".parquet" and "filter" in step:
        step = {"filter": step["filter"].replace("in-1.parquet", f"in-1{suffix}")}
    order = {"kind": "content", "extension": ".id", "content_key_type": "string"}
    spec = spec_of(transform={"steps": [step]}, input_extension=suffix, algorithm=order)
    wanted = sorted((row for row in rows if is_true(row)), key=lambda row: row["id"])
    assert 0 < len(wanted) < len(rows)
    for number, moved in enumerate(MOVED):
        report = run_inline({**spec, "output_bck": f"out{number}"}, tmp_path, moved)
        assert rows_in(tmp_path / f"out{number}") == wanted
        assert count_of(report, "left_out_by_steps")[0] == len(rows) - len(wanted)
    assert verify_local(tmp_path, report).problems == ()


def test_rows_without_a_column_are_left_out_before_all_steps(
    tmp_path: Path, rng: random.Random
) -> None:
    rows = drawn(tmp_path, rng)
    spec = spec_of(require={"extensions": ["label"]}, transform={"steps": [{"slice": "5:40"}]})
    report = run_inline(spec, tmp_path, MOVED[1])
    assert rows_in(tmp_path / "out") == [row for row in rows if row["label"] is not None][5:40]
    assert count_of(report, "missing_members_excluded")[0] == sum(
        row["label"] is None for row in rows
    )


@pytest.mark.parametrize(
    ("step", "named"),
    [
        ({"filter": 'number("score") > 1'}, "score"),
        ({"filter": 'has("label") && number("label") > 1'}, "label"),
        ({"filter": 'text("nowhere") == "x"'}, "nowhere"),
        ({"require": {"extensions": ["nowhere"], "on_missing": "abort"}}, "member .nowhere"),
    ],
    ids=str,
)
def test_rows_of_which_nothing_can_be_said_are_named(
    step: dict[str, Any], named: str, tmp_path: Path, rng: random.Random
) -> None:
    drawn(tmp_path, rng)
    with raises(TransformError, "record 0-", named):
        run_inline(spec_of(transform={"steps": [step]}), tmp_path, MOVED[0])


def test_rows_go_where_their_columns_say(tmp_path: Path, rng: random.Random) -> None:
    rows = drawn(tmp_path, rng)
    spec = spec_of(
        outputs=[
            {"name": "cats", "when": 'has("label") && text("label") == "cat"'},
            {"name": "high", "when": 'has("score") && number("score") > 1 || input == "x"'},
            {"name": "rest", "when": True},
        ],
        output_format="{split}/out-%d",
        output_shard_records=1000,
    )
    wanted: dict[str, list[Row]] = {"cats": [], "high": [], "rest": []}
    for row in rows:
        is_high = row["score"] is not None and row["score"] > 1
        wanted["cats" if row["label"] == "cat" else "high" if is_high else "rest"].append(row)
    for number, moved in enumerate(MOVED):
        report = run_inline({**spec, "output_bck": f"out{number}"}, tmp_path, moved)
        found = {name: rows_in(tmp_path / f"out{number}" / name) for name in wanted}
        assert found == wanted
    assert verify_local(tmp_path, report).problems == ()


def test_rows_that_say_the_same_go_to_one_output(tmp_path: Path, rng: random.Random) -> None:
    drawn(tmp_path, rng)
    spec = spec_of(
        require={"extensions": ["count"]},
        outputs=[{"name": "a", "fraction": 0.5}, {"name": "b", "fraction": 0.5}],
        split_by='string(number("count"))',
        output_format="{split}/out-%d",
    )
    run_inline(spec, tmp_path, MOVED[1])
    counts = [{row["count"] for row in rows_in(tmp_path / "out" / name)} for name in "ab"]
    assert not counts[0] & counts[1]
    assert len(counts[0] | counts[1]) == 3
