"""Outputs that have containers of their own, and joins into what is no list of members: records
travel as tar, and are converted as they are written."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dsort
from dsort import api
from dsort.errors import ConversionError, SpecError, StrayMemberError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.support.datasets import Member, Shard, read_shard, tree_of, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import manifest_name
from tests.support.mds_writer import write_mds
from tests.support.refusals import raises
from tests.support.tables import MEDIA
from tests.support.tfrecords import example_bytes, frame

CONTAINERS = (
    ".zip",
    ".tfrecord",
    ".msgpack",
    ".cbor.gz",
    ".mds",
    ".bin",
    ".parquet",
    ".arrow",
    ".arrows",
    ".tar.gz",
)
SHUFFLE = {"kind": "shuffle", "seed": 7}
MAPPED = Moved("map")
SPILLED = Moved("spill", partitions=5, workers=2, nodes=2, buffer_bytes=1 << 16, order_seed=3)


def outputs(own: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": "train", "fraction": 0.6},
        {"name": "val", "fraction": 0.4},
    ]
    if own is not None:
        found[1]["output_extension"] = own
    return found


def apart(top: str, own: str | None = None, **fields: Any) -> dict[str, Any]:
    fixed: dict[str, Any] = {
        "output_format": "{split}/s-%d",
        "output_extension": top,
        "algorithm": SHUFFLE,
        "outputs": outputs(own),
    }
    return spec_of(**{**fixed, **fields})


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {name: data for name, (_, data) in tree_of(directory).items()}


@pytest.fixture
def root(tmp_path: Path, rng: random.Random) -> Path:
    def members(key: str) -> list[Member]:
        return [
            Member(f"{key}.jpg", rng.randbytes(rng.choice([0, 9, 3000]))),
            Member(f"{key}.cls", b"%d" % rng.randrange(9)),
            Member(f"{key}.txt", b"of " + key.encode()),
        ]

    for shard in range(3):
        keys = [f"{shard}/{number:02d}" for number in range(14)]
        of_all = tuple(each for key in keys for each in members(key))
        write_shards(tmp_path / "in", {f"in-{shard}.tar": Shard(of_all)})
    return tmp_path


def problems(root: Path, job_id: str, bucket: str = "out") -> list[str]:
    manifest = (root / bucket / manifest_name(job_id)).read_bytes()
    report = api.verify(manifest, options=RunOptions(root=root))
    return [str(each) for each in report.problems] + list(report.warnings)


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize("own", CONTAINERS)
def test_an_output_has_the_bytes_that_it_has_where_all_are_of_its_container(
    own: str, root: Path
) -> None:
    found = []
    for bucket, spec, moved in (
        ("alone", apart(own), SPILLED),
        ("mapped", apart(".tar", own, verify="content"), MAPPED),
        ("spilled", apart(".tar", own), SPILLED),
    ):
        report = run_inline({**spec, "output_bck": bucket}, root, moved)
        assert problems(root, report.job_id, bucket) == []
        found.append(bytes_of(root / bucket / "val"))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) >= 3
    plain = run_inline({**apart(".tar"), "output_bck": "plain"}, root, MAPPED)
    assert plain.records == 42
    assert bytes_of(root / "mapped" / "train") == bytes_of(root / "plain" / "train")


def test_records_of_an_output_of_tars_are_the_bytes_that_they_were(root: Path) -> None:
    header = tarfile.TarInfo("odd/a.txt")
    header.mtime, header.mode, header.size, header.uname = 77, 0o600, 3, "me"
    with tarfile.open(root / "in" / "in-9.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        header.pax_headers = {"comment": "kept"}
        tar.addfile(header, io.BytesIO(b"abc"))
    when = [
        {"name": "train", "when": "key.startsWith('odd')"},
        {"name": "val", "when": True, "output_extension": ".msgpack"},
    ]
    report = run_inline(apart(".tar", outputs=when), root, MAPPED)
    out = (root / "out" / "train" / "s-0.tar").read_bytes()
    assert (root / "in" / "in-9.tar").read_bytes().startswith(out.rstrip(b"\0"))
    assert problems(root, report.job_id) == []


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize(
    "ends", [(".parquet", ".tar"), (".tar", ".parquet"), (".parquet", ".arrow")]
)
@pytest.mark.parametrize("key_field", [None, "id"])
def test_rows_go_to_outputs_of_tables_and_of_members(
    ends: tuple[str, str], key_field: str | None, tmp_path: Path, rng: random.Random
) -> None:
    (tmp_path / "in").mkdir()
    rows = [
        {
            "id": f"r{n:02d}",
            "n": None if n % 5 == 0 else n,
            "jpg": None if n % 4 == 1 else {"bytes": rng.randbytes(n * 9), "path": f"{n}.jpg"},
            "v": [n, n + 0.5],
        }
        for n in range(30)
    ]
    kinds = {"id": pa.string(), "n": pa.int32(), "jpg": MEDIA, "v": pa.list_(pa.float32())}
    schema = pa.schema(list(kinds.items()), {"huggingface": '{"info": {"features": {}}}'})
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "in" / "in-0.parquet")
    fields = {} if key_field is None else {"key_field": key_field}
    report = run_inline(apart(*ends, input_extension=".parquet", **fields), tmp_path, SPILLED)
    assert problems(tmp_path, report.job_id) == []
    tables = [pq.read_table(path) for path in (tmp_path / "out").rglob("*.parquet")]
    stored = pq.read_table(tmp_path / "in" / "in-0.parquet").schema
    assert {str(table.schema) for table in tables} == {str(stored)}
    known = {row["id"]: row for row in rows}
    found = [row for table in tables for row in table.to_pylist()]
    assert found
    for row in found:
        assert {**row, "jpg": row["jpg"] and row["jpg"]["bytes"]} == {
            **known[row["id"]],
            "jpg": known[row["id"]]["jpg"] and known[row["id"]]["jpg"]["bytes"],
        }
    options = RunOptions(root=tmp_path)
    assert len([*dsort.read_shards(report, options=options)]) == 30


def test_what_is_wrong_with_a_result_of_several_containers_is_found(root: Path) -> None:
    report = run_inline(apart(".tar", ".msgpack"), root, MAPPED)
    shard = root / "out" / "val" / "s-0.msgpack"
    data = shard.read_bytes()
    shard.write_bytes(data.replace(b"of 0/", b"of 9/", 1).replace(b"of 1/", b"of 9/", 1))
    found = problems(root, report.job_id)
    assert any("checksum" in each for each in found)
    assert any("changed_bytes" in each or "foreign_record" in each for each in found)


@pytest.mark.parametrize("suffix", [".zip", ".tfrecord"])
def test_a_result_is_right_whose_inputs_have_the_container_of_one_output(
    suffix: str, root: Path
) -> None:
    own = {"input_extension": ".tar", "output_extension": suffix, "output_bck": "first"}
    assert (
        dsort.run(parse_spec(spec_of(**own)).spec, options=RunOptions(root=root, workers=1)).records
        > 0
    )
    outputs = [
        {"name": name, "fraction": 0.5, "output_extension": each, "output_format": f"{name}-%d"}
        for name, each in (("same", suffix), ("tar", ".tar"))
    ]
    fields = {"input_bck": "first", "input_extension": suffix, "outputs": outputs}
    report = dsort.run(parse_spec(spec_of(**fields)).spec, options=RunOptions(root=root, workers=1))
    found = dsort.verify(report, options=RunOptions(root=root, workers=1))
    assert (found.problems, found.records) == ((), report.records)


def write_keyed(directory: Path, suffix: str, column: str) -> None:
    """A shard of twelve records, whose keys are in their field ``id``."""
    rows = [{"id": f"r{n:02d}", column: f"{column} {n}"} for n in range(12)]
    if suffix == ".mds":
        write_mds(directory, {"id": "str", column: "str"}, {"in-0.mds": rows})
    else:
        directory.mkdir()
        texts = [{name: ("byte", text.encode()) for name, text in row.items()} for row in rows]
        frames = b"".join(frame(example_bytes(each)) for each in texts)
        (directory / "in-0.tfrecord").write_bytes(frames)


@pytest.mark.parametrize("suffix", [".mds", ".tfrecord"])
@pytest.mark.parametrize("way", ["joined", "divided", "made"])
def test_a_result_is_right_whose_records_left_the_container_of_their_key_field(
    suffix: str, way: str, tmp_path: Path
) -> None:
    own = {"input_extension": suffix}
    inputs = [{"name": name, "input_bck": name, **own} for name in ("one", "two")]
    write_keyed(tmp_path / "one", suffix, "txt")
    write_keyed(tmp_path / "two", suffix, "text")
    spec = spec_of(key_field="id", output_extension=suffix)
    if way == "joined":
        del spec["input_bck"]
        spec |= {"inputs": inputs, "join": {"conflict": "first"}}
    elif way == "made":
        steps = [{"map": {"python": "tests.support.user_functions:same"}}]
        spec |= {"input_bck": "one", **own, "transform": {"steps": steps}}
    else:
        tar = {"output_extension": ".tar", "output_format": "tar/%d"}
        parts = [{"name": "same", "fraction": 0.5}, {"name": "tar", "fraction": 0.5, **tar}]
        spec |= {"input_bck": "one", **own, "outputs": parts}
    report = run_inline(spec, tmp_path, SPILLED)
    assert report.records == 12
    options = RunOptions(root=tmp_path, runs_code=True)
    assert dsort.verify(report, options=options).problems == ()


def test_a_record_that_its_output_cannot_hold_is_named(root: Path) -> None:
    spec = apart(".tar", ".jsonl")
    with raises(ConversionError, "3 members"):
        run_inline(spec, root, MAPPED)
    with tarfile.open(root / "in" / "in-8.tar", "w") as tar:
        link = tarfile.TarInfo("k.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "x.jpg"
        tar.addfile(link)
    when = [
        {"name": "train", "when": "!key.startsWith('k')"},
        {"name": "val", "when": True, "output_extension": ".msgpack"},
    ]
    with raises(StrayMemberError, "link k.jpg", "val/s-0.msgpack"):
        run_inline(apart(".tar", outputs=when, output_bck="two"), root, MAPPED)


def test_samples_need_like_members_in_their_own_output_alone(root: Path) -> None:
    write_shards(root / "in", {"in-5.tar": Shard((Member("odd.png", b"1"),))})
    when = [
        {"name": "odd", "when": 'has("png")'},
        {"name": "val", "when": True, "output_extension": ".mds"},
    ]
    report = run_inline(apart(".tar", outputs=when), root, SPILLED)
    assert problems(root, report.job_id) == []
    index = json.loads((root / "out" / "val" / "index.json").read_text())
    assert index["shards"][0]["column_names"] == ["__key__", "cls", "jpg", "txt"]
    assert sum(each["samples"] for each in index["shards"]) == 42
    when[0]["when"], when[1]["output_bck"] = 'has("gif")', "val"
    with raises(ConversionError, "val/s-0.mds", "png"):
        run_inline(apart(".tar", outputs=when, output_bck="two"), root, SPILLED)


def test_two_outputs_of_samples_have_columns_of_their_own(root: Path) -> None:
    report = run_inline(apart(".bin", ".mds"), root, SPILLED)
    assert problems(root, report.job_id) == []


@pytest.mark.usefixtures("workers_here")
def test_each_output_has_its_bucket_container_and_codec(root: Path) -> None:
    three = [
        {"name": "a", "fraction": 0.4},
        {"name": "b", "fraction": 0.3, "output_bck": "b", "output_extension": ".jsonl.gz"},
        {"name": "c", "fraction": 0.3, "output_bck": "c", "output_extension": ".parquet"},
    ]
    steps = {"steps": [{"fields": {"keep": ["txt"], "rename": {"txt": "json"}}}]}
    for path in (root / "in").iterdir():  # each text as JSON
        members = [each for each in read_shard(path.read_bytes()) if each.name.endswith("txt")]
        quoted = [Member(each.name, json.dumps(each.payload.decode()).encode()) for each in members]
        write_shards(root / "in", {path.name: Shard(tuple(quoted))})
    spec = apart(".tar", outputs=three, transform=steps, lineage="jsonl")
    report = run_local(root, spec, workers=2)
    assert problems(root, report.job_id) == []
    assert [*(root / "b").rglob("*.jsonl.gz")]
    table = pq.read_table(next((root / "c").rglob("*.parquet")))
    assert table.column_names == ["__key__", "json"]
    lines = next(iter((root / "out").rglob("lineage.jsonl"))).read_text().splitlines()
    late = [json.loads(line) for line in lines]
    assert len(late) == 42
    assert {"b", "c"} <= {each["output_shard"].rpartition("//")[0] for each in late}


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize("extension", CONTAINERS)
@pytest.mark.parametrize("moved", [MAPPED, SPILLED], ids=["map", "spill"])
def test_joined_records_become_those_of_any_container(
    extension: str, moved: Moved, tmp_path: Path, rng: random.Random
) -> None:
    keys = [f"k{number:02d}" for number in range(30)]
    for name, suffix in (("pictures", "jpg"), ("labels", "cls")):
        rng.shuffle(keys)
        members = [Member(f"{key}.{suffix}", b"%d" % len(key)) for key in keys]
        write_shards(tmp_path / name, {f"{n}.tar": Shard(tuple(members[n::2])) for n in range(2)})
    spec = {
        "inputs": [{"name": each, "input_bck": each} for each in ("pictures", "labels")],
        "join": {"by": "key"},
        "output_bck": "out",
        "output_format": "s-%d",
        "output_shard_records": 7,
        "algorithm": SHUFFLE,
        "overwrite": True,
    }
    plain = run_inline({**spec, "output_bck": "tars"}, tmp_path, MAPPED)
    report = run_inline({**spec, "output_extension": extension}, tmp_path, moved)
    assert problems(tmp_path, report.job_id) == []
    options = RunOptions(root=tmp_path)
    joined = [
        sorted(record.members.items()) for record in dsort.read_shards(plain, options=options)
    ]
    if extension in (".zip", ".tar.gz"):
        found = [
            sorted(each.members.items()) for each in dsort.read_shards(report, options=options)
        ]
        assert found == joined
    if extension == ".parquet":
        rows = [
            row
            for n in range(5)
            for row in pq.read_table(tmp_path / f"out/s-{n}.parquet").to_pylist()
        ]
        assert [
            [
                (f"{row['__key__']}.cls", b"%d" % row["cls"]),
                (f"{row['__key__']}.jpg", row["jpg"]["bytes"]),
            ]
            for row in rows
        ] == joined


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"strip_final_newline": True}, "strip_final_newline"),
        ({"index": ["dali"]}, "index"),
        ({"outputs": outputs(".tar.xz")}, "outputs[1].output_extension"),
        ({"outputs": outputs(".mds"), "output_format": "{split}-%d", "index": []}, ""),
        (
            {
                "output_format": "{split}-%d",
                "output_extension": ".bin",
                "outputs": outputs(".mds"),
            },
            "outputs",
        ),
    ],
)
def test_what_does_not_go_with_several_containers_is_said_early(
    fields: dict[str, Any], path: str
) -> None:
    spec = {**apart(".tar", ".msgpack"), **fields}
    if not path:
        parse_spec(spec)
        return
    with pytest.raises(SpecError) as caught:
        parse_spec(spec)
    assert path in {problem.path for problem in caught.value.problems}
    assert "yet" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl"])
def test_a_member_that_is_larger_than_the_buffer_comes_out_as_it_was(
    suffix: str, tmp_path: Path, rng: random.Random
) -> None:
    texts = {
        f"k{n}": json.dumps({"id": f"k{n}", "text": rng.randbytes(30_000).hex()}) for n in "ab"
    }
    members = [Member(f"{key}.json", text.encode()) for key, text in texts.items()]
    write_shards(tmp_path / "in", {"in-0.tar": Shard(tuple(members))})
    fields = {"key_field": "id"} if suffix == ".jsonl" else {}
    moved = Moved("spill", buffer_bytes=1 << 13)
    report = run_inline(spec_of(output_extension=suffix, **fields), tmp_path, moved)
    assert problems(tmp_path, report.job_id) == []
    records = dsort.read_shards(report, options=RunOptions(root=tmp_path))
    found = [content.decode() for each in records for content in each.members.values()]
    assert sorted(found) == sorted(texts.values())
