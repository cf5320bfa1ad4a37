"""Jobs that amend a result: they add shards to it, or write some of its shards again without some
records. The manifest of such a job lists the whole result. So readers see the result either as it
was before the job, or as it is after the job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import numpy as np
import xxhash
from msgspec import Meta, Struct
from msgspec.structs import replace

from dsort.data.columns import BytesColumn, UInt64s
from dsort.data.numbered import hash_column
from dsort.errors import (
    InputError,
    InvariantError,
    JobConflictError,
    ObjectNotFoundError,
    StorageError,
)
from dsort.job.job import Job
from dsort.job.sidecars import (
    containers_named,
    directory_files,
    of_the_whole,
    sidecars_written,
)
from dsort.results.journal import list_job_directories
from dsort.results.layout import (
    amended_name,
    index_name,
    job_of,
    lineage_names,
    manifest_name,
    reactions_name,
    rejects_name,
    removed_name,
    report_name,
)
from dsort.results.manifest import (
    MANIFEST_BYTES_MAX,
    History,
    Manifest,
    ManifestOutput,
    ManifestPart,
    ManifestSidecar,
    read_manifest,
    without_names,
)
from dsort.sidecars.kinds import sidecar_names
from dsort.spec.model import JobSpec
from dsort.storage.bucket import INTERNAL_PREFIX, Bucket
from dsort.storage.small_objects import parse_as, read_json, read_small

REMOVED_BYTES_MAX: Final = 4 << 30
CLAIM_BYTES_MAX: Final = 1 << 12
SIDECAR_BYTES_MAX: Final = 4 << 30
DATABASE: Final = "index.sqlite"


def load_base(job: Job) -> None:
    """Read the manifest of the result that the job amends. ``InputError`` if there is no such
    result, or if the job cannot amend it; ``JobConflictError`` if another job has amended this
    result."""
    amend, bucket = job.spec.amend, job.buckets.outputs
    assert amend
    try:
        job.found.base = read_manifest(bucket, amend.job)
    except ObjectNotFoundError:
        raise InputError(
            f"there is no result of job {amend.job} in {bucket.uri}, so it cannot be amended",
            hint="`dsort show` names the newest job of a bucket",
        ) from None
    refuse_other_sidecars(job)
    _refuse_newer(job)


def warn_of_old_keys(job: Job) -> None:
    """Warn if a job appends joined records, because their keys are not compared with the keys of
    the result."""
    if job.appends and job.pipeline.join:
        text = "keys of joined records are not compared with keys of the result: both may be equal"
        job.reporter.warn("old_keys", text)


def claim_base(job: Job) -> None:
    """Claim the result that the job amends, so that no other job amends it. ``JobConflictError`` if
    another job has claimed it."""
    base = job.found.base
    name, bucket = amended_name(base.job_id), job.buckets.outputs
    claim = json.dumps({"job_id": job.job_id}).encode()
    if bucket.write_new(name, claim) or _claimed(bucket, name) == job.job_id:
        return
    _refuse_newer(job)
    bucket.delete(name)  # the claim of a job that is gone
    if not bucket.write_new(name, claim):
        raise JobConflictError(f"another job has begun to amend the result of {base.job_id}")


def release_base(job: Job) -> None:
    """Delete the job's claim on the result, because the job failed and amends no result."""
    base = job.found.base
    name, bucket = amended_name(base.job_id), job.buckets.outputs
    if _claimed(bucket, name) == job.job_id:
        bucket.delete(name)
    bucket.delete(removed_name(job.job_id))


def refuse_lost_claim(job: Job) -> None:
    """``JobConflictError`` unless this job still has the claim on the result."""
    base = job.found.base
    other = _claimed(job.buckets.outputs, amended_name(base.job_id))
    if other != job.job_id:
        who = f"job {other}" if other else "another job"
        raise JobConflictError(f"{who} amends the result of {base.job_id} now")


def amended(job: Job, made: Manifest) -> Manifest:
    """The manifest of the whole result that the job amends. ``made``: the manifest of the shards
    that the job wrote. If the job removed keys, the file with their hashes is written."""
    base = job.found.base
    shards = result_shards(job, made.outputs)
    beside = result_sidecars(job, shards, made.sidecars)
    earlier = base.history.earlier
    if not job.replaces_inputs:
        own = len(base.outputs) - sum(part.outputs for part in earlier)
        removed = base.history.removed
        last = ManifestPart(base.job_id, base.spec, base.inputs, own, removed, base.lineage)
        history = History(base.job_id, earlier=(*earlier, last))
        return replace(made, outputs=shards, sidecars=beside, history=history)
    name = removed_name(job.job_id)
    job.buckets.outputs.write(name, _removed_bytes(job))
    job.buckets.outputs.delete(reactions_name(job.job_id))  # its lines name removed keys
    job.outcome.reactions_file = ""
    return replace(
        made,
        spec=base.spec,
        inputs=base.inputs,
        outputs=shards,
        sidecars=beside,
        history=History(
            base.job_id,
            (*base.history.removed, name),
            tuple(replace(part, removed=(*part.removed, name), lineage=None) for part in earlier),
        ),
    )


# Keys may be removed because they identify a person. Once a removal is committed, these files of
# the earlier result are deleted: its lineages, its wids index, its ``reactions.jsonl``, and the
# reports of aborted jobs that would have amended the result. Names are removed from the reactions
# in its older manifests, and lines of removed keys from its rejects.
def is_removal(manifest: Manifest) -> bool:
    """Whether the job of a manifest removed records from a result."""
    return removed_name(manifest.job_id) in manifest.history.removed


class _Removed(Struct):
    xxh3: list[Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]]


def read_removed(bucket: Bucket, names: Sequence[str]) -> UInt64s:
    """The hashes (XXH3, 64 bits) of all removed keys that the files ``names`` list, sorted."""
    found = [np.zeros(0, np.uint64)]
    for name in names:
        data = read_small(bucket, name, bytes_max=REMOVED_BYTES_MAX)
        digits = "".join(parse_as(data, f"{name} in {bucket.uri}", _Removed).xxh3)
        found.append(np.frombuffer(bytes.fromhex(digits), ">u8").astype(np.uint64))
    return np.unique(np.concatenate(found))


def _removed_bytes(job: Job) -> bytes:
    """The file with hashes of the removed keys. The keys themselves are not stored: some may have
    been removed because they identify a person."""
    from dsort.transforms.steps import DropKeys

    (step,) = job.pipeline.steps
    if not isinstance(step, DropKeys):
        raise InvariantError("keys are removed by drop_keys")
    hashes = np.unique(hash_column(step.listed_keys()))
    return json.dumps({"xxh3": [f"{each:016x}" for each in hashes.tolist()]}).encode() + b"\n"


def _refuse_newer(job: Job) -> None:
    """``JobConflictError`` if another job has amended the result, or has begun to amend it."""
    base = job.found.base
    bucket = job.buckets.outputs
    other = _claimed(bucket, amended_name(base.job_id))
    if not other or other == job.job_id:
        return
    for directory in list_job_directories(bucket, other):
        if directory.has_manifest:
            raise JobConflictError(
                f"the result of job {base.job_id} was amended by job {other} already",
                hint=f"amend the result of job {other}",
            )
        if directory.objects and not directory.has_report:
            raise JobConflictError(
                f"job {other} amends the result of job {base.job_id}, and has not finished",
                hint=f"wait for this job; if it died: `dsort resume {other}`, or `dsort gc`",
            )


# If two jobs try to amend one result, the second is refused: `amended.json` of the job that made
# the result has the id of the job that amends it. The claim of a job that is gone has no effect.
class _Claim(Struct):
    job_id: Annotated[str, Meta(pattern=r"\A[^/]*\Z")]


def _claimed(bucket: Bucket, name: str) -> str:
    """The id of the job in the claim ``name``; "" if there is no claim."""
    try:
        data = read_small(bucket, name, bytes_max=CLAIM_BYTES_MAX)
    except ObjectNotFoundError:
        return ""
    return parse_as(data, f"{name} in {bucket.uri}", _Claim).job_id


def result_shards(job: Job, outputs: Sequence[ManifestOutput]) -> Sequence[ManifestOutput]:
    """All shards of the result, in output order, once the job has written ``outputs``."""
    base = job.found.base
    if not job.replaces_inputs:
        return [*base.outputs, *outputs]
    written = {shard.name: shard for shard in outputs}
    if not written.keys() <= {shard.name for shard in base.outputs}:
        raise InvariantError("a shard that the result does not have was written again")
    return [
        shard if shard.name not in written else replace(written[shard.name], output=shard.output)
        for shard in base.outputs
    ]


def result_sidecars(
    job: Job, shards: Sequence[ManifestOutput], written: Sequence[ManifestSidecar]
) -> list[ManifestSidecar]:
    """All sidecars of the result with the shards ``shards``, after the job has ``written`` some of
    them."""
    known = {each.name: each for each in (*job.found.base.sidecars, *written)}
    names = [each.name for each in sidecar_names(job.spec.index, [each.name for each in shards])]
    return [known[name] for name in names]


def refuse_moved_sidecars(job: Job, shards: Sequence[str]) -> None:
    """``InputError`` if, with the new names ``shards``, the files that list the whole result would
    lie elsewhere."""
    base = job.found.base
    known = {each.name for each in base.sidecars}
    for each in sidecars_written(job, shards):
        if each.ordinal < 0 and each.name not in known:
            raise InputError(
                f"shards in other directories would need the file {each.name}, but another file "
                f"lists the result of job {base.job_id}",
                hint="give the new shards names in the directories of the other shards",
            )


def refuse_other_schema(job: Job, schema: str) -> None:
    """``InputError`` if the files that list the shards of the result do not fit records of
    ``schema``, the schema of all records that the job adds."""
    base = job.found.base
    if job.attempt.was_committing:
        return
    names = [shard.name for shard in base.outputs]
    containers = [each.with_schema(schema) for each in containers_named(base.spec, names)]
    for name, right in directory_files(containers, base.outputs):
        try:
            found = read_small(job.buckets.outputs, name, bytes_max=SIDECAR_BYTES_MAX)
        except ObjectNotFoundError:
            found = b""
        if found != right:
            raise InputError(
                f"{name}, which lists the shards of job {base.job_id}, does not fit the new "
                "records: these have other columns than the result, or the file was changed",
                hint="`dsort verify` shows whether the file was changed; write records with other "
                "columns as a new result",
            )


def refuse_other_sidecars(job: Job) -> None:
    """``InputError`` if the job would not update all files beside the result's shards, or if a file
    that the job rewrites was changed by others."""
    base, spec = job.found.base, job.spec
    theirs, ours = (_kept_up(each, splits=not job.replaces_inputs) for each in (base.spec, spec))
    for name in theirs:
        if theirs[name] != ours[name]:
            raise InputError(
                f"{name} of the spec differs from the result of job {base.job_id}, which it amends",
                hint=f"{name}: {theirs[name] or 'none'}",
            )
    if not job.attempt.is_resumed:  # an earlier attempt may have written these files
        for each in of_the_whole(base):
            _refuse_changed(job, each)


def _kept_up(spec: JobSpec, *, splits: bool) -> dict[str, object]:
    """The settings that must be equal in all jobs of a result."""
    found: dict[str, object] = {"index": sorted(spec.index), "lineage": spec.lineage}
    found["checksums"] = spec.checksums
    own = {target.place: target.bucket.uri for target in spec.targets if target.bucket}
    found["buckets of outputs"] = own
    if splits:
        found["outputs"] = list(spec.output_names)
    if splits and spec.index:
        found["split"] = spec.split
    return found


def _refuse_changed(job: Job, listed: ManifestSidecar) -> None:
    if listed.name.endswith(DATABASE):
        return  # users do not edit a database by hand
    try:
        data = read_small(job.buckets.outputs, listed.name, bytes_max=SIDECAR_BYTES_MAX)
    except ObjectNotFoundError:
        return
    if xxhash.xxh3_64_hexdigest(data) != listed.xxh3:
        raise InputError(
            f"{listed.name} was changed since dsort wrote it, and the job would overwrite it",
            hint="move the file away; after the job, make the same changes in the new file",
        )


class _WidsShard(Struct):
    url: str
    md5sum: str


class _WidsIndex(Struct):
    shardlist: list[_WidsShard]


def known_md5(job: Job) -> dict[str, str]:
    """The MD5 of each shard of the result that the job amends, from its wids index."""
    base = job.found.base
    if not base.index:
        return {}
    bucket, what = job.buckets.outputs, f"{base.index} in {job.buckets.outputs.uri}"
    data = read_small(bucket, base.index, bytes_max=SIDECAR_BYTES_MAX)
    found = {row.url: row.md5sum for row in parse_as(data, what, _WidsIndex).shardlist}
    if not found.keys() >= {shard.name for shard in base.outputs}:
        raise StorageError(f"{what} does not list all shards", hint="dsort did not write this list")
    return found


REPORT_BYTES_MAX: Final = 1 << 30
REJECTS_BYTES_MAX: Final = 4 << 30
_LEFT_OUT_WITH: Final = "left out with "


def forget_removed(bucket: Bucket, job_id: str) -> None:
    """Remove the names of the records that job ``job_id`` removed from a result: delete files that
    list these names, and change manifests and rejects."""
    now = read_manifest(bucket, job_id)
    history = now.history
    if not history.amends or not is_removal(now):
        return
    jobs = {history.amends, *(part.job_id for part in history.earlier)} - {job_id}
    base = _named_by(bucket, history.amends)
    ours = {name for job in jobs for name in (index_name(job), *lineage_names(job))}
    for name in ours & base:
        bucket.delete(name)
    for name in _reports(bucket, jobs):
        bucket.delete(name)
    removed = read_removed(bucket, history.removed)
    for job in sorted(jobs):
        bucket.delete(reactions_name(job))
        _forget_in_manifest(bucket, job)
        _forget_in_rejects(bucket, job, removed)


def _named_by(bucket: Bucket, job_id: str) -> set[str | None]:
    """The lineages and the index of a result, if its manifest is still there."""
    try:
        base = read_manifest(bucket, job_id)
    except ObjectNotFoundError:
        return set()
    return {base.index, *(each.name for each in base.lineages)}


def _reports(bucket: Bucket, jobs: set[str]) -> Iterator[str]:
    """The reports of aborted jobs that would have amended the result of one of ``jobs``."""
    names = [info.name for info in bucket.list(INTERNAL_PREFIX)]
    for name in names:
        if name != report_name(job_of(name)):
            continue
        try:
            content: Any = read_json(bucket, name, bytes_max=REPORT_BYTES_MAX)
            amend = content["resume"]["accepted"]["spec"]["amend"]
            is_of_result = amend["job"] in jobs
        except (LookupError, StorageError, TypeError):
            continue  # the job amends nothing, or the object is no report
        if is_of_result:
            yield name


def _forget_in_manifest(bucket: Bucket, job_id: str) -> None:
    name = manifest_name(job_id)
    try:
        data = read_small(bucket, name, bytes_max=MANIFEST_BYTES_MAX)
        left = without_names(data)
    except (InputError, ObjectNotFoundError):
        return
    if left != data:
        bucket.write(name, left)


def _forget_in_rejects(bucket: Bucket, job_id: str, removed: UInt64s) -> None:
    name = rejects_name(job_id)
    try:
        data = read_small(bucket, name, bytes_max=REJECTS_BYTES_MAX)
    except ObjectNotFoundError:
        return
    lines = data.splitlines(keepends=True)
    rejects = [_reject(line) for line in lines]
    keys = [str(each.get("key")).encode("utf-8", "surrogateescape") for each in rejects]
    stays = ~np.isin(hash_column(BytesColumn.of(keys)), removed)
    if not stays.all():
        rows = zip(lines, rejects, stays.tolist(), strict=True)
        bucket.write(name, b"".join(_without_others(*row[:2]) for row in rows if row[2]))


def _reject(line: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _without_others(line: bytes, reject: Mapping[str, Any]) -> bytes:
    """A line of rejects. If its record was left out together with another record, the name of the
    other record is removed."""
    if not str(reject.get("error")).startswith(_LEFT_OUT_WITH):
        return line
    return json.dumps({**reject, "error": f"{_LEFT_OUT_WITH}another record"}).encode() + b"\n"
