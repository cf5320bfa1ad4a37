"""Files inside of tars: tars of files, and tars of tars of files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from dsort.containers.base import drive, refusal
from dsort.containers.codecs.decoding import EXPANSION_FLOOR_BYTES, EXPANSION_MAX_DEFAULT
from dsort.containers.tar.container import TAR
from dsort.data.members import MemberKind, MemberTable
from dsort.errors import ShardEndError

__all__ = ["ARCHIVE_SUFFIX", "NO_FILE", "Inside", "files_inside"]

ARCHIVE_SUFFIX = b".tar"
WINDOW_BYTES = 1 << 20
NO_FILE = -1
"""The size of entries that are not files: a link to a missing file, a pipe, a device."""


class Inside(NamedTuple):
    """A file in an archive. ``path``: of the archive without its suffix, and of the file in it.
    ``size``: in bytes, or ``NO_FILE``. ``start``: the offset of its first byte in the outermost
    archive."""

    path: bytes
    size: int
    start: int


class Readable(Protocol):
    """An object that can be read at any offset."""

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``."""


def files_inside(path: bytes, size_bytes: int, source: Readable) -> Iterator[Inside]:
    """The files of the tar ``path``, in its order. If it holds tars, the files of these, with the
    paths of the inner tars only. ``CorruptShardError`` names the archive."""
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

    drive(scanner, size_bytes, read, window_bytes=WINDOW_BYTES)
    table = scanner.finish()
    refused = refusal(TAR.oddities, table.notes, "abort", "read")
    if refused:
        raise ShardEndError(f"archive {name} {refused[0]}", hint="fetch or make it again")
    return table
