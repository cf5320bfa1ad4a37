"""The manifest: what a job has made, of what, and how. Written last: it is the commit.

JSON, UTF-8, keys in the order below, two spaces of indent, one newline at the end. Each of
``inputs`` and ``outputs`` is a line, so that a petabyte's manifest is quick to write and to search.

=================  ================================================================================
``manifest``       version of this format: 1
``job_id``         as in the manifest's own path, ``.dsort/<job_id>/manifest.json``
``created``        when it was committed, RFC 3339, UTC
``dsort``          versions of dsort and Python
``spec``           the spec with every default and the seed; can be run again as it is
``inputs``         name, bytes, mtime_ns, etag and records of each input shard, in input order
``outputs``        name, records, members, payload_bytes, file_bytes and xxh3 (XXH3-64 of the file,
                   16 hexadecimal digits) of each output shard, in output order
``totals``         records, members, payload_bytes, file_bytes of all outputs
``move``           how payload moved, and why
``phase_seconds``  seconds of each phase up to the manifest
``reactions``      kind, count and samples of all that was dropped, kept, renamed or odd
``reactions_file`` name of the object with all names of these reactions, one a line; null if there
                   are none, absent in manifests of the first releases
``index``          name of the wids index, if one was asked for
``mixing``         how records were mixed: counts (of each input bin, how many came to each
                   output bin), input_shards, output_shards, input_bins, output_bins,
                   output_bin_shards, chi2, degrees_of_freedom, p_value, verdict, words
                   (``core.mixing``); null if there are no records
``timeline``       [seconds since the attempt began, phase, bytes of that phase done, bytes a second
                   since the row before it], at most 240 (``core.timeline``)
=================  ================================================================================

Readers have to do without ``timeline`` and ``mixing``: manifests of the first releases have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from dsort.data.json_rows import Rows, json_bytes

__all__ = [
    "MANIFEST_VERSION",
    "ManifestInput",
    "ManifestOutput",
    "index_name",
    "manifest_bytes",
    "manifest_name",
    "reactions_name",
    "report_name",
    "wids_index_bytes",
]

MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class ManifestInput:
    """One input shard. ``records``: what it had once strays and the like were settled."""

    name: str
    bytes: int
    mtime_ns: int
    etag: str
    records: int


@dataclass(frozen=True, slots=True)
class ManifestOutput:
    """One output shard. ``xxh3``: XXH3 (64 bits) of the file, as ``xxhsum -H3`` prints it."""

    name: str
    records: int
    members: int
    payload_bytes: int
    file_bytes: int
    xxh3: str


def manifest_name(job_id: str) -> str:
    """Where the manifest of a job is, in its output bucket."""
    return f".dsort/{job_id}/manifest.json"


def index_name(job_id: str) -> str:
    """Where the wids index of a job is, in its output bucket."""
    return f"{job_id}-index.json"


def reactions_name(job_id: str) -> str:
    """Where the names are of all that a job's reactions dropped, kept or renamed."""
    return f".dsort/{job_id}/reactions.jsonl"


def report_name(job_id: str) -> str:
    """Where the report of an aborted job is, in its output bucket."""
    return f".dsort/{job_id}/report.json"


def manifest_bytes(
    *,
    job_id: str,
    created: str,
    versions: Mapping[str, str],
    spec: Mapping[str, Any],
    inputs: Sequence[ManifestInput],
    outputs: Sequence[ManifestOutput],
    move: Mapping[str, Any],
    phase_seconds: Mapping[str, float],
    reactions: Sequence[Mapping[str, Any]],
    index: str | None,
    reactions_file: str | None = None,
    timeline: Sequence[Sequence[object]] = (),
    mixing: Mapping[str, object] | None = None,
) -> bytes:
    """The manifest as it is stored."""
    content = {
        "manifest": MANIFEST_VERSION,
        "job_id": job_id,
        "created": created,
        "dsort": dict(versions),
        "spec": spec,
        "totals": {
            "input_shards": len(inputs),
            "output_shards": len(outputs),
            "records": sum(shard.records for shard in outputs),
            "members": sum(shard.members for shard in outputs),
            "payload_bytes": sum(shard.payload_bytes for shard in outputs),
            "file_bytes": sum(shard.file_bytes for shard in outputs),
        },
        "move": dict(move),
        "phase_seconds": dict(phase_seconds),
        "reactions": list(reactions),
        "reactions_file": reactions_file,
        "index": index,
        "mixing": mixing if mixing is None else _mixing(mixing),
        "timeline": Rows(timeline),
        "inputs": _rows(ManifestInput, inputs),
        "outputs": _rows(ManifestOutput, outputs),
    }
    return json_bytes(content)


def wids_index_bytes(name: str, outputs: Sequence[ManifestOutput], md5: Sequence[str]) -> bytes:
    """A ``wids-shard-index-v1`` JSON (the index of the ``wids`` package): its ``url`` are relative
    to the index file, its shards sorted by them."""
    shards = sorted(
        zip(outputs, md5, strict=True),
        key=lambda pair: pair[0].name.encode("utf-8", "surrogateescape"),
    )
    rows = (
        {
            "url": shard.name,
            "md5sum": digest,
            "nsamples": shard.records,
            "filesize": shard.file_bytes,
        }
        for shard, digest in shards
    )
    return json_bytes(
        {
            "__kind__": "wids-shard-index-v1",
            "wids_version": 1,
            "name": name,
            "shardlist": Rows(rows),
        }
    )


def _mixing(mixing: Mapping[str, object]) -> dict[str, object]:
    """With a row of counts a line."""
    counts = mixing["counts"]
    assert isinstance(counts, Sequence)
    return {**mixing, "counts": Rows(counts)}


def _rows(kind: type, shards: Sequence[object]) -> Rows:
    names = [field.name for field in fields(kind)]
    values = attrgetter(*names)
    return Rows(dict(zip(names, values(shard), strict=True)) for shard in shards)
