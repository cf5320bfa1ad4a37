"""Finds a job by as little as its id, whether it is finished, aborted, running or dead."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsort.cli.output import place
from dsort.errors import DsortError, InputError, ObjectNotFoundError
from dsort.job.layout import MANIFEST, REPORT, RESULT, job_directory, manifest_name
from dsort.naming.names import INTERNAL_PART, archive_extension, closest
from dsort.settings import Settings, load_settings

if TYPE_CHECKING:
    from dsort.storage.bucket import Bucket
    from dsort.storage.ref import BucketRef

__all__ = [
    "FoundJob",
    "bucket_uri",
    "data_root",
    "find_job",
    "find_shard",
    "known_jobs",
    "object_in",
    "open_argument",
    "open_existing",
    "opener",
    "scratch_bases",
    "user_settings",
]


JOBS_NAMED = 5
DOCUMENT_BYTES_MAX = 4 << 30
NEAR_LOOKED_AT_MAX = 1000
OF_A_JOB = re.compile(
    rf"(.+)/{re.escape(INTERNAL_PART)}/([^/]+)(?:/({re.escape(MANIFEST)}|{re.escape(REPORT)}))?/*"
)


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job that has files in its output bucket. ``document``: the name of its manifest, or of the
    report of its abort; "" if it has neither, because it runs or died. In the bucket of one of
    several outputs: of the file that says where the manifest is (``_followed``)."""

    job_id: str
    bucket: Bucket
    document: str
    in_place: bool = True  # whether the job wrote to this bucket
    given: str | None = None  # the bucket in the user's words

    @property
    def finished(self) -> bool:
        """Whether there is a manifest: whether there is a result."""
        return bool(self.document) and not self.document.endswith(REPORT)

    def read(self) -> bytes:
        """Its document. ``StorageError`` if that is larger than any that dsort writes."""
        from dsort.storage.small_objects import read_small

        return read_small(self.bucket, self.document, bytes_max=DOCUMENT_BYTES_MAX)

    def parsed(self) -> Any:
        """Its document as JSON values; ``InputError`` if it is no JSON."""
        try:
            return json.loads(self.read())
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self.where} is no JSON document: {error}") from error

    @property
    def where(self) -> str:
        """Its document and its bucket, in words."""
        return f"{self.document} in bucket {self.bucket.uri}"

    @property
    def bucket_uri(self) -> str:
        """The bucket in the words of a spec."""
        return self.bucket.uri if self.given is None else bucket_uri(self.given)


def find_job(
    job: str, *, bucket: str | None, root: Path | None, finished: bool = False
) -> FoundJob:
    """The job that ``job`` means. ``root``: ``--root``. ``job`` may be

    - the path or URI of a manifest, or of a job's directory;
    - a job id, or the beginning of one, if it is unique: of a job in ``bucket``, or without that
      in the data root and the directories in it;
    - a bucket: its newest job (with ``finished``: the newest that finished, if one did).

    ``InputError`` names the known jobs if ``job`` means none of them, or several.
    """
    if "://" in job and not job.startswith("file://"):
        return _at_uri(job, root, finished=finished)
    root = data_root(root, user_settings())
    path = Path(job)
    if path.is_dir():
        path = next((path / name for name in (MANIFEST, REPORT) if (path / name).is_file()), path)
    if path.is_file():
        return _at(path.resolve())
    if path.is_dir() and path.resolve().parent.name == INTERNAL_PART:
        holder = path.resolve().parent.parent
        return FoundJob(path.resolve().name, open_argument(str(holder), root=holder), "")
    known = known_jobs(bucket, root)
    exact = [each for each in known if each.job_id == job]
    found = exact or [each for each in known if each.job_id.startswith(job)]
    found = found or ([] if bucket else _newest_in(job, root, finished=finished))
    if len({each.job_id for each in found}) == 1 and found[0].document.endswith(RESULT):
        return _followed(found[0], root)
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


def known_jobs(bucket: str | None, root: Path) -> list[FoundJob]:
    """The jobs in ``bucket``, or without that in the data root and the directories in it. A job
    that wrote to several of them is the one where its manifest is."""
    buckets = [open_existing(bucket, root=root)] if bucket else _buckets_under(root)
    known = [each for opened in buckets for each in _jobs_in(opened, bucket)]
    there = {each.job_id for each in known if not each.document.endswith(RESULT)}
    return [each for each in known if not (each.document.endswith(RESULT) and each.job_id in there)]


def _named(jobs: list[FoundJob]) -> str:
    newest = sorted(jobs, key=lambda each: each.job_id, reverse=True)
    names = [f"{each.job_id} in {place(each.bucket.uri)}" for each in newest[:JOBS_NAMED]]
    return ", ".join(names) + (", ..." if len(jobs) > JOBS_NAMED else "")


def _newest_in(bucket: str, root: Path, *, finished: bool) -> list[FoundJob]:
    """The newest job in ``bucket``, if that is one."""
    try:
        opened = open_existing(bucket, root=root)
    except DsortError:
        return []
    return _newest(_jobs_in(opened, bucket), finished=finished)


def _newest(jobs: Iterator[FoundJob], *, finished: bool) -> list[FoundJob]:
    """The last of ``jobs``, since ids sort by time. With ``finished``: the last that finished, if
    one did."""
    by_age = sorted(jobs, key=lambda each: each.job_id)
    done = [each for each in by_age if each.finished] if finished else []
    return (done or by_age)[-1:]


def _at_uri(uri: str, root: Path | None, *, finished: bool) -> FoundJob:
    """The job that a URI in an object store means. The URI is one of a manifest, of a job's
    directory or of a bucket."""
    inside = OF_A_JOB.fullmatch(uri)
    if inside is None and uri.endswith(".json"):
        holder, name = object_in(uri) or (uri, "")
        opened = open_argument(holder, root=root)
        return FoundJob(Path(name).stem, opened, name, in_place=False, given=holder)
    if inside is None:
        found = _newest(_jobs_in(open_existing(uri, root=root), uri), finished=finished)
        if not found:
            raise InputError(f"there is no job in {uri}")
        return _followed(found[0], root)
    bucket, job_id = open_argument(inside[1], root=root), inside[2]
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


def _followed(found: FoundJob, root: Path | None) -> FoundJob:
    """The same job in the bucket of its manifest, where ``found`` is in that of one of its outputs.
    Only a bucket of the same store is opened: who can write to the one says where the other is."""
    from dsort.job.elsewhere import result_elsewhere

    if not found.document.endswith(RESULT):
        return found
    uri = result_elsewhere(found.bucket, found.job_id)
    where = f"the manifest of job {found.job_id} is in {place(uri)}"
    if uri.partition("://")[0] != found.bucket.uri.partition("://")[0]:
        raise InputError(where, hint="name that bucket")
    bucket, name = open_argument(uri, root=root), manifest_name(found.job_id)
    try:
        bucket.stat(name)
    except ObjectNotFoundError:
        raise InputError(f"{where} no longer", hint="its other shards may be gone, too") from None
    return FoundJob(found.job_id, bucket, name, given=None if uri.startswith("file:") else uri)


def _at(document: Path) -> FoundJob:
    if document.parent.parent.name != INTERNAL_PART:
        holder = open_argument(str(document.parent), root=document.parent)
        return FoundJob(document.stem, holder, document.name, in_place=False)
    directory = document.parent.parent.parent
    name = f"{job_directory(document.parent.name)}{document.name}"
    return FoundJob(document.parent.name, open_argument(str(directory), root=directory), name)


def _buckets_under(root: Path) -> Iterator[Bucket]:
    inside = sorted(root.iterdir()) if root.is_dir() else []
    for directory in (root, *inside):
        if (directory / INTERNAL_PART).is_dir():
            yield open_argument(str(directory.resolve()), root=root)


def _jobs_in(bucket: Bucket, given: str | None) -> Iterator[FoundJob]:
    documents: dict[str, str] = {}
    for found in bucket.list(f"{INTERNAL_PART}/"):
        _, job_id, *inside = found.name.split("/")
        if not inside:
            continue  # no job's
        known = documents.setdefault(job_id, "")
        # A job with a manifest and a report is finished: it was aborted once, and resumed.
        if inside == [MANIFEST] or (inside in ([REPORT], [RESULT]) and not known):
            documents[job_id] = found.name
    return (FoundJob(job_id, bucket, name, given=given) for job_id, name in documents.items())


PATH_BEGINNINGS = ("/", "./", "../")


def bucket_uri(text: str) -> str:
    """The bucket that ``text`` means, as a spec would write it.

    A spec takes bare names (under the data root) and URIs. Here, a text that looks like a path
    (``/data/images``, ``./images``) means that directory too, relative to the current one.
    """
    if text == ".." or text.startswith(PATH_BEGINNINGS):
        return Path(text).resolve().as_uri()
    return text


def object_in(text: str) -> tuple[str, str] | None:
    """(bucket, name) of an object that ``text``, the URI of an object store, means; None if it is
    no such URI. ``SpecError`` if it names a bucket only."""
    from dsort.errors import SpecError
    from dsort.storage.open import parse_address
    from dsort.storage.ref import BucketRef
    from dsort.storage.registry import split_scheme

    written = split_scheme(text)
    if written is None or written[0] == "file":
        return None
    ref = parse_address(text)
    bucket, _, name = ref.path.rpartition("/")
    if not bucket:
        raise SpecError(f"{text} names no object", hint=f'write "{ref.uri}/NAME"')
    return BucketRef(ref.scheme, bucket).uri, name


def find_shard(shard: str, root: Path | None) -> tuple[str, str]:
    """(bucket, name) of the shard: the URI of an object, a path relative to the current directory,
    or one under the data root. ``root``: ``--root``."""
    at_uri = object_in(shard)
    if at_uri is not None:
        return at_uri
    text = shard.removeprefix("file://")
    paths = (Path(text), data_root(root, user_settings()) / text)
    for path in paths:
        if path.is_file():
            found = path.resolve()
            return str(found.parent), found.name
    near = next(filter(None, map(_near, paths)), None)
    raise ObjectNotFoundError(
        f"there is no shard {shard}",
        hint=f"did you mean {Path(text).with_name(near)}?"
        if near
        else "give a path, or BUCKET/NAME under the data root",
    )


def _near(path: Path) -> str | None:
    """The shard in the directory of ``path`` that is called most like it."""
    try:
        names = [each.name for each in islice(path.parent.iterdir(), NEAR_LOOKED_AT_MAX)]
    except OSError:
        return None
    return closest(path.name, filter(archive_extension, names))


def user_settings() -> Settings:
    """The settings of the user, with those of the current directory."""
    return load_settings(os.environ, Path(), Path("~").expanduser())


def data_root(given: Path | None, settings: Settings) -> Path:
    """The data root: ``--root``, else that of the settings, else the current directory."""
    return given or settings.root or Path()


def open_argument(text: str, *, root: Path | None) -> Bucket:
    """Open the bucket that ``text`` means with the user's settings. ``SpecError`` if it means
    none. ``root``: ``--root``."""
    from dsort.options import open_with_settings

    settings = user_settings()
    return open_with_settings(bucket_uri(text), root=data_root(root, settings), settings=settings)


def opener(root: Path | None) -> Callable[[BucketRef], Bucket]:
    """Opens further buckets of a job, as ``open_argument`` does."""

    def opened(ref: BucketRef) -> Bucket:
        from dsort.options import open_with_settings

        settings = user_settings()
        return open_with_settings(ref, root=data_root(root, settings), settings=settings)

    return opened


def open_existing(text: str, *, root: Path | None) -> Bucket:
    """The bucket that ``text`` means; ``ObjectNotFoundError`` if there is none."""
    bucket = open_argument(text, root=root)
    if not bucket.exists():
        hint = "a bare name is a directory under the data root (--root, DSORT_ROOT)"
        raise ObjectNotFoundError(
            f"there is no bucket {place(bucket.uri)}",
            hint=hint if bucket.uri.startswith("file:") else "",
        )
    return bucket


def scratch_bases() -> list[Path]:
    """Where the jobs of this user, and of this user's service, have their scratch."""
    from dsort.service.config import scratch_dir_of, state_dir_of

    own = user_settings().scratch
    bases = [Path(tempfile.gettempdir()), scratch_dir_of(state_dir_of(None))]
    return bases if own is None else [own, *bases]
