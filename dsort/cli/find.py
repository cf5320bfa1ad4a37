"""Finds the jobs, shards and buckets that arguments of commands name, by the user's settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from dsort.errors import InputError, ObjectNotFoundError
from dsort.naming.names import VIEW_SUFFIX, archive_extension, closest
from dsort.reading import results
from dsort.reading.results import FoundJob, JobFinder, object_in, open_place
from dsort.settings import Settings, load_settings

if TYPE_CHECKING:
    from dsort.storage.bucket import Bucket
    from dsort.storage.ref import BucketRef

NEAR_LOOKED_AT_MAX = 1000
_FILE: Final = "file://"


def find_job(job: str, *, bucket: str | None, root: Path | None) -> FoundJob:
    """The job that the argument ``job`` names: see ``JobFinder.find``. ``root``: ``--root``."""
    return _finder(root).find(job, bucket)


def find_result(job: str, *, bucket: str | None, root: Path | None) -> FoundJob:
    """The finished job that ``job`` names. ``InputError`` if the job has no result."""
    found = _finder(root).find(job, bucket, finished=True)
    if not found.finished:
        raise InputError(
            f"job {found.job_id} did not finish: it has no result",
            hint=f"`dsort show {found.job_id} --bucket {found.bucket.uri}` shows what it did",
        )
    return found


def known_jobs(bucket: str | None, root: Path) -> list[FoundJob]:
    """The jobs in ``bucket``; if it is None, the jobs in the data root and in its directories."""
    return _finder(root).known(bucket)


def _finder(root: Path | None) -> JobFinder:
    settings = user_settings()
    return JobFinder(data_root(root, settings), settings, base=Path())


def find_shard(shard: str, root: Path | None) -> tuple[str, str]:
    """(bucket, name) of the shard: the URI of an object, a path relative to the current directory,
    or a path under the data root. ``root``: ``--root``."""
    at_uri = object_in(shard)
    if at_uri is not None:
        return at_uri
    text = shard
    if shard.startswith(_FILE):
        text = unquote(shard.removeprefix(_FILE), errors="surrogateescape")
    paths = (Path(text), data_root(root, user_settings()) / text)
    for path in paths:
        if path.is_file():
            found = path.resolve()
            return str(found.parent), found.name
    if any(path.is_dir() for path in paths):
        raise ObjectNotFoundError(
            f"{shard} is a bucket, not a shard", hint=f"`dsort ls {shard}` lists its shards"
        )
    near = next(filter(None, map(_near, paths)), None)
    raise ObjectNotFoundError(
        f"there is no shard {shard}",
        hint=f"did you mean {Path(text).with_name(near)}?"
        if near
        else "give a path, or BUCKET/NAME under the data root",
    )


def _near(path: Path) -> str | None:
    """The shard in the directory of ``path`` whose name is most similar; None if there is none."""
    try:
        names = [each.name for each in islice(path.parent.iterdir(), NEAR_LOOKED_AT_MAX)]
    except OSError:
        return None
    return closest(path.name, filter(archive_extension, names))


def user_settings() -> Settings:
    """The settings of the user, with those of the current directory."""
    return load_settings(os.environ, Path(), Path("~").expanduser())


def data_root(given: Path | None, settings: Settings) -> Path:
    """The data root: ``--root``, or the data root in the settings, or the current directory."""
    return given or settings.root or Path()


def open_argument(text: str, *, root: Path | None) -> Bucket:
    """Open the bucket that ``text`` names, with the user's settings. ``SpecError`` if it names
    none. ``root``: ``--root``."""
    settings = user_settings()
    return open_place(text, data_root(root, settings), settings)


def open_shard(shard: str, *, root: Path | None) -> tuple[Bucket, str]:
    """(bucket, name in it) of the shard that ``shard`` names. A file of a view is opened as its
    shard."""
    where, name = find_shard(shard, root)
    bucket = open_argument(where, root=root)
    if not name.endswith(VIEW_SUFFIX):
        return bucket, name
    from dsort.options import RunOptions
    from dsort.reading.view import view_of_file

    settings = user_settings()
    options = RunOptions(root=data_root(root, settings), settings=settings)
    return view_of_file(bucket, name, options)


def opener(root: Path | None) -> Callable[[BucketRef], Bucket]:
    """A function that opens other buckets of a job, as ``open_argument`` does."""

    def opened(ref: BucketRef) -> Bucket:
        from dsort.options import open_with_settings

        settings = user_settings()
        return open_with_settings(ref, root=data_root(root, settings), settings=settings)

    return opened


def open_existing(text: str, *, root: Path | None) -> Bucket:
    """The bucket that ``text`` names; ``ObjectNotFoundError`` if it does not exist."""
    settings = user_settings()
    return results.open_existing(text, data_root(root, settings), settings)


def scratch_bases() -> list[Path]:
    """The directories in which jobs of this user, and of this user's service, have their
    scratch."""
    import tempfile

    from dsort.service.config import scratch_dir_of, state_dir_of

    own = user_settings().scratch
    bases = [Path(tempfile.gettempdir()), scratch_dir_of(state_dir_of(None))]
    return bases if own is None else [own, *bases]
