"""``latest.json``: which result of a schedule is the newest.

A small object in the output bucket, written after the manifest of the result that it names. It only
moves forward: a run that was due earlier and ends later leaves it alone.

==================  ==============================================================================
``schedule``        the schedule's name
``job_id``          the job
``output_uri``      the bucket of the result
``manifest``        the name of its manifest there
``prefix``          what the names of its shards share, in whole parts; may be empty
``output_format``   the template of its shards' names; null if there are several
``run_id``, ``date``, ``epoch``  of the run, as its placeholders had them
``committed_at``    when its manifest was stored, RFC 3339, UTC
==================  ==============================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dsort.errors import ObjectNotFoundError
from dsort.job.manifest import manifest_name
from dsort.service.schedules.results import Opener, Result, ScheduleResults
from dsort.service.schedules.shared_buckets import names_prefix
from dsort.spec.buckets import parse_bucket
from dsort.storage.bucket import Bucket, ObjectInfo
from dsort.storage.small_objects import read_small

__all__ = ["move_pointer", "pointer_content"]

POINTER_BYTES_MAX = 1 << 20
_OURS = ("schedule", "job_id", "run_id", "manifest")


def move_pointer(
    result: Result, results: ScheduleResults, open_bucket: Opener, *, tries_max: int = 10
) -> str:
    """Have the pointer of the schedule name ``result``, which has been committed, or a newer one
    that has. What keeps it from that, in words, or ""."""
    place = result.after_commit["pointer"]
    bucket = open_bucket(parse_bucket(place["bucket"]))
    name: str = place["name"]
    written: str | None = None
    for _ in range(tries_max):
        # Looked for anew after each write: a newer one may have been written before ours, by
        # another process, after we had looked.
        newest, info, output_uri = _newest(result, results, open_bucket)
        if info is None or newest.job_id == written:
            return ""
        before = _read(bucket, name)
        if before is not None and not all(isinstance(before.get(key), str) for key in _OURS):
            return f"{name} in {bucket.uri} is no pointer of a schedule, and is left as it is"
        if before is not None and before["run_id"] > newest.after_commit["run_id"]:
            return ""
        bucket.write(name, pointer_content(newest, info, output_uri))
        written = newest.job_id
    return f"{name} in {bucket.uri} is moved by others all the time"


def pointer_content(result: Result, manifest: ObjectInfo, output_uri: str) -> bytes:
    """The pointer that names ``result``, whose ``manifest`` is in the bucket ``output_uri``."""
    template = result.spec.get("output_format")
    committed = datetime.fromtimestamp(manifest.mtime_ns / 1e9, UTC)
    run = result.after_commit
    content = {
        "schedule": run["schedule"],
        "job_id": result.job_id,
        "output_uri": output_uri,
        "manifest": manifest_name(result.job_id),
        "prefix": names_prefix(template),
        "output_format": template,
        "run_id": run["run_id"],
        "date": run["date"],
        "epoch": run["epoch"],
        "committed_at": committed.isoformat(timespec="seconds").replace("+00:00", "Z"),
    }
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"


def _newest(
    result: Result, results: ScheduleResults, open_bucket: Opener
) -> tuple[Result, ObjectInfo | None, str]:
    """The newest committed result from ``result`` on, its manifest, and where that is."""
    schedule_id = result.after_commit["schedule_id"]
    known = [*results.unfinished(schedule_id), *results.finished(schedule_id)]
    newer = [each for each in known if each.order > result.order]
    for each in sorted(newer, key=lambda each: each.order, reverse=True):
        place = each.after_commit["pointer"]
        if place == result.after_commit["pointer"]:
            bucket = open_bucket(each.output_bck)
            info = each.manifest_info(bucket)
            if info is not None:
                return each, info, bucket.uri
    bucket = open_bucket(result.output_bck)
    return result, result.manifest_info(bucket), bucket.uri


def _read(bucket: Bucket, name: str) -> Mapping[str, Any] | None:
    try:
        data = read_small(bucket, name, bytes_max=POINTER_BYTES_MAX)
    except ObjectNotFoundError:
        return None
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
