"""Removes data that still names records which were removed from a result, once the removal is
committed.

Keys may be removed because they identify a person. Lineages and the wids index of the earlier
result are deleted, and so are lists of names, and reports of aborted jobs that would have amended
it. Older manifests of the result lose the names in their reactions, and rejects lose the lines of
removed keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from dsort.data.columns import BytesColumn, UInt64s
from dsort.data.numbered import hash_column
from dsort.errors import InputError, ObjectNotFoundError, StorageError
from dsort.job.amend import is_removal, read_removed
from dsort.results.layout import (
    index_name,
    job_of,
    lineage_names,
    manifest_name,
    reactions_name,
    rejects_name,
    report_name,
)
from dsort.results.manifest import parse_manifest, without_names
from dsort.storage.bucket import INTERNAL_PREFIX, Bucket
from dsort.storage.small_objects import read_json, read_small

MANIFEST_BYTES_MAX: Final = 4 << 30
REPORT_BYTES_MAX: Final = 1 << 30
REJECTS_BYTES_MAX: Final = 4 << 30
_LEFT_OUT_WITH: Final = "left out with "


def forget_removed(bucket: Bucket, job_id: str) -> None:
    """Remove all that still names the records that job ``job_id`` has removed from a result."""
    now = parse_manifest(read_small(bucket, manifest_name(job_id), bytes_max=MANIFEST_BYTES_MAX))
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
        data = read_small(bucket, manifest_name(job_id), bytes_max=MANIFEST_BYTES_MAX)
    except ObjectNotFoundError:
        return set()
    base = parse_manifest(data)
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
            continue  # the job amends nothing, or this is no report
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
    """A line of rejects without the name of the record that its record was left out with."""
    if not str(reject.get("error")).startswith(_LEFT_OUT_WITH):
        return line
    return json.dumps({**reject, "error": f"{_LEFT_OUT_WITH}another record"}).encode() + b"\n"
