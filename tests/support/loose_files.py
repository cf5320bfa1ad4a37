"""Trees of loose files, and specs that read them."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.engine import spec_of

__all__ = ["contents_out", "ingest_spec", "write_tree"]


def write_tree(directory: Path, files: Mapping[str, bytes]) -> None:
    """Make the files, with the directories they are in."""
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def ingest_spec(*names: str, ingest: Mapping[str, Any] | None = None, **fields: Any) -> Any:
    """A spec that reads loose files from ``in``, or from several trees."""
    spec = {**spec_of(**fields), "ingest": dict(ingest or {})}
    if names:
        del spec["input_bck"]
        spec["inputs"] = [{"name": name, "input_bck": name} for name in names]
    return spec


def contents_out(root: Path, bucket: str = "out") -> dict[str, bytes]:
    """All members of all shards, as Python's own tarfile reads them; none of them twice."""
    found: dict[str, bytes] = {}
    for path in sorted((root / bucket).glob("*.tar")):
        with tarfile.open(path, errors="surrogateescape") as shard:
            for member in shard:
                opened = shard.extractfile(member)
                assert opened is not None
                assert member.name not in found
                found[member.name] = opened.read()
    return found
