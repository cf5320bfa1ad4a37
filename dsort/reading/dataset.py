"""Records of many shards: by number and key (:class:`dsort.Dataset`), or one after the other."""

from __future__ import annotations

import contextlib
import operator
import os
import random
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import ClassVar, Final, overload

import numpy as np
import xxhash
from msgspec import Struct

from dsort.closing import ClosesOnExit
from dsort.containers.codecs.decoding import EXPANSION_MAX_DEFAULT, DecodingRules
from dsort.data.columns import Int64s, are_all_rows, offsets_of, row_numbers
from dsort.data.members import MemberTable
from dsort.data.segments import Segments
from dsort.errors import StorageError
from dsort.html_tables import members_html
from dsort.moves.bare import payload_table
from dsort.moves.input_shard import ShardBytes
from dsort.naming.names import first_few
from dsort.options import RunOptions, default_options
from dsort.reading.places import ShardPlace, Where, find_shards
from dsort.reading.record_index import RecordIndex, adjacent_records, text_of
from dsort.reading.shard import Record, Shard
from dsort.reading.shard_reader import ShardReader, whole_members
from dsort.reading.table_records import TableRecords
from dsort.results.report import JobReport
from dsort.sizes import format_bytes
from dsort.stop_flag import StopFlag
from dsort.storage.bucket import ObjectInfo

__all__ = [
    "BoundedIndexCache",
    "Dataset",
    "IndexCache",
    "NoIndexes",
    "ShardRecord",
    "default_cache",
    "read_shards",
]

SHARDS_OPEN_MAX: Final = 64
THREADS: Final = 8


class Dataset(ClosesOnExit, Sequence[Record]):
    """The records of a result, of a bucket, or of any shards. Any number of threads may use it.

    ::

        dataset = dsort.Dataset(report)  # or a manifest, a bucket, a template, a list of shards
        print(len(dataset), dataset[0].key)
        for record in dataset.sample(10, seed=1):
            print(record.shard, record.sizes)
        (cat,) = dataset.where("animals/000017")

    The number of records of each shard is read from the manifest; for shards without a manifest,
    all headers are read once. The places of the records in a shard are found when the first of
    them is read, and kept on this machine, in ``cache``: None for ``~/.cache/dsort/indexes``, "" to
    keep nothing. Shards that are not plain (a codec, a zip, a table) are opened again by each
    process.
    """

    def __init__(
        self,
        where: Where,
        *,
        job_id: str | None = None,
        cache: str | Path | None = None,
        options: RunOptions | None = None,
        max_expansion: float = EXPANSION_MAX_DEFAULT,
    ) -> None:
        """``where``, ``job_id``, ``options`` and ``max_expansion``: as for
        :func:`dsort.read_shards`. Raises the same errors as that function."""
        self.places: Sequence[ShardPlace] = list(
            find_shards(where, job_id, options or default_options())
        )
        self.max_expansion = max_expansion
        self._cache = NoIndexes()
        if cache != "":
            self._cache = IndexCache(Path(cache or default_cache()))
        self._lock = threading.Lock()
        self._open: OrderedDict[int, Shard] = OrderedDict()

    def close(self) -> None:
        """Release all shards. The next read opens them again."""
        with self._lock:
            self._open.clear()

    @property
    def shards(self) -> list[str]:
        """The names of the shards, in order."""
        return [place.name for place in self.places]

    @cached_property
    def counts(self) -> Int64s:
        """The number of records of each shard, shape ``(shards,)``."""
        counts = np.array([place.records or 0 for place in self.places], np.int64)
        unknown = [at for at, place in enumerate(self.places) if place.records is None]
        if unknown:
            with ThreadPoolExecutor(THREADS, thread_name_prefix="dsort-count") as threads:
                counts[unknown] = list(threads.map(self._count, unknown))
        return counts

    @cached_property
    def size_bytes(self) -> int:
        """The stored size of all shards together."""
        known = [_known_bytes(place) for place in self.places]
        unknown = [place for place, size in zip(self.places, known, strict=True) if size is None]
        with ThreadPoolExecutor(THREADS, thread_name_prefix="dsort-stat") as threads:
            asked = sum(info.size_bytes for info in threads.map(self._info, unknown))
        return asked + sum(size for size in known if size is not None)

    @cached_property
    def digest(self) -> str:
        """A hash of the dataset in 32 hexadecimal digits. It covers the names of its shards, their
        numbers of records, and their checksums in the manifest. It does not depend on where the
        shards are, because all ranks have to agree on it."""
        found = xxhash.xxh3_128()
        for place, count in zip(self.places, self.counts.tolist(), strict=True):
            line = f"{place.name}\0{count}\0{place.xxh3 or place.view_xxh3}\n"
            found.update(line.encode("utf-8", "surrogateescape"))
        return found.hexdigest()

    def sample(self, count: int, *, seed: int | None = None) -> list[Record]:
        """``count`` records, drawn uniformly, none of them twice; fewer if the dataset has fewer.
        The same ``seed`` gives the same records; None gives others each time."""
        total = len(self)
        return [self[at] for at in random.Random(seed).sample(range(total), min(count, total))]

    def where(self, key: str) -> list[Record]:
        """All records with that key, in order. Reads the headers of shards whose records have no
        known places yet."""
        wanted = key.encode("utf-8", "surrogateescape")

        def found(at: int) -> list[int]:
            index = self.record_index(at)
            return (
                list(self.shard(at).numbers_of(key)) if index is None else index.numbers_of(wanted)
            )

        with ThreadPoolExecutor(THREADS, thread_name_prefix="dsort-where") as threads:
            numbers = threads.map(found, range(len(self.places)))
            return [self.record(at, row) for at, rows in enumerate(numbers) for row in rows]

    def shard(self, at: int) -> Shard:
        """Shard number ``at``, open. Do not close it: another thread may read from it. Its file is
        released when the shard is no longer referenced."""
        with self._lock:
            shard = self._open.get(at)
            if shard is not None:
                self._open.move_to_end(at)
                return shard
        place = self.places[at]
        known = self.known_index(place, self._info(place)) if self._cache.is_on else None
        opened = Shard(place, max_expansion=self.max_expansion, index=known)
        with self._lock:
            # Another thread may have opened the shard meanwhile. All threads use the first object,
            # so that its headers are read once.
            shard = self._open.setdefault(at, opened)
            while len(self._open) > SHARDS_OPEN_MAX:
                self._open.popitem(last=False)
        return shard

    def record(self, at: int, number: int) -> Record:
        """Record ``number`` of shard number ``at``. The record keeps no file open."""
        return self.shard(at).record(number, _Files(self, at))

    def record_index(self, at: int) -> RecordIndex | None:
        """The places of the records of shard number ``at``; None if their content is stored encoded
        in any way. The index is looked up in the cache, or made and kept there."""
        place = self.places[at]
        if not self._cache.is_on:
            return self.shard(at).record_index
        info = self._info(place)
        known = self.known_index(place, info)
        if known is None:
            known = self.shard(at).record_index
            if known is not None:
                self.keep_index(place, info, known)
        return known

    def known_index(self, place: ShardPlace, info: ObjectInfo) -> RecordIndex | None:
        """The kept index of the shard that ``info`` describes; None if there is none."""
        return self._cache.find(place.bucket.uri, info)

    def keep_index(self, place: ShardPlace, info: ObjectInfo, index: RecordIndex) -> None:
        """Keep the index of the shard that ``info`` describes."""
        self._cache.keep(place.bucket.uri, info, index)

    def __len__(self) -> int:
        return int(self.counts.sum())

    @overload
    def __getitem__(self, at: int) -> Record: ...

    @overload
    def __getitem__(self, at: slice) -> list[Record]: ...

    def __getitem__(self, at: int | slice) -> Record | list[Record]:
        if isinstance(at, slice):
            return [self[each] for each in range(len(self))[at]]
        total, at = len(self), operator.index(at)
        number = at + total if at < 0 else at
        if not 0 <= number < total:
            raise IndexError(f"the dataset has {total:,} records, none is number {at:,}")
        shard = int(np.searchsorted(self._ends, number, "right")) - 1
        return self.record(shard, number - int(self._ends[shard]))

    def __iter__(self) -> Iterator[Record]:
        numbers = (range(count) for count in self.counts.tolist())
        return (self.record(at, row) for at, rows in enumerate(numbers) for row in rows)

    def __repr__(self) -> str:
        return f"<Dataset of {len(self.places):,} shards in {self.places[0].bucket.uri}>"

    @cached_property
    def _ends(self) -> Int64s:
        return offsets_of(self.counts)

    def _info(self, place: ShardPlace) -> ObjectInfo:
        return place.info or place.bucket.stat(place.name)

    def _count(self, at: int) -> int:
        index = self.record_index(at)
        return len(self.shard(at)) if index is None else len(index)


def _known_bytes(place: ShardPlace) -> int | None:
    if place.size_bytes is None and place.info:
        return place.info.size_bytes
    return place.size_bytes


class _Files(Struct, frozen=True):
    """The files of a shard that may be closed and opened again between two reads."""

    dataset: Dataset
    at: int

    def read_files(self, first: int, count: int) -> list[bytes]:
        """See :class:`~dsort.reading.shard.Files`."""
        return self.dataset.shard(self.at).read_files(first, count)

    def read_file(self, at: int, begin: int, bytes_max: int) -> bytes:
        """See :class:`~dsort.reading.shard.Files`."""
        return self.dataset.shard(self.at).read_file(at, begin, bytes_max)


INDEX_BYTES_MAX: Final = 1 << 30
FILE_BYTES: Final = 64
"""Roughly the memory that one file of a shard takes while the index is written."""
COUNTED_BYTES_MIN: Final = 64 << 10
"""Each index file counts at least this much against ``bytes_max``, so that there are few files to
look through."""


def default_cache() -> Path:
    """The default directory of indexes: ``$XDG_CACHE_HOME/dsort/indexes``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if base.startswith("/") else Path.home() / ".cache") / "dsort" / "indexes"


class NoIndexes:
    """The cache of a process that keeps no indexes."""

    is_on: ClassVar[bool] = False
    """Whether indexes are kept."""

    def find(self, bucket_uri: str, info: ObjectInfo) -> RecordIndex | None:
        """The index of the shard ``info``; None if none is kept."""
        return None

    def keep(self, bucket_uri: str, info: ObjectInfo, index: RecordIndex) -> None:
        """Keep the index of the shard ``info``."""


class IndexCache(NoIndexes):
    """Indexes by shard, as files in ``directory``."""

    is_on = True

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file_bytes_max = INDEX_BYTES_MAX

    def find(self, bucket_uri: str, info: ObjectInfo) -> RecordIndex | None:
        """The index of the shard ``info``; None if none is kept."""
        if not info.etag:
            return None
        path = self._path(bucket_uri, info)
        with contextlib.suppress(OSError, StorageError, ValueError):
            with path.open("rb") as file:
                size_bytes = os.fstat(file.fileno()).st_size
                if size_bytes > INDEX_BYTES_MAX:
                    return None
                data = file.read(size_bytes)  # Python allocates as many bytes as it may read
            self._note_use(path)
            return RecordIndex.from_bytes(data, str(path), info.size_bytes)
        return None

    def keep(self, bucket_uri: str, info: ObjectInfo, index: RecordIndex) -> None:
        """Keep the index of the shard ``info``. An index is not kept for a shard without an etag,
        because a later change of the shard would not be found. The file of the index is complete
        from the moment it exists."""
        estimate = len(index.size) * FILE_BYTES  # to find the exact size takes this much memory
        if not info.etag or estimate > self._file_bytes_max:
            return
        path, data = self._path(bucket_uri, info), index.to_bytes()
        if len(data) > self._file_bytes_max:
            return
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd, part = tempfile.mkstemp(dir=path.parent, prefix=".part-")
            try:
                with open(fd, "wb") as file:
                    file.write(data)
                os.replace(part, path)  # noqa: PTH105
            except BaseException:
                os.unlink(part)  # noqa: PTH108
                raise
            self._drop_oldest()

    def _note_use(self, path: Path) -> None:
        """Mark the file at ``path`` as used."""

    def _drop_oldest(self) -> None:
        """Delete files if there are too many."""

    def _path(self, bucket_uri: str, info: ObjectInfo) -> Path:
        """Where the index of a shard is kept."""
        text = f"{bucket_uri}\0{info.name}\0{info.size_bytes}\0{info.etag}"
        name = xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogateescape"))
        return self._directory / name[:2] / f"{name}.col"


class BoundedIndexCache(IndexCache):
    """Indexes by shard, in at most ``bytes_max`` of files: the least recently used are deleted."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        super().__init__(directory)
        self._bytes_max = bytes_max
        self._file_bytes_max = min(INDEX_BYTES_MAX, bytes_max // 2)

    def _note_use(self, path: Path) -> None:
        os.utime(path)

    def _drop_oldest(self) -> None:
        found = []
        for path in self._directory.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):  # another process may delete it meanwhile
                status = path.stat()
                found.append((status.st_mtime_ns, max(status.st_size, COUNTED_BYTES_MIN), path))
        left = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if left <= self._bytes_max:
                return
            path.unlink(missing_ok=True)
            left -= size


BUFFER_BYTES: Final = 64 << 20
"""A shard of at most this size is read in one piece; for a larger one, the headers are read
first."""
AT_ONCE: Final = 1 << 14


class ShardRecord(Struct, frozen=True):
    """One record. ``key``: the common part of the names of its members, without their extensions.

    ``members``: content by name (``0001.jpg``), in the order of the shard. ``shard``: the name of
    the shard that holds the record. Names that are not UTF-8 are decoded with surrogate escapes.
    """

    key: str
    members: dict[str, bytes]
    shard: str

    def _repr_html_(self) -> str:
        """The record as HTML, for a notebook."""
        sizes = ((name, len(content)) for name, content in self.members.items())
        title = f"record {self.key} of {self.shard}"
        return members_html(title, sizes, lambda name, most: self.members[name][:most])

    def __repr__(self) -> str:
        members = [f"{name} {format_bytes(len(data))}" for name, data in self.members.items()]
        return f"<ShardRecord {self.key!r} of {self.shard}: {first_few(members)}>"


def read_shards(
    where: str | Path | JobReport | Sequence[str | Path],
    *,
    job_id: str | None = None,
    options: RunOptions | None = None,
    stop: StopFlag | None = None,
    max_expansion: float = EXPANSION_MAX_DEFAULT,
) -> Iterator[ShardRecord]:
    """Read the records of ``where``, shard by shard in order, and in the order of each shard.

    ``where`` is one of

    - the report that :func:`dsort.run` returned, or the path or URI of a manifest
      (``.../manifest.json``): the shards of that result, in its order;
    - a bucket, with ``job_id``: the result of that job there;
    - a bucket (a directory or a URI): all its shards, sorted by name; or its newest result, if that
      is a view;
    - a shard, or a template of shards: ``s3://bucket/train-{000000..000099}.tar``;
    - a list of shards.

    Paths are relative to the data root: the current directory, unless settings or ``options`` set
    another one. Of ``options`` only ``root``, ``settings`` and ``memory_max_bytes`` matter. A
    quarter of ``memory_max_bytes``, up to 128 MiB, limits the window of a zstd frame (default:
    64 MiB).

    ::

        report = dsort.run(dsort.load_spec("shuffle.yaml"))
        for record in dsort.read_shards(report):
            print(record.key, record.members[f"{record.key}.jpg"][:4], record.shard)

    Neighbouring members with the same key are one record, as webdataset reads them; a name that
    appears again begins another record. A file without an extension is a record of its own.
    Directories, links and devices have no content and are left out. One record is in memory at a
    time, with a buffer of 64 MiB and the headers of one shard; a shard that is larger than the
    buffer is read twice. A compressed shard may decode to ``max_expansion`` times its length. A
    shard that decodes to more is refused, because it may have been made to fill memory and disk.

    ``where`` is looked up at once; shards are read while the iterator advances. Raises
    ``InputError`` and its subclasses (no manifest, a shard that is missing or corrupt, that is not
    whole, or whose length differs from the manifest), ``StorageError``, ``SpecError`` if ``where``
    is no bucket, and ``JobStoppedError`` once ``stop`` is requested.
    """
    options = options or default_options()
    shards = find_shards(where, job_id, options)
    reader = ShardReader(BUFFER_BYTES, stop, memory_max_bytes=options.memory_max_bytes)
    return _records(shards, reader, DecodingRules(max_expansion))


def _records(
    shards: Iterator[ShardPlace], reader: ShardReader, decoding: DecodingRules
) -> Iterator[ShardRecord]:
    for shard in shards:
        with reader.open(shard.bucket, shard.name, decoding) as opened:
            shard.check_size(opened.file_bytes)
            if opened.container.is_columnar:
                for key, cells in TableRecords(opened).records():
                    yield ShardRecord(key, dict(cells), shard.name)
                continue
            yield from _of_shard(opened, payload_table(opened, whole_members(opened)))


def _of_shard(shard: ShardBytes, members: MemberTable) -> Iterator[ShardRecord]:
    records = adjacent_records(members)
    contents = _contents(shard, members, records.rows)
    for begin in range(0, len(records.key_bytes), AT_ONCE):
        bounds = records.offsets[begin : begin + AT_ONCE + 1]
        names = members.names.take(records.rows[bounds[0] : bounds[-1]]).tolist()
        ends = pairwise((bounds - bounds[0]).tolist())
        key_bytes = records.key_bytes[begin : begin + AT_ONCE].tolist()
        for (first, stop), own_bytes in zip(ends, key_bytes, strict=True):
            own = [text_of(name) for name in names[first:stop]]
            key = text_of(names[first][:own_bytes])
            yield ShardRecord(
                key, dict(zip(own, islice(contents, stop - first), strict=True)), shard.name
            )


def _contents(shard: ShardBytes, members: MemberTable, rows: Int64s) -> Iterator[bytes]:
    """The content of each of ``rows`` of a bare table, in their order."""
    start, length = members.payload_start, members.payload_bytes
    if not are_all_rows(rows, len(members)):
        start, length = start[rows], length[rows]
    offsets = row_numbers(len(rows) + 1)
    payload = Segments(offsets, start, length, np.zeros(0, np.uint8))
    for window in shard.windows(payload):
        if window.stop == window.row and start[window.row] >= 0:  # larger than the buffer
            content = bytearray()
            for piece in shard.stream(payload, window.row):
                content += piece
            yield bytes(content)
            continue
        for row in range(window.row, max(window.stop, window.row + 1)):
            if start[row] < 0:
                yield members.literals.get(int(rows[row]), b"")
                continue
            first = int(start[row]) - window.base
            yield bytes(window.view[first : first + int(length[row])])
