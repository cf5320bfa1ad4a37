"""One shard, whose records are read in any order: the result of :func:`dsort.open`.

The members are listed once, when they are first needed. If payload is stored between headers, only
the headers are read. After that, a record is one read of its own bytes, from a disk or a store.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol, overload

import numpy as np
from msgspec import Struct

from dsort.closing import ClosesOnExit
from dsort.containers.base import Container
from dsort.containers.codecs.decoding import EXPANSION_MAX_DEFAULT, DecodingRules
from dsort.containers.registry import codec_of, container_of
from dsort.data.columns import Int64s
from dsort.data.members import MemberTable
from dsort.errors import InputError
from dsort.html_tables import members_html
from dsort.moves.bare import bare_of
from dsort.moves.input_shard import ShardBytes
from dsort.naming.names import first_few
from dsort.options import RunOptions, default_options
from dsort.reading.places import ShardPlace, find_shard
from dsort.reading.record_index import KeySequence, RecordIndex, near_keys, text_of
from dsort.reading.shard_reader import ShardReader, whole_members
from dsort.reading.table_records import TableRecords
from dsort.sizes import format_bytes

__all__ = [
    "WHOLE_BYTES",
    "Files",
    "NoSuchRecordError",
    "Record",
    "Shard",
    "extension_of",
    "open_shard",
]

HEADERS_BYTES: Final = 1 << 20
"""A shard of at most this size is read in one piece; for a larger one, the headers are read
first."""
WHOLE_BYTES: Final = 128 << 20
"""The same limit for shards that have to be decoded, or in which the offsets of payloads are
scattered."""
PIECE_BYTES: Final = 1 << 20
SPARE_BYTES_MAX: Final = 64 << 10
"""The members of one record are read at once if at most this many bytes a member are between
them."""
ALL_BYTES: Final = sys.maxsize
"""More bytes than any file has."""


class _Contents(Struct, frozen=True, eq=False):
    """The records of a shard. ``odd``: the members of the shard if some payload is not a range of
    the shard that is stored unchanged and without a checksum, else no members; ``rows``: the row of
    each file in ``odd``."""

    index: RecordIndex
    odd: MemberTable
    rows: Int64s
    keys: KeySequence


class Files(Protocol):
    """The files of a shard by number, in its order."""

    def read_files(self, first: int, count: int) -> list[bytes]:
        """The content of files ``first`` to ``first + count``."""

    def read_file(self, at: int, begin: int, bytes_max: int) -> bytes:
        """At most ``bytes_max`` bytes of file ``at``, from ``begin`` on."""


class Record(Mapping[str, bytes]):
    """A record of a shard: the content of its members by their names or extensions.

    ``shard``: the name of the shard; ``index``: the number of the record in it, from 0 on; ``key``:
    the common part of the names of its members; ``sizes``: the bytes of each member by its name.
    Each access to a content reads it; contents are not kept. As a mapping, a record has a key for
    each extension (``"jpg"``, ``"seg.png"``; "" for a member without one), and accepts whole names
    as well.
    """

    __slots__ = ("_files", "_first", "index", "key", "shard", "sizes")

    def __init__(
        self, files: Files, shard: str, index: int, key: str, first: int, sizes: dict[str, int]
    ) -> None:
        """``first``: the number of its first member among the ``files`` of its shard."""
        self._files = files
        self._first = first
        self.shard = shard
        self.index = index
        self.key = key
        self.sizes = sizes

    @property
    def size_bytes(self) -> int:
        """The size of all members together."""
        return sum(self.sizes.values())

    @property
    def members(self) -> dict[str, bytes]:
        """The content of all members by name, as in :class:`dsort.ShardRecord`."""
        return dict(
            zip(self.sizes, self._files.read_files(self._first, len(self.sizes)), strict=True)
        )

    def read(self, name: str, start: int = 0, bytes_max: int | None = None) -> bytes:
        """Bytes of a member, from ``start`` on: all of them, or at most ``bytes_max``. ``KeyError``
        if there is no such member."""
        most = ALL_BYTES if bytes_max is None else bytes_max
        return self._files.read_file(self._first + self._place(name), start, most)

    def __getitem__(self, name: str) -> bytes:
        return self.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._extensions)

    def __len__(self) -> int:
        return len(self.sizes)

    def __contains__(self, name: object) -> bool:
        return name in self.sizes or name in self._extensions

    def _repr_html_(self) -> str:
        """The record as HTML, for a notebook. Reads only the beginnings of members."""
        title = f"record {self.index:,}, {self.key} of {self.shard}"
        return members_html(
            title, self.sizes.items(), lambda name, most: self.read(name, bytes_max=most)
        )

    def __repr__(self) -> str:
        members = [f"{name} {format_bytes(size)}" for name, size in self.sizes.items()]
        return f"<Record {self.index} {self.key!r} of {self.shard}: {first_few(members)}>"

    @property
    def _extensions(self) -> list[str]:
        return [extension_of(name, self.key) for name in self.sizes]

    def _place(self, name: str) -> int:
        for known in (list(self.sizes), self._extensions):
            if name in known:
                return known.index(name)
        raise KeyError(name)


class Shard(ClosesOnExit, Sequence[Record]):
    """The records of one shard, in its order. Any number of threads may use it.

    ``shard[3]``, ``shard[-1]``, ``shard["a/000017"]`` (the first record with that key),
    ``shard[10:20]`` (a list), ``len(shard)``, ``"a/000017" in shard``, ``shard.keys``. Neighbouring
    members with the same key are one record, as in :func:`dsort.read_shards`.
    """

    def __init__(
        self,
        place: ShardPlace,
        *,
        max_expansion: float = EXPANSION_MAX_DEFAULT,
        index: RecordIndex | None = None,
    ) -> None:
        """``index``: the index of its records, if it is known."""
        self.name = place.name
        self.uri = place.uri
        self._place = place
        self._known = index
        self._lock = threading.RLock()
        ends = ExitStack()
        # Runs also when the shard is garbage-collected, and at the exit of the interpreter before
        # modules are torn down.
        self._release = weakref.finalize(self, ends.close)
        container = container_of(place.name)
        self._reader = ShardReader(_buffer_bytes(place.name, container), None)
        opening = self._reader.open(place.bucket, place.name, DecodingRules(max_expansion))
        self._bytes = ends.enter_context(opening)
        self.size_bytes = self._bytes.file_bytes
        try:
            place.check_size(self.size_bytes)
        except BaseException:
            self.close()
            raise
        # Several threads may read a file at once; an object in a store is read by one at a time.
        is_file = place.bucket.local_path(place.name) is not None
        self._turn = nullcontext() if is_file else self._lock

    def close(self) -> None:
        """Release the shard. Its records can no longer be read. Closing again has no effect."""
        with self._lock:
            self._release()

    @property
    def keys(self) -> Sequence[str]:
        """The key of each record."""
        return self._keys

    @property
    def bytes_read(self) -> int:
        """The number of stored bytes that have been read so far."""
        return self._reader.bytes_read

    def numbers_of(self, key: str) -> tuple[int, ...]:
        """The numbers of the records with ``key``."""
        return tuple(self._keys.numbers_of(key))

    def __len__(self) -> int:
        return len(self._keys) if self._table is None else len(self._table)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    @overload
    def __getitem__(self, at: int | str) -> Record: ...

    @overload
    def __getitem__(self, at: slice) -> list[Record]: ...

    def __getitem__(self, at: int | str | slice) -> Record | list[Record]:
        if isinstance(at, slice):
            return [self.record(number) for number in range(len(self))[at]]
        if isinstance(at, str):
            return self.record(self._number_of(at))
        count = len(self)
        number = at + count if at < 0 else at
        if not 0 <= number < count:
            raise IndexError(f"shard {self.name} has {count:,} records, none is number {at:,}")
        return self.record(number)

    def __iter__(self) -> Iterator[Record]:
        return map(self.record, range(len(self)))

    def __repr__(self) -> str:
        return f"<Shard {self.uri}: {format_bytes(self.size_bytes)}>"

    # -- contents --------------------------------------------------------------------------------

    @property
    def _keys(self) -> KeySequence:
        return self._contents.keys if self._table is None else self._table.keys

    @cached_property
    def _table(self) -> TableRecords | None:
        """The rows of a table; None for a shard that is no table."""
        with self._lock:
            known: TableRecords | None = self.__dict__.get("_table")  # set by another thread
            shard = self._open_bytes()
            if known is not None or not shard.container.is_columnar:
                return known
            table = TableRecords(shard)
            self._place.check_count(len(table))
            return table

    @cached_property
    def _contents(self) -> _Contents:
        with self._lock:
            known = self.__dict__.get("_contents")  # set by another thread
            return known if known is not None else self._scanned(self._open_bytes())

    def _scanned(self, shard: ShardBytes) -> _Contents:
        index, odd, rows = self._known, MemberTable.empty(), np.zeros(0, np.int64)
        if index is None:
            members = whole_members(shard)
            if not members.has_compressed:
                members = bare_of(shard, members)
            index, rows = RecordIndex.of(members)
            is_decoded = shard.codec is not None or members.has_compressed
            if is_decoded or shard.container.payloads or bool((index.start < 0).any()):
                odd = members
        self._place.check_count(len(index))
        return _Contents(index, odd, rows, index.keys)

    @property
    def record_index(self) -> RecordIndex | None:
        """The places of its records; None if their content is stored encoded in any way."""
        if self._table is not None:
            return None
        return None if len(self._contents.odd) else self._contents.index

    @property
    def stored_index(self) -> RecordIndex | None:
        """The places of the shard's records in the stored bytes. Content that is not a range of the
        stored bytes has the start -1. None if a codec or a compressed member makes stored bytes
        differ from contents."""
        if self._table is not None or self._open_bytes().codec is not None:
            return None
        odd, rows = self._contents.odd, self._contents.rows
        if odd.has_compressed:
            return None if bool((odd.compressed_bytes[rows] >= 0).any()) else self._contents.index
        return self._contents.index

    def _number_of(self, key: str) -> int:
        numbers = self._keys.numbers_of(key)
        if numbers:
            return numbers[0]
        hint = near_keys(key, self._keys) or f"it has {len(self):,} records"
        raise NoSuchRecordError(f"shard {self.name} has no record {key}", hint=hint)

    def record(self, number: int, files: Files | None = None) -> Record:
        """Record ``number``. ``files``: the source of its members, if it is not this shard."""
        if self._table is not None:
            key, cells = self._table.cells(number)
            sizes = {name: len(content) for name, content in cells}
            first = number * self._table.width
            return Record(files or self, self.name, number, key, first, sizes)
        contents, index = self._contents, self._contents.index
        first, stop = index.offsets[number : number + 2].tolist()
        names = map(text_of, index.names.run(first, stop).tolist())
        sizes = dict(zip(names, index.size[first:stop].tolist(), strict=True))
        return Record(files or self, self.name, number, contents.keys[number], first, sizes)

    # -- bytes -----------------------------------------------------------------------------------

    def read_files(self, first: int, count: int) -> list[bytes]:
        """The content of some files, in one read where they are close to one another."""
        if self._table is not None:
            row, place = divmod(first, self._table.width)
            return [content for _, content in self._table.cells(row)[1][place : place + count]]
        contents, index = self._contents, self._contents.index
        start, size = index.start[first : first + count], index.size[first : first + count]
        low = int(start.min()) if count else 0
        high = int((start + size).max()) if count else 0
        is_near = high - low <= int(size.sum()) + SPARE_BYTES_MAX * count
        if len(contents.odd) or not count or not is_near:
            return [self.read_file(first + each, 0, ALL_BYTES) for each in range(count)]
        data = self._range(low, high - low)
        places = zip((start - low).tolist(), size.tolist(), strict=True)
        return [data[begin : begin + length].tobytes() for begin, length in places]

    def read_file(self, at: int, begin: int, bytes_max: int) -> bytes:
        """At most ``bytes_max`` bytes of file ``at``, from ``begin`` on. A compressed file is
        decompressed up to the end of these bytes. A checksum is compared if the whole file is
        read."""
        if self._table is not None:
            row, place = divmod(at, self._table.width)
            content = self._table.cells(row)[1][place][1]
            return content[max(begin, 0) : max(begin, 0) + max(bytes_max, 0)]
        contents, index = self._contents, self._contents.index
        start, total = int(index.start[at]), int(index.size[at])
        begin = min(max(begin, 0), total)
        stop = min(total, begin + max(bytes_max, 0))
        if not len(contents.odd):
            return self._range(start + begin, stop - begin).tobytes()
        members, row = contents.odd, int(contents.rows[at])
        if start < 0:
            return members.literals.get(row, b"")[begin:stop]
        if members.is_compressed(row):
            return self._inflated(members, row, stop)[begin:stop]
        stored = self._range(start + begin, stop - begin)
        shard = self._open_bytes()
        if (begin, stop) != (0, total) or not shard.container.payloads:
            return stored.tobytes()
        return b"".join(shard.unpacked(members, row, [stored]))

    def _inflated(self, members: MemberTable, row: int, stop: int) -> bytes:
        """The payload of a compressed row, up to byte ``stop`` at least. Decompression stops there,
        so that a few bytes which inflate to very many cannot fill memory. Raises
        ``CorruptShardError``."""
        start, stored = int(members.payload_start[row]), int(members.compressed_bytes[row])
        pieces = (
            self._range(at, min(PIECE_BYTES, start + stored - at))
            for at in range(start, start + stored, PIECE_BYTES)
        )
        found = bytearray()
        for piece in self._open_bytes().unpacked(members, row, pieces):
            found += piece
            if stop <= len(found) < int(members.payload_bytes[row]):
                break  # else the loop reads to the end, where the checksum is compared
        return bytes(found)

    def _range(self, start: int, length: int) -> memoryview:
        view = memoryview(bytearray(length))
        with self._turn:
            self._open_bytes().fill(view, start)
        return view

    def _open_bytes(self) -> ShardBytes:
        if not self._release.alive:
            raise InputError(f"shard {self.name} is closed", hint="open it again")
        return self._bytes


class NoSuchRecordError(InputError, KeyError):
    """There is no record with that key."""

    __str__ = InputError.__str__


def open_shard(
    where: str | Path,
    *,
    options: RunOptions | None = None,
    max_expansion: float = EXPANSION_MAX_DEFAULT,
) -> Shard:
    """Open the shard ``where``, a path or a URI, for reading its records in any order.

    ::

        with dsort.open("s3://bucket/train-000017.tar") as shard:
            print(len(shard), shard.keys[:3])
            record = shard[0]  # or shard["a/000017"]
            print(record.sizes)
            picture = record["jpg"]

    The shard may have any container, any codec, and be in any store. For a tar in a store that is
    larger than 1 MiB, only its headers, with bytes near them, and the requested records are read.
    Shards with a codec around them are decoded once, to memory or to a file without a name; they
    may hold ``max_expansion`` times their length. Rows of tables (Parquet, Arrow) are decoded
    together.

    ``ObjectNotFoundError``, ``CorruptShardError``, ``ShardEndError`` and ``StorageError`` name the
    shard; the first call that needs its content may raise them.
    """
    place = find_shard(where, options or default_options())
    return Shard(place, max_expansion=max_expansion)


def extension_of(name: str, key: str) -> str:
    """The part of a member's name after the record's key and a dot; "" if there is none."""
    return name[len(key) + 1 :]


def _buffer_bytes(name: str, container: Container) -> int:
    tells_where = type(container).bare is Container.bare or container.is_columnar
    return HEADERS_BYTES if codec_of(name) is None and tells_where else WHOLE_BYTES
