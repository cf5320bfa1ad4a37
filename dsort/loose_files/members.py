"""Finds the files of the inputs, and gathers them as members, in the order in which they come."""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Final, Literal, NamedTuple

import numpy as np
from msgspec import Struct, field

from dsort.containers.base import drive, refusal
from dsort.containers.codecs.decoding import EXPANSION_FLOOR_BYTES, EXPANSION_MAX_DEFAULT
from dsort.containers.tar.container import TAR
from dsort.data.columns import Bools, BytesColumn, Int64s, equal_ranges
from dsort.data.index import SortKeys
from dsort.data.members import MemberKind, MemberTable
from dsort.errors import DuplicateError, MissingShardError, ShardEndError
from dsort.loose_files.listing import LITERAL, NAMES, Listing, stamp_of, stamp_of_status
from dsort.naming.names import first_few, is_internal, readable
from dsort.naming.patterns import KeyPattern, glob_prefix, glob_regex
from dsort.order.sort import order_rows
from dsort.sizes import format_count
from dsort.spec.inputs import Source
from dsort.storage.bucket import Bucket, ReadObject
from dsort.storage.directory.bucket import LocalBucket

ARCHIVE_SUFFIX = b".tar"
WINDOW_BYTES = 1 << 20
NO_FILE = -1
"""The size of entries that are not files: a link to a missing file, a pipe, a device."""


class Inside(NamedTuple):
    """A file in an archive. ``path``: the path of the archive without its suffix, then the path of
    the file in it. ``size``: in bytes, or ``NO_FILE``. ``start``: the offset of its first byte in
    the outermost archive."""

    path: bytes
    size: int
    start: int


def files_inside(path: bytes, size_bytes: int, source: ReadObject) -> Iterator[Inside]:
    """The files of the tar ``path``, in its order. A tar in it is replaced by its own files, whose
    paths begin with the name of that inner tar. ``CorruptShardError`` names the archive."""
    for name, start, size, is_file in _members(path, 0, size_bytes, source):
        if not is_file or not name.endswith(ARCHIVE_SUFFIX):
            stem = path.removesuffix(ARCHIVE_SUFFIX)
            yield Inside(stem + b"/" + name, size if is_file else NO_FILE, start)
            continue
        stem = name.removesuffix(ARCHIVE_SUFFIX)
        for inner, at, length, is_inner_file in _members(path + b"/" + name, start, size, source):
            yield Inside(stem + b"/" + inner, length if is_inner_file else NO_FILE, start + at)


def _members(
    path: bytes, base: int, size_bytes: int, source: ReadObject
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


def _scanned(name: str, base: int, size_bytes: int, source: ReadObject) -> MemberTable:
    limit = EXPANSION_MAX_DEFAULT * size_bytes + EXPANSION_FLOOR_BYTES
    scanner = TAR.within(limit).scanner(name, size_bytes)

    def read(offset: int, size: int) -> memoryview:
        window = memoryview(bytearray(size))
        source.read_into(window, base + offset)
        return window

    table = drive(scanner, size_bytes, read, window_bytes=WINDOW_BYTES)
    refused = refusal(TAR.oddities, table.notes, "abort", "read")
    if refused:
        raise ShardEndError(f"archive {name} {refused[0]}", hint="fetch or make it again")
    return table


class Found(NamedTuple):
    """A file. ``size``: in bytes, or ``NO_FILE``. ``place``: the object that is the file, or that
    contains it from byte ``start`` on. ``stamp``: the stamp of that object."""

    path: bytes
    size: int
    stamp: int
    place: bytes
    start: int


def found_files(source: Source, bucket: Bucket, *, archives: bool) -> Iterator[Found]:
    """All files of an input, in order of the objects. ``archives``: list the files inside of tars
    instead of the tars. ``MissingShardError`` for names that do not exist; errors as in
    ``files_inside``."""
    for path, size, stamp in _objects(source, bucket):
        if not archives or not path.endswith(ARCHIVE_SUFFIX) or size == NO_FILE:
            yield Found(path, size, stamp, path, 0)
            continue
        with bucket.open(path.decode(*NAMES)) as opened:
            for each in files_inside(path, size, opened):
                yield Found(each.path, each.size, stamp, path, each.start)


def _objects(source: Source, bucket: Bucket) -> Iterator[tuple[bytes, int, int]]:
    """(path, size or ``NO_FILE``, stamp) of each object of an input."""
    wanted = source.format
    if wanted.objnames is not None:
        yield from named_files(bucket, wanted.objnames)
        return
    prefix, pattern = wanted.prefix or "", None
    if wanted.glob is not None:
        prefix, pattern = glob_prefix(wanted.glob), glob_regex(wanted.glob)
    for path, size, stamp in _listed(bucket, prefix):
        if pattern is not None and not pattern.fullmatch(path.decode(*NAMES)):
            continue
        if b".dsort" in path and is_internal(path.decode(*NAMES)):
            continue
        if size or not path.endswith(b"/"):  # an empty object stands for a directory in a store
            yield path, size, stamp


def base_of(source: Source) -> int:
    """The length of the directory with which all paths of an input begin."""
    prefix = source.format.prefix or glob_prefix(source.format.glob or "")
    return len(prefix[: prefix.rfind("/") + 1].encode(*NAMES))


def named_files(bucket: Bucket, names: tuple[str, ...]) -> Iterator[tuple[bytes, int, int]]:
    """(path, size, stamp) of each of ``names``; ``MissingShardError`` for names that do not
    exist."""
    found = bucket.stat_many(names)
    missing = [name for name in names if name not in found]
    if missing:
        raise MissingShardError(
            f"{format_count(len(missing), 'file is', 'files are')} missing from {bucket.uri}: "
            f"{first_few(missing)}",
            hint="check the names; `dsort ls` shows what is there",
        )
    for name in names:
        path, info = name.encode(*NAMES), found[name]
        place = bucket.local_path(name)
        stamp = stamp_of(info) if place is None else stamp_of_status(place.stat())
        yield path, info.size_bytes, stamp


def _listed(bucket: Bucket, prefix: str) -> Iterator[tuple[bytes, int, int]]:
    if isinstance(bucket, LocalBucket):
        for path, status in bucket.list_all(prefix):
            if status is None:
                yield path, NO_FILE, 0
            else:
                yield path, status.st_size, stamp_of_status(status)
        return
    for info in bucket.list(prefix):
        yield info.name.encode(*NAMES), info.size_bytes, stamp_of(info)


# --------------------------------------------------------------------------------------------------
# Finds the record and the member that a file becomes, by its name.


BETWEEN = b"\0"
"""Separates key and extension, in place of the dot in a name, so that names sort by their keys."""

HIDDEN, OTHER, CLUTTER = "hidden", "other", "clutter"
"""The reasons why a file is left out: it is hidden, it has an extension that is not wanted, or it
is clutter. Clutter is a text about the files beside it, such as a readme, or a file that a file
manager or an archiver left."""

_CLUTTER: Final = re.compile(
    rb"(?:.*/)?(?:(?:readme|licen[cs]e)\.(?:txt|md|rst|html?|pdf)|(?:eh)?thumbs\.db|desktop\.ini)"
    rb"|(?:.*/)?__macosx/.*",
    re.IGNORECASE | re.DOTALL,
)
NO_CLASS, NO_EXTENSION, NO_ORDINARY_FILE = "no_class", "no_extension", "no_ordinary_file"
ODD_NAME = "odd_name"
UNUSABLE: Final[Mapping[str, str]] = {
    NO_CLASS: "in no directory of a class",
    NO_EXTENSION: "no extension",
    NO_ORDINARY_FILE: "a link to nothing, a pipe, a socket or a device",
    ODD_NAME: "a name that no member can have",
}
"""The reasons why a file cannot be a member of a record, in words."""


class NameRules(Struct, frozen=True, dict=True):
    """How names of files become keys and extensions. ``at_first_dot``: whether the extension begins
    at the first dot. ``extensions``: the wanted extensions; if empty, all. ``directory_from``: the
    place in a path where the directory of the class begins, which each path must have; None without
    classes. ``keeps_clutter``: whether clutter is kept, because tables select the files."""

    key: Literal["path", "name", "joined"] = "path"
    pattern: KeyPattern | None = None
    at_first_dot: bool = True
    extensions: Collection[bytes] = ()
    directory_from: int | None = None
    keeps_clutter: bool = False

    @cached_property
    def _lower(self) -> frozenset[bytes]:
        return frozenset(each.lower() for each in self.extensions)

    def member_of(self, path: bytes) -> tuple[bytes, bytes] | str:
        """(key, extension) of the file ``path``, or the reason why it is left out."""
        base = path[path.rfind(b"/") + 1 :]
        if path[:1] == b"." or b"/." in path:
            return HIDDEN if _is_plain(path) else ODD_NAME
        dot = base.find(b".") if self.at_first_dot else base.rfind(b".")
        extension = base[dot + 1 :]
        if b"//" in path or path[0] == 47 or b"\0" in path:
            return ODD_NAME
        if dot < 1 or not extension:
            return OTHER if self._lower else NO_EXTENSION
        if not self.keeps_clutter and _CLUTTER.fullmatch(path):
            return CLUTTER
        if self._lower and extension.lower() not in self._lower:
            return OTHER
        key = path[: len(path) - len(extension) - 1]
        if self.directory_from is not None and path.find(b"/", self.directory_from) < 0:
            return NO_CLASS
        if self.pattern is not None:
            found = self.pattern.key_of(key)
            if found is None:
                return OTHER
            key = found
        elif self.key == "name":
            key = key[key.rfind(b"/") + 1 :]
        elif self.key == "joined":
            key = key.replace(b"/", b"")
        # Readers of shards split names at the first dot of the last part.
        cut = key.rfind(b"/") + 1
        if b"." in key[cut:]:
            key = key[:cut] + key[cut:].replace(b".", b"_")
        if not key[cut:] or not _is_plain(key):
            return ODD_NAME
        return key, extension


def _is_plain(path: bytes) -> bool:
    """Whether ``path`` has no parts that lead to other directories."""
    return not path.startswith(b"/") and not {b"", b".", b".."} & {*path.split(b"/")}


NAMES_KEPT_MAX = 1_000
UNCLASSED = -1


class _Texts(Struct):
    """A growing column of texts."""

    blob: bytearray = field(default_factory=bytearray)
    offsets: array[int] = field(default_factory=lambda: array("q", [0]))

    def append(self, text: bytes) -> None:
        self.blob += text
        self.offsets.append(len(self.blob))

    def column(self) -> BytesColumn:
        """A copy of the texts, so that more can be added."""
        return BytesColumn(np.array(self.offsets, np.int64), np.array(self.blob, np.uint8))


class Members(Struct):
    """Columns with one row for each member; and for each reason to leave out files, the number of
    such files and the names of the first of them. A member takes about 100 bytes, in any layout.
    ``class_numbers``: the content of ``.cls`` for each class, if there are classes."""

    _names: _Texts = field(default_factory=_Texts)
    _key_bytes: array[int] = field(default_factory=lambda: array("q"))
    _sizes: array[int] = field(default_factory=lambda: array("q"))
    _inputs: array[int] = field(default_factory=lambda: array("i"))
    _paths: _Texts = field(default_factory=_Texts)
    _stamps: array[int] = field(default_factory=lambda: array("Q"))
    _starts: array[int] = field(default_factory=lambda: array("q"))
    _classes: array[int] = field(default_factory=lambda: array("i"))
    _extensions: set[bytes] = field(default_factory=set)
    class_ids: dict[bytes, int] = field(default_factory=dict)
    class_numbers: dict[bytes, int] = field(default_factory=dict)
    left_out: dict[str, tuple[int, list[str]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._sizes)

    def add(
        self,
        key: bytes,
        extension: bytes,
        size: int,
        number: int,
        path: bytes,
        stamp: int,
        start: int = 0,
        own_class: bytes | None = None,
    ) -> None:
        """Add a file of the input ``number``: the object ``path``, or a part of it from byte
        ``start`` on."""
        self._names.append(key + BETWEEN + extension)
        self._key_bytes.append(len(key))
        self._sizes.append(size)
        self._inputs.append(number)
        self._paths.append(path)
        self._stamps.append(stamp)
        self._starts.append(start)
        self._extensions.add(extension)
        if own_class is None:
            self._classes.append(UNCLASSED)
        else:
            self._classes.append(self.class_ids.setdefault(own_class, len(self.class_ids)))

    def add_text(self, key: bytes, extension: bytes, text: bytes) -> None:
        """Add a member that is not in a file."""
        self.add(key, extension, len(text), LITERAL, text, 0)

    def leave_out(self, why: str, name: str) -> None:
        """Note a file that does not become a member."""
        count, names = self.left_out.get(why, (0, []))
        if count < NAMES_KEPT_MAX:
            names.append(name)
        self.left_out[why] = (count + 1, names)

    def record_keys(self) -> list[bytes]:
        """The keys of the records, in order."""
        return self._records(self._in_order())[0]

    def classes(self) -> list[tuple[bytes, bytes]]:
        """(key, class) of each record, in order. ``DuplicateError`` for a record with two
        classes."""
        order = self._in_order()
        keys, first = self._records(order)
        ids = np.array(self._classes, np.int64)[order]
        low, high = np.minimum.reduceat(ids, first), np.maximum.reduceat(ids, first)
        names = {number: name for name, number in self.class_ids.items()}
        for row in np.flatnonzero(low != high).tolist():
            one, other = sorted((names[int(low[row])], names[int(high[row])]))
            raise DuplicateError(
                f"files of the classes {readable(one)} and {readable(other)} have the key "
                f"{readable(keys[row])}",
                hint="use ingest.key: path",
            )
        return [(key, names[number]) for key, number in zip(keys, low.tolist(), strict=True)]

    def listed(self) -> Listing:
        """The listing of the members, sorted by key and extension. ``DuplicateError`` for two files
        that would be one member."""
        order = self._in_order()
        names = self._names.column().take(order)
        key_bytes = np.array(self._key_bytes, np.int64)[order]
        self._refuse_alike(names, order)
        records = np.flatnonzero(self._begins_record(names, key_bytes))
        blob = names.blob.copy()
        blob[names.offsets[:-1] + key_bytes] = ord(".")
        return Listing.of(
            names=BytesColumn(names.offsets, blob),
            sizes=np.array(self._sizes, np.int64)[order],
            inputs=np.array(self._inputs, np.int32)[order],
            paths=self._paths.column().take(order),
            stamps=np.array(self._stamps, np.uint64)[order],
            starts=np.array(self._starts, np.int64)[order],
            records=records,
            classes=self.class_numbers,
        )

    def _in_order(self) -> Int64s:
        return order_rows(SortKeys(len(self), text=self._names.column()))

    def _records(self, order: Int64s) -> tuple[list[bytes], Int64s]:
        """(key, the place of the first member) of each record."""
        names = self._names.column().take(order)
        key_bytes = np.array(self._key_bytes, np.int64)[order]
        first = np.flatnonzero(self._begins_record(names, key_bytes))
        lengths = key_bytes[first].tolist()
        found = names.take(first).tolist()
        return [name[:size] for name, size in zip(found, lengths, strict=True)], first

    @staticmethod
    def _begins_record(names: BytesColumn, key_bytes: Int64s) -> Bools:
        """For ``names`` in order: whether each has another key than the name before it."""
        begins = np.ones(len(names), np.bool_)
        starts = names.offsets[:-1]
        same = key_bytes[1:] == key_bytes[:-1]
        rows = np.flatnonzero(same)
        begins[1 + rows] = ~equal_ranges(
            names.blob, starts[rows], starts[rows + 1], key_bytes[rows]
        )
        return begins

    def _refuse_alike(self, names: BytesColumn, order: Int64s) -> None:
        """``DuplicateError`` for two files that would be one member, at least for readers that
        ignore the case of extensions."""
        lengths, starts = names.lengths, names.offsets[:-1]
        rows = np.flatnonzero(lengths[1:] == lengths[:-1])
        alike = equal_ranges(names.blob, starts[rows], starts[rows + 1], lengths[rows])
        for row in rows[alike].tolist():
            self._refuse(int(order[row]), int(order[row + 1]), "would be the same member")
        if len({each.lower() for each in self._extensions}) == len(self._extensions):
            return
        seen: dict[bytes, int] = {}
        for row, name in zip(order.tolist(), names.tolist(), strict=True):
            key, _, extension = name.partition(BETWEEN)
            other_row = seen.setdefault(key + BETWEEN + extension.lower(), row)
            if other_row != row:
                what = "would be the same member to readers that read extensions in lower case"
                self._refuse(other_row, row, what)

    def _refuse(self, one: int, other: int, what: str) -> None:
        first, second = (self._source_of(row) for row in (one, other))
        name = readable(self._names.column()[other].replace(BETWEEN, b".", 1))
        raise DuplicateError(
            f"{first} and {second} {what}, {name}",
            hint="rename one of them, use ingest.key: path, or set with ingest.members a text "
            "before the extensions of an input",
        )

    def _source_of(self, row: int) -> str:
        if self._inputs[row] == LITERAL:
            extension = self._names.column()[row].partition(BETWEEN)[2]
            return f"the {readable(extension)} that the job makes"
        return readable(self._paths.column()[row])
