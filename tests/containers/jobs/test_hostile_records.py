"""Every reader keeps to the law of ``dsort/bounds.py`` over records of which a few bytes become
many members, or members with long names."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgpack
import pytest

from tests.support.bounds import check_reader
from tests.support.tfrecords import example_bytes, frame

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


ZOO: Final[dict[str, Callable[[], bytes]]] = {
    "long-name.tfrecord": _values_with_a_long_name,
    "long-key.tfrecord": _features_behind_a_long_key,
    "values.tfrecord": _records_of_values,
    "fields.msgpack": lambda: msgpack.packb(_fields("k" * 4000)) * 10,
    "names.mds": lambda: _mds(600, [f"{number:04}" + "n" * 200 for number in range(COLUMNS)]),
    "columns.mds": lambda: _mds(800, [f"{number:04}" for number in range(COLUMNS)]),
    "samples.mds": lambda: _mds(1_000_000, ["a"]),
}


@pytest.mark.sample(keep=4)
@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("reader", ["dsort.read_shards", "dsort.open", "dsort.Loader", "cat"])
def test_readers_of_records_of_many_members_keep_within_bounds(
    reader: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(ZOO[name]())
    check_reader(reader, path)


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
    assert check_reader(reader, path).error == "ConversionError"
