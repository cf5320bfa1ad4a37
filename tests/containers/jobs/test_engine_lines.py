"""Jobs from and to files of lines. What is written is counted by the readers that people use."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from dsort import api
from dsort.errors import (
    ContentKeyError,
    ConversionError,
    CorruptShardError,
    DsortError,
    ShardEndError,
    SpecError,
)
from dsort.options import RunOptions
from dsort.shard_contents import inspect_object
from dsort.spec.load import parse_spec
from dsort.storage.directory.bucket import LocalBucket
from tests.support.datasets import Member, Shard, files_of, read_shard, write_shards
from tests.support.engine import count_of, run_local, spec_of, verify_local
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import read_shards
from tests.support.refusals import raises

LINES: dict[str, Any] = {
    "input_format": {"template": "s-{0..2}"},
    "input_extension": ".jsonl",
    "output_format": "out-%05d",
    "output_shard_records": 20,
    "algorithm": {"kind": "shuffle", "seed": 7},
}


def document(shard: int, number: int) -> bytes:
    text = "é" * number + '"{[\\id' * (number % 3)
    fields = {"id": f"{shard}/{number}", "score": (number * 37) % 23 - 5.5, "text": text}
    return json.dumps(fields, ensure_ascii=bool(number % 2)).encode()


def some_lines(directory: Path, suffix: str = ".jsonl") -> list[bytes]:
    """Three shards, with lines that end in both ways, an empty line and no end; all lines."""
    directory.mkdir()
    everything: list[bytes] = []
    for shard in range(3):
        lines = [document(shard, n) + (b"\r\n" if n % 5 == 0 else b"\n") for n in range(20 + shard)]
        data = b"".join(lines[:10]) + b"\n" + b"".join(lines[10:])
        if shard == 2:
            data = b"\xef\xbb\xbf" + data.removesuffix(b"\n")
        (directory / f"s-{shard}{suffix}").write_bytes(data)
        everything += lines
    return everything


def lines_in(directory: Path, suffix: str = ".jsonl") -> list[bytes]:
    paths = sorted(directory.glob(f"*{suffix}"))
    return [line for path in paths for line in path.read_bytes().splitlines(keepends=True)]


@pytest.mark.parametrize("key_field", ["", "id"])
def test_lines_are_shuffled_as_they_are_whatever_the_movement_and_the_workers(
    tmp_path: Path, key_field: str
) -> None:
    everything = some_lines(tmp_path / "in")
    outputs = []
    for number, moved in enumerate(
        (Moved("map"), Moved("spill", workers=2, partitions=3, buffer_bytes=300))
    ):
        spec = spec_of(**LINES, key_field=key_field) | {"output_bck": f"out{number}"}
        report = run_inline(spec, tmp_path, moved)
        assert count_of(report, "empty_lines_dropped")[0] == 3
        assert count_of(report, "line_ends_added") == (1, ("s-2.jsonl",))
        assert count_of(report, "byte_order_marks_dropped") == (1, ("s-2.jsonl",))
        found = lines_in(tmp_path / f"out{number}")
        assert Counter(found) == Counter(everything)
        assert found != everything
        outputs.append(files_of(tmp_path / f"out{number}", "*.jsonl"))
    assert outputs[0] == outputs[1]


def test_every_reader_finds_every_record_of_the_outputs(tmp_path: Path) -> None:
    import duckdb  # these take a while to load
    import polars

    everything = some_lines(tmp_path / "in")
    expected = sorted(orjson.loads(line)["id"] for line in everything)
    run_inline(spec_of(**LINES), tmp_path, Moved())
    out = tmp_path / "out"
    assert sorted(orjson.loads(line)["id"] for line in lines_in(out)) == expected
    with duckdb.connect() as database:
        query = f"select id from read_json('{out}/*.jsonl', format='newline_delimited')"
        assert sorted(row[0] for row in database.execute(query).fetchall()) == expected
    assert sorted(polars.read_ndjson(sorted(out.glob("*.jsonl")))["id"]) == expected
    found = [record.members for record in read_shards(out)]
    assert sorted(orjson.loads(line)["id"] for each in found for line in each.values()) == expected


def test_hugging_face_datasets_reads_every_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    everything = some_lines(tmp_path / "in")
    run_inline(spec_of(**LINES), tmp_path, Moved())
    files = [str(path) for path in sorted((tmp_path / "out").glob("*.jsonl"))]
    rows = datasets.load_dataset(
        "json", data_files=files, split="train", cache_dir=str(tmp_path / "cache")
    )
    assert Counter(rows["id"]) == Counter(orjson.loads(line)["id"] for line in everything)


def test_a_result_verifies_and_can_be_inspected(tmp_path: Path) -> None:
    some_lines(tmp_path / "in")
    report = run_local(tmp_path, spec_of(**LINES, verify="content", key_field="/id"), workers=2)
    manifest = (tmp_path / "out" / str(report.manifest_name)).read_bytes()
    options = RunOptions(root=tmp_path, workers=1)
    assert not api.verify(manifest, options=options).problems
    seen = inspect_object(LocalBucket(tmp_path / "in"), "s-2.jsonl")
    assert (seen.members, {each.kind for each in seen.oddities}) == (
        22,
        {"empty_lines", "byte_order_mark", "unended_line"},
    )
    path = tmp_path / "out" / "out-00001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"score", b"scone", 1))
    assert api.verify(manifest, options=options).problems


@pytest.mark.parametrize("field", ["score", "/score"])
def test_lines_are_sorted_by_a_field(tmp_path: Path, field: str) -> None:
    some_lines(tmp_path / "in")
    order = {"kind": "content", "extension": ".json", "content_key_type": "float"}
    spec = spec_of(**{**LINES, "algorithm": {**order, "json_field": field}})
    report = run_inline(spec, tmp_path, Moved("spill", workers=2, partitions=2))
    scores = [orjson.loads(line)["score"] for line in lines_in(tmp_path / "out")]
    assert len(scores) == 63
    assert scores == sorted(scores)
    manifest = (tmp_path / "out" / str(report.manifest_name)).read_bytes()
    assert api.verify(manifest, options=RunOptions(root=tmp_path, workers=1)).ok


@pytest.mark.parametrize("key_field", ["", "/id"])
def test_a_tar_becomes_lines_and_comes_back_byte_for_byte(tmp_path: Path, key_field: str) -> None:
    members = [
        Member(f"{n:03d}.json", json.dumps({"id": f"{n:03d}", "x": "y" * n}).encode())
        for n in range(12)
    ]
    write_shards(tmp_path / "in", {"a-0.tar": Shard(tuple(members))})
    to_lines = spec_of(
        input_format={"template": "a-{0..0}"}, output_extension=".jsonl", key_field=key_field
    ) | {"output_bck": "lines"}
    run_inline(to_lines, tmp_path, Moved())
    assert lines_in(tmp_path / "lines") == [member.payload + b"\n" for member in members]
    back = spec_of(
        input_bck="lines",
        input_format={"template": "out-{0..2}"},
        input_extension=".jsonl",
        output_extension=".tar",
        output_shard_records=100,
        key_field=key_field,
    )
    run_inline(back, tmp_path, Moved("spill"))
    found = read_shard(files_of(tmp_path / "out")["out-0.tar"])
    assert [member.payload for member in found] == [member.payload for member in members]
    names = [f"{n:03d}" for n in range(12)]
    if not key_field:
        names = [f"out-{n // 5}-{n % 5:09d}" for n in range(12)]
    assert [member.name for member in found] == [f"{name}.json" for name in names]


def test_texts_become_lines_and_keep_what_is_around_them(tmp_path: Path) -> None:
    texts = [Member("a.txt", b"one"), Member("c.txt", b" \xff\r")]
    write_shards(tmp_path / "in", {"a-0.tar": Shard(tuple(texts))})
    spec = spec_of(input_format={"template": "a-{0..0}"}, overwrite=True)
    run_inline(spec | {"output_extension": ".txt"}, tmp_path, Moved())
    assert files_of(tmp_path / "out", "*.txt")["out-0.txt"] == b"one\n \xff\r\n"


@pytest.mark.parametrize("suffix", [".tar", ".tar.zst"])
def test_a_line_feed_at_the_end_of_a_payload_is_left_out_if_asked_for(
    tmp_path: Path, suffix: str
) -> None:
    texts = [Member("a.txt", b"one\n"), Member("b.txt", b"two"), Member("c.txt", b"\tthree\r\n")]
    tar = Shard(tuple(texts)).data
    write_shards(
        tmp_path / "in", {f"a-0{suffix}": zstandard.compress(tar) if "z" in suffix else tar}
    )
    fields = {"input_format": {"template": f"a-{{0..0}}{suffix}"}, "strip_final_newline": True}
    moved = Moved("spill" if "z" in suffix else "map", buffer_bytes=1000)
    report = run_inline(spec_of(**fields, output_extension=".txt"), tmp_path, moved)
    assert files_of(tmp_path / "out", "*.txt")["out-0.txt"] == b"one\ntwo\n\tthree\r\n"
    assert count_of(report, "final_newlines_stripped")[0] == 2
    assert "does not come back" in report.warnings[0]
    assert report.totals.payload_bytes == len(b"onetwo\tthree\r")
    assert verify_local(tmp_path, report).problems == ()


@pytest.mark.parametrize("to", [".tar", ".jsonl"])
def test_line_feeds_are_left_out_only_where_members_become_lines(to: str) -> None:
    spec = {**LINES, "strip_final_newline": True, "output_extension": to}
    with raises(SpecError, ".jsonl", paths=["strip_final_newline"]):
        parse_spec(spec_of(**spec))


@pytest.mark.parametrize(
    ("members", "extension", "hint"),
    [
        (["a.json=1", "a.txt=2"], ".jsonl", ""),
        (["a.txt=1"], ".jsonl", ".json"),
        (["a.json=1"], ".txt", ".txt"),
        (["README=1"], ".txt", ".txt"),
        (["a.txt=1\n2"], ".txt", ""),
        (["a.txt=1\n"], ".txt", "strip_final_newline"),
        (["a.json=1\n"], ".jsonl", "strip_final_newline"),
        (["a.txt="], ".txt", ""),
        (["a.txt=\r\n"], ".txt", ""),
        (["a.json= \n\t"], ".jsonl", ""),
        (["a.json={"], ".jsonl", ""),
        (['a.json="1\n2"'], ".jsonl", ""),
        (['a.json={\n "a": 1\n}\n'], ".jsonl", ""),
        (["a.txt=\ufeffx"], ".txt", ""),
    ],
)
def test_a_record_that_is_no_line_is_named(
    tmp_path: Path, members: list[str], extension: str, hint: str
) -> None:
    parts = [text.partition("=") for text in members]
    shard = Shard(tuple(Member(name, payload.encode()) for name, _, payload in parts))
    write_shards(tmp_path / "in", {"a-0.tar": shard})
    spec = spec_of(input_format={"template": "a-{0..0}"}, output_extension=extension)
    with raises(ConversionError, f"record {Path(parts[0][0]).stem}", hint=hint):
        run_inline(spec, tmp_path, Moved())


def test_a_line_that_says_another_key_than_its_record_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"a-0.tar": Shard((Member("a.json", b'{"id": "b"}'),))})
    spec = spec_of(input_format={"template": "a-{0..0}"}, output_extension=".jsonl", key_field="id")
    with raises(ConversionError, "record a"):
        run_inline(spec, tmp_path, Moved())


@pytest.mark.parametrize(
    ("data", "error", "named"),
    [
        (b'{"id": 1}\n{"x": 1}\n', ContentKeyError, "line 2 of shard s-0.jsonl"),
        (b'{"id": 1}\nnope\n', CorruptShardError, "shard s-0.jsonl"),
        (b'{"id": 1}\n{"id": 1}\n{"i', CorruptShardError, "byte 20"),
    ],
)
def test_a_line_whose_key_cannot_be_read_stops_the_job(
    tmp_path: Path, data: bytes, error: type[DsortError], named: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "s-0.jsonl").write_bytes(data)
    spec = spec_of(**{**LINES, "input_format": {"template": "s-{0..0}"}}, key_field="id")
    with raises(error, named):
        run_inline(spec, tmp_path, Moved())


def test_a_file_that_was_cut_off_is_refused_unless_that_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "s-0.jsonl").write_bytes(b'{"a": 1}\n{"a": ')
    spec = spec_of(**{**LINES, "input_format": {"template": "s-{0..0}"}})
    with raises(ShardEndError, "shard s-0.jsonl", "line, 2"):
        run_inline(spec, tmp_path, Moved())
    run_inline(spec | {"incomplete_shards": "warn"}, tmp_path, Moved())
    assert sorted(lines_in(tmp_path / "out")) == [b'{"a": \n', b'{"a": 1}\n']


def test_keys_that_would_lead_out_of_a_directory_matter_only_in_a_tar(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "s-0.jsonl").write_bytes(b'{"id": "../a"}\n{"id": "/b"}\n')
    spec = spec_of(**{**LINES, "input_format": {"template": "s-{0..0}"}}, key_field="id")
    report = run_inline(spec, tmp_path, Moved())
    assert [each.kind for each in report.reactions] == []
    spec |= {"output_extension": ".tar", "unsafe_names": "rename"}
    report = run_inline(spec, tmp_path, Moved())
    assert count_of(report, "unsafe_names_renamed")[0] == 2


def test_records_of_one_key_stay_records_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "s-0.jsonl").write_bytes(b'{"id": 1}\n{"id": 1, "x": 2}\n{"id": 1}\n')
    spec = spec_of(**{**LINES, "input_format": {"template": "s-{0..0}"}}, key_field="id")
    run_inline(spec | {"duplicate_keys": "warn"}, tmp_path, Moved())
    assert len(lines_in(tmp_path / "out")) == 3
    with raises(ConversionError, "1-1.json", hint="duplicate_keys: warn"):
        run_inline(spec | {"duplicate_keys": "rename", "overwrite": True}, tmp_path, Moved())
