"""Lists the files of one input, from its bucket: :func:`found_files`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from dsort.containers.base import drive, refusal
from dsort.containers.codecs.decoding import EXPANSION_FLOOR_BYTES, EXPANSION_MAX_DEFAULT
from dsort.containers.tar.container import TAR
from dsort.data.members import MemberKind, MemberTable
from dsort.errors import MissingShardError, ShardEndError
from dsort.loose_files.listing import stamp_of, stamp_of_status
from dsort.naming.names import first_few, is_internal
from dsort.naming.patterns import glob_prefix, glob_regex
from dsort.sizes import format_count
from dsort.spec.inputs import Source
from dsort.storage.bucket import Bucket
from dsort.storage.directory.bucket import LocalBucket

ARCHIVE_SUFFIX = b".tar"
WINDOW_BYTES = 1 << 20
NO_FILE = -1
"""The size of entries that are not files: a link to a missing file, a pipe, a device."""


class Inside(NamedTuple):
    """A file in an archive. ``path``: the path of the archive without its suffix, followed by the
    path in the archive. ``size``: in bytes, or ``NO_FILE``. ``start``: the offset of its first byte
    in the outermost archive."""

    path: bytes
    size: int
    start: int


class Readable(Protocol):
    """An object that can be read at any offset."""

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``."""


def files_inside(path: bytes, size_bytes: int, source: Readable) -> Iterator[Inside]:
    """The files of the tar ``path``, in its order. If it holds tars, the files in these, with paths
    that begin inside the inner tar. ``CorruptShardError`` names the archive."""
    for name, start, size, is_file in _members(path, 0, size_bytes, source):
        if not is_file or not name.endswith(ARCHIVE_SUFFIX):
            stem = path.removesuffix(ARCHIVE_SUFFIX)
            yield Inside(stem + b"/" + name, size if is_file else NO_FILE, start)
            continue
        stem = name.removesuffix(ARCHIVE_SUFFIX)
        for inner, at, length, is_inner_file in _members(path + b"/" + name, start, size, source):
            yield Inside(stem + b"/" + inner, length if is_inner_file else NO_FILE, start + at)


def _members(
    path: bytes, base: int, size_bytes: int, source: Readable
) -> Iterator[tuple[bytes, int, int, bool]]:
    """(name, first byte, size, whether it is a file) of the members of the tar at byte ``base``."""
    table = _scanned(path.decode("utf-8", "surrogateescape"), base, size_bytes, source)
    columns = (table.payload_start, table.payload_bytes, table.kind)
    rows = zip(table.names.tolist(), *(column.tolist() for column in columns), strict=True)
    for name, start, size, kind in rows:
        while name.startswith(b"./"):
            name = name[2:]
        if kind == MemberKind.DIRECTORY or not name:
            continue  # the files of a directory are members, too
        yield name, start, size, kind == MemberKind.FILE


def _scanned(name: str, base: int, size_bytes: int, source: Readable) -> MemberTable:
    limit = EXPANSION_MAX_DEFAULT * size_bytes + EXPANSION_FLOOR_BYTES
    scanner = TAR.within(limit).scanner(name, size_bytes)

    def read(offset: int, size: int) -> memoryview:
        window = memoryview(bytearray(size))
        source.read_into(window, base + offset)
        return window

    table = drive(scanner, size_bytes, read, window_bytes=WINDOW_BYTES)
    refused = refusal(TAR.oddities, table.notes, "abort", "read")
    if refused:
        raise ShardEndError(f"archive {name} {refused[0]}", hint="fetch or make it again")
    return table


_NAMES = ("utf-8", "surrogateescape")


class Found(NamedTuple):
    """A file. ``size``: in bytes, or ``NO_FILE``. ``place``: the object with its bytes, from byte
    ``start`` on. ``stamp``: of that object."""

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
        yield from named_files(bucket, wanted.objnames)
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


def named_files(bucket: Bucket, names: tuple[str, ...]) -> Iterator[tuple[bytes, int, int]]:
    """(path, size, stamp) of each of ``names``; ``MissingShardError`` if some do not exist."""
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
