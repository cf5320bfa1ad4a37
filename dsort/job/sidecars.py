"""The sidecars of a job: what they are called, and how they are staged for the commit.

Their bytes are known when the output shards are written. They get their names with the shards, and
what had such a name before is kept as what shards replace is: sidecars are numbered on behind the
output shards.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import xxhash

from dsort.errors import ObjectNotFoundError
from dsort.job.job import Job
from dsort.job.layout import shared_name, sidecars_prefix, staged_prefix
from dsort.job.manifest import ManifestOutput, ManifestSidecar
from dsort.sidecars.dataset import dataset_sidecar, write_energon_database
from dsort.sidecars.kinds import SidecarName, sidecar_names
from dsort.sidecars.shard_index import EnergonSample
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket
from dsort.storage.small_objects import parse_json, read_small
from dsort.workers.sidecars import SAMPLES, samples_of, staged_sidecar

__all__ = ["StagedSidecar", "noted_sidecars", "sidecars_of", "stage_sidecars"]

SIDECARS_FILE: Final = "sidecars.json"
SIDECAR_BYTES_MAX: Final = 4 << 30
READ_BYTES: Final = 8 << 20
NOTED_BYTES_MAX: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class StagedSidecar:
    """A sidecar that waits for its name. ``token``, ``receipt``: see ``Bucket.stage``."""

    token: str
    receipt: str
    listed: ManifestSidecar


def sidecars_of(spec: JobSpec, shards: Sequence[str]) -> list[SidecarName]:
    """The sidecars of a result whose output shards are called ``shards``."""
    return sidecar_names(spec.index, shards)


def stage_sidecars(
    job: Job, outputs: Sequence[ManifestOutput], *, first: int
) -> list[StagedSidecar]:
    """Stage all sidecars, numbered from ``first`` on, and note for later attempts what they are."""
    names = sidecars_of(job.spec, [shard.name for shard in outputs])
    staged = [_stage(job, number, name, outputs) for number, name in enumerate(names, first)]
    rows = [[each.token, each.listed.name, each.receipt, each.listed.xxh3] for each in staged]
    if rows:
        job.retain(SIDECARS_FILE, json.dumps(rows).encode())
    return staged


def noted_sidecars(bucket: Bucket, job_id: str) -> list[tuple[str, str, str, str]]:
    """(token, name, receipt, XXH3) of the sidecars that an attempt has staged, if it came so far.
    ``StorageError`` if that is damaged."""
    place = shared_name(job_id, SIDECARS_FILE)
    try:
        rows = parse_json(read_small(bucket, place, bytes_max=NOTED_BYTES_MAX), place)
    except ObjectNotFoundError:
        return []
    found = []
    for row in rows if isinstance(rows, list) else ():
        match row:
            case [str(token), str(name), str(receipt), str(xxh3)]:
                found.append((token, name, receipt, xxh3))
    return found


def _stage(
    job: Job, number: int, name: SidecarName, outputs: Sequence[ManifestOutput]
) -> StagedSidecar:
    token = f"{staged_prefix(job.job_id)}{number}"
    bucket, digest = job.outputs_bucket, xxhash.xxh3_64()
    with tempfile.TemporaryDirectory(prefix="dsort-sidecar-") as directory:
        path = Path(directory) / "sidecar"
        if name.name.endswith("index.sqlite"):
            write_energon_database(path, _samples(job, outputs))
        else:
            path.write_bytes(_content(job, name, outputs))
        size_bytes = path.stat().st_size
        bucket.discard(token, names=[name.name])  # an earlier attempt's may be longer
        with (
            path.open("rb") as file,
            bucket.stage(token, name=name.name, size_bytes=size_bytes) as held,
        ):
            for at in range(0, size_bytes, READ_BYTES):
                part = file.read(READ_BYTES)
                digest.update(part)
                held.write_at(at, [part])
            receipt = held.finish()
            if not bucket.seals_on_finish:
                held.sync()
    listed = ManifestSidecar(name.kind, name.name, size_bytes, digest.hexdigest())
    return StagedSidecar(token, receipt, listed)


def _content(job: Job, name: SidecarName, outputs: Sequence[ManifestOutput]) -> bytes:
    if name.ordinal < 0:
        records = {shard.name: shard.records for shard in outputs}
        return dataset_sidecar(name.name, records, job.spec.split)
    return _stored(job, name.ordinal, name.kind)


def _samples(job: Job, outputs: Sequence[ManifestOutput]) -> Iterator[Iterator[EnergonSample]]:
    for ordinal in range(len(outputs)):
        data = _stored(job, ordinal, SAMPLES)
        yield samples_of(data, f"the samples of output shard {ordinal}")


def _stored(job: Job, ordinal: int, kind: str) -> bytes:
    place = staged_sidecar(sidecars_prefix(job.job_id), ordinal, kind)
    return read_small(job.outputs_bucket, place, bytes_max=SIDECAR_BYTES_MAX)
