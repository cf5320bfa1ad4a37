"""Every reader keeps to the law of ``dsort/bounds.py`` over shards that are made to harm."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.bounds import READERS, Cost, check_reader, measure


def _parquet(column: pa.Array, **options: object) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"column": column}), file, **options)
    return file.getvalue()


def _equal_texts() -> bytes:
    """One text of a dictionary, which a few bytes say 10 million times."""
    rows = np.zeros(10_000_000, np.int32)
    return _parquet(pa.DictionaryArray.from_arrays(rows, ["a text of 20 letters"]))


def _padded(table: pa.Table, pad_bytes: int) -> bytes:
    """A file with so many more bytes in its footer: its rows may take ``max_expansion`` times
    that."""
    file, pad = io.BytesIO(), random.Random(1).randbytes(pad_bytes // 4).hex()  # there twice
    pq.write_table(table.replace_schema_metadata({"pad": pad}), file, compression=None)
    return file.getvalue()


def _flags() -> bytes:
    """4 million rows in a few bytes, in a file whose length allows them."""
    return _padded(pa.table({"flag": np.zeros(4_000_000, np.bool_)}), 300_000)


def _few_flags() -> bytes:
    """As many rows as the length of the file allows members."""
    return _padded(pa.table({"flag": np.zeros(470_000, np.bool_)}), 400_000)


def _equal_keys() -> bytes:
    keys = pa.DictionaryArray.from_arrays(np.zeros(4_000_000, np.int32), ["key"])
    columns = {"__key__": keys, "flag": np.zeros(len(keys), np.bool_)}
    return _padded(pa.table(columns), 500_000)


def _long_words() -> pa.Array:
    """One word of 3 MiB in a dictionary, which 180 rows show."""
    word = random.Random(2).randbytes(3 << 20)
    return pa.DictionaryArray.from_arrays(np.zeros(180, np.int32), [word])


def _long_words_in_arrow() -> bytes:
    file, table = io.BytesIO(), pa.table({"word": _long_words()})
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


def _long_record() -> bytes:
    """10 MB that become 100 KB."""
    rng = random.Random(3)
    return b"".join(rng.randbytes(200) + bytes(19_800) for _ in range(500))


def _skewed_tar() -> bytes:
    """Records of a few bytes, so that many make a block of the average; then 40 of 10 MB."""
    file, long = io.BytesIO(), _long_record()
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
        for number in range(10_040):
            member = tarfile.TarInfo(f"{number:06}.bin")
            member.size = 10 if number < 10_000 else 10_000_000
            tar.addfile(member, io.BytesIO(long[: member.size]))
    return file.getvalue()


def _skewed_parquet() -> bytes:
    """The same as rows."""
    sizes, long = [10] * 100_000 + [10_000_000] * 40, _long_record()
    file, schema = io.BytesIO(), pa.schema({"bin": pa.binary()})
    with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
        for at in (0, *range(100_000, len(sizes), 10)):
            some = [long[:size] for size in sizes[at : at + 100_000 if not at else at + 10]]
            writer.write_table(pa.table({"bin": pa.array(some, pa.binary())}, schema=schema))
    return file.getvalue()


def _lists() -> bytes:
    """A line whose values take 27 times its length, and whose key no reader finds at a glance."""
    return b'{"x": [' + b"[]," * (5 << 20) + b'[]], "id": 1, "id": 2}\n'


ZOO: Final[dict[str, Callable[[], bytes]]] = {
    "blanks.jsonl": lambda: b'{"id": 1}' + b" " * (1 << 20) + b"\n",
    "blank.jsonl": lambda: b" " * (16 << 20) + b"\n",
    "blank-lines.jsonl": lambda: b" \n" * (2 << 20),
    "lists.jsonl": _lists,
    "unended-lists.jsonl": lambda: _lists()[:-1],
    "empty-lines.txt": lambda: b"\n" * (2 << 20),
    "empty-lines.txt.gz": lambda: gzip.compress(b"\n" * (8 << 20), 1),
    "nulls.parquet": lambda: _parquet(pa.nulls(40_000_000, pa.int64())),
    "equal-texts.parquet": _equal_texts,
    "short-lines.txt": lambda: b"a\n" * (512 << 10),
    "flags.parquet": _flags,
    "few-flags.parquet": _few_flags,
    "equal-keys.parquet": _equal_keys,
}
LONG_WORDS: Final[dict[str, Callable[[], bytes]]] = {
    "long-words.parquet": lambda: _parquet(_long_words()),
    "long-words.arrow": _long_words_in_arrow,
}
SKEWED: Final[dict[str, Callable[[], bytes]]] = {
    "skewed.tar.gz": _skewed_tar,
    "skewed.parquet": _skewed_parquet,
}
TINY_OBJECTS: Final[dict[str, Callable[[], bytes]]] = {
    "nulls.msgpack": lambda: b"\xc0" * (2 << 20),
    "maps.msgpack": lambda: b"\x81\xa0\x01" * 700_000,
    "few-maps.msgpack": lambda: b"\x81\xa0\x01" * 100_000,
    "few-maps.cbor": lambda: b"\xa1\x60\x01" * 100_000,
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("zoo")
    for name, made in ZOO.items():
        (directory / name).write_bytes(made())
    return directory


LEFT_OUT: Final = {
    ("inspect --json", "short-lines.txt"),  # a list of all records is as long as they are many
    ("inspect --json", "flags.parquet"),
    ("inspect --json", "equal-keys.parquet"),
}
CASES: Final = [case for case in product(READERS, ZOO) if case not in LEFT_OUT]


@pytest.mark.sample(keep=6)
@pytest.mark.parametrize(("reader", "name"), CASES)
def test_readers_of_hostile_shards_keep_within_bounds(reader: str, name: str, zoo: Path) -> None:
    check_reader(reader, zoo / name)


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("name", LONG_WORDS)
@pytest.mark.parametrize(
    "reader", ["dsort.open", "dsort.read_shards", "dsort.Loader", "samples", "members", "member"]
)
def test_a_word_of_a_dictionary_is_not_repeated_in_memory(
    reader: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(LONG_WORDS[name]())
    check_reader(reader, path)


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("name", SKEWED)
def test_a_loader_holds_no_more_of_records_that_are_longer_than_others(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(SKEWED[name]())
    assert check_reader("dsort.Loader", path).error == ""


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("name", TINY_OBJECTS)
@pytest.mark.parametrize("reader", ["scan", "dsort.open", "dsort.read_shards"])
def test_objects_of_a_few_bytes_take_no_longer_than_others(
    reader: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(TINY_OBJECTS[name]())
    check_reader(reader, path)


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("reader", ["scan", "dsort.open", "dsort.read_shards", "inspect", "cat"])
def test_of_a_line_readers_keep_a_few_numbers(reader: str, tmp_path: Path) -> None:
    peaks, counts = [], (1 << 20, 3 << 20)
    for count in counts:
        path = tmp_path / f"{count}.txt"
        path.write_bytes(b"a\n" * count)
        peaks.append(check_reader(reader, path).peak_bytes)
    assert (peaks[1] - peaks[0]) / (counts[1] - counts[0]) < 50  # bytes a line; an object has more


def test_the_meter_measures_what_a_reader_takes(tmp_path: Path) -> None:
    path = tmp_path / "a.bin.txt"
    path.write_bytes(bytes(48 << 20) + b"\n")
    cost = measure("dsort.read_shards", path)
    assert isinstance(cost, Cost)
    assert cost.error == ""
    assert 96 << 20 < cost.peak_bytes < 160 << 20  # its buffer, and the one record
    assert cost.read_bytes == (48 << 20) + 1
    assert (48 << 20) < cost.produced_bytes < (49 << 20)
