"""A finished job whose result a test can change in one place, so that only one check can find it.

``rewrite`` builds a shard again and makes the manifest agree with it. So sizes, counts and
checksums agree, and only the check that a test is about can find the change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from dsort import api
from dsort.options import RunOptions
from tests.support.datasets import (
    END,
    Shard,
    Stored,
    read_shard,
    small_dataset,
    write_shards,
)
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import Event, VerifyReport

Record = list[Stored]

BY_KEY: dict[str, Any] = {"algorithm": {"kind": "alphanumeric"}, "output_shard_records": 8}
BY_SIZE: dict[str, Any] = {"algorithm": {"kind": "alphanumeric"}, "output_shard_size": 9000}
SHUFFLE: dict[str, Any] = {"algorithm": {"kind": "shuffle", "seed": 7}, "output_shard_records": 8}
KEPT: dict[str, Any] = {"algorithm": {"kind": "none"}, "output_shard_records": 8}
BY_CLASS: dict[str, Any] = {
    "algorithm": {"kind": "content", "extension": ".cls", "content_key_type": "int"},
    "output_shard_records": 8,
}
MAPPED: dict[str, Any] = {
    "ekm": {"low-%02d": ["^0000"], "high-%02d": ["^0001", "^0002"]},
    "ekm_default": "rest-%02d",
    "Config": {"ekm_missing_key": "ignore"},
    "output_shard_records": 4,
    "algorithm": {"kind": "shuffle", "seed": 3},
}
MAPPED_BY_KEY: dict[str, Any] = {
    "ekm": MAPPED["ekm"],
    "Config": {"ekm_missing_key": "ignore"},
    "output_shard_size": "1MB",
}


def kinds(report: VerifyReport) -> list[str]:
    """The kinds of problems in a report, each once."""
    assert report.problem_count >= len(report.problems)
    return sorted({problem.kind for problem in report.problems})


class FinishedJob:
    """The inputs, outputs and manifest of one job, below ``root``."""

    def __init__(self, root: Path, spec: Mapping[str, Any], moved: Moved | None) -> None:
        report = run_inline(dict(spec), root, moved)
        assert report.manifest_name is not None
        self.root = root
        self.report = report
        self.inputs = root / "in"
        self.outputs = root / spec["output_bck"]
        self.manifest_path = self.outputs / report.manifest_name

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest as it is now."""
        loaded: dict[str, Any] = json.loads(self.manifest_path.read_bytes())
        return loaded

    @property
    def names(self) -> list[str]:
        """The output shards that the manifest lists."""
        return [shard["name"] for shard in self.manifest["outputs"]]

    def verify(self, *, on_event: Callable[[Event], None] | None = None) -> VerifyReport:
        """The report of ``dsort verify``."""
        return api.verify(
            self.manifest_path.read_bytes(),
            output_uri=self.outputs.as_uri(),
            options=RunOptions(root=self.root),
            on_event=on_event,
        )

    def records(self, name: str) -> list[Record]:
        """The records of an output shard."""
        found: list[Record] = []
        for member in read_shard((self.outputs / name).read_bytes()):
            if not found or found[-1][0].name.split(".")[0] != member.name.split(".")[0]:
                found.append([])
            found[-1].append(member)
        return found

    def rewrite(self, name: str, records: Iterable[Sequence[Stored]], end: bytes = END) -> None:
        """Put other records into an output shard, and change the manifest accordingly."""
        records = list(records)
        members = [member for record in records for member in record]
        data = b"".join(member.raw for member in members) + end
        (self.outputs / name).write_bytes(data)
        facts = {
            "records": len(records),
            "members": len(members),
            "payload_bytes": sum(len(member.payload) for member in members),
            "file_bytes": len(data),
            "xxh3": xxhash.xxh3_64_hexdigest(data),
        }
        self.edit(lambda manifest: _row(manifest, name).update(facts))

    def edit(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the manifest, and make its totals the sums over its shards."""
        manifest = self.manifest
        change(manifest)
        for what in ("records", "members", "payload_bytes", "file_bytes"):
            manifest["totals"][what] = sum(shard[what] for shard in manifest["outputs"])
        manifest["totals"]["output_shards"] = len(manifest["outputs"])
        manifest["totals"]["input_shards"] = len(manifest["inputs"])
        self.manifest_path.write_text(json.dumps(manifest))


def finished_job(
    root: Path,
    shards: Mapping[str, Shard | bytes],
    spec: Mapping[str, Any],
    moved: Moved | None = None,
) -> FinishedJob:
    """Run ``spec`` from the bucket ``in`` with these ``shards`` to the bucket ``out``."""
    write_shards(root / "in", shards)
    whole = {"input_bck": "in", "output_bck": "out", "output_format": "out-%03d", **spec}
    if "ekm" in spec:
        del whole["output_format"]
    return FinishedJob(root, whole, moved)


def ordinary(root: Path, spec: Mapping[str, Any]) -> FinishedJob:
    """Three shards of twelve records with unique keys; with eight records a shard, the last of five
    has four."""
    return finished_job(root, small_dataset(5), spec)


def drop_last(job: FinishedJob) -> None:
    """Leave out the last record of the result."""
    name = job.names[-1]
    job.rewrite(name, job.records(name)[:-1])


def swap_neighbours(job: FinishedJob) -> None:
    """Swap the first two records of the second output shard."""
    name = job.names[1]
    first, second, *others = job.records(name)
    job.rewrite(name, [second, first, *others])


def _row(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = manifest["outputs"]
    return next(row for row in rows if row["name"] == name)
