"""Files of lines as containers: JSON lines and text.

A line is moved unchanged. A shard of lines has no head and no end. Between two lines is only the
line feed that ends the first one. So a shard without lines is an empty file.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from dsort.containers.base import ContainerOptions, KeyedContainer, OddityKind, Scanner
from dsort.containers.facets import Payloads
from dsort.containers.lines.scan import BOM, KEYED_LINE_BYTES_MAX, LineScan
from dsort.data.json_pointer import JsonPointer, JsonSyntaxError, is_json
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.errors import ConversionError
from dsort.naming.names import readable, shortened

JSON_BYTES_MAX: Final = 64 << 20
"""A JSON payload up to this size is decoded to check that it is JSON."""

ODDITIES: Final = (
    OddityKind(
        "empty_lines",
        kind="empty_lines_dropped",
        warning="{count} empty [line was|lines were] dropped, in {names}",
        inspected="empty_lines",
        text="empty [line, which is no record|lines, which are no records]",
    ),
    OddityKind(
        "byte_order_mark",
        kind="byte_order_marks_dropped",
        warning="{count} byte order [mark was|marks were] dropped, in {names}",
        inspected="byte_order_mark",
        text="byte order [mark, which is|marks, which are] dropped",
    ),
    OddityKind(
        "unended_line",
        kind="line_ends_added",
        warning="{count} last [line|lines] had no line feed and got one, in {names}",
        inspected="unended_line",
        text="last [line|lines] without a line feed, which [gets|get] one",
    ),
)


@dataclass(frozen=True, slots=True)
class Lines(KeyedContainer):
    """The base of JSON lines and text. ``key_field``: the JSON pointer to keys; "": lines are
    numbered."""

    strips_final_newline: bool = False

    oddities = ODDITIES
    has_short_records = True
    begins_bare = True
    member_extension = b""
    """The extension of a line's member in a tar, after its key."""
    is_json = False

    no_other_name = (
        "a line has no name apart from its content, and cannot become {name}",
        "duplicate_keys: warn keeps both records; shards of .tar have names",
    )

    def scanner(self, shard: str, size_bytes: int) -> Scanner:
        pointer = JsonPointer.parse(self.key_field) if self.key_field else None
        extension, is_json = self.member_extension, self.is_json
        return LineScan(shard, size_bytes, extension, pointer, is_json=is_json).scanner()

    def packed(
        self, members: MemberTable, records: FormedRecords, payloads: Payloads
    ) -> MemberTable:
        """Each record as a line. Payloads are checked in Python: some µs a record."""
        self._refuse_others(members, records)
        pointer = JsonPointer.parse(self.key_field) if self.key_field else None
        keys = records.keys.tolist()
        for record, row in enumerate(records.member_rows.tolist()):
            key = keys[record]
            lone = LonePayload(readable(key), self.suffixes[0], self.is_json)
            for piece in payloads.pieces(row):
                lone.add(piece)
            lone.check()
            if pointer is not None:
                lone.check_length()
                content = b"".join(map(bytes, payloads.pieces(row)))
                _check_key(pointer, content, key, self.suffixes[0])
        tails = dict.fromkeys(records.member_rows.tolist(), b"\n")
        return replace(members, tails=tails, entries=None)

    def _refuse_others(self, members: MemberTable, records: FormedRecords) -> None:
        """``ConversionError`` for the first record that cannot be a line, or has several
        members."""
        counts = np.diff(records.member_offsets)
        rows = records.member_rows
        several = np.flatnonzero(counts != 1)
        if len(several):
            record = int(several[0])
            raise ConversionError(
                f"record {readable(records.keys[record])} has {int(counts[record])} members, and a "
                f"line of a {self.suffixes[0]} shard holds one",
                hint=f"choose an output_extension whose records have several members; a line is "
                f"made of a record with a {readable(self.member_extension)} member alone",
            )
        names = members.names.take(rows)
        starts = names.offsets[:-1] + records.key_bytes[rows]
        wanted = np.frombuffer(self.member_extension, np.uint8)
        fits = names.offsets[1:] - starts == len(wanted)
        places = starts[fits][:, None] + np.arange(len(wanted))
        fits[fits] = (names.blob[places] == wanted).all(axis=1)
        other = np.flatnonzero(~fits)
        if len(other):
            raise ConversionError(
                f"record {readable(records.keys[int(other[0])])} is "
                f"{readable(names[int(other[0])])}, which is no line of a {self.suffixes[0]} shard",
                hint=f"lines of such shards are made of {readable(self.member_extension)} members",
            )


class LonePayload(Struct):
    """Checks a payload that will be one line."""

    record: str
    suffix: str
    is_json: bool
    size_bytes: int = 0
    feed_at: int = -1  # the offset of the first line feed
    has_text: bool = False
    pieces: list[bytes] = field(default_factory=list)  # kept only of short JSON

    def add(self, piece: memoryview | bytes) -> None:
        """Check the next piece."""
        data = bytes(piece)
        if self.size_bytes == 0 and data.startswith(BOM):
            raise self._refused("begins with a byte order mark, which only a file may begin with")
        if self.feed_at < 0 and (found := data.find(b"\n")) >= 0:
            self.feed_at = self.size_bytes + found
        self.has_text = self.has_text or bool(data.strip(b" \t\r\n" if self.is_json else b"\r\n"))
        self.size_bytes += len(data)
        if self.is_json and self.size_bytes <= JSON_BYTES_MAX:
            self.pieces.append(data)

    def check(self) -> None:
        """``ConversionError`` unless the payload is one line, without its line feed."""
        if not self.has_text:
            raise self._refused("is empty: readers pass over empty lines")
        # A line feed, even at the end, would be lost: a payload is read back without the line feed
        # of its line.
        if self.feed_at >= 0:
            if self.feed_at == self.size_bytes - 1:
                hint = "strip_final_newline: true removes this line feed for good"
                raise self._refused("ends in a line feed", hint)
            raise self._refused("has several lines")
        is_short = self.size_bytes <= JSON_BYTES_MAX
        if self.is_json and is_short and not is_json(b"".join(self.pieces)):
            raise self._refused("is no JSON")

    def check_length(self) -> None:
        """``ConversionError`` for a line that is too long to look for a key in it."""
        if self.size_bytes > KEYED_LINE_BYTES_MAX:
            limit = KEYED_LINE_BYTES_MAX >> 20
            raise self._refused(
                f"is longer than {limit} MiB, too long to look for a key in it",
                "leave out key_field: lines are numbered then, and may have any length",
            )

    def _refused(self, what: str, hint: str = "") -> ConversionError:
        return ConversionError(
            f"record {self.record} cannot be a line of a {self.suffix} shard: its payload {what}",
            hint=hint or "mend the record, or choose another output_extension",
        )


def _check_key(pointer: JsonPointer, document: bytes, key: bytes, suffix: str) -> None:
    """``ConversionError`` if the key in the line would differ from the key of the record."""
    try:
        value = pointer.value(document)
    except KeyError:
        value = None
    except JsonSyntaxError as problem:  # long payloads were not checked to be JSON
        raise ConversionError(
            f"record {readable(key)} cannot be a line of a {suffix} shard: it is {problem}",
            hint="mend the record, or leave key_field out: then records are numbered",
        ) from None
    if isinstance(value, str) and value.encode("utf-8", "surrogateescape") == key:
        return
    raise ConversionError(
        f"record {readable(key)} would have another key in a {suffix} shard: its field "
        f"{shortened(pointer.text)} does not have this key",
        hint="choose the key_field that holds the keys, or leave it out: then records are numbered",
    )


@dataclass(frozen=True, slots=True)
class JsonLines(Lines):
    """One JSON document in each line."""

    suffixes = (".jsonl", ".ndjson")
    member_extension = b".json"
    is_json = True

    def with_options(self, options: ContainerOptions) -> JsonLines:
        strips = options.strip_final_newline
        return dataclasses.replace(self, key_field=options.key_field, strips_final_newline=strips)


@dataclass(frozen=True, slots=True)
class TextLines(Lines):
    """One text in each line. Lines have no fields, and are always numbered."""

    suffixes = (".txt",)
    member_extension = b".txt"

    def with_options(self, options: ContainerOptions) -> TextLines:
        return dataclasses.replace(self, strips_final_newline=options.strip_final_newline)


JSON_LINES = JsonLines()
TEXT_LINES = TextLines()
