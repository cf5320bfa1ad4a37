"""What a result is once a job has amended it: its shards and sidecars, those that the job did not
write included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import xxhash

from dsort.errors import InputError, InvariantError, ObjectNotFoundError, StorageError
from dsort.job.directory_files import containers_named, directory_file_names, directory_files
from dsort.job.job import Job
from dsort.job.manifest import Manifest, ManifestOutput, ManifestSidecar
from dsort.sidecars.kinds import SidecarName, sidecar_names
from dsort.spec.model import JobSpec
from dsort.storage.small_objects import parse_json, read_small

SIDECAR_BYTES_MAX: Final = 4 << 30
DATABASE: Final = "index.sqlite"
LASTING: Final = ".nv-meta/dataset.yaml"
"""It says nothing of shards, and people write into it how their samples are read."""


def result_shards(job: Job, outputs: Sequence[ManifestOutput]) -> Sequence[ManifestOutput]:
    """All shards of the result, in output order, once the job has written ``outputs``."""
    if job.base is None:
        return outputs
    if not job.replaces_inputs:
        return [*job.base.outputs, *outputs]
    written = {shard.name: shard for shard in outputs}
    if not written.keys() <= {shard.name for shard in job.base.outputs}:
        raise InvariantError("a shard was written again that the result does not have")
    return [
        shard if shard.name not in written else replace(written[shard.name], output=shard.output)
        for shard in job.base.outputs
    ]


def result_sidecars(
    job: Job, shards: Sequence[ManifestOutput], written: Sequence[ManifestSidecar]
) -> list[ManifestSidecar]:
    """All sidecars of the result whose shards are ``shards``, once the job has ``written`` some."""
    known = {} if job.base is None else {each.name: each for each in job.base.sidecars}
    known |= {each.name: each for each in written}
    names = [each.name for each in sidecar_names(job.spec.index, [each.name for each in shards])]
    return [known[name] for name in names]


def sidecars_written(job: Job, shards: Sequence[str]) -> list[SidecarName]:
    """The sidecars that the job writes, whose own shards are called ``shards``: theirs, then those
    of the whole result."""
    kinds, base = job.spec.index, job.base
    if not kinds:
        return []
    own = [each for each in sidecar_names(kinds, shards) if each.ordinal >= 0]
    before = [] if base is None else [shard.name for shard in base.outputs]
    known = set() if base is None else {each.name for each in base.sidecars}
    whole = sidecar_names(kinds, [*dict.fromkeys([*before, *shards])])
    listing = [each for each in whole if each.ordinal < 0 and each.name not in {LASTING} & known]
    return [*own, *listing]


def refuse_moved_sidecars(job: Job, shards: Sequence[str]) -> None:
    """``InputError`` if ``shards`` of the job would have what lists the result stand elsewhere."""
    base = job.base
    if base is None:
        return
    known = {each.name for each in base.sidecars}
    for each in sidecars_written(job, shards):
        if each.ordinal < 0 and each.name not in known:
            raise InputError(
                f"shards of other directories would have {each.name} list the result of job "
                f"{base.job_id}, and it has another one",
                hint="name the new shards so that they are where the others are",
            )


def refuse_other_schema(job: Job, schema: str) -> None:
    """``InputError`` if the files that list the shards of a result are not those of records of the
    ``schema``, which all records that the job adds have."""
    base = job.base
    if base is None or job.was_committing:
        return
    names = [shard.name for shard in base.outputs]
    containers = [each.with_schema(schema) for each in containers_named(base.spec, names)]
    for name, right in directory_files(containers, base.outputs):
        try:
            found = read_small(job.outputs_bucket, name, bytes_max=SIDECAR_BYTES_MAX)
        except ObjectNotFoundError:
            found = b""
        if found != right:
            raise InputError(
                f"{name} does not list the result of job {base.job_id} as one of records like the "
                "new ones: they have other columns, or the file was changed",
                hint="dsort verify tells which; records of other columns are a result of their own",
            )


def replaceable_names(job: Job) -> frozenset[str]:
    """What lists the whole result that the job amends, and is written anew."""
    base = job.base
    if base is None:
        return frozenset()
    names = [shard.name for shard in base.outputs]
    return frozenset(each.name for each in _of_the_whole(base)) | frozenset(
        directory_file_names(containers_named(base.spec, names), names)
    )


def _of_the_whole(base: Manifest) -> list[ManifestSidecar]:
    shards = [shard.name for shard in base.outputs]
    wanted = sidecar_names(base.spec.index, shards)
    names = {each.name for each in wanted if each.ordinal < 0} - {LASTING}
    return [each for each in base.sidecars if each.name in names]


def refuse_other_sidecars(job: Job) -> None:
    """``InputError`` if the job would not keep up what the result has beside its shards, or if
    somebody has written to what it is about to write anew."""
    base, spec = job.base, job.spec
    assert base is not None
    theirs, ours = (_kept_up(each, splits=not job.replaces_inputs) for each in (base.spec, spec))
    for name in theirs:
        if theirs[name] != ours[name]:
            raise InputError(
                f"{name} of the spec is not as in the result of job {base.job_id}, which it amends",
                hint=f"{name}: {theirs[name] or 'none'}",
            )
    if job.before is None:  # else it may be ours by now
        for each in _of_the_whole(base):
            _refuse_changed(job, each)


def _kept_up(spec: JobSpec, *, splits: bool) -> dict[str, object]:
    """What has to be said alike by all jobs of a result."""
    found: dict[str, object] = {"index": sorted(spec.index), "lineage": spec.lineage}
    own = {target.place: target.bucket.uri for target in spec.targets if target.bucket is not None}
    found["buckets of outputs"] = own
    if splits:
        found["outputs"] = list(spec.output_names)
    if splits and spec.index:
        found["split"] = spec.split
    return found


def _refuse_changed(job: Job, listed: ManifestSidecar) -> None:
    if listed.name.endswith(DATABASE):
        return  # nobody writes into it by hand
    try:
        data = read_small(job.outputs_bucket, listed.name, bytes_max=SIDECAR_BYTES_MAX)
    except ObjectNotFoundError:
        return
    if xxhash.xxh3_64_hexdigest(data) != listed.xxh3:
        raise InputError(
            f"{listed.name} was changed since dsort wrote it, and would be written anew",
            hint="move it away, and put what was changed into the new one afterwards",
        )


def known_md5(job: Job) -> dict[str, str]:
    """The MD5 of each shard of the result that the job amends, as its wids index has them."""
    base = job.base
    if base is None or base.index is None:
        return {}
    bucket, found = job.outputs_bucket, dict[str, str]()
    what = f"{base.index} in {bucket.uri}"
    content = parse_json(read_small(bucket, base.index, bytes_max=SIDECAR_BYTES_MAX), what)
    try:
        for row in content["shardlist"]:
            found[str(row["url"])] = str(row["md5sum"])
    except (LookupError, TypeError):
        found = {}
    if not found.keys() >= {shard.name for shard in base.outputs}:
        raise StorageError(f"{what} does not list all shards", hint="dsort did not write it so")
    return found
