"""Finds results, and jobs without a result, by a report, a path, an id, or a bucket alone.

Commands that take any job use :class:`JobFinder`. All functions that take a result use
:func:`find_result`, and this uses :class:`JobFinder`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from dsort.errors import DsortError, InputError, ObjectNotFoundError
from dsort.naming.names import INTERNAL_PART, absent_hint, place
from dsort.results.layout import MANIFEST, REPORT, RESULT, job_directory, manifest_name
from dsort.settings import Settings

if TYPE_CHECKING:
    from dsort.options import RunOptions
    from dsort.results.report import JobReport
    from dsort.storage.bucket import Bucket

__all__ = [
    "OF_A_JOB",
    "FoundJob",
    "JobFinder",
    "Result",
    "bucket_uri",
    "find_result",
    "object_in",
    "open_existing",
    "open_place",
    "read_result",
]

Result: TypeAlias = "bytes | str | Path | JobReport"
"""A result as a user gives it: its manifest, or as for :func:`find_result`."""

JOBS_NAMED = 5
DOCUMENT_BYTES_MAX = 4 << 30
OF_A_JOB = (
    rf"(.+)/{re.escape(INTERNAL_PART)}/([^/]+)(?:/({re.escape(MANIFEST)}|{re.escape(REPORT)}))?/*"
)


class FoundJob(Struct, frozen=True):
    """A job that has files in its output bucket. ``document``: the name of its manifest, or of its
    report if it was aborted; "" for a job without either, which runs or died. If one of several
    outputs has its own bucket, a file there points to the manifest, and ``document`` names this
    file (``_followed``)."""

    job_id: str
    bucket: Bucket
    document: str
    in_place: bool = True  # whether the job wrote to this bucket
    given: str = ""  # the bucket as the user wrote it, if it was written

    @property
    def finished(self) -> bool:
        """Whether there is a manifest, and so a result."""
        return bool(self.document) and not self.document.endswith(REPORT)

    def read(self) -> bytes:
        """The document of the job. ``InputError`` if the file does not exist, ``StorageError`` if
        it is larger than any file that dsort writes."""
        from dsort.storage.small_objects import read_small

        try:
            return read_small(self.bucket, self.document, bytes_max=DOCUMENT_BYTES_MAX)
        except ObjectNotFoundError:
            raise InputError(
                f"there is no manifest {self.document} in {place(self.bucket.uri)}",
                hint="only a finished job has one; `dsort ls` shows the jobs of a bucket",
            ) from None

    def parsed(self) -> Any:
        """The document of the job as JSON values. ``InputError`` if it is no JSON."""
        try:
            return json.loads(self.read())
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self.where} is no JSON document: {error}") from error

    @property
    def where(self) -> str:
        """The document of the job and its bucket, in words."""
        return f"{self.document} in bucket {self.bucket.uri}"

    @property
    def bucket_uri(self) -> str:
        """The bucket as a spec names it."""
        return bucket_uri(self.given) if self.given else self.bucket.uri


def find_result(
    where: str | Path | JobReport, options: RunOptions, *, job_id: str | None = None
) -> FoundJob:
    """The result that ``where`` names; its document is a manifest. ``where`` is

    - the report that :func:`dsort.run` returned;
    - the path or URI of a manifest, or of a job's directory in a bucket;
    - a bucket: its newest result, or with ``job_id`` that of the job;
    - a job id: of a job in the data root, or in a directory in it.

    Paths are relative to the data root of ``options``. ``InputError`` if it names no result.
    """
    if not isinstance(where, (str, Path)):
        if where.manifest_name is None:
            raise InputError(f"job {where.job_id} has no result: it is {where.state}")
        job_id, where = where.job_id, where.output_uri
    if job_id is not None:
        bucket = open_place(str(where), options.root, options.settings)
        return FoundJob(job_id, bucket, manifest_name(job_id), given=str(where))
    finder = JobFinder(options.root, options.settings, base=options.root)
    found = finder.find(str(where), finished=True)
    if not found.finished:
        raise InputError(
            f"job {found.job_id} did not finish: it has no result",
            hint=f"see what it did with `dsort show {found.job_id}`",
        )
    return found


def read_result(result: Result, options: RunOptions, place: str | None) -> tuple[bytes, str | None]:
    """(manifest of a result, bucket with its shards; None: the bucket in its spec). ``result``: the
    bytes of the manifest, or a result as :func:`find_result` takes it; ``place``: the bucket, if it
    is known."""
    if isinstance(result, bytes):
        return result, place
    found = find_result(result, options)
    return found.read(), place or (found.bucket_uri if found.in_place else None)


class JobFinder:
    """Finds jobs, also by their id alone, whether they are finished, aborted, running or dead.

    ``root``: the data root, in which buckets with bare names are; ``base``: the directory to which
    paths are relative.
    """

    def __init__(self, root: Path, settings: Settings, *, base: Path) -> None:
        self._root, self._settings, self._base = root, settings, base

    def find(self, job: str, bucket: str | None = None, *, finished: bool = False) -> FoundJob:
        """The job that ``job`` names. ``job`` may be

        - the path or URI of a manifest, or of a job's directory;
        - a job id, or the beginning of one, if it is unique: of a job in ``bucket``, or, if
          ``bucket`` is None, in the data root and the directories in it;
        - a bucket: its newest job (with ``finished``: the newest that finished, if one did).

        ``InputError`` with the known jobs if ``job`` names none of them, or several.
        ``ObjectNotFoundError`` for a path or URI of a bucket that does not exist.
        """
        if "://" in job and not job.startswith("file://"):
            return self._at_uri(job, finished=finished)
        at_path = self._at_path(place(job))
        if at_path is not None:
            return at_path
        known = self.known(bucket)
        exact = [each for each in known if each.job_id == job]
        found = exact or [each for each in known if each.job_id.startswith(job)]
        found = found or ([] if bucket else self._newest_in(job, finished=finished))
        if len({each.job_id for each in found}) == 1 and found[0].document.endswith(RESULT):
            return self._followed(found[0])
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(
                f"{job!r} fits several jobs: {_named(found)}",
                hint="give more of the id, or name the bucket with --bucket",
            )
        if "/" in job and bucket is None and INTERNAL_PART not in job and not job.endswith(".json"):
            self._existing(job)
        where = bucket or f"{self._root.resolve()} and the directories in it"
        raise InputError(
            f"no job {job!r} in {where}",
            hint=f"there are {_named(known)}"
            if known
            else "name the bucket with --bucket, or give the path of a manifest.json",
        )

    def known(self, bucket: str | None) -> list[FoundJob]:
        """The jobs in ``bucket``; if it is None, in the data root and the directories in it. A job
        that wrote to several buckets is listed in the bucket with its manifest."""
        buckets = [self._existing(bucket)] if bucket else self._buckets_under()
        known = [each for opened in buckets for each in _jobs_in(opened, bucket or "")]
        there = {each.job_id for each in known if not each.document.endswith(RESULT)}
        return [
            each for each in known if not (each.document.endswith(RESULT) and each.job_id in there)
        ]

    def _open(self, text: str, root: Path | None = None) -> Bucket:
        return open_place(text, root or self._root, self._settings)

    def _existing(self, text: str) -> Bucket:
        return open_existing(text, self._root, self._settings)

    def _at_path(self, job: str) -> FoundJob | None:
        """The job of a manifest, a report or a job's directory on this machine; None if ``job`` is
        not the path of one of these."""
        path = self._base / job
        if path.is_dir():
            documents = (path / name for name in (MANIFEST, REPORT))
            path = next((each for each in documents if each.is_file()), path)
        if path.is_file():
            return self._at(path.resolve())
        if path.is_dir() and path.resolve().parent.name == INTERNAL_PART:
            holder = path.resolve().parent.parent
            return FoundJob(path.resolve().name, self._open(str(holder), holder), "")
        return None

    def _at(self, document: Path) -> FoundJob:
        if document.parent.parent.name != INTERNAL_PART:
            holder = self._open(str(document.parent), document.parent)
            return FoundJob(document.stem, holder, document.name, in_place=False)
        directory = document.parent.parent.parent
        name = f"{job_directory(document.parent.name)}{document.name}"
        return FoundJob(document.parent.name, self._open(str(directory), directory), name)

    def _at_uri(self, uri: str, *, finished: bool) -> FoundJob:
        """The job that a URI in an object store names: the URI of a manifest, of a job's directory
        or of a bucket."""
        inside = re.fullmatch(OF_A_JOB, uri)
        if inside is None:
            if uri.endswith(".json"):
                holder, name = object_in(uri) or (uri, "")
                opened = self._open(holder)
                return FoundJob(Path(name).stem, opened, name, in_place=False, given=holder)
            found = _newest(_jobs_in(self._existing(uri), uri), finished=finished)
            if not found:
                raise InputError(f"there is no job in {uri}")
            return self._followed(found[0])
        bucket, job_id = self._open(inside[1]), inside[2]
        for name in [inside[3]] if inside[3] else [MANIFEST, REPORT]:
            path = f"{job_directory(job_id)}{name}"
            try:
                bucket.stat(path)
            except ObjectNotFoundError:
                continue
            return FoundJob(job_id, bucket, path, given=inside[1])
        if inside[3]:
            raise InputError(f"there is no {inside[3]} of job {job_id} in {place(bucket.uri)}")
        return FoundJob(job_id, bucket, "", given=inside[1])

    def _followed(self, found: FoundJob) -> FoundJob:
        """``found``; or, if ``found`` is in the bucket of one of several outputs, the same job in
        the bucket that has its manifest. The second bucket has to be of the same store, because
        anyone who can write to the first bucket can name a second one there."""
        from dsort.results.journal import result_elsewhere

        if not found.document.endswith(RESULT):
            return found
        uri = result_elsewhere(found.bucket, found.job_id)
        where = f"the manifest of job {found.job_id} is in {place(uri)}"
        if uri.partition("://")[0] != found.bucket.uri.partition("://")[0]:
            raise InputError(where, hint="name that bucket")
        bucket, name = self._open(uri), manifest_name(found.job_id)
        try:
            bucket.stat(name)
        except ObjectNotFoundError:
            hint = "the other shards of the job may be gone, too"
            raise InputError(f"{where} no longer", hint=hint) from None
        given = "" if uri.startswith("file:") else uri
        return FoundJob(found.job_id, bucket, name, given=given)

    def _newest_in(self, bucket: str, *, finished: bool) -> list[FoundJob]:
        """The newest job in ``bucket``; [] if that is no bucket or has no job."""
        try:
            opened = self._existing(bucket)
        except DsortError:
            return []
        return _newest(_jobs_in(opened, bucket), finished=finished)

    def _buckets_under(self) -> Iterator[Bucket]:
        inside = sorted(self._root.iterdir()) if self._root.is_dir() else []
        for directory in (self._root, *inside):
            if (directory / INTERNAL_PART).is_dir():
                yield self._open(str(directory.resolve()))


def _named(jobs: list[FoundJob]) -> str:
    newest = sorted(jobs, key=lambda each: each.job_id, reverse=True)
    names = [f"{each.job_id} in {place(each.bucket.uri)}" for each in newest[:JOBS_NAMED]]
    return ", ".join(names) + (", ..." if len(jobs) > JOBS_NAMED else "")


def _newest(jobs: Iterator[FoundJob], *, finished: bool) -> list[FoundJob]:
    """The newest of ``jobs``, all of one bucket, by the time of the commit of a finished job, and
    by the start of another job. With ``finished``, the last committed job, if there is one."""
    from dsort.results.earlier_results import commits
    from dsort.results.job_ids import moment_of_id

    known = {each.job_id: each for each in jobs}
    done = [each for each in known.values() if each.document.endswith(MANIFEST)]
    moments = {}
    if len(known) > 1 and done:
        found = commits(done[0].bucket, [each.job_id for each in done])
        moments = {each.job_id: each.moment for each in found}
    if finished:
        known = {each.job_id: each for each in known.values() if each.finished} or known
    by_age = sorted(known, key=lambda job_id: (moments.get(job_id, moment_of_id(job_id)), job_id))
    return [known[job_id] for job_id in by_age[-1:]]


def _jobs_in(bucket: Bucket, given: str) -> Iterator[FoundJob]:
    documents: dict[str, str] = {}
    for found in bucket.list(f"{INTERNAL_PART}/"):
        _, job_id, *inside = found.name.split("/")
        if not inside:
            continue  # a file that belongs to no job
        known = documents.setdefault(job_id, "")
        # A job with a manifest and a report is finished: it was aborted once, and resumed.
        if inside == [MANIFEST] or (inside in ([REPORT], [RESULT]) and not known):
            documents[job_id] = found.name
    return (FoundJob(job_id, bucket, name, given=given) for job_id, name in documents.items())


PATH_BEGINNINGS = ("/", "./", "../")


def bucket_uri(text: str) -> str:
    """The bucket that ``text`` names, as a spec would write it.

    A spec takes bare names (under the data root) and URIs. Here, a text that looks like a path
    (``/data/images``, ``./images``) also names a directory, relative to the current one.
    """
    if text == ".." or text.startswith(PATH_BEGINNINGS):
        return Path(text).resolve().as_uri()
    return text


def object_in(text: str) -> tuple[str, str] | None:
    """(bucket, name) of the object that ``text``, a URI of an object store, names; None if it is no
    such URI. ``SpecError`` if it names a bucket only."""
    from dsort.errors import SpecError
    from dsort.storage.ref import BucketRef
    from dsort.storage.registry import parse_address, split_scheme

    scheme, _ = split_scheme(text) or ("file", "")
    if scheme == "file":
        return None
    ref = parse_address(text)
    bucket, _, name = ref.path.rpartition("/")
    if not bucket:
        raise SpecError(f"{text} names no object", hint=f'write "{ref.uri}/NAME"')
    return BucketRef(ref.scheme, bucket).uri, name


def open_place(text: str, root: Path, settings: Settings) -> Bucket:
    """Open the bucket that ``text`` names. ``SpecError`` if it names none."""
    from dsort.options import open_with_settings

    return open_with_settings(bucket_uri(text), root=root, settings=settings)


def open_existing(text: str, root: Path, settings: Settings) -> Bucket:
    """The bucket that ``text`` names. ``ObjectNotFoundError`` if it does not exist."""
    bucket = open_place(text, root, settings)
    if not bucket.exists():
        raise ObjectNotFoundError(
            f"there is no bucket {place(bucket.uri)}", hint=absent_hint(bucket.uri)
        )
    return bucket
