"""Records of a view, as the process of a shard writes them for users.

A stranger with write access to the bucket may have written the manifest and the files of the view.
So the places of the inputs come from the row of the job, and each range has to lie inside an input
that has not changed since the manifest was written.
"""

from __future__ import annotations

import contextlib
from base64 import b64encode
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import numpy as np
import xxhash
from msgspec.structs import replace

from dsort.containers.columnar.ranges import MemorySource, Source
from dsort.containers.registry import container_of
from dsort.containers.view import ViewRows, read_view_records
from dsort.data.json_values import to_json
from dsort.data.members import PlacedEntries
from dsort.errors import (
    ChangedInputError,
    CorruptShardError,
    InputError,
    MissingShardError,
    NotFoundError,
    ObjectNotFoundError,
    UnsafeNameError,
)
from dsort.naming.names import check_object_name, position_key, readable
from dsort.reading.places import ShardPlace
from dsort.reading.view import Extents, ViewBucket, shards_of
from dsort.reading.view_records import MemberRange, ViewRecord, view_records
from dsort.results.layout import manifest_name
from dsort.results.manifest import Manifest, ManifestOutput, parse_manifest
from dsort.service.objects.shard_looks import Order, short
from dsort.storage.bucket import Bucket, ObjectInfo, ReadObject
from dsort.storage.small_objects import read_bytes, read_small

MANIFEST_BYTES_MAX: Final = 1 << 28
WHOLE_BYTES: Final = 8 << 20
"""A file of at most this size is read at once, and compared with its XXH3. Larger files are those
of shards with more than about 300,000 records."""
PAGE_BYTES_MAX: Final = 4 << 20
"""The most bytes of an answer: a page of long records has fewer records."""
RECORD_BYTES_MAX: Final = 1 << 20
LITERAL_BYTES_MAX: Final = 64 << 10
_HINT: Final = "make the view again"


def view_page(files: Bucket, inputs: Bucket, order: Order) -> Iterator[bytes]:
    """A page of the records of a view, from number ``first`` on. ``files``: the output bucket of
    the job, ``inputs``: the job's input buckets as one bucket."""
    job_id, first, limit = str(order["job_id"]), int(order["first"]), int(order["limit"])
    try:
        stored = read_small(files, manifest_name(job_id), bytes_max=MANIFEST_BYTES_MAX)
    except ObjectNotFoundError:
        hint = "a schedule with `retain` removes its old results"
        raise NotFoundError(f"job {job_id} is finished and has no manifest", hint=hint) from None
    manifest = parse_manifest(stored)
    if manifest.job_id != job_id or manifest.spec.output != "view":
        raise InputError(f"the manifest of job {job_id} is not that of its view", hint=_HINT)
    view = _View(manifest, files, inputs)
    rows: list[dict[str, Any]] = []
    left = PAGE_BYTES_MAX
    for record in view.records(first, first + limit):
        row = _row(record, view)
        left -= len(to_json(row))
        if rows and left < 0:
            break
        rows.append(row)
    position = first + len(rows)
    following = position if position < view.total else None
    yield to_json({"total": view.total, "records": rows, "next_position": following}).encode()


def _row(record: ViewRecord, view: ViewBucket) -> dict[str, Any]:
    ranges: list[dict[str, Any]] = []
    left = RECORD_BYTES_MAX
    for part in record.ranges:
        found = _range(part, view)
        left -= len(to_json(found))
        if left < 0:
            break
        ranges.append(found)
    key = short(readable(record.key.encode("utf-8", "surrogateescape")))
    total = len(record.ranges)
    return {"position": record.position, "key": key, "ranges": ranges, "ranges_total": total}


def _range(part: MemberRange, view: ViewBucket) -> dict[str, Any]:
    found: dict[str, Any] = {"member": short(readable(part.member)), "bytes": part.length}
    if part.shard >= 0:
        return found | {"shard": view.input_uri(part.shard), "offset": part.offset}
    if part.length <= LITERAL_BYTES_MAX:
        found["base64"] = b64encode(part.literal).decode()
    return found


class _View(ViewBucket):
    """A view of which some records are read. Where a container has no header and no list of
    entries, only the rows of these records are read; for other containers the whole file of the
    view is read."""

    def __init__(self, manifest: Manifest, files: Bucket, inputs: Bucket) -> None:
        super().__init__(manifest, files, inputs)
        self._objects = files
        self._inputs_known = manifest.inputs
        self._shards = [*zip(shards_of(manifest).outputs, manifest.outputs, strict=True)]
        self._cut: dict[str, Extents] = {}
        self.total = sum(shard.records for shard, _ in self._shards)
        for each in manifest.inputs:
            try:
                check_object_name(each.name)
            except ValueError as error:
                text = f"an input of the view of job {manifest.job_id}: {error}"
                raise UnsafeNameError(text, hint=_HINT) from None

    def records(self, first: int, stop: int) -> Iterator[ViewRecord]:
        """Records ``first`` to ``stop``, fewer at the end of the view."""
        begin = 0
        for shard, stored in self._shards:
            at, end = max(first - begin, 0), min(stop - begin, shard.records)
            if at < end:
                with self._places(shard.name):
                    for record in self._of_shard(shard, stored, at, end):
                        yield replace(record, position=begin + record.position)
            begin += shard.records

    def _of_shard(
        self, shard: ManifestOutput, stored: ManifestOutput, at: int, end: int
    ) -> Iterator[ViewRecord]:
        container = container_of(shard.name)
        if container.head is not None or container.entries is not None:
            place = ShardPlace(self, shard.name, shard.file_bytes, shard.records)
            yield from islice(view_records(self, [place], at), end - at)
            return
        ending = container.end(PlacedEntries.of([]), 0)
        self._cut = {shard.name: self._extents(stored, at, end, ending)}
        place = ShardPlace(self, shard.name, records=end - at)
        for number, record in enumerate(view_records(self, [place])):
            if container.numbers_records and record.key == _key(shard.name, number):
                record = _renumbered(record, shard.name, number, at + number)
            yield replace(record, position=at + number)
        self._cut = {}

    def _extents(self, stored: ManifestOutput, at: int, end: int, ending: bytes) -> Extents:
        """The places of records ``at`` to ``end`` of a shard, and its ``ending``."""
        with self._objects.open(stored.name) as file:
            rows, schema = read_view_records(stored.name, _source(file, stored), at, end)
        for row in np.flatnonzero(rows.shard >= 0).tolist():
            number, begin = int(rows.shard[row]), int(rows.offset[row])
            known = self._inputs_known[number] if number < len(self._inputs_known) else None
            if known is None or int(rows.length[row]) > known.bytes - begin:
                where = f"byte {begin:,} of {known.name}" if known else f"input {number:,}"
                text = f"record {int(rows.record[row]):,} is at {where}, which does not exist"
                raise CorruptShardError(stored.name, 0, text)
        ends = [ViewRows.literal(ending)] if ending else []
        return Extents.of(ViewRows.concat([rows, *ends]), schema)

    @contextlib.contextmanager
    def _places(self, name: str) -> Iterator[None]:
        """An error about corrupt bytes of the shard ``name`` becomes an error about the input that
        has these bytes."""
        try:
            yield
        except CorruptShardError as error:
            found = self.source_of(name, error.offset) if error.shard == name else None
            shard, offset = found or (error.shard, error.offset)
            raise CorruptShardError(shard, offset, error.reason, hint=_HINT) from None
        except ObjectNotFoundError as error:
            raise MissingShardError(f"a part of the view is gone: {error}", hint=_HINT) from None

    def stat(self, name: str) -> ObjectInfo:
        """A shard, or the part of it that is read."""
        cut = self._cut.get(name)
        return super().stat(name) if cut is None else ObjectInfo(name, int(cut.at[-1]), 0, "cut")

    def extents(self, name: str) -> Extents:
        """The places of the bytes of a shard, or of the part of it that is read."""
        return self._cut[name] if name in self._cut else super().extents(name)


def _key(shard: str, number: int) -> str:
    return position_key(shard, number).decode("utf-8", "surrogateescape")


def _renumbered(record: ViewRecord, shard: str, number: int, own: int) -> ViewRecord:
    """A record whose key is made of its number: the key gets the number ``own`` in place of
    ``number``."""
    known, key = position_key(shard, number), position_key(shard, own)
    ranges = tuple(
        replace(part, member=key + part.member.removeprefix(known)) for part in record.ranges
    )
    return ViewRecord(record.position, _key(shard, own), ranges)


def _source(file: ReadObject, stored: ManifestOutput) -> Source:
    """The bytes of a file of a view."""
    if file.info.size_bytes == stored.file_bytes:
        if stored.file_bytes > WHOLE_BYTES:
            return _Ranges(file)
        data = read_bytes(file, 0, stored.file_bytes)
        if xxhash.xxh3_64_hexdigest(data) == stored.xxh3:
            return MemorySource(memoryview(data))
    raise ChangedInputError(f"{stored.name} is not what its manifest says", hint=_HINT)


class _Ranges:
    """A file that is read by ranges (see :class:`~dsort.containers.columnar.ranges.Source`)."""

    def __init__(self, file: ReadObject) -> None:
        self._file = file
        self.size_bytes = file.info.size_bytes

    def whole(self) -> memoryview | None:
        return None

    def read(self, offset: int, length: int) -> bytes:
        return read_bytes(self._file, offset, max(min(length, self.size_bytes - offset), 0))

    def held(self, offset: int, length: int) -> memoryview | None:
        return memoryview(self.read(offset, length)) if length <= WHOLE_BYTES else None
