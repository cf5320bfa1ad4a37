"""The members that are made of loose files, and runs of them, each of which is read as a shard.

A listing consists of columns with one row for each member, in the order of the record keys. A run
of rows is a tar that is stored nowhere, but its length and the place of each member follow from
names and sizes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import numpy as np
import xxhash
from msgspec import Struct, field

from dsort.containers.tar.header import tar_header
from dsort.containers.tar.scan import END_OF_ARCHIVE
from dsort.data.columns import Bools, BytesColumn, Int32s, Int64s, UInt64s
from dsort.errors import ObjectNotFoundError
from dsort.scratch.columns import ColumnFile, columns_bytes
from dsort.storage.bucket import ObjectInfo

LITERAL = -1
BLOCK_BYTES = 512
SHARD_BYTES = 16 << 20
SHARD_MEMBERS = 8192
SHARDS_MAX = 50_000
"""The maximum number of runs. A shard is read by one worker: shards are small enough to share the
work, even in a job of few files."""
NAME_BYTES_MAX = 100
NAMES = ("utf-8", "surrogateescape")
"""The encoding of names of files, and how bytes that are not in it are shown."""
_PREFIX = "files/"


def shard_name(number: int) -> str:
    """The shard name of the run ``number``."""
    return f"{_PREFIX}{number:06d}.tar"


def stamp_of(info: ObjectInfo) -> int:
    """A number that changes whenever the content of an object does."""
    return xxhash.xxh3_64_intdigest(f"{info.size_bytes} {info.etag}".encode(*NAMES))


def stamp_of_status(status: os.stat_result) -> int:
    """The stamp of a file of this machine. Takes a fifth of the time of ``stamp_of``."""
    text = b"%d %d %d %d" % (
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
    )
    return xxhash.xxh3_64_intdigest(text)


class Listing(Struct, frozen=True, eq=False):
    """Members in order. ``names``: of members. ``sizes``: of their payload, in bytes. ``inputs``:
    the number of the input of each member, or ``LITERAL``. ``paths``: the object in its bucket, or
    the payload itself. ``stamps``: see ``stamp_of``. ``starts``: where in the object the member
    begins. Run ``i`` is the rows ``first_rows[i]:first_rows[i + 1]``, and has ``shard_bytes[i]``
    bytes. ``classes``: the number of each class by name, if there are classes; a listing that was
    read from a file has none."""

    names: BytesColumn
    sizes: Int64s
    inputs: Int32s
    paths: BytesColumn
    stamps: UInt64s
    starts: Int64s
    first_rows: Int64s
    shard_bytes: Int64s
    classes: Mapping[bytes, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        names: BytesColumn,
        sizes: Int64s,
        inputs: Int32s,
        paths: BytesColumn,
        stamps: UInt64s,
        starts: Int64s,
        records: Int64s,
        *,
        classes: Mapping[bytes, int] | None = None,
    ) -> Listing:
        """A listing of members that are in order. ``records``: the row of the first member of each
        record."""
        stored = _header_bytes(names, sizes) + sizes + (-sizes % BLOCK_BYTES)
        ends = np.cumsum(stored)
        first_rows = _runs(ends, records)
        before = np.concatenate([np.zeros(1, np.int64), ends])[first_rows]
        shard_bytes = np.diff(before) + len(END_OF_ARCHIVE)
        return cls(
            names, sizes, inputs, paths, stamps, starts, first_rows, shard_bytes, classes or {}
        )

    @classmethod
    def empty(cls) -> Listing:
        """A listing without members."""
        none, nothing = np.zeros(0, np.int64), BytesColumn.empty(0)
        stamps = np.zeros(0, np.uint64)
        return cls.of(nothing, none, none.astype(np.int32), nothing, stamps, none, none)

    def __len__(self) -> int:
        """The number of runs."""
        return len(self.shard_bytes)

    def number_of(self, name: str) -> int:
        """The number of the run called ``name``; ``ObjectNotFoundError`` if there is none."""
        digits = name.removeprefix(_PREFIX).removesuffix(".tar")
        number = int(digits) if digits.isdecimal() and digits.isascii() else -1
        # Made again and compared, because 7 and 000007 are one number.
        if not 0 <= number < len(self) or shard_name(number) != name:
            raise ObjectNotFoundError(f"there is no run of files {name}")
        return number

    def rows(self, number: int) -> slice:
        """The rows of a run."""
        return slice(int(self.first_rows[number]), int(self.first_rows[number + 1]))

    def header_bytes(self, rows: slice) -> Int64s:
        """The lengths of the headers of ``rows``."""
        return _header_bytes(self.names.run(rows.start, rows.stop), self.sizes[rows])

    def info(self, number: int) -> ObjectInfo:
        """A run as an object. Its etag depends on everything that the run consists of."""
        rows, state = self.rows(number), xxhash.xxh3_128()
        for column in (self.names, self.paths):
            part = column.run(rows.start, rows.stop)
            state.update(part.offsets.astype(np.int64).tobytes())
            state.update(part.blob.tobytes())
        for numbers in (self.sizes, self.inputs.astype(np.int64), self.stamps, self.starts):
            state.update(np.ascontiguousarray(numbers[rows]).tobytes())
        return ObjectInfo(
            shard_name(number), int(self.shard_bytes[number]), 0, f"files-{state.hexdigest()}"
        )

    def infos(self) -> Iterator[ObjectInfo]:
        """All runs, in order."""
        return map(self.info, range(len(self)))

    def to_bytes(self) -> bytes:
        """The listing as a column file."""
        return columns_bytes({name: getattr(self, name) for name in _COLUMNS})

    @classmethod
    def read(cls, file: ColumnFile) -> Listing:
        """The listing from a file that ``to_bytes`` wrote. ``StorageError`` if it is not such a
        file."""
        texts = [file.bytes_column(name) for name in ("names", "paths")]
        return cls(
            names=texts[0],
            sizes=file.array("sizes"),
            inputs=file.array("inputs"),
            paths=texts[1],
            stamps=file.array("stamps"),
            starts=file.array("starts"),
            first_rows=file.array("first_rows"),
            shard_bytes=file.array("shard_bytes"),
        )


_COLUMNS = (
    "names",
    "sizes",
    "inputs",
    "paths",
    "stamps",
    "starts",
    "first_rows",
    "shard_bytes",
)


def _header_bytes(names: BytesColumn, sizes: Int64s) -> Int64s:
    """The length of ``tar_header`` for each member: one block, except for names that are long or
    not ASCII."""
    found = np.full(len(names), BLOCK_BYTES, np.int64)
    for row in np.flatnonzero(are_odd(names, sizes)).tolist():
        found[row] = len(tar_header(names[row], int(sizes[row])))
    return found


def are_odd(names: BytesColumn, sizes: Int64s) -> Bools:
    """Which members need more than one header block of the common form, because the name is long or
    not ASCII, or the file is large."""
    odd: Bools = (names.lengths > NAME_BYTES_MAX) | (sizes > 0o77777777777)
    odd |= names.rows_with(names.blob >= 0x80)
    return odd


def _runs(ends: Int64s, records: Int64s) -> Int64s:
    """The rows at which runs begin, and the number of rows at the end. ``ends``: where the bytes of
    each member end. ``records``: the first member of each record. A run ends after the record that
    fills it."""
    rows = len(ends)
    bounds = np.concatenate([records[1:], np.array([rows], np.int64)]) if len(records) else records
    size = max(SHARD_BYTES, int(ends[-1]) // SHARDS_MAX if rows else 0)
    found: list[int] = [0]
    while found[-1] < rows:
        start = found[-1]
        limit = (int(ends[start - 1]) if start else 0) + size
        by_bytes = int(np.searchsorted(ends, limit)) + 1
        stop = min(by_bytes, start + SHARD_MEMBERS, rows)
        found.append(int(bounds[np.searchsorted(bounds, stop)]))
    return np.array(found, np.int64)
