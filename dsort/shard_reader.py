"""Read shards: the records of a result, of a bucket, or of any shards, one after the other.

One reader opens shards for whoever reads them again: users by :func:`read_shards`, ``dsort verify``
by :class:`ShardReader`, which gives the bytes and judges nothing. Verify forms records by its own
rules, so that it does not believe what it is there to doubt.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from dsort.closing import ClosesOnExit
from dsort.containers.base import Container, ContainerOptions
from dsort.containers.codecs.decoding import EXPANSION_MAX_DEFAULT
from dsort.containers.registry import DEFAULT_EXTENSION, check_supported, container_of, is_supported
from dsort.data.columns import Int64s
from dsort.data.index import Segments
from dsort.data.members import MemberKind, MemberTable
from dsort.data.records import split_names
from dsort.errors import (
    ChangedInputError,
    InputError,
    MissingShardError,
    ObjectNotFoundError,
    ShardEndError,
    SpecError,
)
from dsort.job.events import JobReport
from dsort.job.layout import MANIFEST, manifest_name
from dsort.job.manifest import StoredManifest, parse_manifest
from dsort.job.schemas import with_schema_beside
from dsort.naming.inputs import expand_inputs
from dsort.naming.names import INTERNAL_PART, archive_extension, first_few, is_internal
from dsort.options import RunOptions, default_options, open_result, open_with_settings
from dsort.sizes import format_bytes
from dsort.stop_flag import StopFlag
from dsort.storage.bucket import Bucket, ReadObject
from dsort.storage.open import parse_address
from dsort.storage.ref import BucketRef
from dsort.storage.small_objects import read_small
from dsort.workers.conversion import payload_table
from dsort.workers.decoded import DecodingRules
from dsort.workers.payload_files import PayloadBuffer
from dsort.workers.source import ShardBytes

__all__ = ["ShardReader", "ShardRecord", "read_shards"]

BUFFER_BYTES: Final = 64 << 20
"""A shard that is no larger is read in one piece; of a larger one the headers are read first."""
MANIFEST_BYTES_MAX: Final = 4 << 30
NAMES_A_BATCH: Final = 10_000
_SHOWN_MAX: Final = 3
_MANIFEST: Final = re.compile(
    rf"(?:(.*)/)?{re.escape(INTERNAL_PART)}/([^/]+)/{re.escape(MANIFEST)}", re.DOTALL
)
_TEMPLATE: Final = re.compile(r"[{@]|%[0-9]*d")


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """One record. ``key``: what its members' names have in common, without their extensions.

    ``members``: content by name (``0001.jpg``), in the order of the shard. ``shard``: the name of
    the shard that it is in. A name that is not UTF-8 carries surrogate escapes.
    """

    key: str
    members: dict[str, bytes]
    shard: str

    def __repr__(self) -> str:
        shown = islice(self.members.items(), _SHOWN_MAX)
        members = [f"{name} {format_bytes(len(content))}" for name, content in shown]
        members += ["…"] * (len(self.members) > _SHOWN_MAX)
        return f"<ShardRecord {self.key!r} of {self.shard}: {', '.join(members)}>"


def read_shards(
    where: str | Path | JobReport | Sequence[str | Path],
    *,
    job_id: str | None = None,
    options: RunOptions | None = None,
    stop: StopFlag | None = None,
    max_expansion: float = EXPANSION_MAX_DEFAULT,
) -> Iterator[ShardRecord]:
    """The records of ``where``, shard by shard in order, and in the order of each shard.

    ``where`` is one of

    - what :func:`dsort.run` returned, or the path or URI of a manifest (``.../manifest.json``): the
      shards of that result, in its order;
    - a bucket, with ``job_id``: the result of that job there;
    - a bucket (a directory or a URI): all its shards, sorted by name;
    - a shard, or a template of shards: ``s3://bucket/train-{000000..000099}.tar``;
    - a list of shards.

    Paths are relative to the data root: the current directory, unless settings or ``options`` say
    otherwise. Of ``options`` only ``root`` and ``settings`` matter.

    ::

        report = dsort.run(dsort.load_spec("shuffle.yaml"))
        for record in dsort.read_shards(report):
            print(record.key, record.members[f"{record.key}.jpg"][:4], record.shard)

    Neighbours with one key are one record, as webdataset reads them; a name that comes again begins
    another one. A file without an extension is a record of its own. Directories, links and devices
    have no content and are left out. One record is in memory at a time, with a buffer of 64 MiB and
    the headers of one shard; a shard that is larger than the buffer is read twice. A compressed
    shard may hold ``max_expansion`` times its length: what holds more may be made to fill memory
    and disk, and is refused.

    What is asked for is looked up at once, the shards are read as the iterator goes on. Raises
    ``InputError`` and its children (no manifest, a shard that is missing or corrupt, that is not
    whole, or not as long as the manifest says), ``StorageError``, ``SpecError`` for what is no
    bucket, and ``JobStoppedError`` once ``stop`` is requested.
    """
    options = options or default_options()
    how = _How(stop, DecodingRules(max_expansion))
    if isinstance(where, JobReport):
        if where.manifest_name is None:
            raise InputError(f"job {where.job_id} has no result: it is {where.state}")
        return _result(where.output_uri, where.manifest_name, options, how)
    if isinstance(where, (str, Path)):
        return _one_place(str(where), job_id, options, how)
    return _listed(where, options, how)


class ShardReader:
    """Opens shards for reading, counts the bytes, and stops where the user asks for it."""

    def __init__(
        self, buffer_bytes: int, stop: StopFlag | None, options: ContainerOptions | None = None
    ) -> None:
        """``options``: what the job says of how its shards are read."""
        self._options = options or ContainerOptions()
        self._buffer = PayloadBuffer(buffer_bytes)
        self._stop = stop
        self.bytes_read = 0

    @contextmanager
    def open(
        self,
        bucket: Bucket,
        name: str,
        decoding: DecodingRules | None = None,
        container: Container | None = None,
    ) -> Iterator[ShardBytes]:
        """The bytes of one shard; those of one shard at a time. ``container``: if not as its name
        says, with the options that all shards are read with."""
        self.heed_stop()
        with bucket.open(name) as source:
            container = container or container_of(name).with_options(self._options)
            container = with_schema_beside(container, bucket, name)
            counted = _Counted(source, self)
            shard = ShardBytes(
                name,
                counted,
                self._buffer,
                mapped=False,
                container=container,
                decoding=decoding,
            )
            try:
                yield shard
            finally:
                shard.close()

    def heed_stop(self) -> None:
        """``JobStoppedError`` if the user asked to stop."""
        if self._stop is not None:
            self._stop.raise_if_requested()


class _Counted(ClosesOnExit):
    """A source that tells its reader what is read from it."""

    rereads_cheaply = True  # there is no scratch to spool it to

    def __init__(self, source: ReadObject, reader: ShardReader) -> None:
        self.info = source.info
        self._source = source
        self._reader = reader

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._reader.heed_stop()
        self._source.read_into(buffer, offset)
        self._reader.bytes_read += len(buffer)

    def forget(self) -> None:
        """Nothing is forgotten: what is read again is likely to be used next."""

    def mapping(self) -> memoryview | None:
        return None

    def random_reads(self) -> None:
        return None

    def close(self) -> None:
        self._source.close()


# -- which shards --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shard:
    """A shard to be read. ``size_bytes``: what a manifest says, None where none says anything."""

    bucket: Bucket
    name: str
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _How:
    """What the user says of reading."""

    stop: StopFlag | None
    decoding: DecodingRules


def _listed(where: Sequence[str | Path], options: RunOptions, how: _How) -> Iterator[ShardRecord]:
    places = [_object(str(each), options) for each in where]
    buckets = {ref: _open(ref, options) for ref, _ in places}
    return _records((_Shard(buckets[ref], name) for ref, name in places), how)


def _one_place(
    text: str, job_id: str | None, options: RunOptions, how: _How
) -> Iterator[ShardRecord]:
    if job_id is not None:
        return _result(text, manifest_name(job_id), options, how)
    in_place = _MANIFEST.fullmatch(text)
    if in_place is not None:
        return _result(in_place[1] or ".", manifest_name(in_place[2]), options, how)
    if text.endswith(".json"):
        ref, name = _object(text, options)
        manifest = _manifest(_open(ref, options), name)
        bucket = _open(manifest.spec.output_bck, options)
        return _of_manifest(manifest, open_result(manifest.spec, bucket, options), how)
    head, slash, tail = text.rpartition("/")
    at = _TEMPLATE.search(text)
    if at is not None:
        head, slash, tail = text[: at.start()].rpartition("/")
        return _of_template(head if slash else ".", tail + text[at.start() :], options, how)
    if archive_extension(tail if slash else text):
        return _listed([text], options, how)
    return _of_bucket(_open(text, options), how)


def _result(
    where: str | BucketRef, name: str, options: RunOptions, how: _How
) -> Iterator[ShardRecord]:
    bucket = _open(where, options)
    manifest = _manifest(bucket, name)
    return _of_manifest(manifest, open_result(manifest.spec, bucket, options), how)


def _manifest(bucket: Bucket, name: str) -> StoredManifest:
    try:
        return parse_manifest(read_small(bucket, name, bytes_max=MANIFEST_BYTES_MAX))
    except ObjectNotFoundError:
        raise InputError(
            f"there is no manifest {name} in {bucket.uri}",
            hint="only a finished job has one; `dsort ls` shows the jobs of a bucket",
        ) from None


def _of_manifest(manifest: StoredManifest, bucket: Bucket, how: _How) -> Iterator[ShardRecord]:
    shards = (_Shard(bucket, shard.name, shard.file_bytes) for shard in manifest.outputs)
    return _records(shards, how)


def _of_bucket(bucket: Bucket, how: _How) -> Iterator[ShardRecord]:
    if not bucket.exists():
        raise MissingShardError(f"there is no bucket {bucket.uri}")
    names = [info.name for info in bucket.list("") if _is_shard(info.name)]
    if not names:
        raise MissingShardError(f"there is no shard in {bucket.uri}")
    return _records((_Shard(bucket, name) for name in sorted(names)), how)


def _is_shard(name: str) -> bool:
    return is_supported(name) and not is_internal(name)


def _of_template(
    holder: str, template: str, options: RunOptions, how: _How
) -> Iterator[ShardRecord]:
    bucket = _open(holder, options)
    try:
        names = expand_inputs(template, DEFAULT_EXTENSION)
    except ValueError as error:
        raise SpecError(str(error)) from None
    wanted: list[str] = []
    missing: list[str] = []
    while batch := [*islice(names, NAMES_A_BATCH)]:
        there = bucket.stat_many(batch)
        wanted += [name for name in batch if name in there]
        missing += [name for name in batch if name not in there]
    if missing:
        shown = first_few(missing, _SHOWN_MAX)
        raise MissingShardError(f"{len(missing):,} shards are missing from {bucket.uri}: {shown}")
    return _records((_Shard(bucket, name) for name in wanted), how)


def _object(text: str, options: RunOptions) -> tuple[BucketRef, str]:
    """(bucket, name) of the object that ``text`` means. ``SpecError`` if it means none."""
    extension = archive_extension(text)
    if extension is not None:
        try:
            check_supported(extension)
        except ValueError as error:
            raise SpecError(f"{text}: {error}") from None
    ref = _place(text, options)
    holder, slash, name = ref.path.rpartition("/")
    if not slash or not name:
        raise SpecError(f"{text} names no shard", hint="write BUCKET/NAME.tar")
    return replace(ref, path=holder or "/"), name


def _open(where: str | BucketRef, options: RunOptions) -> Bucket:
    ref = _place(where, options) if isinstance(where, str) else where
    return open_with_settings(ref, root=options.root, settings=options.settings)


def _place(text: str, options: RunOptions) -> BucketRef:
    """A path or a URI; a path may lead out of the data root, unlike a bucket's name in a spec."""
    if "://" in text:
        return parse_address(text)
    # Not resolved: a link to a shard is called as the link.
    return BucketRef("file", os.path.abspath(options.root / text))  # noqa: PTH100


# -- records -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Gathered:
    """The record that is being read."""

    key: str
    stray: bool
    members: dict[str, bytes] = field(default_factory=dict)


def _records(shards: Iterator[_Shard], how: _How) -> Iterator[ShardRecord]:
    reader = ShardReader(BUFFER_BYTES, how.stop)
    for shard in shards:
        with reader.open(shard.bucket, shard.name, how.decoding) as opened:
            if shard.size_bytes is not None and opened.file_bytes != shard.size_bytes:
                raise ChangedInputError(
                    f"shard {shard.name} in {shard.bucket.uri} has {opened.file_bytes:,} bytes, "
                    f"its manifest says {shard.size_bytes:,}",
                    hint="fetch or make it again; `dsort verify` compares all of the result",
                )
            members = opened.members()
            if members.notes.shortfall:
                raise ShardEndError(
                    f"shard {shard.name} may not be whole: {members.notes.shortfall}",
                    hint="fetch or make it again",
                )
            yield from _of_shard(opened, payload_table(opened, members))


def _of_shard(shard: ShardBytes, members: MemberTable) -> Iterator[ShardRecord]:
    rows = np.flatnonzero(members.kind == MemberKind.FILE)
    names = members.names.take(rows)
    record_of: list[int] | None = None
    if members.key_bytes is None or members.record_of is None:
        split = split_names(names)
        key_bytes = np.where(split.stray, names.lengths, split.key_bytes).tolist()
        stray = split.stray.tolist()
    else:
        key_bytes, record_of = members.key_bytes[rows].tolist(), members.record_of[rows].tolist()
        stray = [False] * len(rows)
    contents = _contents(shard, members, rows)
    now: _Gathered | None = None
    for row, (raw, content) in enumerate(zip(names.tolist(), contents, strict=True)):
        key, name = _text(raw[: key_bytes[row]]), _text(raw)
        if now is None:
            begins = True
        elif record_of is not None:
            begins = record_of[row] != record_of[row - 1]
        else:
            begins = stray[row] or now.stray or key != now.key or name in now.members
        if now is not None and begins:
            yield ShardRecord(now.key, now.members, shard.name)
        if now is None or begins:
            now = _Gathered(key, stray[row])
        now.members[name] = content
    if now is not None:
        yield ShardRecord(now.key, now.members, shard.name)


def _contents(shard: ShardBytes, members: MemberTable, rows: Int64s) -> Iterator[bytes]:
    """The content of each of ``rows`` of a bare table, in their order."""
    start, length = members.payload_start[rows], members.payload_bytes[rows]
    offsets = np.arange(len(rows) + 1, dtype=np.int64)
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
                yield members.literals[int(rows[row])]
                continue
            first = int(start[row]) - window.base
            yield bytes(window.view[first : first + int(length[row])])


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
