"""A bare name is the member, the column, or the field of a line, wherever a spec names a field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsort.errors import ContentKeyError, DsortError, TransformError
from tests.support.datasets import Member, Shard, files_of, write_shards
from tests.support.engine import count_of, refused, run_local, spec_of
from tests.support.verified import assert_verified

pytestmark = pytest.mark.usefixtures("workers_here")

TEXTS = ["cat", "dog", "bird", "ant", "bear", "cow", "duck", "asp", "crab", "bee", "dog"]
ROWS: list[dict[str, Any]] = [
    {"text": text, "label": text[:1], "length": len(text) * 1.5, "id": number, "n": number}
    for number, text in enumerate(TEXTS)
]
SPLIT = {"outputs": [{"name": "a", "fraction": 0.5}, {"name": "b", "fraction": 0.5}]}
WHEN = [{"name": "a", "when": 'text < "bird"'}, {"name": "b", "when": "true"}]
SHUFFLE = {"kind": "shuffle", "seed": 7}

PLACES: dict[str, dict[str, Any]] = {
    "filter": {"transform": {"steps": [{"filter": 'text < "cow" && size(text) > 2 && id < 9'}]}},
    "has": {"transform": {"steps": [{"filter": "has(text)"}]}},
    "deduplicate": {"deduplicate": {"by": {"field": "text"}}},
    "sort": {"algorithm": {"kind": "value", "value": "text", "decreasing": True}},
    "sort by size": {"algorithm": {"kind": "value", "value": "size(text)"}},
    "sort keys": {
        "algorithm": {
            "kind": "keys",
            "keys": [{"kind": "value", "value": "size(text)"}, {"kind": "value", "value": "text"}],
        }
    },
    "interleave": {"algorithm": {**SHUFFLE, "interleave": {"by": "label"}}},
    "interleave by an expression": {"algorithm": {**SHUFFLE, "interleave": {"by": "size(text)"}}},
    "similar": {"algorithm": {**SHUFFLE, "batches": {"records": 5, "similar": "length"}}},
    "similar by an expression": {
        "algorithm": {**SHUFFLE, "batches": {"records": 5, "similar": "size(text)"}}
    },
    "stratify": {**SPLIT, "exact": True, "stratify": "label"},
    "split_by": {**SPLIT, "split_by": "text"},
    "when": {"outputs": WHEN},
}
QUALIFIED = {"text": "json.text", "label": "json.label", "length": "json.length", "id": "json.id"}


def write_tars(root: Path, rows: list[dict[str, Any]]) -> None:
    members = [Member(f"r{row['n']:02}.json", json.dumps(row).encode()) for row in rows]
    half = len(members) // 2
    shards = {"in-0.tar": Shard(tuple(members[:half])), "in-1.tar": Shard(tuple(members[half:]))}
    write_shards(root / "in", shards)


def write_lines(root: Path, rows: list[dict[str, Any]]) -> None:
    (root / "in").mkdir()
    half = len(rows) // 2
    for shard, some in enumerate((rows[:half], rows[half:])):
        lines = "".join(json.dumps(row) + "\n" for row in some)
        (root / f"in/in-{shard}.jsonl").write_text(lines)


def write_table(root: Path, rows: list[dict[str, Any]]) -> None:
    (root / "in").mkdir()
    half = len(rows) // 2
    for shard, some in enumerate((rows[:half], rows[half:])):
        pq.write_table(pa.Table.from_pylist(some), root / f"in/in-{shard}.parquet")


WRITE = {".tar": write_tars, ".jsonl": write_lines, ".parquet": write_table}


def qualified(value: Any) -> Any:
    """A part of a spec with ``json.text`` for ``text``."""
    if isinstance(value, dict):
        return {name: qualified(each) for name, each in value.items()}
    if isinstance(value, list):
        return [qualified(each) for each in value]
    if isinstance(value, str):
        for name, field in QUALIFIED.items():
            if value in (name, f"size({name})", f"has({name})"):
                return value.replace(name, field)
            value = value.replace(f"{name} ", f"{field} ").replace(f"({name})", f"({field})")
    return value


def run(root: Path, fields: dict[str, Any], workers: int = 2, **more: Any) -> dict[str, bytes]:
    """The outputs of a job, which is verified."""
    named = "{split}-{n}" if "outputs" in fields else "out-%d"
    spec = spec_of(overwrite=True, output_format=named, **{**fields, **more})
    report = run_local(root, spec, workers=workers)
    assert_verified(root, report.job_id)
    return files_of(root / "out", "*.[tjp]*")


def rows_of(root: Path, extension: str) -> list[tuple[str, list[int]]]:
    """Of each output, the numbers of its rows, sorted."""
    found: dict[str, list[int]] = {}
    for path in sorted((root / "out").glob(f"*{extension}")):
        if extension == ".parquet":
            numbers = pq.read_table(path)["n"].to_pylist()
        else:
            numbers = [int(each) for each in re.findall(rb'"n": (\d+)', path.read_bytes())]
        found.setdefault(path.name.partition("-")[0], []).extend(numbers)
    return sorted((name, sorted(numbers)) for name, numbers in found.items())


@pytest.mark.parametrize("extension", [".tar", ".jsonl"])
@pytest.mark.parametrize("place", PLACES)
def test_a_bare_name_is_the_field_of_a_record_of_json(
    tmp_path: Path, place: str, extension: str
) -> None:
    """It has the same bytes as ``json.text``, with one worker and with two."""
    WRITE[extension](tmp_path, ROWS)
    more = {} if extension == ".tar" else {"input_extension": extension}
    right = run(tmp_path, qualified(PLACES[place]), workers=1, **more)
    assert right
    assert run(tmp_path, PLACES[place], **more) == right
    assert run(tmp_path, PLACES[place], workers=1, **more) == right


@pytest.mark.parametrize("place", PLACES)
def test_a_bare_name_is_a_column(tmp_path: Path, place: str) -> None:
    """Where the values alone decide which records come out, and where, all containers agree."""
    found = []
    for extension in WRITE:
        (tmp_path / extension).mkdir()
        WRITE[extension](tmp_path / extension, ROWS)
        assert run(tmp_path / extension, PLACES[place], input_extension=extension)
        found.append(rows_of(tmp_path / extension, extension))
    if place != "stratify":  # the lots that records draw are of their keys
        assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("extension", [".tar", ".jsonl"])
def test_inputs_are_joined_by_a_bare_name(tmp_path: Path, extension: str) -> None:
    """It has the same bytes as ``json.text``, for all inputs and for one of them."""
    WRITE[extension](tmp_path, ROWS[:-1])
    (tmp_path / "more").mkdir()
    for path in (tmp_path / "in").iterdir():
        (tmp_path / "more" / path.name).write_bytes(path.read_bytes())

    def joined(by: str, of_more: str) -> dict[str, bytes]:
        inputs: list[dict[str, Any]] = [
            {"name": "in", "input_bck": "in"},
            {"name": "more", "input_bck": "more", "join": {"by": of_more}},
        ]
        for each in inputs:
            each["input_extension"] = extension
        join = {"by": by, "conflict": "first"}
        spec = spec_of(overwrite=True, inputs=inputs, join=join)
        del spec["input_bck"]
        assert_verified(tmp_path, run_local(tmp_path, spec, workers=2).job_id)
        return files_of(tmp_path / "out", "*.[tjp]*")

    right = joined("json.text", "json.text")
    numbers = rows_of(tmp_path, extension)
    assert numbers == [("out", list(range(len(ROWS) - 1)))]
    for by, of_more in (("text", "text"), ("text", "json.text"), ("json.text", "text")):
        assert joined(by, of_more) == right


ODD: list[dict[str, Any]] = [{"n": 90}, {"n": 91, "text": None}, {"n": 92, "text": ""}]


@pytest.mark.parametrize("field", ["text", 'text("text")', "json.text"])
@pytest.mark.parametrize("extension", WRITE)
def test_records_without_a_field_are_left_out(tmp_path: Path, extension: str, field: str) -> None:
    if extension == ".parquet" and field == "json.text":
        return
    WRITE[extension](tmp_path, [*ROWS, *ODD])
    step = {"require": {"fields": [field, 'number("n")' if extension != ".tar" else "json.n"]}}
    run(tmp_path, {"transform": {"steps": [step]}}, input_extension=extension)
    assert rows_of(tmp_path, extension) == [("out", [*range(len(ROWS)), 92])]


def test_what_becomes_of_a_record_without_a_field_is_said_as_for_members(tmp_path: Path) -> None:
    write_lines(tmp_path, [*ROWS, *ODD])

    def spec(policy: str) -> dict[str, Any]:
        steps = [{"require": {"fields": ["text"], "on_missing": policy}}]
        return spec_of(transform={"steps": steps}, input_extension=".jsonl", overwrite=True)

    with refused(tmp_path, TransformError, "shard in-1.jsonl", "exclude"):
        run_local(tmp_path, spec("abort"))
    for policy, kind, kept in (
        ("exclude", "missing_members_excluded", len(ROWS) + 1),
        ("warn", "missing_members", len(ROWS) + 3),
        ("ignore", "missing_members", len(ROWS) + 3),
    ):
        report = run_local(tmp_path, spec(policy))
        assert report.records == kept
        assert count_of(report, kind)[0] == (0 if policy == "ignore" else 2)
        assert policy == "ignore" or "has no field text" in count_of(report, kind)[1][0]


def test_a_member_of_that_name_is_no_field(tmp_path: Path) -> None:
    """A record that is more than JSON has members; its fields are ``json.txt``."""
    members = []
    for number, said in enumerate(("b", "a")):
        members += [
            Member(f"r{number}.json", json.dumps({"txt": f"{1 - number}", "text": "x"}).encode()),
            Member(f"r{number}.txt", said.encode()),
        ]
    write_shards(tmp_path / "in", {"in.tar": Shard(tuple(members))})
    by_member = run(tmp_path, {"algorithm": {"kind": "value", "value": "txt"}})
    by_field = run(tmp_path, {"algorithm": {"kind": "value", "value": "json.txt"}})
    assert by_member == by_field
    with refused(tmp_path, TransformError, "record r0 of shard in.tar"):
        run_local(tmp_path, spec_of(algorithm={"kind": "value", "value": "text"}, overwrite=True))


@pytest.mark.parametrize("extension", [".jsonl", ".tar"])
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"deduplicate": {"by": {"field": "text"}}}, TransformError),
        ({"algorithm": {**SHUFFLE, "interleave": {"by": "label"}}}, ContentKeyError),
        ({**SPLIT, "stratify": "label"}, TransformError),
    ],
)
def test_a_record_without_the_field_fails_the_job(
    tmp_path: Path, extension: str, fields: dict[str, Any], error: type[DsortError]
) -> None:
    WRITE[extension](tmp_path, [*ROWS, {"n": 99}])
    named = "{split}-{n}" if "outputs" in fields else "out-%d"
    spec = spec_of(input_extension=extension, **{**fields, "output_format": named})
    with refused(tmp_path, error, f"of shard in-1{extension}"):
        run_local(tmp_path, spec)


def test_what_else_stands_in_a_field_is_read_like_a_member(tmp_path: Path) -> None:
    rows = [{"n": n, "cls": value} for n, value in enumerate((" 7 ", 7, 7.0, "x", True, None))]
    write_lines(tmp_path, rows[:2])
    step = {"filter": 'cls == 7 && number("n") < 9 && text("n") != "8"'}
    kept = {"transform": {"steps": [step]}}
    run(tmp_path, kept, input_extension=".jsonl")
    assert rows_of(tmp_path, ".jsonl") == [("out", [0, 1])]
    for row in rows[2:5]:
        (tmp_path / "in/in-0.jsonl").write_text(json.dumps(row) + "\n")
        with refused(tmp_path, TransformError, "cls"):
            run_local(tmp_path, spec_of(input_extension=".jsonl", overwrite=True, **kept))


@pytest.mark.parametrize("written", [".parquet", ".tar"])
def test_a_null_of_a_column_is_no_field_of_another_column(tmp_path: Path, written: str) -> None:
    """Rows are no records of JSON, even where one column is called so."""
    rows = [{"json": '{"length": 1}', "length": None}, {"json": None, "length": 0.5}]
    write_table(tmp_path, [{**row, "n": None} for row in (*rows, *rows)])
    similar = {"records": 5, "similar": "length", "missing": "last"}
    spec = {"algorithm": {**SHUFFLE, "batches": similar}}
    assert run(tmp_path, spec, input_extension=".parquet", output_extension=written)


@pytest.mark.parametrize(
    "fields",
    [
        {"transform": {"steps": [{"filter": 'text != "x"'}]}},
        {**SPLIT, "stratify": "text"},
        {"deduplicate": {"by": {"field": "text"}}},
    ],
)
def test_a_field_that_is_nested_too_deeply_is_an_error_of_its_record(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    (tmp_path / "in").mkdir()
    deep = "[" * 1000 + "]" * 1000
    (tmp_path / "in/in-0.jsonl").write_text(f'{{"text": {deep}}}\n')
    named = "{split}-{n}" if "outputs" in fields else "out-%d"
    spec = spec_of(input_extension=".jsonl", **{**fields, "output_format": named})
    with refused(tmp_path, TransformError, "of shard in-0.jsonl"):
        run_local(tmp_path, spec)


@pytest.mark.parametrize("by", ["label", "json.label"])
def test_a_line_of_more_than_a_mebibyte_has_no_class(tmp_path: Path, by: str) -> None:
    """Sixty-four lines are read at once."""
    write_lines(tmp_path, [*ROWS, {"n": 99, "label": "c", "more": "x" * (1 << 20)}])
    spec = spec_of(input_extension=".jsonl", stratify=by, output_format="{split}-{n}", **SPLIT)
    with refused(tmp_path, TransformError, "of shard in-1.jsonl"):
        run_local(tmp_path, spec)


def test_rows_that_become_records_of_json_are_verified_by_their_fields(tmp_path: Path) -> None:
    rows = [{"__key__": f"r{row['n']:02}", "json": json.dumps(row)} for row in ROWS]
    write_table(tmp_path, rows)
    spec = {"input_extension": ".parquet", "output_extension": ".tar"}
    by_name = run(tmp_path, {**PLACES["interleave by an expression"], **spec})
    assert by_name == run(tmp_path, {**qualified(PLACES["interleave by an expression"]), **spec})
