"""What earlier jobs say of the inputs: a shard that one of them wrote has the size that it wrote.

Their manifests are in the input bucket, if it was an output bucket once. They are somebody's files:
what cannot be read of them says nothing, and no more than a few are looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsort.data.tally import Tally
from dsort.errors import ShardEndError, StorageError
from dsort.job.commits import newest_first
from dsort.job.layout import job_of, manifest_name
from dsort.moves.source import InputShard
from dsort.storage.bucket import INTERNAL_PREFIX, Bucket, ObjectInfo

MANIFESTS_MAX = 16
MANIFEST_BYTES_MAX = 16 << 20
"""Of some 100,000 outputs; larger ones are left out, for they would be read before each job."""


@dataclass(frozen=True, slots=True)
class KnownOutput:
    """An object as the job ``job_id`` wrote it. ``written_ns``: when its manifest was written."""

    job_id: str
    file_bytes: int
    xxh3: str
    written_ns: int


def known_outputs(bucket: Bucket, names: Iterable[str]) -> dict[str, KnownOutput]:
    """What manifests in ``bucket`` say of ``names``; of several the newest. Nothing where the
    bucket cannot be listed: not all can be, and a job can do without."""
    wanted, found = set(names), dict[str, KnownOutput]()
    try:
        for info in _newest_manifests(bucket):
            if not wanted:
                break
            job_id = job_of(info.name)
            for name, file_bytes, xxh3 in listed_outputs(bucket.read(info.name)):
                if name in wanted:
                    found[name] = KnownOutput(job_id, file_bytes, xxh3, info.mtime_ns)
                    wanted.discard(name)
    except StorageError:
        return found
    return found


def _newest_manifests(bucket: Bucket) -> Sequence[ObjectInfo]:
    manifests = [
        info
        for info in bucket.list(INTERNAL_PREFIX)
        if info.name == manifest_name(job_of(info.name)) and info.size_bytes <= MANIFEST_BYTES_MAX
    ]
    manifests = sorted(manifests, key=lambda info: info.mtime_ns, reverse=True)[:MANIFESTS_MAX]
    return newest_first(bucket, manifests)


def listed_outputs(data: bytes) -> Iterator[tuple[str, int, str]]:
    """(name, file_bytes, xxh3) of what a manifest lists, as far as it is one."""
    try:
        content = json.loads(data.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return
    rows: Any = content.get("outputs") if isinstance(content, dict) else None
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict):
            name, file_bytes = row.get("name"), row.get("file_bytes")
            xxh3 = row.get("xxh3")
            if isinstance(name, str) and type(file_bytes) is int and isinstance(xxh3, str):
                yield name, file_bytes, xxh3


def checksums(
    inputs: Sequence[InputShard], known: Mapping[str, KnownOutput]
) -> dict[int, tuple[str, str]]:
    """By ordinal: the XXH3 of each input that a job wrote and nobody since, and that job."""
    found = {}
    for ordinal, shard in enumerate(inputs):
        wrote = known.get(shard.name)
        if wrote and wrote.file_bytes == shard.size_bytes and shard.mtime_ns <= wrote.written_ns:
            found[ordinal] = (wrote.xxh3, wrote.job_id)
    return found


def compare_sizes(
    inputs: Sequence[InputShard],
    known: Mapping[str, KnownOutput],
    incomplete_shards: str,
    tally: Tally,
) -> None:
    """``ShardEndError`` for an input that is not as long as the job that wrote it says, unless it
    was written since, or ``incomplete_shards`` lets it be: then it is counted."""
    for shard in inputs:
        wrote = known.get(shard.name)
        if wrote is None or wrote.file_bytes == shard.size_bytes:
            continue
        text = f"{shard.size_bytes:,} bytes; job {wrote.job_id} wrote {wrote.file_bytes:,}"
        if shard.mtime_ns > wrote.written_ns:
            tally.add("replaced_inputs", 1, [f"{shard.name} ({text})"])
        elif incomplete_shards == "abort":
            raise ShardEndError(
                f"shard {shard.name} may not be whole: it has {text}",
                hint="fetch or make it again; incomplete_shards: warn takes what can be read of it",
            )
        else:
            tally.add("incomplete_shards", 1, [f"{shard.name} ({text})"])
