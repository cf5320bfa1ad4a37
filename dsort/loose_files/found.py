"""Lists the files of one input, from its bucket: :func:`found_files`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dsort.errors import MissingShardError
from dsort.loose_files.archives import ARCHIVE_SUFFIX, NO_FILE, files_inside
from dsort.loose_files.listing import stamp_of, stamp_of_status
from dsort.naming.names import first_few, is_internal
from dsort.naming.patterns import glob_prefix, glob_regex
from dsort.sizes import format_count
from dsort.spec.inputs import Source
from dsort.storage.bucket import Bucket
from dsort.storage.directory.bucket import LocalBucket

__all__ = ["NO_FILE", "base_of", "found_files", "named_files"]

_NAMES = ("utf-8", "surrogateescape")


class Found(NamedTuple):
    """A file. ``size``: in bytes, or ``NO_FILE``. ``place``: the object that it is, or in which it
    is, from byte ``start`` on. ``stamp``: of that object."""

    path: bytes
    size: int
    stamp: int
    place: bytes
    start: int


def found_files(source: Source, bucket: Bucket, *, archives: bool) -> Iterator[Found]:
    """All files of an input, in order of the objects. ``archives``: list the files inside of tars
    instead of the tars. ``MissingShardError`` for names that do not exist; errors like
    ``files_inside``."""
    for path, size, stamp in _objects(source, bucket):
        if not archives or not path.endswith(ARCHIVE_SUFFIX) or size == NO_FILE:
            yield Found(path, size, stamp, path, 0)
            continue
        with bucket.open(path.decode(*_NAMES)) as opened:
            for each in files_inside(path, size, opened):
                yield Found(each.path, each.size, stamp, path, each.start)


def _objects(source: Source, bucket: Bucket) -> Iterator[tuple[bytes, int, int]]:
    """(path, size or ``NO_FILE``, stamp) of each object of an input."""
    wanted = source.format
    if wanted.objnames is not None:
        yield from named_files(source, bucket, wanted.objnames)
        return
    prefix, pattern = wanted.prefix or "", None
    if wanted.glob is not None:
        prefix, pattern = glob_prefix(wanted.glob), glob_regex(wanted.glob)
    for path, size, stamp in _listed(bucket, prefix):
        if pattern is not None and not pattern.fullmatch(path.decode(*_NAMES)):
            continue
        if b".dsort" in path and is_internal(path.decode(*_NAMES)):
            continue
        if size or not path.endswith(b"/"):  # an empty object stands for a directory in a store
            yield path, size, stamp


def base_of(source: Source) -> int:
    """The length of the directory with which all paths of an input begin."""
    prefix = source.format.prefix or glob_prefix(source.format.glob or "")
    return len(prefix[: prefix.rfind("/") + 1].encode(*_NAMES))


def named_files(
    source: Source, bucket: Bucket, names: tuple[str, ...]
) -> Iterator[tuple[bytes, int, int]]:
    """(path, size, stamp) of each of ``names``; ``MissingShardError`` for those that do not
    exist."""
    found = bucket.stat_many(names)
    missing = [name for name in names if name not in found]
    if missing:
        raise MissingShardError(
            f"{format_count(len(missing), 'file is', 'files are')} missing from {bucket.uri}: "
            f"{first_few(missing)}",
            hint="check the names; `dsort ls` shows what is there",
        )
    for name in names:
        path, info = name.encode(*_NAMES), found[name]
        place = bucket.local_path(name)
        stamp = stamp_of(info) if place is None else stamp_of_status(place.stat())
        yield path, info.size_bytes, stamp


def _listed(bucket: Bucket, prefix: str) -> Iterator[tuple[bytes, int, int]]:
    if isinstance(bucket, LocalBucket):
        for path, status in bucket.list_all(prefix):
            if status is None:
                yield path, NO_FILE, 0
            else:
                yield path, status.st_size, stamp_of_status(status)
        return
    for info in bucket.list(prefix):
        yield info.name.encode(*_NAMES), info.size_bytes, stamp_of(info)
