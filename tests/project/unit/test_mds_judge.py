"""The judge of MDS outputs reads what the format allows, and refuses a file that breaks it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash
import zstandard

from tests.support.mds_by_the_text import MdsError, samples_in
from tests.support.mds_writer import mds_shard

SAMPLES: list[dict[str, Any]] = [{"a": "é" * n, "n": n - 1} for n in range(4)]
COLUMNS = {"a": "str", "n": "int"}
HASHES = ["sha1", "xxh64"]


def a_directory(path: Path) -> dict[str, Any]:
    """One zstd shard with two hashes, and its index."""
    raw = mds_shard(COLUMNS, SAMPLES, compression="zstd:3", hashes=HASHES)
    zipped = zstandard.ZstdCompressor().compress(raw)
    path.mkdir()
    (path / "shard.00000.mds.zstd").write_bytes(zipped)
    shard = {
        "column_encodings": ["str", "int"],
        "column_names": ["a", "n"],
        "column_sizes": [None, 8],
        "compression": "zstd:3",
        "format": "mds",
        "hashes": HASHES,
        "raw_data": listed("shard.00000.mds", raw),
        "samples": len(SAMPLES),
        "size_limit": 1 << 26,
        "version": 2,
        "zip_data": listed("shard.00000.mds.zstd", zipped),
    }
    return {"shards": [shard], "version": 2}


def listed(name: str, data: bytes) -> dict[str, Any]:
    hashes = {"sha1": hashlib.sha1(data).hexdigest(), "xxh64": xxhash.xxh64(data).hexdigest()}
    return {"basename": name, "bytes": len(data), "hashes": hashes}


def read_by(index: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    (path / "index.json").write_text(json.dumps(index))
    return list(samples_in(path))


def test_compressed_shards_are_read_by_their_index(tmp_path: Path) -> None:
    index = a_directory(tmp_path / "in")
    assert read_by(index, tmp_path / "in") == SAMPLES


DAMAGES: list[Callable[[dict[str, Any]], object]] = [
    lambda shard: shard["raw_data"].update(bytes=7),
    lambda shard: shard["zip_data"]["hashes"].update(xxh64="0" * 16),
    lambda shard: shard["raw_data"]["hashes"].pop("sha1"),
    lambda shard: shard.update(samples=3),
    lambda shard: shard.update(column_names=["n", "a"]),
    lambda shard: shard.update(column_sizes=[None, 4]),
    lambda shard: shard.update(column_encodings=["bytes", "int"]),
    lambda shard: shard.update(zip_data=None, compression=None),
    lambda shard: shard.update(size_limit=10),
    lambda shard: shard.pop("size_limit"),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_index_that_is_wrong_in_one_place_is_refused(
    tmp_path: Path, damage: Callable[[dict[str, Any]], object]
) -> None:
    index = a_directory(tmp_path / "in")
    damage(index["shards"][0])
    with pytest.raises((MdsError, FileNotFoundError)):
        read_by(index, tmp_path / "in")
