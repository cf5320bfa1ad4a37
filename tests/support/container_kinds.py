"""Every kind of shard, written and read by libraries other than dsort. Tests of whole jobs over all
containers compare their results with these.

A record is a key, some bytes and a number. A reading of a shard is the list of its records in
order, as bytes or tuples that can be compared and counted: two readings are equal only if nothing
was lost, added or changed.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import cbor2
import lz4.frame
import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.support.encoded_files import made_elsewhere
from tests.support.litdata_reader import CONFIG, litdata_chunk
from tests.support.mds_writer import mds_shard
from tests.support.tables import MEDIA
from tests.support.tfrecords import example_bytes, features_of, frame

Reading = list[Hashable]
"""The records of a shard, in order."""


@dataclass(frozen=True)
class Rec:
    """One record."""

    key: str
    data: bytes
    number: int


def some_records(seed: int | str, count: int, *, bytes_max: int = 300) -> list[Rec]:
    """``count`` records with different keys, in random order."""
    rng = random.Random(f"records {seed}")
    keys = [f"{seed}/{number:04d}" for number in range(count)]
    rng.shuffle(keys)
    return [Rec(key, rng.randbytes(rng.randrange(bytes_max)), rng.randrange(100)) for key in keys]


@dataclass(frozen=True, repr=False)
class Kind:
    """One kind of shard. ``key_of``: returns the key of a record that was read; None if records
    have no keys. ``key_field``: the field with the key; "" if there is none. ``output``: the suffix
    of output shards, if dsort only reads this kind. ``beside``: a file that every directory of such
    shards needs."""

    suffix: str
    write: Callable[[Sequence[Rec]], bytes]
    read: Callable[[bytes], Reading]
    key_of: Callable[[Any], str] | None = None
    key_field: str = ""
    codec: str = ""
    output: str = ""
    beside: tuple[str, bytes] | None = None
    is_table: bool = False

    def __repr__(self) -> str:
        return self.suffix

    @property
    def output_suffix(self) -> str:
        return self.output or self.suffix

    @property
    def raw_suffix(self) -> str:
        """The suffix without its codec."""
        return self.suffix.replace(".tgz", ".tar.gz").removesuffix(self.codec)

    def in_codec(self, codec: str, suffix: str = "", *, output: str = "") -> Kind:
        """The same kind of shard with a codec around it."""
        inner = self.read

        def read(data: bytes) -> Reading:
            return inner(decoders()[codec](data))

        def write(records: Sequence[Rec]) -> bytes:
            return made_elsewhere(codec, self.write(records))

        return Kind(
            suffix or self.suffix + codec, write, read, self.key_of, self.key_field, codec, output
        )


# -- codecs ----------------------------------------------------------------------------------------


def decoders() -> dict[str, Callable[[bytes], bytes]]:
    """The functions that decode a whole file, by the suffix of its codec."""
    return {
        ".gz": gzip.decompress,
        ".bz2": bz2.decompress,
        ".xz": _all_xz_streams,
        ".lz4": _all_lz4_frames,
        ".zst": _all_zstd_frames,
    }


def _all_xz_streams(data: bytes) -> bytes:
    """Decode as `xz` does: groups of four zeros may follow the last stream. Python takes 8 zeros
    for a stream that was cut off."""
    zeros = len(data) - len(data.rstrip(b"\0"))
    return lzma.decompress(data[: len(data) - zeros // 4 * 4])


def _all_lz4_frames(data: bytes) -> bytes:
    with lz4.frame.open(io.BytesIO(data)) as file:
        found: bytes = file.read()
    return found


def _all_zstd_frames(data: bytes) -> bytes:
    reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
    found: bytes = reader.read()
    return found


# -- named members ---------------------------------------------------------------------------------


def _members(records: Sequence[Rec]) -> list[tuple[str, bytes]]:
    pairs = [((f"{r.key}.bin", r.data), (f"{r.key}.cls", b"%d" % r.number)) for r in records]
    return [member for pair in pairs for member in pair]


def _grouped(members: list[tuple[str, bytes]]) -> Reading:
    return [tuple(some) for _, some in groupby(members, key=lambda each: _key_of_name(each[0]))]


def _key_of_name(name: str) -> str:
    directory, slash, last = name.rpartition("/")
    return directory + slash + last.split(".")[0]


def _key_of_members(record: tuple[tuple[str, bytes], ...]) -> str:
    return _key_of_name(record[0][0])


def _tar(records: Sequence[Rec]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in _members(records):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1_700_000_000
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def _read_tar(data: bytes) -> Reading:
    found = []
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:", ignore_zeros=True) as archive:
        for each in archive:
            file = archive.extractfile(each)
            assert file is not None, f"{each.name} is no file"
            found.append((each.name, file.read()))
    return _grouped(found)


def _zip(records: Sequence[Rec]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for at, (name, data) in enumerate(_members(records)):
            info = zipfile.ZipInfo(name)
            info.compress_type = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[at % 2]
            archive.writestr(info, data)
    return file.getvalue()


def _read_zip(data: bytes) -> Reading:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return _grouped([(each.filename, archive.read(each)) for each in archive.infolist()])


# -- lines and objects -----------------------------------------------------------------------------


def _json_lines(records: Sequence[Rec]) -> bytes:
    rows = ({"id": r.key, "data": r.data.hex(), "number": r.number} for r in records)
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _text_lines(records: Sequence[Rec]) -> bytes:
    return b"".join(f"{r.key} {r.number} {r.data.hex()}\r\n".encode() for r in records)


def _read_lines(data: bytes) -> Reading:
    return [line for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip(b"\r")]


def _read_json_lines(data: bytes) -> Reading:
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [line for line in lines if line.strip(b" \t\r")]


def _object(record: Rec) -> dict[str, Any]:
    return {"__key__": record.key, "bin": record.data, "cls": record.number}


def _read_msgpack(data: bytes) -> Reading:
    found: Reading = []
    unpacker = msgpack.Unpacker(io.BytesIO(data), strict_map_key=False)
    at = 0
    while at < len(data):
        unpacker.skip()
        found.append(data[at : unpacker.tell()])
        at = unpacker.tell()
    return found


def _read_cbor(data: bytes) -> Reading:
    found: Reading = []
    file = io.BytesIO(data)
    while (at := file.tell()) < len(data):
        cbor2.CBORDecoder(file, read_size=1, str_errors="replace").decode()
        found.append(data[at : file.tell()])
    return found


# -- frames and samples ----------------------------------------------------------------------------


def _example(record: Rec) -> bytes:
    return example_bytes(
        {
            "id": ("byte", record.key.encode()),
            "data": ("byte", record.data),
            "number": ("int", record.number),
        }
    )


def _read_frames(data: bytes) -> Reading:
    found: Reading = []
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        record = data[at + 12 : at + 12 + length]
        assert frame(record) == data[at : at + 16 + length], "another frame"
        found.append(record)
        at += 16 + length
    return found


_COLUMNS = {"id": "str", "data": "bytes", "number": "int"}


def _mds(records: Sequence[Rec]) -> bytes:
    rows = [{"id": r.key, "data": r.data, "number": r.number} for r in records]
    return mds_shard(_COLUMNS, rows)


def _read_mds(data: bytes) -> Reading:
    (count,) = struct.unpack_from("<I", data)
    offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
    assert offsets[-1] == len(data)
    config = json.loads(data[8 + 4 * count : offsets[0]])
    names, fixed = config["column_names"], config["column_sizes"]
    variable = sum(size is None for size in fixed)
    found: Reading = []
    for begin, end in pairwise(offsets):
        sizes = iter(struct.unpack_from(f"<{variable}I", data, begin))
        at, values = begin + 4 * variable, []
        for name, size in zip(names, fixed, strict=True):
            length = next(sizes) if size is None else size
            values.append((name, data[at : at + length]))
            at += length
        assert at == end
        found.append(tuple(values))
    return found


def _litdata(records: Sequence[Rec]) -> bytes:
    return litdata_chunk([(r.key.encode() + b" " + r.data, r.number) for r in records])


def _read_litdata(data: bytes) -> Reading:
    (count,) = struct.unpack_from("<I", data)
    offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
    assert offsets[0] == 4 + 4 * (count + 1)
    assert offsets[-1] == len(data)
    items = [data[begin:end] for begin, end in pairwise(offsets)]
    for item in items:
        assert 8 + sum(struct.unpack_from("<2I", item)) == len(item)
    return [*items]


# -- tables ----------------------------------------------------------------------------------------


def _table(records: Sequence[Rec]) -> pa.Table:
    images = [{"bytes": r.data, "path": f"{r.number}.jpg"} for r in records]
    columns = {
        "id": pa.array([r.key for r in records], pa.string()),
        "image": pa.array(images, MEDIA),
        "number": pa.array([r.number if r.number % 9 else None for r in records], pa.int64()),
        "tags": pa.array(
            [[str(n) for n in range(r.number % 4)] for r in records], pa.list_(pa.string())
        ),
    }
    return pa.table(columns).replace_schema_metadata({b"huggingface": b'{"info": {}}'})


def _parquet(records: Sequence[Rec]) -> bytes:
    file = io.BytesIO()
    pq.write_table(_table(records), file, row_group_size=7)
    return file.getvalue()


def _arrow(opened: Callable[..., Any]) -> Callable[[Sequence[Rec]], bytes]:
    def write(records: Sequence[Rec]) -> bytes:
        table, file = _table(records), io.BytesIO()
        with opened(file, table.schema) as writer:
            writer.write_table(table, 7)
        return file.getvalue()

    return write


def _rows(table: pa.Table) -> Reading:
    """Each row with the schema and its metadata."""
    table.validate(full=True)
    schema = table.schema.to_string(truncate_metadata=False)
    return [(schema, json.dumps(row, default=_shown)) for row in table.to_pylist()]


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else repr(value)


def _key_of_row(row: tuple[str, str]) -> str:
    return str(json.loads(row[1])["id"])


# -- all of them -----------------------------------------------------------------------------------

_TAR = Kind(".tar", _tar, _read_tar, _key_of_members)
_JSONL = Kind(
    ".jsonl", _json_lines, _read_json_lines, lambda line: str(json.loads(line)["id"]), "/id"
)
_TXT = Kind(".txt", _text_lines, _read_lines)
_TFRECORD = Kind(
    ".tfrecord",
    lambda records: b"".join(frame(_example(record)) for record in records),
    _read_frames,
    lambda record: features_of(record)["id"][1][0].decode(),
    "id",
)
_MDS = Kind(".mds", _mds, _read_mds, lambda sample: dict(sample)["id"].decode(), "id")

KINDS: tuple[Kind, ...] = (
    _TAR,
    _TAR.in_codec(".gz"),
    _TAR.in_codec(".gz", ".tgz"),
    _TAR.in_codec(".zst"),
    _TAR.in_codec(".lz4"),
    _TAR.in_codec(".bz2", output=".tar"),
    _TAR.in_codec(".xz", output=".tar"),
    Kind(".zip", _zip, _read_zip, _key_of_members),
    _JSONL,
    _JSONL.in_codec(".gz"),
    _JSONL.in_codec(".zst"),
    _TXT,
    _TXT.in_codec(".gz"),
    Kind(
        ".msgpack",
        lambda records: b"".join(msgpack.packb(_object(record)) for record in records),
        _read_msgpack,
        lambda data: str(msgpack.unpackb(data)["__key__"]),
        "__key__",
    ),
    Kind(
        ".cbor",
        lambda records: b"".join(cbor2.dumps(_object(record)) for record in records),
        _read_cbor,
        lambda data: str(cbor2.loads(data)["__key__"]),
        "__key__",
    ),
    _TFRECORD,
    _TFRECORD.in_codec(".gz"),
    _MDS,
    _MDS.in_codec(".zst", output=".mds"),
    Kind(
        ".bin",
        _litdata,
        _read_litdata,
        beside=("index.json", json.dumps({"chunks": [], "config": CONFIG}).encode()),
    ),
    Kind(
        ".parquet",
        _parquet,
        lambda data: _rows(pq.ParquetFile(io.BytesIO(data)).read()),
        _key_of_row,
        "id",
        is_table=True,
    ),
    Kind(
        ".arrow",
        _arrow(pa.ipc.new_file),
        lambda data: _rows(pa.ipc.open_file(data).read_all()),
        _key_of_row,
        "id",
        is_table=True,
    ),
    Kind(
        ".arrows",
        _arrow(pa.ipc.new_stream),
        lambda data: _rows(pa.ipc.open_stream(data).read_all()),
        _key_of_row,
        "id",
        is_table=True,
    ),
)


def kind_named(suffix: str) -> Kind:
    """The kind of shards with this suffix."""
    return next(kind for kind in KINDS if kind.suffix == suffix)
