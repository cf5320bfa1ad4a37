"""A LitData reader and writer, from the text of the format and not from dsort's code.

A chunk is ``u32 n | u32 offset[n + 1] | items``, offsets counted from its first byte. An item is a
u32 size of each leaf, and then the leaves. ``index.json`` lists the chunks of a directory, and the
types of the leaves.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

CONFIG: dict[str, Any] = {
    "chunk_bytes": 64_000_000,
    "chunk_size": None,
    "compression": None,
    "data_format": ["bytes", "int"],
    "data_spec": '[1, {"type": "builtins.dict", "context": "[\\"image\\", \\"label\\"]"}]',
    "encryption": None,
    "item_loader": "PyTreeLoader",
}


def litdata_chunk(items: Sequence[tuple[bytes, int]]) -> bytes:
    """The bytes of one chunk."""
    data = []
    for image, label in items:
        leaves = (image, struct.pack("<q", label))
        data.append(struct.pack("<2I", *map(len, leaves)) + b"".join(leaves))
    offsets = np.cumsum([4 + 4 * (len(data) + 1), *map(len, data)]).tolist()
    return struct.pack(f"<I{len(offsets)}I", len(data), *offsets) + b"".join(data)


def write_litdata(
    directory: Path,
    chunks: Mapping[str, Sequence[tuple[bytes, int]]],
    config: Mapping[str, Any] = CONFIG,
) -> None:
    """Chunks by name, with their index."""
    directory.mkdir(parents=True, exist_ok=True)
    listed = []
    for name, items in chunks.items():
        data = litdata_chunk(items)
        (directory / name).write_bytes(data)
        size = len(data) - 4 - 4 * (len(items) + 1)
        listed.append(
            {"chunk_bytes": size, "chunk_size": len(items), "dim": None, "filename": name}
        )
    index = {"chunks": listed, "config": config, "updated_at": "1763800000.5"}
    (directory / "index.json").write_text(json.dumps(index, sort_keys=True))


def read_litdata(directory: Path) -> list[tuple[bytes, int]]:
    """All items of a directory, as its index lists them."""
    index = json.loads((directory / "index.json").read_bytes())
    assert index.keys() == {"chunks", "config", "updated_at"}
    assert isinstance(index["updated_at"], str)
    config = index["config"]
    assert config.keys() == CONFIG.keys()
    assert config["compression"] is None
    assert config["encryption"] is None
    found: list[tuple[bytes, int]] = []
    for chunk in index["chunks"]:
        assert chunk.keys() == {"chunk_bytes", "chunk_size", "dim", "filename"}
        data = (directory / chunk["filename"]).read_bytes()
        (count,) = struct.unpack_from("<I", data)
        offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
        assert offsets[-1] == len(data)
        assert count == chunk["chunk_size"]
        assert chunk["chunk_bytes"] == offsets[-1] - offsets[0]
        for begin, end in pairwise(offsets):
            sizes = struct.unpack_from(f"<{len(config['data_format'])}I", data, begin)
            at = begin + 4 * len(sizes)
            assert at + sum(sizes) == end
            image = data[at : at + sizes[0]]
            found.append((image, struct.unpack("<q", data[at + sizes[0] : end])[0]))
    return found


def leaves_in(directory: Path) -> list[dict[str, bytes]]:
    """The leaves of all items of a directory, as they are stored, by the names of a dictionary."""
    index = json.loads((directory / "index.json").read_bytes())
    protocol, tree = json.loads(index["config"]["data_spec"])
    assert (protocol, tree["type"]) == (1, "builtins.dict")
    names = json.loads(tree["context"])
    leaf = {"type": None, "context": None, "children_spec": []}
    assert tree["children_spec"] == [leaf] * len(names)
    found = []
    for chunk in index["chunks"]:
        data = (directory / chunk["filename"]).read_bytes()
        (count,) = struct.unpack_from("<I", data)
        for begin in struct.unpack_from(f"<{count}I", data, 4):
            at = begin + 4 * len(names)
            item = {}
            for name, size in zip(
                names, struct.unpack_from(f"<{len(names)}I", data, begin), strict=True
            ):
                item[name] = data[at : at + size]
                at += size
            found.append(item)
    return found
