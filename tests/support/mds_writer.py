"""A writer of MDS shards, from the text of the format (version 2) and not from dsort's code.

A shard is ``u32 n | u32 offset[n + 1] | config JSON | samples``, offsets counted from its first
byte. A sample is a u32 size of each column that has no fixed size, and then the values of all
columns in their order. `mds_by_the_text` reads the shards again.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"int": 8, "int64": 8, "float64": 8, "uint8": 1, "float32": 4}


def mds_shard(
    columns: Mapping[str, str],
    samples: Sequence[Mapping[str, Any]],
    *,
    compression: str | None = None,
    hashes: Sequence[str] = (),
) -> bytes:
    """The bytes of one shard, whose configuration names this compression and these hashes. Neither
    is applied."""
    names = sorted(columns)
    config = json.dumps(
        {
            "version": 2,
            "format": "mds",
            "compression": compression,
            "hashes": list(hashes),
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
