"""A result in the bucket ``out`` that a test appends to, and removes records from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dsort
from dsort import api
from dsort.amendments import Removal
from dsort.options import RunOptions
from tests.support.datasets import write_shards
from tests.support.engine import run_local, shard_of, spec_of
from tests.support.internals import JobReport, VerifyReport

__all__ = ["append", "keys_of", "made", "newest", "options", "remove", "verify"]


def options(root: Path) -> RunOptions:
    return RunOptions(root=root, workers=1)


def newest(root: Path) -> bytes:
    """The manifest of the newest job. Job ids decide which job is the newest, as in commands."""
    return max(root.glob("out/.dsort/*/manifest.json")).read_bytes()


def made(root: Path, **fields: Any) -> JobReport:
    """A shuffle of 12 records into shards of 4."""
    write_shards(root / "in", {"a.tar": shard_of(*"abcdef"), "b.tar": shard_of(*"ghijkl")})
    shuffle = {"kind": "shuffle", "seed": 3}
    return run_local(root, spec_of(output_shard_records=4, **{"algorithm": shuffle, **fields}))


def append(root: Path, source: str, **named: Any) -> JobReport:
    given = named.pop("manifest", None) or newest(root)
    return api.append(given, source, **{"place": "out", "options": options(root), **named})


def remove(root: Path, *keys: str, manifest: bytes | None = None) -> Removal:
    (root / "keys.txt").write_text("".join(f"{key}\n" for key in keys))
    given = manifest or newest(root)
    return api.remove(given, root / "keys.txt", place="out", options=options(root))


def verify(root: Path) -> VerifyReport:
    return dsort.verify(newest(root), options=options(root))


def keys_of(root: Path) -> list[str]:
    """The keys in the shards that the newest manifest lists."""
    job_id = json.loads(newest(root))["job_id"]
    return [each.key for each in dsort.read_shards("out", job_id=job_id, options=options(root))]
