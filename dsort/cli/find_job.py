"""Where a job's manifest is, given as little as its id."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsort.cli.buckets import open_argument, open_existing
from dsort.cli.output import place
from dsort.errors import DsortError, InputError

if TYPE_CHECKING:
    from dsort.storage.base import Bucket

__all__ = ["FoundJob", "find_job"]

INTERNAL = ".dsort"
MANIFEST = "manifest.json"
REPORT = "report.json"
JOBS_NAMED = 5


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job that left something: its manifest, or the report of one that was aborted."""

    job_id: str
    bucket: Bucket
    document: str  # name of the manifest or the report in the bucket
    in_place: bool = True  # whether the bucket is the one that the job wrote to

    @property
    def finished(self) -> bool:
        """Whether there is a manifest: whether there is a result."""
        return not self.document.endswith(REPORT)


def find_job(job: str, *, bucket: str | None, root: Path) -> FoundJob:
    """The job that ``job`` means: the path of a manifest or of its directory; a job id (or how it
    begins, if no other does) in ``bucket``, else in ``root`` and the directories in it; or a
    bucket, for the newest job there.

    ``InputError`` names the jobs that there are if it is none of them, or several.
    """
    path = Path(job)
    if path.is_dir():
        path = next((path / name for name in (MANIFEST, REPORT) if (path / name).is_file()), path)
    if path.is_file():
        return _at(path.resolve())
    buckets = [open_existing(bucket, root=root)] if bucket else _buckets_under(root)
    known = [each for opened in buckets for each in _jobs_in(opened)]
    exact = [each for each in known if each.job_id == job]
    found = exact or [each for each in known if each.job_id.startswith(job)]
    found = found or ([] if bucket else _newest_in(job, root))
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"{job!r} fits several jobs: {_named(found)}",
            hint="give more of the id, or name the bucket with --bucket",
        )
    where = bucket or f"{root.resolve()} and the directories in it"
    raise InputError(
        f"no job {job!r} in {where}",
        hint=f"there are {_named(known)}"
        if known
        else "name the bucket with --bucket, or give the path of a manifest.json",
    )


def _named(jobs: list[FoundJob]) -> str:
    newest = sorted(jobs, key=lambda each: each.job_id, reverse=True)
    names = [f"{each.job_id} in {place(each.bucket.uri)}" for each in newest[:JOBS_NAMED]]
    return ", ".join(names) + (", ..." if len(jobs) > JOBS_NAMED else "")


def _newest_in(bucket: str, root: Path) -> list[FoundJob]:
    """The newest job in ``bucket``, if that is one: ids sort by time."""
    try:
        opened = open_existing(bucket, root=root)
    except DsortError:
        return []
    return sorted(_jobs_in(opened), key=lambda each: each.job_id)[-1:]


def _at(document: Path) -> FoundJob:
    if document.parent.parent.name != INTERNAL:
        holder = open_argument(str(document.parent), root=document.parent)
        return FoundJob(document.stem, holder, document.name, in_place=False)
    directory = document.parent.parent.parent
    name = f"{INTERNAL}/{document.parent.name}/{document.name}"
    return FoundJob(document.parent.name, open_argument(str(directory), root=directory), name)


def _buckets_under(root: Path) -> Iterator[Bucket]:
    inside = sorted(root.iterdir()) if root.is_dir() else []
    for directory in (root, *inside):
        if (directory / INTERNAL).is_dir():
            yield open_argument(str(directory.resolve()), root=root)


def _jobs_in(bucket: Bucket) -> Iterator[FoundJob]:
    documents: dict[str, str] = {}
    for found in bucket.list(f"{INTERNAL}/"):
        parts = found.name.split("/")
        # manifest.json comes before report.json; a job that has both is finished.
        if len(parts) == 3 and parts[2] in (MANIFEST, REPORT):
            documents.setdefault(parts[1], found.name)
    return (FoundJob(job_id, bucket, name) for job_id, name in documents.items())
