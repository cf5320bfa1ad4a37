"""An MDS reader and writer, from the text of the format (version 2) and not from dsort's code.

A shard is ``u32 n | u32 offset[n + 1] | config JSON | samples``, offsets counted from its first
byte. A sample is a u32 size of each column that has no fixed one, and then the values of all
columns in their order. ``index.json`` lists the shards of a directory.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

__all__ = ["mds_shard", "read_mds", "read_mds_shard", "write_mds"]

SIZES = {"int": 8, "int64": 8, "float64": 8, "uint8": 1, "float32": 4}


def mds_shard(columns: Mapping[str, str], samples: Sequence[Mapping[str, Any]]) -> bytes:
    """The bytes of one shard."""
    names = sorted(columns)
    config = json.dumps(
        {
            "version": 2,
            "format": "mds",
            "compression": None,
            "hashes": [],
            "size_limit": 1 << 26,
            "column_names": names,
            "column_encodings": [columns[name] for name in names],
            "column_sizes": [SIZES.get(columns[name]) for name in names],
        },
        sort_keys=True,
    ).encode()
    data = []
    for sample in samples:
        values = [_encode(columns[name], sample[name]) for name in names]
        sizes = [len(v) for n, v in zip(names, values, strict=True) if columns[n] not in SIZES]
        data.append(struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(values))
    first = 4 + 4 * (len(data) + 1) + len(config)
    offsets = np.cumsum([first, *map(len, data)])
    head = struct.pack(f"<I{len(offsets)}I", len(data), *offsets.tolist())
    return head + config + b"".join(data)


def write_mds(
    directory: Path, columns: Mapping[str, str], shards: Mapping[str, Sequence[Mapping[str, Any]]]
) -> None:
    """Shards by name, without an index."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, samples in shards.items():
        (directory / name).write_bytes(mds_shard(columns, samples))


def read_mds(directory: Path) -> list[dict[str, Any]]:
    """All samples of a directory, as its index lists them."""
    index = json.loads((directory / "index.json").read_bytes())
    assert index.keys() == {"shards", "version"}
    assert index["version"] == 2
    return [sample for shard in index["shards"] for sample in _listed(directory, shard)]


def _listed(directory: Path, shard: dict[str, Any]) -> list[dict[str, Any]]:
    assert shard.keys() == {
        "column_encodings", "column_names", "column_sizes", "compression", "format", "hashes",
        "raw_data", "samples", "size_limit", "version", "zip_data",
    }  # fmt: skip
    assert (shard["version"], shard["format"]) == (2, "mds")
    assert shard["compression"] is None
    assert shard["zip_data"] is None
    assert shard["hashes"] == sorted(shard["hashes"])
    raw = shard["raw_data"]
    assert raw.keys() == {"basename", "bytes", "hashes"}
    assert "/" not in raw["basename"]
    data = (directory / raw["basename"]).read_bytes()
    assert len(data) == raw["bytes"]
    for kind, value in raw["hashes"].items():
        hashed = getattr(xxhash, kind, None) or getattr(hashlib, kind)
        assert hashed(data).hexdigest() == value
    assert sorted(raw["hashes"]) == shard["hashes"]
    config, samples = read_mds_shard(data)
    for name in ("column_encodings", "column_names", "column_sizes", "format", "version"):
        assert config[name] == shard[name]
    assert len(samples) == shard["samples"]
    return samples


def read_mds_shard(data: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The config of a shard, and its samples."""
    (count,) = struct.unpack_from("<I", data)
    offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
    assert offsets[-1] == len(data)
    config = json.loads(data[4 + 4 * (count + 1) : offsets[0]])
    samples = []
    for begin, end in pairwise(offsets):
        samples.append(_sample(config, data[begin:end]))
    return config, samples


def _sample(config: dict[str, Any], data: bytes) -> dict[str, Any]:
    variable = sum(size is None for size in config["column_sizes"])
    sizes = iter(struct.unpack_from(f"<{variable}I", data))
    at, found = 4 * variable, {}
    columns = zip(
        config["column_names"], config["column_encodings"], config["column_sizes"], strict=True
    )
    for name, encoding, fixed in columns:
        size = next(sizes) if fixed is None else fixed
        found[name] = _decode(encoding, data[at : at + size])
        at += size
    assert at == len(data)
    return found


def _encode(encoding: str, value: Any) -> bytes:
    match encoding:
        case "str" | "str_int":
            return str(value).encode()
        case "int" | "int64":
            return struct.pack("<q", value)
        case "float64":
            return struct.pack("<d", value)
        case "float32":
            return struct.pack("<f", value)
        case "uint8":
            return struct.pack("<B", value)
        case "json":
            return json.dumps(value).encode()
    assert isinstance(value, bytes)
    return value


def _decode(encoding: str, data: bytes) -> Any:
    match encoding:
        case "str":
            return data.decode()
        case "str_int":
            return int(data.decode())
        case "int" | "int64":
            return struct.unpack("<q", data)[0]
        case "float64":
            return struct.unpack("<d", data)[0]
        case "float32":
            return struct.unpack("<f", data)[0]
        case "uint8":
            return data[0]
        case "json":
            return json.loads(data.decode())
    return data
