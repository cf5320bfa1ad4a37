"""Every reader keeps to the law of ``dsort/bounds.py`` over archives and tables whose headers are
made to harm, and records of which a few bytes become many values or members with long names."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsort.containers.columnar.thrift import BINARY, I32, I64, LIST, STRUCT, read_struct, written
from tests.support.bounds import READERS, check_reader
from tests.support.tar_builder import END, gnu_long, header, member, pax, pax_record
from tests.support.tfrecords import example_bytes, frame
from tests.support.zips import zip_of

HEADERS: Final = 8_000


def _long_names() -> bytes:
    return gnu_long(b"n" * 200) * HEADERS + member(b"a.jpg", style="gnu") + END


def _long_names_and_targets() -> bytes:
    both = gnu_long(b"n" * 200) + gnu_long(b"t" * 200, b"K")
    return both * (HEADERS // 2) + header(b"a.jpg", 0, b"2", link=b"b", style="gnu") + END


def _extended_members() -> bytes:
    return (pax({b"path": b"n" * 200}) + gnu_long(b"n" * 200) * 2 + member(b"a")) * (
        HEADERS // 4
    ) + END


def _short_records() -> bytes:
    return pax(b"5 a=\n" * 1_000_000) + member(b"a.jpg") + END


def _records_to_mend() -> bytes:
    """As many records as a header may have, in a member whose headers have to be written anew."""
    records = b"".join(pax_record(b"k%06d" % i, b"v" * 110) for i in range(1 << 18))
    return pax(records) + header(b"a.jpg", mode=-1) + END


def _path_of_many_parts() -> bytes:
    path = pax({b"path": b"ab//" * (7 << 20) + b"c"})
    return member(b"a.jpg") + path + member(b"b") + header(b"c.jpg", 0, b"1", link=b"a.jpg") + END


def _target_of_many_parts() -> bytes:
    return pax({b"linkpath": b"ab/" * (10 << 20) + b"c"}) + header(b"a.jpg", 0, b"2") + END


def _dotted_names() -> bytes:
    return header(b"." * 100, prefix=b"." * 155) * 100_000 + END


def _sparse_map() -> bytes:
    return pax({b"GNU.sparse.map": b"10," * (10 << 20) + b"1"}) + member(b"a.jpg", bytes(512)) + END


def _global_sparse_map() -> bytes:
    return pax({b"GNU.sparse.map": b"1," * 200_000 + b"1"}, b"g") + member(b"a") * HEADERS + END


def _sparse_maps() -> bytes:
    head = header(b"s", 0, b"S", style="gnu", tail=bytes(137) + b"\1")
    more = (bytes(504) + b"\1").ljust(512, b"\0")
    return head + more * HEADERS + bytes(512) + END


def _hard_links() -> bytes:
    """40 GB, if each link became a file of 10 MB."""
    links = b"".join(header(b"%d.jpg" % i, 0, b"1", link=b"a.jpg") for i in range(4_000))
    return member(b"a.jpg", bytes(10 << 20)) + links + END


ARCHIVES: Final[dict[str, Callable[[], bytes]]] = {
    "long-names.tar": _long_names,
    "long-names-and-targets.tar": _long_names_and_targets,
    "extended-members.tar": _extended_members,
    "short-records.tar": _short_records,
    "records-to-mend.tar": _records_to_mend,
    "path-of-many-parts.tar": _path_of_many_parts,
    "target-of-many-parts.tar": _target_of_many_parts,
    "dotted-names.tar": _dotted_names,
    "sparse-map.tar": _sparse_map,
    "global-sparse-map.tar": _global_sparse_map,
    "sparse-maps.tar": _sparse_maps,
    "hard-links.tar": _hard_links,
    "items.msgpack": lambda: b"\xdd\0\x10\0\0" + b"\x91\1" * (1 << 20),
    "fields.msgpack": lambda: b"\xdf\0\x10\0\0" + b"\xa0\1" * (1 << 20),
    "nested.msgpack": lambda: b"\x91" * 512 * 1000 + b"\1",
    "items.cbor": lambda: b"\x9f" + b"\x9f\xff" * (1 << 20) + b"\xff",
    "empty-frames.tar.zst": lambda: bytes.fromhex("28b52ffd 2000 010000") * 200_000,
    "hard-links.tar.gz": lambda: gzip.compress(_hard_links(), 1),
}


@pytest.mark.parametrize("comment", [b"c", b"PK\1\2"])
@pytest.mark.sample(keep=2)
def test_a_zip_of_long_comments_is_refused_before_they_fill_the_memory(
    comment: bytes, tmp_path: Path
) -> None:
    entries = []
    for number in range(3_000):
        entry = zipfile.ZipInfo(f"{number}.bin")
        entry.comment = comment * (65_000 // len(comment))
        entries.append((entry, b""))
    path = tmp_path / "comments.zip"
    path.write_bytes(zip_of(entries))
    cost = check_reader("scan", path)
    assert cost.error == "CorruptShardError"
    assert "comments.zip is corrupt at byte" in cost.detail
    assert "over 1 KiB each" in cost.detail


HEADER_BYTES: Final = 64 << 20


def _long_header(path: Path) -> None:
    """A pax header of one value, which is a hole in the file."""
    record = pax_record(b"comment", b"")
    with path.open("wb") as file:
        file.write(header(b"PaxHeaders/x", HEADER_BYTES, b"x"))
        file.write(b"%d%b" % (HEADER_BYTES, record[record.index(b" ") : -1]))
        file.seek(512 + HEADER_BYTES - 1)
        file.write(b"\n" + member(b"a.jpg") + END)


def _long_header_in_gzip(path: Path) -> None:
    """A pax header of as many values as there can be, which take 2 GB as values of Python."""
    with gzip.open(path, "wb", 1) as file:
        file.write(pax((b"5 a=\n" * (HEADER_BYTES // 5 + 1))[:HEADER_BYTES]))
        file.write(member(b"a.jpg") + END)


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize("write", [_long_header, _long_header_in_gzip])
@pytest.mark.parametrize("reader", READERS)
def test_a_header_of_64_mib_is_refused_at_its_place_within_bounds(
    reader: str, write: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / ("header.tar" if write is _long_header else "header.tar.gz")
    write(path)
    assert path.stat().st_blocks * 512 < 1 << 20
    cost = check_reader(reader, path)
    assert "header.tar" in cost.detail
    assert "at byte 0: a pax or long-name header of 67108864 bytes" in cost.detail


COLUMNS: Final = 4000


def _values_with_a_long_name() -> bytes:
    """4 GB of names, from a million values."""
    return frame(example_bytes({"n" * 4000: ("byte", [b""] * 1_000_000)}))


def _features_behind_a_long_key() -> bytes:
    """20 GB of names."""
    return frame(example_bytes({"__key__": ("byte", b"k" * 10**6), "n": ("byte", [b""] * 20_000)}))


def _records_of_values() -> bytes:
    return frame(example_bytes({"a": ("byte", [b""] * 50_000)})) * 6


def _fields(key: str) -> dict[str, object]:
    return {"__key__": key, **{f"{number:05}": b"" for number in range(60_000)}}


def _offsets(samples: int, head: bytes, sample: bytes) -> bytes:
    """The samples of a shard behind its table of offsets and ``head``."""
    first = 4 + 4 * (samples + 1) + len(head)
    offsets = range(first, first + len(sample) * (samples + 1), len(sample))
    return struct.pack(f"<I{samples + 1}I", samples, *offsets) + head + sample * samples


def _mds(samples: int, names: list[str]) -> bytes:
    """Samples of columns of one byte each."""
    each = len(names)
    config = {"format": "mds", "version": 2, "column_names": names}
    config |= {"column_encodings": ["bytes"] * each, "column_sizes": [1] * each}
    return _offsets(samples, json.dumps(config).encode(), bytes(each))


RECORDS: Final[dict[str, Callable[[], bytes]]] = {
    "long-name.tfrecord": _values_with_a_long_name,
    "long-key.tfrecord": _features_behind_a_long_key,
    "values.tfrecord": _records_of_values,
    "fields.msgpack": lambda: msgpack.packb(_fields("k" * 4000)) * 10,
    "names.mds": lambda: _mds(600, [f"{number:04}" + "n" * 200 for number in range(COLUMNS)]),
    "columns.mds": lambda: _mds(800, [f"{number:04}" for number in range(COLUMNS)]),
    "samples.mds": lambda: _mds(1_000_000, ["a"]),
}


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("reader", ["dsort.read_shards", "dsort.open", "dsort.Loader"])
def test_readers_of_leaves_with_long_names_keep_within_bounds(reader: str, tmp_path: Path) -> None:
    names = ["n" * 4000 + str(number) for number in range(COLUMNS)]
    leaf = {"type": None, "context": None, "children_spec": []}
    tree = {
        "type": "builtins.dict",
        "context": json.dumps(names),
        "children_spec": [leaf] * COLUMNS,
    }
    config = {"data_format": ["bytes"] * COLUMNS, "data_spec": json.dumps((1, tree))}
    index = {"chunks": [], "config": {**config, "item_loader": "PyTreeLoader"}}
    (tmp_path / "index.json").write_text(json.dumps(index))
    path = tmp_path / "chunk-0-0.bin"
    path.write_bytes(_offsets(600, b"", bytes(4 * COLUMNS)))
    assert check_reader(reader, path).error == "SchemaError"


HEADER_AT: Final = 4  # of the first page, behind the magic


def _parquet(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def _arrow(column: pa.Array) -> bytes:
    file, batch = io.BytesIO(), pa.record_batch({"a": column})
    with pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    return file.getvalue()


def _taken_apart(data: bytes) -> tuple[bytes, dict[int, Any]]:
    """The bytes before the footer, and the footer."""
    at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    return data[:at], read_struct(memoryview(data), at)[0]


def _put_together(body: bytes, footer: bytes) -> bytes:
    return body + footer + struct.pack("<I", len(footer)) + b"PAR1"


def _words(**options: Any) -> bytes:
    return _parquet(pa.table({"a": [f"word {n % 100}" for n in range(1000)]}), **options)


def _with_header(data: bytes, field: int, value: int) -> bytes:
    """``data`` with another number in the header of its first page."""
    body, footer = _taken_apart(data)
    header, end = read_struct(memoryview(body), HEADER_AT)
    header[field] = (I32, value)
    made = written(header)
    more = len(made) - (end - HEADER_AT)
    chunk = footer[4][1][1][0][1][1][1][0][3][1]
    chunk[7] = (I64, chunk[7][1] + more)  # its length
    if 11 in chunk:
        chunk[9] = (I64, chunk[9][1] + more)  # where data pages begin, behind the dictionary
    return _put_together(body[:HEADER_AT] + made + body[end:], written(footer))


def _larger_dictionary() -> bytes:
    """A dictionary that inflates to 10 times the length in its header."""
    data = _parquet(pa.table({"a": [b"x" * 20_000_000]}), compression="zstd")
    return _with_header(data, 2, 2_000_000)


def _endless_rows() -> bytes:
    body, footer = _taken_apart(_words(compression="zstd"))
    footer[3] = footer[4][1][1][0][3] = (I64, 1 << 40)
    return _put_together(body, written(footer))


def _long_list() -> bytes:
    """A footer whose schema has 2**31 elements, it says."""
    body, footer = _taken_apart(_words())
    data = written(footer)
    return _put_together(body, data[:2] + b"\x19\xfc\xff\xff\xff\xff\x07" + data[4:])


def _deep_footer() -> bytes:
    body, footer = _taken_apart(_words())
    deep = b"\x0c\xc8\x01" + b"\x1c" * 500_000 + bytes(500_001)
    return _put_together(body, written(footer)[:-1] + deep + b"\0")


def _long_metadata() -> bytes:
    body, footer = _taken_apart(_words())
    footer[5] = (LIST, (STRUCT, [{1: (BINARY, b"k"), 2: (BINARY, b"")}] * 300_000))
    return _put_together(body, written(footer))


def _repeated_groups() -> bytes:
    """The same pages in 5,000 row groups."""
    data = _parquet(pa.table({"a": [b"0" * 100] * 10_000}), compression="zstd")
    body, footer = _taken_apart(data)
    footer[4] = (LIST, (STRUCT, footer[4][1][1] * 5000))
    footer[3] = (I64, 10_000 * 5000)
    return _put_together(body, written(footer))


def _empty_groups() -> bytes:
    body, footer = _taken_apart(_words())
    group = {1: (LIST, (STRUCT, [])), 2: (I64, 0), 3: (I64, 0)}
    footer[3], footer[4] = (I64, 0), (LIST, (STRUCT, [group] * 300_000))
    return _put_together(body, written(footer))


def _wide_nulls() -> bytes:
    """A column of 1,000 parts, all null."""
    kind = pa.struct([(f"f{number}", pa.int8()) for number in range(1000)])
    return _parquet(pa.table({"a": pa.nulls(50_000, kind)}))


def _shared_prefixes() -> bytes:
    table = pa.table({"a": [b"0" * 100_000] * 50_000})
    encoding = {"a": "DELTA_BYTE_ARRAY"}
    return _parquet(table, compression="zstd", use_dictionary=False, column_encoding=encoding)


def _lists_of_nulls() -> pa.Array:
    """2,000 lists of a million nulls each."""
    ends = np.arange(2001, dtype=np.int32) * 1_000_000
    return pa.ListArray.from_arrays(ends, pa.nulls(int(ends[-1])))


TABLES: Final[dict[str, Callable[[], bytes]]] = {
    "larger-dictionary.parquet": _larger_dictionary,
    "inflated.parquet": lambda: _with_header(_words(compression="zstd"), 2, 2**31 - 1),
    "negative.parquet": lambda: _with_header(_words(compression="zstd"), 2, -5),
    "stored.parquet": lambda: _with_header(_words(compression="zstd"), 3, 2**31 - 1),
    "endless-rows.parquet": _endless_rows,
    "long-list.parquet": _long_list,
    "deep-footer.parquet": _deep_footer,
    "long-metadata.parquet": _long_metadata,
    "repeated-groups.parquet": _repeated_groups,
    "empty-groups.parquet": _empty_groups,
    "wide-nulls.parquet": _wide_nulls,
    "shared-prefixes.parquet": _shared_prefixes,
    "lists-of-nulls.arrow": lambda: _arrow(_lists_of_nulls()),
    "fixed-lists.arrow": lambda: _arrow(
        pa.FixedSizeListArray.from_arrays(pa.nulls(1 << 30), 1 << 20)
    ),
    "nulls.arrow": lambda: _arrow(pa.nulls(1 << 30)),
}


LOADING: Final = ["dsort.read_shards", "dsort.open", "dsort.Loader", "cat"]


def check(reader: str, path: Path, made: Callable[[], bytes]) -> None:
    path.write_bytes(made())
    check_reader(reader, path)


@pytest.mark.sample(keep=6)
@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.parametrize("reader", READERS)
def test_readers_of_hostile_archives_keep_within_bounds(
    reader: str, name: str, tmp_path: Path
) -> None:
    check(reader, tmp_path / name, ARCHIVES[name])


@pytest.mark.sample(keep=4)
@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("reader", LOADING)
def test_readers_of_records_of_many_members_keep_within_bounds(
    reader: str, name: str, tmp_path: Path
) -> None:
    check(reader, tmp_path / name, RECORDS[name])


@pytest.mark.sample(keep=5)
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    "reader", ["dsort.read_shards", "dsort.open", "scan", "inspect", "cat", "dsort.Loader"]
)
def test_readers_of_hostile_tables_keep_within_bounds(
    reader: str, name: str, tmp_path: Path
) -> None:
    check(reader, tmp_path / name, TABLES[name])
