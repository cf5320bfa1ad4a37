"""Trees of loose files, and specs that read them."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsort import api
from dsort.options import RunOptions
from tests.support.engine import spec_of
from tests.support.internals import manifest_name

PETS = {
    f"{kind}/{number:02d}.jpg": f"{kind} {number}".encode() * number
    for kind in ("cat", "ant", "bee")
    for number in range(7)
}
WITH_CLASS = {
    name.replace(".jpg", ".cls"): b"%d" % ["ant", "bee", "cat"].index(name[:3]) for name in PETS
}
"""The files of an image folder with three classes, and the members that a job adds to them."""


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


def verified(root: Path, job_id: str) -> list[str]:
    """The problems and warnings that a verification of a result in ``out`` reports."""
    manifest = (root / "out" / manifest_name(job_id)).read_bytes()
    report = api.verify(manifest, options=RunOptions(root=root))
    return [str(problem) for problem in report.problems] + list(report.warnings)
