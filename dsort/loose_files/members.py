"""Gathers members in the order in which they are found, before they are sorted:
:class:`Members`."""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Final, Literal

import numpy as np
from msgspec import Struct, field

from dsort.data.columns import Bools, BytesColumn, Int64s, equal_ranges
from dsort.data.index import SortKeys
from dsort.errors import DuplicateError
from dsort.loose_files.listing import LITERAL, Listing
from dsort.naming.names import readable
from dsort.naming.patterns import KeyPattern
from dsort.order.sort import order_rows

# --------------------------------------------------------------------------------------------------
# Finds the record and the member that a file becomes, by its name.


BETWEEN = b"\0"
"""Stands between key and extension, instead of the dot in a name: then names sort by their keys."""

HIDDEN, OTHER, CLUTTER = "hidden", "other", "clutter"
"""The reasons why a file is left out: it is hidden, it has an extension that is not wanted, or it
is clutter. Clutter describes the files beside it for their readers, or was left by a file manager
or an archiver."""

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
    at the first dot. ``extensions``: the wanted ones, none for all. ``directory_from``: the place
    in a path where the directory of the class begins, which each path must have; None without
    classes. ``keeps_clutter``: set if something else selects the files."""

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
        """(key, extension) of the file ``path``, or why it is left out."""
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
    these files and the first of them. About 100 B a member, in any layout. ``class_numbers``: the
    content of ``.cls`` for each class, if there are classes."""

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
        """The listing of the members, sorted by key and extension. ``DuplicateError`` for two that
        would be one member."""
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
            hint="rename one of them, use ingest.key: path, or say with ingest.members what "
            "stands before the extensions of an input",
        )

    def _source_of(self, row: int) -> str:
        if self._inputs[row] == LITERAL:
            extension = self._names.column()[row].partition(BETWEEN)[2]
            return f"the {readable(extension)} that is made"
        return readable(self._paths.column()[row])
