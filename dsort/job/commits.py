"""When the results of a bucket were committed.

The moment of a commit stands in its manifest (``created``). What a store says of an object is when
that was copied, too, and the id of a job says when the job began. Only the first bytes of manifests
are read for it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from dsort.errors import ObjectNotFoundError
from dsort.job.job_ids import moment_of_id
from dsort.job.layout import job_of, manifest_name
from dsort.job.transaction import each_at_once
from dsort.storage.bucket import INTERNAL_PREFIX, Bucket, ObjectInfo

HEAD_BYTES: Final = 1 << 10
CLOCKS_APART_MAX: Final = timedelta(days=1)
_CREATED: Final = re.compile(rb'"created"\s*:\s*"([^"\\]{1,40})"')
_IN_THE_YEAR: Final = "%m%d-%H%M%S.%f"


class Commit(NamedTuple):
    """When a result was committed; commits sort by time. ``moment``: in UTC, as
    ``20260131-235959.123456``."""

    moment: str
    job_id: str


def commit_of(created: str, job_id: str) -> Commit:
    """The commit of the manifest of a job that was ``created`` then. One that does not say when
    counts as one of the moment at which the job began."""
    at = _parsed(created)
    if at is None:
        return Commit(moment_of_id(job_id), job_id)
    return Commit(f"{at.year:04d}{at.strftime(_IN_THE_YEAR)}", job_id)


def commits(bucket: Bucket, job_ids: Iterable[str]) -> list[Commit]:
    """The commits of the jobs that have a manifest in ``bucket``, the newest first."""
    found: list[Commit] = []

    def look(job_id: str) -> None:
        try:
            with bucket.open(manifest_name(job_id)) as opened:
                head = bytearray(min(opened.info.size_bytes, HEAD_BYTES))
                opened.read_into(memoryview(head), 0)
        except ObjectNotFoundError:
            return
        created = _CREATED.search(head)
        text = "" if created is None else created[1].decode("ascii", "replace")
        found.append(commit_of(text, job_id))

    each_at_once(bucket, [*job_ids], look)
    return sorted(found, reverse=True)


def newest_first(bucket: Bucket, manifests: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """Manifests of ``bucket``, that of the last commit first."""
    if len(manifests) < 2:
        return [*manifests]
    by_job = {job_of(info.name): info for info in manifests}
    return [by_job[each.job_id] for each in commits(bucket, by_job)]


def manifests_in(bucket: Bucket) -> list[str]:
    """The ids of the jobs that have a manifest in ``bucket``."""
    names = (info.name for info in bucket.list(INTERNAL_PREFIX))
    return [job_of(name) for name in names if name == manifest_name(job_of(name))]


def later_than(before: Commit | None) -> str:
    """Now, as a manifest says it. Later than ``before``, also by a clock that is behind: the newest
    result of a bucket is the one that was committed last."""
    now = datetime.now(UTC)
    with contextlib.suppress(ValueError):  # anything may be called as a job is
        moment = "" if before is None else before.moment
        earlier = datetime.strptime(moment, f"%Y{_IN_THE_YEAR}").replace(tzinfo=UTC)
        if now <= earlier < now + CLOCKS_APART_MAX:
            now = earlier + timedelta(microseconds=1)
    return now.isoformat(timespec="microseconds")


def _parsed(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (OverflowError, ValueError):
        return None
