"""The MDS container (version 2): the interface of this folder to the rest of dsort.

A record is a sample, and is moved unchanged, so all inputs must have the same columns. It has no
name: its key is a column (``key_field``), or else its position. In a conversion the key is the
column ``__key__``, if there is one and ``key_field`` names no other.

Converted, a sample is a record whose members are its columns: a number of a fixed size becomes
decimal text, all other values become members unchanged. Records become samples whose columns are
``__key__`` and the extensions of their members; all must have the same. Values are kept byte for
byte, and the encoding defines how a reader decodes them: ``txt`` is ``str``, ``json`` is ``json``,
``cls`` is ``str_int`` (an integer as text), ``jpg`` and ``jpeg`` are ``jpeg``, ``png`` is ``png``,
all others are ``bytes``. The columns of a sample are sorted by name, so members are read back in
that order.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from dsort.containers.bare_rows import BareRows, Value
from dsort.containers.base import Container, ContainerOptions, Scanner
from dsort.containers.facets import (
    Head,
    OutputFile,
    Packing,
    Payloads,
    Schemas,
    ShardIndex,
)
from dsort.containers.mds.columns import NO_COLUMNS, NUMBER_TYPES, Columns
from dsort.containers.mds.scan import number_text, scan_samples
from dsort.containers.samples import (
    SHARD_BYTES_MAX,
    offset_table,
    packed_samples,
    table_bytes,
)
from dsort.data.columns import Int64s
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.errors import ConversionError
from dsort.naming.names import KEY_COLUMN, codec_extension, readable, without_numbers

__all__ = ["MDS", "Mds"]

_ENCODINGS: Final[Mapping[str, str]] = {
    "txt": "str",
    "cls": "str_int",
    "json": "json",
    "jpg": "jpeg",
    "jpeg": "jpeg",
    "png": "png",
}
"""By the last part of an extension, as webdataset's decoders choose. All others are ``bytes``."""
_NUMBER_SUFFIX: Final = b".cls"
_NUMBER_BYTES_MAX: Final = 1000
_HASH: Final = "xxh3_64"


def _schema(columns: tuple[str, ...]) -> str:
    """The schema of converted records with columns of these names."""
    encodings = tuple("str" if name == KEY_COLUMN else _encoding(name) for name in columns)
    return Columns(columns, encodings, (None,) * len(columns)).schema


def _encoding(column: str) -> str:
    return _ENCODINGS.get(column.rpartition(".")[2].lower(), "bytes")


def schema_of_members(extensions: Sequence[str]) -> str:
    """See :class:`Schemas`."""
    return _schema(tuple(sorted([*extensions, KEY_COLUMN])))


def schema_difference(schema: str, other: str) -> str:
    """See :class:`Schemas`."""
    return Columns.of_schema(schema).difference(Columns.of_schema(other))


@dataclass(frozen=True, slots=True)
class Mds(Container):
    """MDS shards. ``key_field``: the column that is the key; "": records are numbered. ``columns``:
    of the shards that are written. ``compression``: the codec around them."""

    key_field: str = ""
    columns: Columns = NO_COLUMNS
    compression: str | None = field(default=None, compare=False)
    member_defaults: tuple[tuple[str, bytes], ...] = ()

    suffixes = (".mds",)
    keeps_keys = True
    schemas = Schemas(schema_of_members, schema_difference)
    no_other_name = (
        "a sample of an .mds shard cannot be called {name}: its key is in it",
        "choose other reactions than rename, or leave out key_field",
    )

    def with_options(self, options: ContainerOptions) -> Mds:
        return replace(self, key_field=options.key_field, member_defaults=options.member_defaults)

    def with_schema(self, schema: str) -> Mds:
        return replace(self, columns=Columns.of_schema(schema))

    @property
    def numbers_records(self) -> bool:
        return not self.key_field

    def scanner(self, shard: str, size_bytes: int) -> Scanner:
        return scan_samples(shard, size_bytes, self.key_field)

    # -- conversion ------------------------------------------------------------------------------

    def bare(self, members: MemberTable, read: Callable[[int, int], bytes]) -> MemberTable:
        assert members.key_bytes is not None
        columns = Columns.of_schema(members.schema)
        sizes_of = struct.Struct(f"<{columns.variable}I")
        names, key_bytes = members.names.tolist(), members.key_bytes.tolist()
        key_column = self._key_column(columns)
        rows = BareRows(members)
        for record, start in enumerate(members.payload_start.tolist()):
            sizes = iter(sizes_of.unpack(read(start, sizes_of.size)))
            at = start + sizes_of.size
            key = names[record][: key_bytes[record]]
            found: list[tuple[bytes, Value]] = []
            for name, encoding, fixed in zip(
                columns.names, columns.encodings, columns.sizes, strict=True
            ):
                size = next(sizes) if fixed is None else fixed
                if name == key_column:
                    key = read(at, size) or key
                else:
                    value: Value = (at, size)
                    if encoding in NUMBER_TYPES:
                        value = number_text(encoding, read(at, size))
                    found.append((name.encode("utf-8", "surrogatepass"), value))
                at += size
            rows.add(record, key, found)
        return rows.table()

    def _key_column(self, columns: Columns) -> str:
        """The column that is the key of a converted record, and therefore not a member; "" if there
        is none."""
        if self.key_field not in ("", KEY_COLUMN) or KEY_COLUMN not in columns.names:
            return ""
        encoding = columns.encodings[columns.names.index(KEY_COLUMN)]
        return KEY_COLUMN if encoding in ("str", "bytes") else ""

    @property
    def packing(self) -> Packing:
        return Packing(self._packed, member_defaults=self.member_defaults)

    def _packed(
        self, members: MemberTable, records: FormedRecords, payloads: Payloads
    ) -> MemberTable:
        _check_numbers(members, records, payloads)
        return packed_samples(members, records, _schema, "an MDS data set")

    # -- writing ---------------------------------------------------------------------------------

    @property
    def head(self) -> Head:
        config = json.dumps(self._settings(), sort_keys=True).encode()

        def size_bytes(records: int) -> int:
            return table_bytes(records) + len(config)

        def table(stored_bytes: Int64s) -> bytes:
            return offset_table(size_bytes(len(stored_bytes)), stored_bytes) + config

        return Head(size_bytes, table, SHARD_BYTES_MAX)

    @property
    def index(self) -> ShardIndex:
        return ShardIndex("index.json", self._index_of, (".zstd", ".gz"), self._compressed)

    def _compressed(self, suffix: str) -> Mds:
        return replace(self, compression=suffix.removeprefix("."))

    def _index_of(self, outputs: Sequence[OutputFile]) -> bytes:
        shards = [
            {
                **self._settings(),
                **_files(output),
                "samples": output.records,
            }
            for output in outputs
        ]
        index = {"shards": shards, "version": 2}
        return json.dumps(index, sort_keys=True).encode()

    def _settings(self) -> dict[str, Any]:
        """The settings in both a shard's config and its line in the index. The hash is the one that
        every output shard has anyway."""
        return {
            **self.columns.as_config(),
            "compression": self.compression,
            "format": "mds",
            "hashes": [] if self.compression else [_HASH],
            "size_limit": None,
            "version": 2,
        }


def _files(output: OutputFile) -> dict[str, Any]:
    """The description of a shard's file in an index. A compressed shard would also need a hash of
    the decoded bytes, which is not computed, so it has no hashes."""
    codec = codec_extension(without_numbers(output.name))
    file = {"basename": output.name, "bytes": output.file_bytes}
    if not codec:
        return {"raw_data": file | {"hashes": {_HASH: output.xxh3}}, "zip_data": None}
    basename = output.name.removesuffix(codec)
    if basename == output.name:  # numbers follow the suffix
        basename = f"{output.name}.mds"
    raw = {"basename": basename, "bytes": output.container_bytes}
    return {"raw_data": raw | {"hashes": {}}, "zip_data": file | {"hashes": {}}}


def _check_numbers(members: MemberTable, records: FormedRecords, payloads: Payloads) -> None:
    """``ConversionError`` for a member whose encoding is ``str_int`` and that is not an integer.
    Readers decode all columns, so they could not read its sample."""
    rows = records.member_rows
    numbers = rows[members.names.lengths[rows] >= len(_NUMBER_SUFFIX)]
    wanted = np.frombuffer(_NUMBER_SUFFIX, np.uint8)
    ends = members.names.offsets[1:][numbers]
    tails = members.names.blob[ends[:, None] + np.arange(-len(wanted), 0)]
    is_upper = (tails >= ord("A")) & (tails <= ord("Z"))
    numbers = numbers[(np.where(is_upper, tails + 32, tails) == wanted).all(axis=1)]
    for row, pieces in zip(numbers.tolist(), payloads.each(numbers), strict=True):
        if int(members.payload_bytes[row]) > _NUMBER_BYTES_MAX or not _is_number(b"".join(pieces)):
            name = members.names[row]
            key = name[: int(records.key_bytes[row])]
            raise ConversionError(
                f"record {readable(key)} has a member {readable(name)} that is no whole number: "
                "MDS readers take .cls for one",
                hint="call it otherwise: transform: {steps: [{fields: {rename: {cls: cls.txt}}}]}",
            )


def _is_number(text: bytes) -> bool:
    try:
        int(text.decode())
    except ValueError:
        return False
    return True


MDS = Mds()
