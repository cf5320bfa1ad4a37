"""The members that are made of loose files, and runs of them, each of which is read as a shard.

A listing consists of columns with one row for each member, in the order of the record keys. A run
of rows is a tar that is stored nowhere, but its length and the place of each member follow from
names and sizes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import numpy as np
import xxhash
from msgspec import Struct, field
from numpy.typing import NDArray

from dsort.closing import ClosesOnExit
from dsort.containers.tar.container import overwrite_names
from dsort.containers.tar.header import BLOCK_BYTES, NAME_BYTES, OCTAL_SIZE_MAX, tar_header
from dsort.containers.tar.scan import END_OF_ARCHIVE
from dsort.data.columns import Bools, BytesColumn, Int32s, Int64s, UInt64s, offsets_of
from dsort.errors import ChangedInputError, ObjectNotFoundError, StorageError
from dsort.scratch.columns import ColumnFile, columns_bytes
from dsort.storage.bucket import Bucket, ObjectInfo, ReadObject
from dsort.storage.directory.bucket import LocalBucket
from dsort.storage.directory.os_errors import storage_error_of

LITERAL = -1
SHARD_BYTES = 16 << 20
SHARD_MEMBERS = 8192
SHARDS_MAX = 50_000
"""The maximum number of runs. One worker reads a run, so runs are small: even a job with few files
has work for all workers."""
NAMES = ("utf-8", "surrogateescape")
"""The encoding of names of files, and the way in which bytes that are not UTF-8 are kept."""
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
    """Members in order. ``names``: the names of the members. ``sizes``: the sizes of their payload,
    in bytes. ``inputs``: the number of the input of each member, or ``LITERAL``. ``paths``: the
    object in its bucket, or the payload itself. ``stamps``: see ``stamp_of``. ``starts``: where in
    the object the member begins. Run ``i`` is the rows ``first_rows[i]:first_rows[i + 1]``, and has
    ``shard_bytes[i]`` bytes. ``classes``: the number of each class by name, if there are classes; a
    listing that was read from a file has none."""

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
        offsets = offsets_of(stored)
        first_rows = _runs(offsets[1:], records)
        shard_bytes = np.diff(offsets[first_rows]) + len(END_OF_ARCHIVE)
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
        """The number of the run called ``name``; ``ObjectNotFoundError`` if there is no such
        run."""
        digits = name.removeprefix(_PREFIX).removesuffix(".tar")
        number = int(digits) if digits.isdecimal() and digits.isascii() else -1
        # The name is made again and compared, because 7 and 000007 are the same number.
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
        """A run as an object. Its etag depends on the names, sizes, places and stamps of all
        members of the run."""
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
        """The listing from a file that ``to_bytes`` wrote. ``StorageError`` for any other file."""
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
    odd: Bools = (names.lengths > NAME_BYTES) | (sizes > OCTAL_SIZE_MAX)
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


# --------------------------------------------------------------------------------------------------
# Reads one run of files as a tar.


_SIZE = slice(124, 135)
_MODEL = np.frombuffer(tar_header(b"", 0), np.uint8)


def plain_headers(names: BytesColumn, sizes: Int64s) -> NDArray[np.uint8]:
    """The header block of each member, shape ``(n, 512)``. ``names``: ASCII, up to 100 bytes.
    ``sizes``: up to 8 GiB."""
    blocks = np.tile(_MODEL, (len(names), 1))
    blocks[:, _SIZE] = (sizes[:, np.newaxis] >> np.arange(30, -1, -3) & 7) + ord("0")
    overwrite_names(blocks.reshape(-1), names)
    return blocks


READS_AT_ONCE = 16
"""The number of concurrent reads of objects in a store, where each is a request."""


class Places:
    """Access to the files of the inputs. ``local``: for each bucket, its path if it is a directory;
    None for a store."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self.buckets = buckets
        self.local = [
            (each, os.fsencode(each.local_path("x").parent) + b"/")
            if isinstance(each, LocalBucket)
            else None
            for each in buckets
        ]
        self.are_local = None not in self.local

    def stamps(self, number: int, paths: Sequence[bytes]) -> list[int | None]:
        """The current stamps of files of an input; None for missing files."""
        local = self.local[number]
        if local is None:
            names = [path.decode(*NAMES) for path in paths]
            there = self.buckets[number].stat_many(names)
            return [stamp_of(there[name]) if name in there else None for name in names]
        found: list[int | None] = []
        _, root = local
        for path in paths:
            try:
                found.append(stamp_of_status(os.stat(root + path)))  # noqa: PTH116 - four times the time
            except (FileNotFoundError, NotADirectoryError):
                found.append(None)
            except OSError as error:
                raise self._failed(number, path, error) from error
        return found

    def read_into(
        self, target: memoryview, number: int, path: bytes, start: int, stamp: int
    ) -> None:
        """Fill ``target`` from byte ``start`` of the file ``path``. ``ChangedInputError`` if the
        file no longer has ``stamp``."""
        local = self.local[number]
        if local is None:
            with self._open(number, path) as opened:
                if stamp_of(opened.info) != stamp:
                    raise _changed(path)
                if target:
                    opened.read_into(target, start)
            return
        bucket, root = local
        try:
            fd = bucket.open_file(root + path)
            try:
                status = os.fstat(fd)
                # The open file is checked, because the name may lead to another file by now.
                if stamp_of_status(status) != stamp or not stat.S_ISREG(status.st_mode):
                    raise _changed(path)
                while target:
                    got = os.preadv(fd, [target], start)
                    if not got:
                        raise _changed(path)
                    start += got
                    target = target[got:]
            finally:
                os.close(fd)
        except FileNotFoundError:
            raise _changed(path) from None
        except OSError as error:
            raise self._failed(number, path, error) from error

    def _failed(self, number: int, path: bytes, error: OSError) -> StorageError:
        name = path.decode(*NAMES)
        return storage_error_of(error, f"read {name}", self.buckets[number].uri)

    def _open(self, number: int, path: bytes) -> ReadObject:
        try:
            return self.buckets[number].open(path.decode(*NAMES))
        except ObjectNotFoundError:
            raise _changed(path) from None


def _changed(path: bytes) -> ChangedInputError:
    return ChangedInputError(
        f"file {path.decode('utf-8', 'backslashreplace')} changed while the job ran",
        hint="start the job again once nothing writes to its inputs",
    )


class FilesShard(ClosesOnExit):
    """An open run of files (see :class:`~dsort.storage.bucket.ReadObject`). ``has_payload``:
    callers that need only names set it to False; then files are not read, and arbitrary bytes take
    their place."""

    def __init__(self, listing: Listing, number: int, places: Places) -> None:
        rows = listing.rows(number)
        self.info = listing.info(number)
        self.rereads_cheaply = places.are_local
        self.has_payload = True
        self._places = places
        self._names = listing.names.run(rows.start, rows.stop)
        self._paths = listing.paths.run(rows.start, rows.stop)
        self._sizes = listing.sizes[rows]
        self._inputs = listing.inputs[rows]
        self._stamps = listing.stamps[rows]
        self._starts = listing.starts[rows]
        self._heads = listing.header_bytes(rows)
        self._ends = np.cumsum(self._heads + self._sizes + (-self._sizes % BLOCK_BYTES))

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset`` of the tar. ``ChangedInputError`` names a file that
        has changed since it was listed."""
        stop = offset + len(buffer)
        if stop > self.info.size_bytes:
            raise StorageError(f"{self.info.name} ends at byte {self.info.size_bytes:,}")
        first = int(np.searchsorted(self._ends, offset, side="right"))
        last = min(int(np.searchsorted(self._ends, stop)) + 1, len(self._ends))
        if offset == 0 and stop == self.info.size_bytes:
            self._fill_whole(buffer)
            return
        self._fill_rows(range(first, last), buffer, offset)
        end = int(self._ends[-1]) if len(self._ends) else 0
        if stop > end:  # the end of the tar
            at = max(end - offset, 0)
            buffer[at:] = bytes(len(buffer) - at)

    def _fill_whole(self, buffer: memoryview) -> None:
        """Fill ``buffer`` with the whole tar: headers and padding at once, and then the files one
        by one."""
        blocks = np.frombuffer(buffer, np.uint8).reshape(-1, BLOCK_BYTES)
        last = self._ends // BLOCK_BYTES - 1
        bodies = self._ends - self._sizes - (-self._sizes % BLOCK_BYTES)
        heads = (bodies - self._heads) // BLOCK_BYTES
        blocks[last] = 0
        blocks[len(blocks) - 2 :] = 0
        odd = are_odd(self._names, self._sizes)
        plain = np.flatnonzero(~odd)
        blocks[heads[plain]] = plain_headers(self._names.take(plain), self._sizes[plain])
        for row in np.flatnonzero(odd).tolist():
            header = tar_header(self._names[row], int(self._sizes[row]))
            _put(buffer, int(heads[row]) * BLOCK_BYTES, header)
        is_literal = self._inputs == LITERAL
        paths, starts, sizes = self._paths.tolist(), bodies.tolist(), self._sizes.tolist()
        for row in np.flatnonzero(is_literal).tolist():
            buffer[starts[row] : starts[row] + sizes[row]] = paths[row]
        if not self.has_payload:
            return
        rows = np.flatnonzero(~is_literal)
        columns = (self._inputs, self._starts, self._stamps)
        read_into = self._places.read_into
        tasks = (
            (buffer[starts[row] : starts[row] + sizes[row]], number, paths[row], start, stamp)
            for row, number, start, stamp in zip(
                rows.tolist(), *(column[rows].tolist() for column in columns), strict=True
            )
        )
        if self._places.are_local:
            for task in tasks:
                read_into(*task)
        else:
            _at_once(read_into, zip(*tasks, strict=True))

    def _fill_rows(self, members: range, buffer: memoryview, offset: int) -> None:
        """Fill in the bytes of some members that lie in ``buffer``."""
        if self._places.are_local or len(members) < 2:
            for row in members:
                self._fill(row, buffer, offset)
        else:
            _at_once(self._fill, (members, repeat(buffer), repeat(offset)))

    def _fill(self, row: int, buffer: memoryview, offset: int) -> None:
        """Fill in the bytes of a member that lie in ``buffer``, which begins at byte ``offset``."""
        size, head = int(self._sizes[row]), int(self._heads[row])
        end = int(self._ends[row])
        start = end - head - size - (-size % BLOCK_BYTES) - offset
        body, tail, path = start + head, start + head + size, self._paths[row]
        if body > 0:
            _put(buffer, start, tar_header(self._names[row], size))
        if self._inputs[row] == LITERAL:
            _put(buffer, body, path)
        elif tail >= 0 and body < len(buffer) and self.has_payload:
            low, high = max(body, 0), min(tail, len(buffer))
            number, stamp = int(self._inputs[row]), int(self._stamps[row])
            at = int(self._starts[row]) + low - body
            self._places.read_into(buffer[low:high], number, path, at, stamp)
        _put(buffer, tail, bytes(end - offset - tail))

    def forget(self) -> None:
        """Do nothing: files are read once, and closed."""

    def mapping(self) -> memoryview | None:
        """None: a run consists of many files."""
        return None

    def random_reads(self) -> None:
        """Do nothing: a run consists of many files."""

    def close(self) -> None:
        """Do nothing, because no file is open between two reads."""


def _at_once(action: Callable[..., None], columns: Iterable[Iterable[object]]) -> None:
    """Call ``action`` with each row of ``columns``, many at the same time; the first error is
    raised."""
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        for _ in pool.map(action, *columns):
            pass


def _put(buffer: memoryview, at: int, data: bytes) -> None:
    """Put ``data`` at byte ``at`` of ``buffer``, except parts that are outside of it."""
    low, high = max(at, 0), min(at + len(data), len(buffer))
    if low < high:
        buffer[low:high] = data[low - at : high - at]
