"""Steps that run a function, where records become rows of tables, or rows records, or both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsort import api
from dsort.errors import ConversionError, InputError, SpecError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.support.datasets import Member, Shard, payloads_in, write_shards
from tests.support.engine import refused, run_local, verify_local
from tests.support.internals import manifest_name
from tests.support.refusals import raises
from tests.support.user_functions import of_values
from tests.transforms.jobs.test_map_steps import DICE, with_code, with_steps

pytestmark = pytest.mark.usefixtures("workers_here")


@pytest.mark.parametrize("output", [".parquet", ".arrow"])
def test_records_that_steps_make_become_rows(output: str, tmp_path: Path) -> None:
    import pyarrow.parquet as pq
    from pyarrow import feather

    members = [Member(f"r{n:02d}.json", b'{"n": %d}' % n) for n in range(12)]
    write_shards(tmp_path / "in", {f"in-{n}.tar": Shard(tuple(members[n::2])) for n in range(2)})
    (tmp_path / "code.py").write_text(DICE)
    (tmp_path / "dice").write_text("1")
    python, args = f"{tmp_path}/code.py:thrown", {"dice": str(tmp_path / "dice")}
    steps = [
        {"slice": "1:"},
        {"map": {"python": python, "args": args, "concurrency": 2}},
        with_code("numbered", "flat_map", keys="{key}/{i}"),
    ]
    spec = with_steps(
        *steps, on_error="skip", output_extension=output, row_group_rows=4, verify="content"
    )
    report = run_local(tmp_path, spec)
    read = pq.read_table if output == ".parquet" else feather.read_table
    found = [
        row
        for path in sorted((tmp_path / "out").glob("*" + output))
        for row in read(path).to_pylist()
    ]
    keys = [f"r{n:02d}/{i}" for n in range(2, 12) for i in range(2) if n != 7]
    assert sorted(row["__key__"] for row in found) == sorted([*keys, "r01/0", "r01/1"])
    assert {row["cls"] for row in found} == {0, 1}
    assert all(json.loads(row["json"])["dice"] == "1" for row in found)
    verified = verify_local(tmp_path, report, run_code=True)
    assert (verified.problems, verified.warnings) == ((), ())


def test_rows_become_records_that_steps_make(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tags = [["a", "b"], None, [], ["c"], ["d"], ["e"]]
    rows = {"id": [f"r{n}" for n in range(6)], "n": [*range(6)], "tags": tags}
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(rows), tmp_path / "in" / "in-0.parquet")
    step = with_code("of_row", decode={"n": "int", "tags": "json"})
    spec = with_steps(step, input_extension=".parquet", output_extension=".tar", key_field="id")
    run_local(tmp_path, spec)
    found = dict(payloads_in(tmp_path / "out"))
    assert found["r0.txt"] == b"0 a,b"
    assert found["r1.txt"] == b"1 -"
    assert len(found) == 6


@pytest.mark.parametrize("ends", [(".parquet", ".parquet"), (".arrow", ".parquet")])
def test_a_function_gets_and_returns_rows_as_dicts_of_values(
    ends: tuple[str, str], tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import feather

    rows = [
        {"id": f"r{n:02d}", "n": n, "part": n / 4, "ok": n % 2 == 0, "tags": ["a"] * n, "b": b"\0"}
        for n in range(10)
    ]
    rows[3] |= {"n": None, "tags": None}
    (tmp_path / "in").mkdir()
    kinds = [("id", pa.string()), ("n", pa.int32()), ("part", pa.float32()), ("ok", pa.bool_())]
    schema = pa.schema([*kinds, ("tags", pa.list_(pa.string())), ("b", pa.binary())])
    write = pq.write_table if ends[0] == ".parquet" else feather.write_feather
    for number in range(2):
        table = pa.Table.from_pylist(rows[number * 5 :][:5], schema=schema)
        write(table, tmp_path / "in" / f"in-{number}{ends[0]}")
    columns = {"norm": "float32", "vector": "list<float32>", "said": "string"}
    steps = [with_code("of_values", columns=columns, drop=["b"]), with_code("same")]
    spec = with_steps(
        *steps,
        input_extension=ends[0],
        output_extension=ends[1],
        key_field="id",
        algorithm={"kind": "alphanumeric"},
    )
    report = run_local(tmp_path, spec)
    parts = [pq.read_table(path) for path in sorted((tmp_path / "out").glob("*.parquet"))]
    assert parts[0].schema.field("n").type == pa.int32()
    assert parts[0].schema.field("vector").type == pa.list_(pa.float32())
    found = [row for part in parts for row in part.to_pylist()]
    known = [{name: value for name, value in of_values(row).items() if name != "b"} for row in rows]
    assert found == known
    manifest = (tmp_path / "out" / manifest_name(report.job_id)).read_bytes()
    verified = api.verify(manifest, options=RunOptions(root=tmp_path))
    assert verified.problems == ()
    assert "--run-code runs the code" in verified.warnings[0]
    again = api.verify(manifest, run_code=True, options=RunOptions(root=tmp_path))
    assert (again.problems, again.warnings, again.records) == ((), (), 10)
    first = tmp_path / "out" / json.loads(manifest)["outputs"][0]["name"]
    said = parts[0]["said"].to_pylist()
    at = parts[0].column_names.index("said")
    wrong = parts[0].set_column(at, parts[0].schema.field(at), [[said[0] + "!", *said[1:]]])
    pq.write_table(wrong, first)
    again = api.verify(manifest, run_code=True, options=RunOptions(root=tmp_path))
    assert "changed_bytes" in {problem.kind for problem in again.problems}


def test_rows_that_do_not_fit_their_columns_are_named(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "in").mkdir()
    table = pa.table({"id": ["a", "b"], "jpg": [1, 2]})
    pq.write_table(table, tmp_path / "in" / "in-0.parquet")
    tables = {"input_extension": ".parquet", "output_extension": ".parquet", "key_field": "id"}
    with refused(tmp_path, ConversionError, "a.more of shard in-0.parquet"):
        run_local(tmp_path, with_steps(with_code("with_more"), **tables))
    step = with_code("with_more", columns={"more": "int8"})
    with refused(tmp_path, ConversionError, "a.more of shard in-0.parquet", "int8", "`columns`"):
        run_local(tmp_path, with_steps(step, **tables))
    pq.write_table(pa.table({"id": ["a"], "l": [[b"x"]]}), tmp_path / "in" / "in-0.parquet")
    with refused(tmp_path, InputError, "column l"):
        run_local(tmp_path, with_steps(with_code("same"), **tables))
    with raises(SpecError, "type 'int7'", paths=["transform.steps[0].map"]):
        parse_spec(with_steps(with_code("same", columns={"more": "int7"}), **tables))
    with raises(SpecError, "exec", paths=["transform.steps[0]"]):
        parse_spec(with_steps({"exec": {"command": ["true"]}}, **tables))
