"""Sequences of MessagePack or CBOR objects as containers.

A record is an object, moved unchanged. In a conversion a record is a map of extensions to members,
as in webdataset's ``cbors``: bytes and texts are payloads, integers are written in decimal.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.containers.bare_rows import BareRows, Value, record_table
from dsort.containers.base import KeyedContainer, Need, Scanner
from dsort.containers.facets import Payloads
from dsort.containers.objects.headers import (
    CBOR_SIZES,
    MSGPACK_SIZES,
    ItemSizes,
    Kind,
    ReadHeader,
    cbor_header,
    msgpack_header,
)
from dsort.containers.objects.walk import FIELD_BYTES_MAX, FIELDS_MAX, Field, ObjectWalk, WalkError
from dsort.data.json_pointer import JsonPointer
from dsort.data.members import MemberTable
from dsort.data.numbered import DIGITS
from dsort.data.records import FormedRecords
from dsort.errors import ContentKeyError, ConversionError, CorruptShardError
from dsort.naming.names import KEY_COLUMN, is_utf8, position_key, readable

# --------------------------------------------------------------------------------------------------
# Scans objects in windows on a file: where each begins and ends, and its key.


KEY_FIELD: Final = KEY_COLUMN.encode()
"""The field that holds the key of a record."""


class ObjectScan:
    """The objects of one file found so far. ``key_field``: the field with the keys; b"":
    ``KEY_FIELD``, and records without it are numbered."""

    def __init__(
        self,
        shard: str,
        size_bytes: int,
        read_header: ReadHeader,
        sizes: ItemSizes,
        extension: bytes,
        key_field: bytes,
    ) -> None:
        self._shard = shard
        self._extension = extension
        self._is_required = bool(key_field)
        self._walk = ObjectWalk(read_header, sizes, size_bytes, wanted=key_field or KEY_FIELD)
        self._keys: dict[int, bytes] = {}  # of the objects with a key, by number
        self._ends = array("q")

    def scanner(self) -> Scanner:
        """See ``Container.scanner``. Returns a row for each object."""
        walk = self._walk
        while not self._is_done:
            self._read((yield Need(walk.at, walk.needs_bytes)), walk.at)
        bounds, keys = np.append(np.zeros(1, np.int64), self._ends), self._all_keys()
        return record_table(self._shard, self._extension, bounds[:-1], np.diff(bounds), keys)

    @property
    def _is_done(self) -> bool:
        return self._walk.at >= self._walk.size_bytes and self._walk.start == self._walk.at

    def _read(self, view: memoryview, offset: int) -> None:
        """Find the objects that end in ``view``, or whose payload extends beyond it. ``view``
        begins at byte ``offset``."""
        walk = self._walk
        try:
            while not self._is_done:
                if not self._is_required:
                    walk.pass_plain(view, offset, self._ends)
                end = walk.next_end(view, offset)
                if end is None:
                    break
                key = self._key()
                if key is not None:
                    self._keys[len(self._ends)] = key
                self._ends.append(end)
                walk.begin()
            if walk.at >= walk.size_bytes and not self._is_done:
                raise WalkError(walk.start, "an object is cut off")
        except WalkError as error:
            raise CorruptShardError(self._shard, error.offset, error.reason) from None

    def _all_keys(self) -> list[bytes] | None:
        """The keys of all objects; None if all keys are positions."""
        if not self._keys:
            return None
        prefix = position_key(self._shard, 0)[:-DIGITS]
        keys, count = self._keys, len(self._ends)
        return [keys.get(n) or prefix + b"%0*d" % (DIGITS, n) for n in range(count)]

    def _key(self) -> bytes | None:
        """The key in the object; None if the key of the object is its position."""
        if not self._walk.fields:
            if self._is_required:
                raise self._no_key("has no field")
            return None
        key = key_in(self._walk.fields[-1])
        if key is None:
            raise self._no_key("has no text, bytes or integer of 1 to 4,096 bytes in its field")
        return key

    def _no_key(self, what: str) -> ContentKeyError:
        name = self._walk.wanted.decode("utf-8", "backslashreplace")
        return ContentKeyError(
            f"object {len(self._ends):,} of shard {self._shard}, at byte {self._walk.start:,}, "
            f"{what} {name}",
            hint="choose another key_field, or leave it out: then records may be numbered",
        )


def key_in(field: Field) -> bytes | None:
    """The key in a field; None if the field has no key."""
    if field.kind == Kind.INTEGER:
        return b"%d" % field.number
    if field.kind in (Kind.TEXT, Kind.BYTES) and 0 < field.size_bytes <= FIELD_BYTES_MAX:
        return field.content
    return None


_COUNTS_MAX: Final = 2**32 - 1
_TINY_BYTES: Final = 16
_TINY_MAX: Final = 100_000
"""The maximum number of objects of less than ``_TINY_BYTES`` on average that become members. Each
object takes 10 µs and 400 bytes of memory; a shard of a few MB may have millions, and an object
with a key is not that short."""
_READ_BYTES: Final = 1 << 20
_READ_ROWS: Final = 1 << 14


class Form(Struct, frozen=True):
    """The functions and values that differ between MessagePack and CBOR. ``read_header``: reads the
    header of an item. ``item_sizes``: the sizes that the first bytes of items show. ``map_head``:
    returns the header of a map, given the number of its pairs. ``text``: returns the item of a
    text, or of bytes if the text is not UTF-8. ``bytes_head``: returns the header of bytes, given
    their number; ``ConversionError`` with the key of the record if they are too many."""

    read_header: ReadHeader
    item_sizes: ItemSizes
    map_head: Callable[[int], bytes]
    text: Callable[[bytes], bytes]
    bytes_head: Callable[[int, bytes], bytes]


@dataclass(frozen=True, slots=True)
class Objects(KeyedContainer):
    """The base of both formats. ``key_field``: the field with the keys; "": the field ``__key__``,
    and records without it are numbered."""

    keeps_keys = True
    form: ClassVar[Form]
    member_extension = b""
    """The extension of the one member of a record, after its key."""

    no_other_name = (
        "an object holds its own key, and cannot become {name}",
        "duplicate_keys: warn keeps both records",
    )

    def scanner(self, shard: str, size_bytes: int) -> Scanner:
        parts = JsonPointer.parse(self.key_field).parts
        if len(parts) > 1:
            raise CorruptShardError(
                shard,
                0,
                f"key_field {self.key_field} leads into a field of its objects",
                hint="name a field of the objects themselves",
            )
        name = parts[0].encode("utf-8", "surrogateescape") if parts else b""
        scan = ObjectScan(
            shard,
            size_bytes,
            self.form.read_header,
            self.form.item_sizes,
            self.member_extension,
            name,
        )
        return scan.scanner()

    def bare(self, members: MemberTable, read: Callable[[int, int], bytes]) -> MemberTable:
        """A row for each field of each object, except the field with its key."""
        assert members.own.key_bytes is not None
        _refuse_tiny(members)
        rows = BareRows(members)
        for record, (key, object_start, document) in enumerate(_documents(members, read)):
            for each in self._fields(key, document):
                value: Value = (object_start + each.start, each.size_bytes)
                if each.kind == Kind.INTEGER:
                    value = b"%d" % each.number
                name = key + b"." + each.name if each.name else key
                rows.add_member(record, name, len(key), value)
        return rows.table()

    def _fields(self, key: bytes, document: memoryview) -> list[Field]:
        """The fields of an object that become members. ``ConversionError``."""
        fields = self._plain_fields(document)
        if fields is None:
            fields = self._walked_fields(key, document)
        if len(fields) > 1:
            names = [each.name for each in fields]
            if len(set(names)) < len(names):
                repeated, _ = Counter(names).most_common(1)[0]
                raise _refused(key, f"has two fields {readable(repeated)}, and readers keep one")
        # If another field has the key, ``__key__`` is a field like any other.
        if not self.key_field:
            fields = [each for each in fields if each.name != KEY_FIELD]
        if not fields:
            raise _refused(key, "has no field but its key")
        return fields

    def _plain_fields(self, document: memoryview) -> list[Field] | None:
        """The fields of a map of texts to bytes, texts and integers, in a third of the time of a
        walk; None for any other object."""
        read_header, size_bytes = self.form.read_header, len(document)
        try:
            kind, at, pairs = read_header(document, 0)
            if kind != Kind.MAP or not 0 <= pairs <= FIELDS_MAX:
                return None
            found = []
            for _ in range(pairs):
                kind, header_bytes, length = read_header(document, at)
                if kind != Kind.TEXT or length > FIELD_BYTES_MAX:
                    return None
                value = at + header_bytes + length
                name = bytes(document[at + header_bytes : value])
                if 0 in name:
                    return None
                kind, header_bytes, argument = read_header(document, value)
                at = value + header_bytes
                if kind == Kind.INTEGER:
                    found.append(Field(name, kind, at, 0, argument))
                elif kind in (Kind.BYTES, Kind.TEXT):
                    found.append(Field(name, kind, at, argument))
                    at += argument
                else:
                    return None
        except (IndexError, ValueError):
            return None
        return found if at == size_bytes else None

    def _walked_fields(self, key: bytes, document: memoryview) -> list[Field]:
        walk = ObjectWalk(
            self.form.read_header, self.form.item_sizes, len(document), keeps_all=True
        )
        kind, _, pairs = self.form.read_header(document, 0)
        if kind != Kind.MAP:
            raise _refused(key, "is no map of names to values")
        try:
            if pairs <= FIELDS_MAX:
                walk.next_end(document, 0)
        except WalkError as error:
            raise CorruptShardError(readable(key), error.offset, error.reason) from None
        if len(walk.fields) > FIELDS_MAX or pairs > FIELDS_MAX:
            raise _refused(key, f"has more than {FIELDS_MAX:,} fields")
        if not walk.is_map:
            raise _refused(key, "is no map of names to values")
        for each in walk.fields:
            if b"\0" in each.name:
                raise _refused(key, f"has a field {readable(each.name)}, with a NUL in its name")
            is_key = each.name == KEY_FIELD and not self.key_field
            if not is_key and each.kind not in (Kind.BYTES, Kind.TEXT, Kind.INTEGER):
                what = f"has a field {readable(each.name)} that is neither bytes, text nor integer"
                raise _refused(key, what)
        return walk.fields

    def packed(
        self, members: MemberTable, records: FormedRecords, payloads: Payloads
    ) -> MemberTable:
        literals, form = dict[int, bytes](), self.form
        names, sizes = members.names.tolist(), members.payload_bytes.tolist()
        rows, bounds = records.member_rows.tolist(), records.member_offsets.tolist()
        for record, key in enumerate(records.keys.tolist()):
            own = rows[bounds[record] : bounds[record + 1]]
            head = form.map_head(1 + len(own)) + form.text(KEY_FIELD) + form.text(key)
            for row in own:
                extension = names[row][int(records.key_bytes[row]) + 1 :]
                if extension == KEY_FIELD:
                    raise _refused(key, "has a member __key__, the name of the field of keys")
                head += form.text(extension) + form.bytes_head(sizes[row], key)
                literals[row] = head + members.literals.get(row, b"")
                head = b""
        return replace(members, literals=literals, entries=None)


def _refuse_tiny(members: MemberTable) -> None:
    count, size_bytes = len(members), int(members.payload_bytes.sum())
    if count > _TINY_MAX and size_bytes < _TINY_BYTES * count:
        raise ConversionError(
            f"{readable(members.names[0])} and {count - 1:,} objects behind it have "
            f"{size_bytes / count:.0f} bytes on average, too few to become members",
            hint="a job whose output_extension is that of its inputs moves them as they are",
        )


def _documents(
    members: MemberTable, read: Callable[[int, int], bytes]
) -> Iterator[tuple[bytes, int, memoryview]]:
    """(key, first byte in the shard, bytes) of each object. Objects that lie close together are
    read in one piece. Columns become lists for a limited number of rows at a time, because a list
    takes 200 bytes a row."""
    assert members.own.key_bytes is not None
    first = 0
    while first < len(members):
        rows = slice(first, first + _READ_ROWS)
        starts, sizes = members.payload_start[rows], members.payload_bytes[rows]
        low, ends = int(starts[0]), starts + sizes
        is_near = (starts >= low) & (ends - low <= _READ_BYTES)
        count = max(len(starts) if is_near.all() else int(is_near.argmin()), 1)
        view = memoryview(read(low, int(ends[:count].max()) - low))
        names = members.names.run(first, first + count).tolist()
        key_bytes = members.own.key_bytes[rows][:count].tolist()
        places = zip((starts[:count] - low).tolist(), sizes[:count].tolist(), strict=True)
        for name, own_bytes, (at, size) in zip(names, key_bytes, places, strict=True):
            yield name[:own_bytes], low + at, view[at : at + size]
        first += count


def _refused(key: bytes, what: str) -> ConversionError:
    return ConversionError(
        f"record {readable(key)} {what}",
        hint="such shards can be converted if their records are maps of extensions to bytes",
    )


def _msgpack_map_head(pairs: int) -> bytes:
    if pairs < 16:
        return bytes([0x80 | pairs])
    return struct.pack(">BH", 0xDE, pairs) if pairs < 1 << 16 else struct.pack(">BI", 0xDF, pairs)


def _msgpack_text(content: bytes) -> bytes:
    return msgspec.msgpack.encode(content.decode() if is_utf8(content) else content)


def _msgpack_bytes_head(size_bytes: int, key: bytes) -> bytes:
    if size_bytes > _COUNTS_MAX:
        raise ConversionError(
            f"record {readable(key)} has a member of {size_bytes:,} bytes, and MessagePack "
            "holds no bytes over 4 GiB",
            hint="choose another output_extension",
        )
    if size_bytes < 1 << 8:
        return struct.pack(">BB", 0xC4, size_bytes)
    if size_bytes < 1 << 16:
        return struct.pack(">BH", 0xC5, size_bytes)
    return struct.pack(">BI", 0xC6, size_bytes)


@dataclass(frozen=True, slots=True)
class MsgPack(Objects):
    """MessagePack objects, one after the other."""

    suffixes = (".msgpack", ".mp")
    member_extension = b".msgpack"
    form = Form(
        msgpack_header, MSGPACK_SIZES, _msgpack_map_head, _msgpack_text, _msgpack_bytes_head
    )


def _cbor_head(major: int, argument: int) -> bytes:
    first = major << 5
    if argument < 24:
        return bytes([first | argument])
    for short, layout in ((24, ">BB"), (25, ">BH"), (26, ">BI")):
        if argument < 1 << (8 << (short - 24)):
            return struct.pack(layout, first | short, argument)
    return struct.pack(">BQ", first | 27, argument)


@dataclass(frozen=True, slots=True)
class Cbor(Objects):
    """CBOR objects, one after the other (RFC 8742)."""

    suffixes = (".cbor", ".cbors")
    member_extension = b".cbor"
    form = Form(
        cbor_header,
        CBOR_SIZES,
        map_head=lambda pairs: _cbor_head(5, pairs),
        text=lambda text: _cbor_head(3 if is_utf8(text) else 2, len(text)) + text,
        bytes_head=lambda size_bytes, key: _cbor_head(2, size_bytes),
    )


MSGPACK = MsgPack()
CBOR = Cbor()
