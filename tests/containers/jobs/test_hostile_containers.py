"""Shards that are made to harm: small ones that inflate, nest, or have thousands of fields. Whole
jobs over them end soon, in an error that names the shard, or in a right result."""

from __future__ import annotations

import io
import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import cbor2
import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dsort
from dsort import api
from dsort.containers.litdata import CONFIG_BYTES_MAX
from dsort.containers.mds import MDS
from dsort.containers.objects.container import CBOR, MSGPACK, Objects
from dsort.errors import CorruptShardError, InputError, SchemaError, StorageError
from dsort.options import RunOptions
from dsort.shard_contents import inspect_object
from dsort.storage.directory.bucket import LocalBucket
from dsort.storage.directory.files import LocalReadObject
from tests.support.datasets import END, Member, Shard, read_shard, write_shards
from tests.support.encoded_files import SUFFIXES as CODECS
from tests.support.encoded_files import made_elsewhere
from tests.support.engine import refused, spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import FILE_BYTES_MAX
from tests.support.litdata_reader import write_litdata
from tests.support.mds_writer import mds_shard
from tests.support.refusals import raises
from tests.support.tar_builder import header, member
from tests.support.tfrecords import frame
from tests.support.zips import zip_of

INFLATED = bytes(24 << 20)
"""More than ``max_expansion`` allows what is compressed to a thousandth."""


def _parquet() -> bytes:
    file = io.BytesIO()
    table = pa.table({"zeros": pa.array(memoryview(INFLATED).cast("q"), pa.int64())})
    pq.write_table(table, file, compression="zstd")
    return file.getvalue()


def _arrow() -> bytes:
    file = io.BytesIO()
    table = pa.table({"zeros": pa.array(memoryview(INFLATED).cast("q"), pa.int64())})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table, 1 << 16)
    return file.getvalue()


def _rows_of_nulls() -> bytes:
    file = io.BytesIO()
    table = pa.table({"nulls": pa.nulls(len(INFLATED))})
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


def _padded(suffix: str, more_bytes: int) -> bytes:
    """A shard whose compressed values are a bomb, and that is so much longer than they are."""
    file = io.BytesIO()
    table = pa.table({"zeros": [INFLATED * 2]}).replace_schema_metadata({"more": "x" * more_bytes})
    if suffix == ".parquet":
        pq.write_table(table, file, compression="zstd", use_dictionary=False)
        return file.getvalue()
    opened = pa.ipc.new_file if suffix == ".arrow" else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with opened(file, table.schema, options=options) as writer:
        writer.write_table(table)
    return file.getvalue()


BOMBS: dict[str, Callable[[], bytes]] = {
    **{
        f".tar{codec}": lambda codec=codec: made_elsewhere(  # type: ignore[misc]
            codec, Shard((Member("a.bin", INFLATED),)).data
        )
        for codec in CODECS
        if codec != ".lz4"  # which makes no more than 255 bytes of one
    },
    ".jsonl.gz": lambda: made_elsewhere(".gz", b'"' + INFLATED + b'"\n'),
    ".zip": lambda: zip_of([("a.bin", INFLATED)], deflated=True),
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".arrows": _rows_of_nulls,
}


def job_over(root: Path, suffix: str, data: bytes, output: str) -> dict[str, object]:
    (root / "in").mkdir()
    (root / "in" / f"s-0{suffix}").write_bytes(data)
    return spec_of(
        input_format={"objnames": [f"s-0{suffix}"]},
        output_extension=output,
        output_shard_records=100_000,
    )


@pytest.mark.sample(keep=4)
@pytest.mark.parametrize("suffix", BOMBS)
def test_a_bomb_is_refused_by_name(suffix: str, tmp_path: Path) -> None:
    data = BOMBS[suffix]()
    assert len(data) < 40_000
    output = suffix if suffix in (".parquet", ".arrow", ".arrows") else ".tar"
    spec = job_over(tmp_path, suffix, data, ".txt" if suffix == ".jsonl.gz" else output)
    with refused(tmp_path, CorruptShardError, f"s-0{suffix}", "max_expansion"):
        run_inline(spec, tmp_path, Moved("spill", buffer_bytes=1 << 20))


@pytest.mark.parametrize(
    ("suffix", "moved"),
    [
        (".tar", Moved("map")),
        (".tar", Moved("spill")),
        (".tar", Moved("spill", buffer_bytes=8 << 20)),
        (".tar", Moved("range")),
        (".tar", Moved("range", hops=False)),
        (".tar.gz", Moved("spill")),
    ],
)
def test_hard_links_to_more_than_a_shard_may_hold_are_refused(
    suffix: str, moved: Moved, tmp_path: Path
) -> None:
    links = b"".join(header(b"%d.bin" % i, 0, b"1", link=b"a.bin") for i in range(250))
    data = member(b"a.bin", bytes(1 << 20)) + links + END
    if suffix == ".tar.gz":
        data = made_elsewhere(".gz", data)
    spec = job_over(tmp_path, suffix, data, ".tar")
    with refused(tmp_path, CorruptShardError, f"s-0{suffix}", "max_expansion"):
        run_inline({**spec, "max_expansion": 100}, tmp_path, moved)
    if suffix == ".tar":
        report = run_inline({**spec, "max_expansion": 300}, tmp_path, moved)
        assert report.records == 251
        (path,) = (tmp_path / "out" / ".dsort").glob("*/manifest.json")
        options = RunOptions(root=tmp_path)
        assert api.verify(path.read_bytes(), options=options).problems == ()
        (problem,) = api.verify(path.read_bytes(), options=options, max_expansion=100).problems
        assert problem.kind == "corrupt_shard"
        assert "hard links" in problem.text


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows"])
def test_a_table_that_is_a_bomb_is_not_looked_into_either(suffix: str, tmp_path: Path) -> None:
    spec = job_over(tmp_path, suffix, BOMBS[suffix](), ".tar")
    with refused(tmp_path, CorruptShardError, f"s-0{suffix}", "max_expansion"):
        run_inline(spec, tmp_path, Moved("spill"))
    with raises(CorruptShardError, "MiB", hint="max_expansion", offset=0):
        inspect_object(LocalBucket(tmp_path / "in"), f"s-0{suffix}")


@pytest.mark.parametrize("room", [1 << 9, 1 << 16], ids=["ranges", "held"])
@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows"])
def test_a_bomb_in_a_store_that_is_larger_than_the_buffer_is_refused_too(
    suffix: str, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalReadObject, "mapping", lambda _: None)  # nothing is in stores
    data = _padded(suffix, 1 << 16)
    assert len(data) > room
    spec = job_over(tmp_path, suffix, data, suffix)
    what = "pages of row group 0" if suffix == ".parquet" else "buffers of a batch"
    with refused(tmp_path, CorruptShardError, f"s-0{suffix}", f"the {what} take", "max_expansion"):
        run_inline(spec, tmp_path, Moved("spill", buffer_bytes=room, values_stay=False))


@pytest.mark.parametrize(
    ("container", "encode"),
    [(CBOR, cbor2.dumps), (MSGPACK, msgpack.packb)],
    ids=["cbor", "msgpack"],
)
def test_the_fields_of_an_object_are_not_compared_with_each_other(
    container: Objects, encode: Callable[[object], bytes]
) -> None:
    fields = {f"f{number}": b"" for number in range(30_000)}
    data = encode({"__key__": "k", **fields})
    members = container.scan("s", data)
    begun = time.process_time()
    bare = container.bare(members, lambda at, size: data[at : at + size])
    assert time.process_time() - begun < 3  # to compare each with each takes longer
    assert bare.names.tolist() == [f"k.{field}".encode() for field in fields]


@pytest.mark.parametrize("suffix", [".cbor", ".msgpack"])
def test_objects_a_million_deep_are_refused_by_place(suffix: str, tmp_path: Path) -> None:
    opening = {".cbor": b"\x81", ".msgpack": b"\x91"}[suffix]
    spec = job_over(tmp_path, suffix, opening * 1_000_000 + b"\x01", suffix)
    with refused(tmp_path, CorruptShardError, f"s-0{suffix}", "at byte 512"):
        run_inline(spec, tmp_path)


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field of a protocol buffer."""
    size, head = len(payload), bytes([number << 3 | 2])
    while size > 0x7F:
        head += bytes([size & 0x7F | 0x80])
        size >>= 7
    return head + bytes([size]) + payload


def test_a_feature_in_many_lists_becomes_a_member_in_time(tmp_path: Path) -> None:
    lists = field(3, b"\x08\x01") * 60_000
    example = field(1, field(1, field(1, b"a") + field(2, lists)))
    spec = job_over(tmp_path, ".tfrecord", frame(example), ".tar")
    begun = time.process_time()
    run_inline(spec, tmp_path)
    assert time.process_time() - begun < 8
    (member,) = read_shard((tmp_path / "out" / "out-0.tar").read_bytes())
    assert member.payload == b"[" + b", ".join([b"1"] * 60_000) + b"]"


def test_samples_of_hundreds_of_columns_take_no_multiple_of_their_shard() -> None:
    names = [f"c{number:03d}" for number in range(400)]
    sample = dict.fromkeys(names, b"")
    shard = mds_shard(dict.fromkeys(names, "bytes"), [sample])
    (count,) = struct.unpack_from("<I", shard)
    assert count == 1
    head, config = 4 + 4 * 2, shard[12 : -4 * len(names)]
    rows, size = 4000, 4 * len(names)
    first = head + 4 * (rows - 1) + len(config)
    offsets = struct.pack(f"<{rows + 1}I", *range(first, first + rows * size + 1, size))
    data = struct.pack("<I", rows) + offsets + config + bytes(rows * size)
    tracemalloc.start()
    try:
        members = MDS.scan("s.mds", data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(members) == rows
    assert peak < 4 * len(data)


@pytest.mark.parametrize("key_field", ["", "/id"])
def test_lines_of_json_a_million_deep_are_moved_or_refused(key_field: str, tmp_path: Path) -> None:
    deep = b"[" * 1_000_000 + b"]" * 1_000_000
    line = b'{"x": ' + deep + b', "\\u0069d": "a"}\n'
    spec = job_over(tmp_path, ".jsonl", line, ".jsonl")
    if key_field:
        with refused(tmp_path, CorruptShardError, "s-0.jsonl", "at byte 0", "line 1 is not JSON"):
            run_inline(spec | {"key_field": key_field}, tmp_path)
    else:
        run_inline(spec, tmp_path)
        assert (tmp_path / "out" / "out-0.jsonl").read_bytes() == line


@pytest.mark.sample(keep=8)
@pytest.mark.parametrize("data", [b"", bytes(1 << 12)], ids=["no bytes", "zeros"])
@pytest.mark.parametrize(
    "suffix", [".tar", ".tar.gz", ".tar.zst", ".zip", ".cbor", ".mds", ".parquet", ".arrow"]
)
def test_shards_of_nothing_or_zeros_are_refused_by_name_or_hold_what_they_hold(
    suffix: str, data: bytes, tmp_path: Path
) -> None:
    spec = job_over(tmp_path, suffix, data, ".tar" if suffix == ".tar.zst" else suffix)
    if suffix == ".cbor":  # a zero is an object, and a file of no objects is one
        assert run_inline(spec, tmp_path, Moved("spill")).records == len(data)
        return
    with pytest.raises(InputError) as caught:
        run_inline(spec, tmp_path, Moved("spill"))
    assert f"s-0{suffix}" in caught.value.message
    assert not [*(tmp_path / "out").glob("out-*")]


MISNAMED = [(".tar", ".zip"), (".zip", ".tar"), (".tar", ".jsonl"), (".zip", ".txt"),
            (".parquet", ".tar"), (".tar", ".parquet"), (".tar", ".mds"), (".tar", ".tfrecord"),
            (".parquet", ".jsonl")]  # fmt: skip


@pytest.mark.sample(keep=5)
@pytest.mark.parametrize(("is_really", "called"), MISNAMED)
def test_a_shard_of_another_container_than_its_name_says_is_refused(
    is_really: str, called: str, tmp_path: Path
) -> None:
    made = {
        ".tar": Shard((Member("a.bin", b"\n{}" * 500),)).data,
        ".zip": zip_of([("a.bin", b"hello")]),
        ".parquet": _parquet(),
    }
    assert made[".tar"].endswith(END)
    spec = job_over(tmp_path, called, made[is_really], called)
    with pytest.raises(InputError) as caught:
        run_inline(spec, tmp_path, Moved("spill"))
    assert f"shard s-0{called}" in caught.value.message


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows"])
def test_an_empty_file_is_no_table_of_no_rows(suffix: str, tmp_path: Path) -> None:
    spec = job_over(tmp_path, suffix, b"", ".tar")
    with refused(tmp_path, CorruptShardError, f"s-0{suffix}"):
        run_inline(spec, tmp_path, Moved("spill"))


def chunks_with_an_index(root: Path) -> tuple[Path, dict[str, object]]:
    """The index of a LitData chunk, and a job over the chunk."""
    write_litdata(root / "in", {"chunk-0-0.bin": [(b"x", 1)]})
    more = {"input_extension": ".bin", "output_format": "chunk-0-%d"}
    spec = spec_of(input_format={"template": "chunk-0-{0..0}"}, output_shard_records=40, **more)
    return root / "in" / "index.json", spec


def test_an_index_over_its_limit_is_refused_by_name_before_it_is_read(tmp_path: Path) -> None:
    path, spec = chunks_with_an_index(tmp_path)
    with path.open("r+b") as index:
        index.truncate(FILE_BYTES_MAX + 1)  # a hole, of which no byte is on the disk
    tracemalloc.start()
    try:
        with raises(StorageError, "index.json", f"{FILE_BYTES_MAX + 1:,} bytes"):
            run_inline(spec, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < FILE_BYTES_MAX >> 4
    finally:
        tracemalloc.stop()


def test_readers_say_that_an_index_is_damaged_and_verify_lists_it(tmp_path: Path) -> None:
    _, spec = chunks_with_an_index(tmp_path)
    report, options = run_inline(spec, tmp_path), RunOptions(root=tmp_path)
    (tmp_path / "out" / "index.json").write_bytes(b"{")
    data = dsort.Dataset(str(tmp_path / "out"), options=options, cache="")
    with pytest.raises(SchemaError) as caught:
        data[0]
    assert "index.json in" in caught.value.message
    manifest = (tmp_path / "out" / (report.manifest_name or "")).read_bytes()
    problems = api.verify(manifest, options=options).problems
    assert [(each.kind, each.shard) for each in problems] == [("index", "index.json")]


def test_a_config_over_its_limit_is_refused_by_the_name_of_its_index(tmp_path: Path) -> None:
    path, spec = chunks_with_an_index(tmp_path)
    index = json.loads(path.read_bytes())
    index["config"]["more"] = ""
    index["config"]["more"] = "x" * (CONFIG_BYTES_MAX - len(json.dumps(index["config"])))
    path.write_text(json.dumps(index))
    assert run_inline(spec, tmp_path).records == 1
    index["config"]["more"] += "x"
    path.write_text(json.dumps(index))
    named = (f"index.json in file://{tmp_path}/in", f"{CONFIG_BYTES_MAX + 1:,} bytes")
    with raises(SchemaError, *named):
        run_inline({**spec, "output_bck": "out2"}, tmp_path)


@pytest.mark.parametrize("suffix", [".mds", ".msgpack", ".cbor", ".tfrecord", ".bin"])
def test_a_corrupt_shard_is_left_out_of_a_conversion(suffix: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "tar", {"in-0.tar": Shard((Member("a.txt", b"1"),))})
    made = {"input_bck": "tar", "output_bck": "in", "output_extension": suffix}
    run_inline(spec_of(**made, output_format="in-%d"), tmp_path)
    (tmp_path / "in" / f"in-1{suffix}").write_bytes(b"\xc1\xff broken" * 9)
    spec = spec_of(input_extension=suffix, output_extension=".tar", corrupt_shards="skip")
    report = run_inline(spec, tmp_path)
    assert report.records == 1
    assert api.verify(report, options=RunOptions(root=tmp_path)).problems == ()
