"""The zip format: finds the members in a shard's bytes, without a copy of any payload.

The end is read first, then the central directory, then the local headers in their order in the
shard. Only entries in the central directory are members, in its order. An entry is moved as it is
stored: its local header, its data, and its data descriptor if it has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from msgspec.structs import replace

from dsort.containers.base import Need, Scanner, shortfall_in
from dsort.containers.zip.directory import Directory, read_directory
from dsort.containers.zip.end import TAIL_BYTES_MAX, ZipEnd, find_end
from dsort.containers.zip.entries import carried_entries, local_header
from dsort.containers.zip.layout import DEFLATE, DESCRIBED, LOCAL_MAGIC, STORED
from dsort.containers.zip.local import LocalScan
from dsort.containers.zip.oddities import ODDITIES, ZipNotes
from dsort.data.columns import Bools, Int64s
from dsort.data.members import MemberKind, MemberTable
from dsort.errors import CorruptShardError

__all__ = ["scan_zip"]


def scan_zip(shard: str, size_bytes: int) -> Scanner:
    """See ``Container.scanner``. Returns the members in the order of the central directory."""
    if size_bytes == 0:
        raise CorruptShardError(shard, 0, "it has no bytes")
    at = max(size_bytes - TAIL_BYTES_MAX, 0)
    end = find_end(shard, bytes((yield Need(at, size_bytes - at))), at)
    locals_ = LocalScan((yield from read_directory(shard, end)))
    yield from locals_.read()
    head, head_bytes = b"", len(LOCAL_MAGIC)
    if end.shift >= head_bytes:
        head = bytes((yield Need(0, head_bytes))[:head_bytes])
    return _table(locals_, end, head == LOCAL_MAGIC)


def _table(locals_: LocalScan, end: ZipEnd, leading_zip: bool) -> MemberTable:
    directory, order, places = locals_.directory, locals_.order, locals_.places
    data, stop = np.empty_like(places.data), np.empty_like(places.stop)
    mended = np.empty_like(places.mended)
    data[order], stop[order], mended[order] = places.data, places.stop, places.mended
    names, cp437 = directory.texts()
    kind = directory.kinds()
    links = kind == MemberKind.SYMLINK  # their targets are in headers: no payload
    leading = int(directory.start.min()) if len(directory) else directory.at
    notes = ZipNotes(
        trailing_bytes=end.trailing_bytes,
        leading_zip_bytes=end.shift if leading_zip else 0,
        leading_bytes=leading,
        unlisted_bytes=directory.at - leading - int((places.stop - np.sort(directory.start)).sum()),
        comment_bytes=end.comment_bytes,
        mended=tuple(np.flatnonzero(mended).tolist()),
        cp437_names=cp437,
        other_methods=_other_methods(directory),
    )
    mended |= links & (directory.heads["flags"] & DESCRIBED != 0)
    mended_rows = tuple(np.flatnonzero(mended).tolist())
    start = np.where(mended, data, directory.start)
    range_stop = np.where(mended, data + directory.stored, stop)
    return MemberTable(
        names=names,
        kind=kind,
        payload_start=np.where(links, range_stop, data),
        payload_bytes=np.where(links, 0, directory.size),
        range_start=start,
        range_length=range_stop - start,
        literals=_new_headers(directory, mended_rows),
        notes=replace(notes, shortfall=shortfall_in(ODDITIES, notes)),
        entries=carried_entries(directory, mended_rows),
        compressed_bytes=_compressed_bytes(directory, links),
    )


def _new_headers(directory: Directory, rows: tuple[int, ...]) -> Mapping[int, bytes]:
    headers = {row: local_header(directory, row) for row in rows}
    return headers or MappingProxyType({})


def _other_methods(directory: Directory) -> tuple[int, ...]:
    known = np.isin(directory.heads["method"], (STORED, DEFLATE))
    return tuple(np.flatnonzero(~known).tolist())


def _compressed_bytes(directory: Directory, links: Bools) -> Int64s | None:
    compressed = (directory.heads["method"] != STORED) & ~links
    if not compressed.any():
        return None
    lengths: Int64s = np.where(compressed, directory.stored, -1)
    return lengths
