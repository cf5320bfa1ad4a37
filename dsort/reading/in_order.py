"""Reads the records of a result, of a bucket, or of any shards, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from dsort.containers.codecs.decoding import EXPANSION_MAX_DEFAULT, DecodingRules
from dsort.data.columns import Int64s, are_all_rows, row_numbers
from dsort.data.members import MemberTable
from dsort.data.segments import Segments
from dsort.html_tables import members_html
from dsort.moves.bare import payload_table
from dsort.moves.input_shard import ShardBytes
from dsort.options import RunOptions, default_options
from dsort.reading.places import ShardPlace, find_shards
from dsort.reading.record_index import adjacent_records
from dsort.reading.shard_reader import ShardReader, whole_members
from dsort.reading.table_records import TableRecords
from dsort.results.report import JobReport
from dsort.sizes import format_bytes
from dsort.stop_flag import StopFlag

__all__ = ["ShardRecord", "read_shards"]

BUFFER_BYTES: Final = 64 << 20
"""A shard of at most this size is read in one piece; for a larger one, the headers are read
first."""
AT_ONCE: Final = 1 << 14
_SHOWN_MAX: Final = 3


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
    """Read the records of ``where``, shard by shard in order, and in the order of each shard.

    ``where`` is one of

    - the report that :func:`dsort.run` returned, or the path or URI of a manifest
      (``.../manifest.json``): the shards of that result, in its order;
    - a bucket, with ``job_id``: the result of that job there;
    - a bucket (a directory or a URI): all its shards, sorted by name;
    - a shard, or a template of shards: ``s3://bucket/train-{000000..000099}.tar``;
    - a list of shards.

    Paths are relative to the data root: the current directory, unless settings or ``options`` set
    another one. Of ``options`` only ``root``, ``settings`` and ``memory_max_bytes`` matter: a
    quarter of the last, up to 128 MiB, limits the window of a zstd frame (default: 64 MiB).

    ::

        report = dsort.run(dsort.load_spec("shuffle.yaml"))
        for record in dsort.read_shards(report):
            print(record.key, record.members[f"{record.key}.jpg"][:4], record.shard)

    Neighbouring members with the same key are one record, as webdataset reads them; a name that
    appears again begins another record. A file without an extension is a record of its own.
    Directories, links and devices have no content and are left out. One record is in memory at a
    time, with a buffer of 64 MiB and the headers of one shard; a shard that is larger than the
    buffer is read twice. A compressed shard may hold ``max_expansion`` times its length; a shard
    that holds more is refused, because it may be made to fill memory and disk.

    ``where`` is looked up at once, the shards are read as the iterator advances. Raises
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
            own = [_text(name) for name in names[first:stop]]
            key = _text(names[first][:own_bytes])
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
                yield members.literals[int(rows[row])]
                continue
            first = int(start[row]) - window.base
            yield bytes(window.view[first : first + int(length[row])])


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
