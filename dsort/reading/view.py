"""A view as a bucket. Its objects are the shards that the job would have written; their bytes are
read from the inputs."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import groupby, islice
from operator import attrgetter
from typing import Final, NamedTuple, NoReturn, Protocol

import numpy as np
import xxhash
from msgspec import Struct, field
from msgspec.structs import replace

from dsort.closing import ClosesOnExit
from dsort.containers.view import ViewRows, read_view
from dsort.data.columns import Int64s, offsets_of
from dsort.errors import (
    ChangedInputError,
    CorruptShardError,
    InputError,
    MissingShardError,
    ObjectNotFoundError,
    StorageError,
)
from dsort.naming.names import VIEW_SUFFIX, check_output_name, first_few
from dsort.options import RunOptions, open_with_settings
from dsort.reading.file_ranges import FileRanges
from dsort.results.earlier_results import commits, manifests_in
from dsort.results.layout import job_of, manifest_name
from dsort.results.manifest import Manifest, ManifestInput, ManifestOutput, parse_manifest
from dsort.storage.bucket import Bucket, MadeBucket, ObjectInfo, ReadObject
from dsort.storage.directory.os_errors import StorageErrors
from dsort.storage.process_limits import files_that_fit
from dsort.storage.ref import object_uri
from dsort.storage.routed import BucketPlace, Routed, open_inputs
from dsort.storage.small_objects import read_small

__all__ = ["ViewBucket", "ViewObject", "open_view", "refuse_changed", "shards_of", "view_of_file"]

FILE_BYTES_MAX: Final = 1 << 30
MANIFEST_BYTES_MAX: Final = 4 << 30
ROWS_KEPT_MAX: Final = 1 << 22
INPUTS_OPEN_MAX: Final = 512
NAMES_A_BATCH: Final = 10_000
THREADS: Final = 16
EXTENTS_AT_ONCE: Final = 1 << 16
"""A window of short ranges is read in parts: a range takes far more memory than its bytes."""
AT_ONCE_BYTES_MIN: Final = 1 << 20
"""Less than this is read from files by one thread: it is mostly in the page cache."""
_BYTES_MAX: Final = (1 << 63) - 1
_HINT: Final = "a view points into its inputs: put them back, or make the view again"


def open_view(
    manifest: Manifest, files: Bucket, options: RunOptions
) -> tuple[Manifest, ViewBucket]:
    """(manifest, bucket) of the shards that the job would have written without a view. ``files``:
    where the files of the view are. ``ChangedInputError`` and ``MissingShardError`` name inputs
    that have changed or are gone."""
    inputs = open_inputs(
        [BucketPlace(each.name, each.bucket) for each in manifest.spec.sources],
        lambda place: open_with_settings(place.ref, root=options.root, settings=options.settings),
    )
    refuse_changed(manifest.inputs, inputs)
    return shards_of(manifest), ViewBucket(manifest, files, inputs)


def view_of_file(files: Bucket, name: str, options: RunOptions) -> tuple[ViewBucket, str]:
    """(the newest view in the bucket ``files`` that has the file ``name``, the name of the shard of
    that file)."""
    jobs = {job_of(each.name) for each in manifests_in(files)}
    for commit in commits(files, jobs):
        stored = manifest_name(commit.job_id)
        manifest = parse_manifest(read_small(files, stored, bytes_max=MANIFEST_BYTES_MAX))
        if any(each.name == name for each in manifest.outputs):
            return open_view(manifest, files, options)[1], name.removesuffix(VIEW_SUFFIX)
    raise InputError(
        f"no manifest in {files.uri} lists {name}",
        hint="a file of a view cannot be read without its manifest",
    )


def shards_of(manifest: Manifest) -> Manifest:
    """The manifest of a view, turned into a manifest of its shards. Their checksums are not
    known."""
    outputs = []
    for each in manifest.outputs:
        name, size = each.name.removesuffix(VIEW_SUFFIX), each.decoded_bytes
        try:
            check_output_name(name)  # materialized, it becomes the name of an object
        except ValueError as error:
            text = f"job {manifest.job_id} is no view: {error}"
            raise InputError(text, hint="look at its manifest") from None
        if name == each.name or size is None or size < 0 or each.records < 0:
            raise InputError(f"{each.name} is no file of a view", hint="look at its manifest")
        outputs.append(replace(each, name=name, file_bytes=size, decoded_bytes=None, xxh3=""))
    spec = manifest.spec.model_copy(update={"output": "shards"})
    totals = {**manifest.totals, "file_bytes": sum(each.file_bytes for each in outputs)}
    return replace(manifest, spec=spec, outputs=outputs, totals=totals)


def refuse_changed(inputs: Sequence[ManifestInput], bucket: Bucket) -> None:
    """``MissingShardError`` or ``ChangedInputError`` if an input is gone or has changed. Changes of
    a file's mode, owner or links do not count."""
    left = iter(inputs)
    while batch := [*islice(left, NAMES_A_BATCH)]:
        there = bucket.stat_many([each.name for each in batch])
        gone = [each.name for each in batch if each.name not in there]
        if gone:
            text = f"inputs of the view are missing from {bucket.uri}: {first_few(gone)}"
            raise MissingShardError(text, hint=_HINT)
        changed = [each.name for each in batch if not _is_still(there[each.name], each)]
        if changed:
            text = f"inputs of the view in {bucket.uri} have changed: {first_few(changed)}"
            raise ChangedInputError(text, hint=_HINT)


def _is_still(info: ObjectInfo, known: ManifestInput) -> bool:
    return info.is_still(known.bytes, known.etag, any_ctime=True)


class ViewBucket(MadeBucket):
    """The shards of a view. Any number of threads may read them."""

    def __init__(self, manifest: Manifest, files: Bucket, inputs: Bucket) -> None:
        self.uri = files.uri
        self.inputs = inputs
        self._job_id = manifest.job_id
        self._files = files
        self._known = manifest.inputs
        self._outputs = {each.name.removesuffix(VIEW_SUFFIX): each for each in manifest.outputs}
        self._reads = _Inputs(inputs, manifest.inputs)
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Extents] = OrderedDict()

    @property
    def are_files(self) -> bool:
        """Whether the bytes of the view are in local files."""
        return self._reads.are_files

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The shards whose names begin with ``prefix``, in byte order."""
        names = (name for name in self._outputs if name.startswith(prefix))
        return map(self.stat, sorted(names, key=lambda name: name.encode(errors="surrogateescape")))

    def stat(self, name: str) -> ObjectInfo:
        """A shard; its etag depends on the file of the view and on the pinned inputs."""
        output = self._output(name)
        return ObjectInfo(name, output.container_bytes, 0, f"{self._job_id}-{output.xxh3}")

    def open(self, name: str) -> ReadObject:
        """A shard; ``ObjectNotFoundError`` if there is none. ``ChangedInputError`` or
        ``CorruptShardError`` if its file in the view differs from the file that the job wrote."""
        return ViewObject(self.stat(name), self.extents(name), self._reads)

    def extents(self, name: str) -> Extents:
        """Where the bytes of a shard are."""
        with self._lock:
            found = self._kept.get(name)
            if found is not None:
                self._kept.move_to_end(name)
                return found
        found = self._read(self._output(name))
        with self._lock:
            self._kept[name] = found
            rows = sum(len(each.length) for each in self._kept.values())
            # The last shard stays, however many rows it has: it is about to be read.
            while len(self._kept) > 1 and rows > ROWS_KEPT_MAX:
                _, old = self._kept.popitem(last=False)
                rows -= len(old.length)
        return found

    def source_of(self, name: str, offset: int) -> tuple[str, int] | None:
        """(URL of the input shard, offset there) of byte ``offset`` of the shard ``name``; None if
        no input has it."""
        found = self.extents(name).inside(offset, 1)
        return None if found is None else (self.input_uri(found[0]), found[1])

    def input_at(self, shard: int) -> tuple[Bucket, str]:
        """(bucket, name in it) of input shard number ``shard``."""
        name = self._known[shard].name
        if isinstance(self.inputs, Routed):
            return self.inputs.route(name)
        return self.inputs, name

    def input_uri(self, shard: int) -> str:
        """The URI of input shard number ``shard``."""
        bucket, name = self.input_at(shard)
        return object_uri(bucket.uri, name)

    def _output(self, name: str) -> ManifestOutput:
        if name not in self._outputs:
            raise ObjectNotFoundError(f"there is no {name} in the view of job {self._job_id}")
        return self._outputs[name]

    def _read(self, output: ManifestOutput) -> Extents:
        data = read_small(self._files, output.name, bytes_max=FILE_BYTES_MAX)
        if xxhash.xxh3_64_hexdigest(data) != output.xxh3:
            raise ChangedInputError(
                f"{output.name} in {self.uri} differs from its manifest",
                hint="fetch it again, or make the view again",
            )
        rows, schema = read_view(output.name, data)
        stop = np.zeros(len(rows), np.int64)
        is_range = rows.shard >= 0
        if len(rows) and int(rows.shard.max()) < len(self._known):
            # A manifest may have any number, and the column has 64 bits.
            known = [min(max(each.bytes, 0), _BYTES_MAX) for each in self._known]
            sizes = np.array(known or [0], np.int64)
            stop[is_range] = sizes[rows.shard[is_range]]
        # No sum: an offset and a length that are both huge would wrap to a small number.
        fits = np.where(is_range, rows.length <= stop - rows.offset, True)
        total = int(rows.length.sum())
        if not fits.all() or total != output.container_bytes:
            raise CorruptShardError(output.name, 0, "it does not fit its manifest")
        if int(rows.record.max(initial=-1)) >= output.records:
            raise CorruptShardError(output.name, 0, "it has more records than in its manifest")
        return Extents.of(rows, schema)


class Extents(Struct, frozen=True, eq=False):
    """Where the bytes of one shard are: extent ``i`` has the bytes ``at[i]:at[i + 1]`` of the
    shard. They begin at ``start[i]`` of input shard number ``shard[i]``, or of ``literals`` if that
    is -1. ``schema``: of the shard."""

    shard: Int64s
    start: Int64s
    length: Int64s
    at: Int64s
    literals: memoryview
    schema: str

    @classmethod
    def of(cls, rows: ViewRows, schema: str) -> Extents:
        """The extents of the rows of a view. Rows that follow each other in an input are one."""
        shard = rows.shard.astype(np.int64)
        start = np.where(shard < 0, rows.literals.offsets[:-1], rows.offset)
        follows = (shard[1:] == shard[:-1]) & (start[1:] == start[:-1] + rows.length[:-1])
        # A view without rows has no first row: then the slice removes the added True.
        first = np.flatnonzero(np.append(True, ~follows)[: len(shard)])
        length = np.add.reduceat(rows.length, first) if len(first) else rows.length
        literals = np.ascontiguousarray(rows.literals.blob).data
        return cls(shard[first], start[first], length, offsets_of(length), literals, schema)

    def parts(self, offset: int, size_bytes: int) -> Iterator[tuple[int, int, int]]:
        """(input shard or -1, first byte there or in ``literals``, length) of each part of a range
        of the shard, in order."""
        one = self.inside(offset, size_bytes)
        if one is not None:
            yield (*one, size_bytes)
            return
        stop = offset + size_bytes
        first = int(self.at.searchsorted(offset, "right")) - 1
        last = min(int(self.at.searchsorted(stop)), len(self.shard))
        for begin in range(first, last, EXTENTS_AT_ONCE):
            some = slice(begin, min(begin + EXTENTS_AT_ONCE, last))
            begins = np.maximum(self.at[some], offset)
            starts = self.start[some] + (begins - self.at[some])
            lengths = np.minimum(self.at[some.start + 1 : some.stop + 1], stop) - begins
            columns = (each.tolist() for each in (self.shard[some], starts, lengths))
            yield from zip(*columns, strict=True)

    def inside(self, offset: int, size_bytes: int) -> tuple[int, int] | None:
        """(input shard, offset there) of a range of the shard, if one extent of an input has all of
        it."""
        extent = int(self.at.searchsorted(offset, "right")) - 1
        if not 0 <= extent < len(self.shard) or self.shard[extent] < 0:
            return None
        if not 0 < size_bytes <= self.at[extent + 1] - offset:
            return None
        return int(self.shard[extent]), int(self.start[extent] + offset - self.at[extent])


class _Part(NamedTuple):
    """A part of a read: the bytes of ``view`` begin at ``start`` of input shard ``shard``."""

    shard: int
    start: int
    view: memoryview


class ViewObject(ClosesOnExit, ReadObject):
    """One shard of a view."""

    def __init__(self, info: ObjectInfo, extents: Extents, inputs: _Inputs) -> None:
        self.info = info
        self.rereads_cheaply = inputs.are_files
        self._extents = extents
        self._inputs = inputs

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``."""
        one = self._extents.inside(offset, len(buffer))
        if one is not None:
            with self._inputs.reads(one[0]) as reads:
                reads.read_into(buffer, one[1])
            return
        if offset + len(buffer) > self.info.size_bytes:
            raise StorageError(f"{self.info.name} has {self.info.size_bytes:,} bytes")
        parts, literals, done = self._extents.parts(offset, len(buffer)), self._extents.literals, 0
        while some := [*islice(parts, EXTENTS_AT_ONCE)]:
            ranges = []
            for shard, start, length in some:
                view = buffer[done : done + length]
                done += length
                if shard < 0:
                    view[:] = literals[start : start + length]
                else:
                    ranges.append(_Part(shard, start, view))
            self._inputs.read(ranges)

    def read(self, offset: int, size_bytes: int) -> bytes:
        """``size_bytes`` bytes from byte ``offset`` on; they are not copied again if a single input
        has all of them."""
        one = self._extents.inside(offset, size_bytes)
        if one is not None:
            with self._inputs.reads(one[0]) as reads:
                if isinstance(reads, _FileReads):
                    return reads.read(one[1], size_bytes)
        whole = bytearray(size_bytes)
        self.read_into(memoryview(whole), offset)
        return bytes(whole)

    def contents(self, starts: list[int], sizes: list[int]) -> Iterable[bytes]:
        """The contents of the members that begin at ``starts``; each is read by its ``next()``."""
        return map(self.read, starts, sizes)

    def will_need(self, start: int, size_bytes: int) -> None:
        """A hint that these bytes are read soon, so that disks read all of their ranges at once."""
        for shard, begin, length in self._extents.parts(start, size_bytes):
            if shard >= 0:
                with self._inputs.reads(shard) as reads:
                    if isinstance(reads, _FileReads):
                        reads.will_need(begin, length)

    def close(self) -> None:
        """Do nothing: the bucket holds the inputs open."""


class _Reads(Protocol):
    """Reads of one input by several threads."""

    def read_into(self, buffer: memoryview, offset: int) -> None: ...

    def close(self) -> None: ...


class _Open(Struct):
    """An input that is open, or that the thread with ``opening`` is opening. ``users``: how many
    threads read it, counted under ``lock``. A thread reads inside of a ``with``."""

    lock: threading.Lock
    opening: threading.Lock = field(default_factory=threading.Lock)
    reads: _Reads | None = None
    users: int = 0

    def __enter__(self) -> _Reads:
        assert self.reads is not None
        return self.reads

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.users -= 1


class _Inputs:
    """The input shards of a view. Each is opened when it is first read, and pinned to the version
    in the manifest."""

    def __init__(self, bucket: Bucket, known: Sequence[ManifestInput]) -> None:
        self._bucket = bucket
        self._known = known
        self._open: OrderedDict[int, _Open] = OrderedDict()
        self._open_max = files_that_fit(INPUTS_OPEN_MAX)
        self._lock = threading.Lock()

    @cached_property
    def are_files(self) -> bool:
        """Whether all inputs are local files, so that reads send no requests."""
        return all(self._bucket.local_path(each.name) is not None for each in self._known[:1])

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS, thread_name_prefix="dsort-view")

    def read(self, parts: Sequence[_Part]) -> None:
        """Fill all parts, several at a time where this is faster. Parts of one input are read in
        order."""
        ordered = sorted(parts, key=lambda part: part[:2])
        size_bytes = sum(len(part.view) for part in parts)
        if len(parts) < 2 or (self.are_files and size_bytes < AT_ONCE_BYTES_MIN):
            self._read_all(ordered)
            return
        count = min(THREADS, len(ordered))
        with self._lock:
            threads = self._threads
        runs = [
            ordered[len(ordered) * at // count : len(ordered) * (at + 1) // count]
            for at in range(count)
        ]
        # All end before the buffer is used again, whatever happens to one of them.
        begun = [threads.submit(self._read_all, run) for run in runs]
        errors = [each.exception() for each in begun]
        for error in errors:
            if error is not None:
                raise error

    def _read_all(self, parts: Sequence[_Part]) -> None:
        for shard, some in groupby(parts, key=attrgetter("shard")):
            with self.reads(shard) as reads:
                for part in some:
                    reads.read_into(part.view, part.start)

    def reads(self, shard: int) -> _Open:
        """Input number ``shard``, open. The caller has to use it in a ``with``, at whose end the
        input may be closed."""
        with self._lock:
            found = self._open.get(shard)
            if found is None:
                found = self._open[shard] = _Open(self._lock)
            self._open.move_to_end(shard)
            found.users += 1
            if len(self._open) > self._open_max:
                self._close_old()
        try:
            with found.opening:  # other inputs are opened at the same time
                if found.reads is None:
                    found.reads = self._opened(self._known[shard])
        except BaseException:
            found.__exit__()
            raise
        return found

    def _close_old(self) -> None:
        for shard, each in list(self._open.items())[: len(self._open) - self._open_max]:
            # An input with users stays open: they would lose its file.
            if not each.users:
                del self._open[shard]
                if each.reads is not None:
                    each.reads.close()

    def _opened(self, known: ManifestInput) -> _Reads:
        info = ObjectInfo(known.name, known.bytes, known.mtime_ns, known.etag)
        pinned = self._bucket.pinned(info)
        if pinned is not None:
            return pinned
        source = self._bucket.open(known.name)
        if not _is_still(source.info, known):
            source.close()
            text = f"input {known.name} of the view in {self._bucket.uri} has changed"
            raise ChangedInputError(text, hint=_HINT)
        random = source.random_reads()
        if random is None:
            return source
        with random:
            # Without direct reads there is no descriptor to be opened again.
            if random.direct_fd < 0:
                return source
            with source:
                return _FileReads.of(random.direct_fd, known.name, self._bucket.uri)


class _FileReads(FileRanges):
    """An input in a file, which is read in any order."""

    @classmethod
    def of(cls, fd: int, name: str, bucket: str) -> _FileReads:
        """The file of ``fd``, which is not closed here."""
        with StorageErrors(f"read {name}", bucket):
            # The file is opened again, because all copies of a descriptor share one hint.
            own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        os.posix_fadvise(own, 0, 0, os.POSIX_FADV_RANDOM)
        return cls(own, name, bucket)

    # A first look whether the last byte of a range is in the page cache would read the page of this
    # byte alone, before the hint for the range: half the speed with 100 KB a range.

    def _ended(self, at: int, wanted: int) -> NoReturn:
        text = f"input {self._name} of the view ends at byte {at:,}"
        raise ChangedInputError(text, hint=_HINT)
