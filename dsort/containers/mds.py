"""The MDS container (version 2), the shards of MosaicML Streaming."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from dsort.containers.bare_rows import record_table
from dsort.containers.base import ContainerOptions, KeyedContainer, Need, Scanner
from dsort.containers.facets import (
    Head,
    OutputFile,
    Payloads,
    Schemas,
    ShardIndex,
)
from dsort.containers.samples import (
    SHARD_BYTES_MAX,
    SampleValue,
    bare_samples,
    columns_of,
    format_of,
    offset_table,
    packed_samples,
    read_offsets,
    read_sizes,
    table_bytes,
)
from dsort.data.columns import Int64s
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.errors import ContentKeyError, ConversionError, CorruptShardError
from dsort.naming.names import KEY_COLUMN, codec_extension, readable, without_numbers

# --------------------------------------------------------------------------------------------------
# The columns of an MDS shard, from its config, bounded and checked.


CONFIG_BYTES_MAX: Final = 1 << 20
COLUMNS_MAX: Final = 4096
_SIZE_MAX: Final = (1 << 32) - 1

NUMBER_TYPES: Final = {
    "int": "<i8",
    **{f"int{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
"""The encodings that are one number of a fixed size, with their names in NumPy."""


_Size = Annotated[int, Meta(gt=0, le=_SIZE_MAX)]
_Texts = Annotated[list[str], Meta(max_length=COLUMNS_MAX)]


class _Config(Struct):
    """The description of the columns in the config of a shard."""

    column_names: _Texts
    column_encodings: _Texts
    column_sizes: Annotated[list[_Size | None], Meta(max_length=COLUMNS_MAX)]
    format: Literal["mds"]
    version: Literal[2]


class Columns(Struct, frozen=True):
    """Names, encodings and sizes of the columns, in the order of a sample's values. A size is None
    if each sample has its own."""

    names: tuple[str, ...] = ()
    encodings: tuple[str, ...] = ()
    sizes: tuple[int | None, ...] = ()

    @property
    def variable(self) -> int:
        """How many columns have no fixed size."""
        return sum(size is None for size in self.sizes)

    @property
    def fixed_bytes(self) -> int:
        """The number of bytes that the columns with a fixed size take in a sample."""
        return sum(size or 0 for size in self.sizes)

    @classmethod
    def of_config(cls, data: bytes) -> Columns:
        """The columns in the config of a shard; ``ValueError`` for an invalid config."""
        try:
            config = json.loads(data)
        except (RecursionError, UnicodeDecodeError, ValueError):
            raise ValueError("its config is no JSON") from None
        return cls._checked(config)

    @classmethod
    def of_schema(cls, schema: str) -> Columns:
        """The columns of a :attr:`schema`; none for ""."""
        whole = {"format": "mds", "version": 2}
        return cls._checked({**json.loads(schema), **whole}) if schema else cls()

    @classmethod
    def _checked(cls, given: object) -> Columns:
        try:
            config = msgspec.convert(given, _Config)
        except msgspec.ValidationError as error:
            raise ValueError(f"its config is not that of MDS version 2: {error}") from None
        names, encodings, sizes = config.column_names, config.column_encodings, config.column_sizes
        if not len(names) == len(encodings) == len(sizes) == len(set(names)):
            raise ValueError("its config has a column without a name of its own, encoding or size")
        for encoding, size in zip(encodings, sizes, strict=True):
            if encoding in NUMBER_TYPES and size != int(NUMBER_TYPES[encoding][2:]):
                raise ValueError(f"its config has a column of {encoding} with a wrong size")
        return cls(tuple(names), tuple(encodings), tuple(sizes))

    @property
    def schema(self) -> str:
        """The columns as text; equal columns have equal texts."""
        return json.dumps(self.as_config(), sort_keys=True)

    def as_config(self) -> dict[str, Any]:
        """The description of the columns in a config, and in a shard's line of an index."""
        return {
            "column_encodings": list(self.encodings),
            "column_names": list(self.names),
            "column_sizes": list(self.sizes),
        }

    def difference(self, other: Columns) -> str:
        """How ``other`` differs, in words that follow the name of its shard."""
        for name in self.names:
            if name not in other.names:
                return f"has no column {name}"
        for name in other.names:
            if name not in self.names:
                return f"has a column {name}"
        for name, encoding, size in zip(self.names, self.encodings, self.sizes, strict=True):
            at = other.names.index(name)
            if other.encodings[at] != encoding:
                return f"has column {name} as {other.encodings[at]}, not {encoding}"
            if other.sizes[at] != size:
                return f"has column {name} with a size of {other.sizes[at]}, not {size}"
        return "has its columns in another order"


NO_COLUMNS: Final = Columns()


# --------------------------------------------------------------------------------------------------
# Reads an MDS shard from windows on its bytes: the table, the columns, the sizes in each sample,
# and the keys if they are requested.


EXTENSION = b".mds"
"""The extension of the one member of a record, after its key."""
KEY_ENCODINGS = ("str", "bytes", "str_int", *(n for n in NUMBER_TYPES if not n.startswith("float")))
KEY_BYTES_MAX = 1 << 16


def scan_samples(shard: str, size_bytes: int, key_column: str) -> Scanner:
    """See ``Container.scanner``. ``key_column``: "" if records are numbered."""
    offsets = yield from read_offsets(shard, size_bytes, "MDS shard", "samples", has_head=True)
    starts, lengths = offsets[:-1], np.diff(offsets)
    columns = yield from _read_columns(shard, offsets)
    if key_column:
        _check_key_column(shard, columns, key_column)
    short = np.flatnonzero(lengths < 4 * columns.variable + columns.fixed_bytes)
    if len(short):
        text = "a sample is shorter than its columns"
        raise CorruptShardError(shard, int(starts[short[0]]), text)
    ranges = [np.zeros((2, 0), np.int64)]

    def take(starts: Int64s, sizes: Int64s) -> None:
        if key_column:
            ranges.append(_key_ranges(columns, key_column, starts, sizes))

    variable, fixed_bytes = columns.variable, columns.fixed_bytes
    yield from read_sizes(shard, offsets, variable, fixed_bytes, "a sample", take)
    keys = None
    if key_column:
        keys = yield from _read_keys(shard, columns, key_column, np.concatenate(ranges, axis=1))
    return record_table(shard, EXTENSION, starts, lengths, keys, schema=columns.schema)


def _read_columns(shard: str, offsets: Int64s) -> Generator[Need, memoryview, Columns]:
    count = len(offsets) - 1
    at = table_bytes(count)
    size_bytes = int(offsets[0]) - at
    if size_bytes > CONFIG_BYTES_MAX:
        text = f"its config has more than {CONFIG_BYTES_MAX:,} bytes"
        raise CorruptShardError(shard, 4, text)
    config = bytes((yield Need(at, size_bytes))[:size_bytes])
    try:
        columns = Columns.of_config(config)
    except ValueError as error:
        raise CorruptShardError(shard, at, str(error)) from None
    if count and not columns.names:
        raise CorruptShardError(shard, at, "it has samples, but no columns")
    return columns


def _check_key_column(shard: str, columns: Columns, key_column: str) -> None:
    if key_column not in columns.names:
        raise ContentKeyError(
            f"shard {shard} has no column {key_column}",
            hint=f"key_field is one of {', '.join(columns.names)}; without it records are numbered",
        )
    encoding = columns.encodings[columns.names.index(key_column)]
    if encoding not in KEY_ENCODINGS:
        raise ContentKeyError(
            f"column {key_column} of shard {shard} is {encoding}, which is no key",
            hint=f"a key is one of {', '.join(KEY_ENCODINGS)}",
        )


def _key_ranges(columns: Columns, key_column: str, starts: Int64s, sizes: Int64s) -> Int64s:
    """(start of the key, length of the key) of each sample, shape (2, n)."""
    at = starts + 4 * columns.variable
    variable = 0
    for name, size in zip(columns.names, columns.sizes, strict=True):
        own = sizes[:, variable] if size is None else np.full(len(starts), size, np.int64)
        if name == key_column:
            return np.stack([at, own])
        at = at + own
        variable += size is None
    raise AssertionError(key_column)


def _read_keys(
    shard: str, columns: Columns, key_column: str, ranges: Int64s
) -> Generator[Need, memoryview, list[bytes]]:
    starts, lengths = ranges
    wrong = np.flatnonzero((lengths == 0) | (lengths > KEY_BYTES_MAX))
    if len(wrong):
        raise ContentKeyError(
            f"sample {int(wrong[0])} of shard {shard} has no key in {key_column}, or one of more "
            f"than {KEY_BYTES_MAX:,} bytes",
            hint="choose another key_field, or leave it out: then records are numbered",
        )
    keys: list[bytes] = []
    ends = starts + lengths
    while (row := len(keys)) < len(starts):
        first = int(starts[row])
        keys += _keys_in((yield Need(first, int(lengths[row]))), first, starts[row:], ends[row:])
    encoding = columns.encodings[columns.names.index(key_column)]
    return [number_text(encoding, key, key) for key in keys] if encoding in NUMBER_TYPES else keys


def _keys_in(window: memoryview, first: int, starts: Int64s, ends: Int64s) -> list[bytes]:
    """The keys that end in ``window``, which begins at byte ``first`` of the shard."""
    stop = int(np.searchsorted(ends, first + len(window), side="right"))
    pairs = zip((starts[:stop] - first).tolist(), (ends[:stop] - first).tolist(), strict=True)
    return [bytes(window[begin:end]) for begin, end in pairs]


def number_text(encoding: str, key: bytes, value: bytes) -> bytes:
    """See ``SampleValue.text``: the shortest decimal text that stands for exactly the number in
    ``value``."""
    number = np.frombuffer(value, NUMBER_TYPES[encoding])[0]
    return str(number).encode()


_ENCODINGS: Final[Mapping[str, str]] = {
    "txt": "str",
    "cls": "str_int",
    "json": "json",
    "jpg": "jpeg",
    "jpeg": "jpeg",
    "png": "png",
}
"""The encoding of a column, by the last part of its extension: the part by which webdataset chooses
decoders. All other columns are ``bytes``."""
_NUMBER_SUFFIX: Final = b".cls"
_NUMBER_BYTES_MAX: Final = 1000
_HASH: Final = "xxh3_64"


def _schema(columns: tuple[str, ...]) -> str:
    """The schema of converted records with columns of these names."""
    encodings = tuple(
        "str" if name == KEY_COLUMN else format_of(name, _ENCODINGS) for name in columns
    )
    return Columns(columns, encodings, (None,) * len(columns)).schema


def schema_of_members(extensions: Sequence[str]) -> str:
    """See :class:`Schemas`."""
    return _schema(columns_of(extensions))


def schema_difference(schema: str, other: str) -> str:
    """See :class:`Schemas`."""
    return Columns.of_schema(schema).difference(Columns.of_schema(other))


@dataclass(frozen=True, slots=True)
class Mds(KeyedContainer):
    """MDS shards. ``key_field``: the column that is the key; "": records are numbered. ``columns``:
    the columns of output shards. ``compression``: the codec around output shards.

    A record is a sample, and is moved unchanged, so all inputs must have the same columns. In a
    conversion the key is the column ``__key__``, if there is one and ``key_field`` names no other.
    A sample becomes a record whose members are its columns: a number of a fixed size becomes
    decimal text, all other values become members unchanged. Records become samples with the columns
    ``__key__`` and the extensions of the members; all records must have the same extensions. Values
    are kept byte for byte, and the encoding defines how a reader decodes them (``_ENCODINGS``). The
    columns of a sample are sorted by name, so members are read back in that order."""

    columns: Columns = NO_COLUMNS
    compression: str | None = field(default=None, compare=False)
    member_defaults: tuple[tuple[str, bytes], ...] = ()

    suffixes = (".mds",)
    keeps_keys = True
    schemas = Schemas(schema_of_members, schema_difference)
    no_other_name = (
        "a sample of an .mds shard cannot be called {name}: the key is in the sample",
        "choose other reactions than rename, or leave out key_field",
    )

    def with_options(self, options: ContainerOptions) -> Mds:
        return replace(self, key_field=options.key_field, member_defaults=options.member_defaults)

    def with_schema(self, schema: str) -> Mds:
        return replace(self, columns=Columns.of_schema(schema))

    def scanner(self, shard: str, size_bytes: int) -> Scanner:
        return scan_samples(shard, size_bytes, self.key_field)

    # -- conversion ------------------------------------------------------------------------------

    def bare(self, members: MemberTable, read: Callable[[int, int], bytes]) -> MemberTable:
        columns = Columns.of_schema(members.own.schema)
        values = [
            SampleValue(
                name, size, partial(number_text, encoding) if encoding in NUMBER_TYPES else None
            )
            for name, encoding, size in zip(
                columns.names, columns.encodings, columns.sizes, strict=True
            )
        ]
        return bare_samples(members, read, values, self._key_column(columns))

    def _key_column(self, columns: Columns) -> str | None:
        """The column that is the key of a converted record, and therefore not a member."""
        if self.key_field not in ("", KEY_COLUMN) or KEY_COLUMN not in columns.names:
            return None
        encoding = columns.encodings[columns.names.index(KEY_COLUMN)]
        return KEY_COLUMN if encoding in ("str", "bytes") else None

    def packed(
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
        return ShardIndex(
            "index.json",
            self._index_of,
            (".zstd", ".gz"),
            lambda suffix: replace(self, compression=suffix.removeprefix(".")),
        )

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
    # MosaicML calls any compressed file `zip_data`, whatever its codec.
    raw = {"basename": basename, "bytes": output.container_bytes}
    return {"raw_data": raw | {"hashes": {}}, "zip_data": file | {"hashes": {}}}


def _check_numbers(members: MemberTable, records: FormedRecords, payloads: Payloads) -> None:
    """``ConversionError`` for a member with the encoding ``str_int`` that is not an integer.
    Readers decode all columns, so they could not read a sample with such a member."""
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
                "MDS readers decode .cls as one",
                hint="rename it: transform: {steps: [{fields: {rename: {cls: cls.txt}}}]}",
            )


def _is_number(text: bytes) -> bool:
    try:
        int(text.decode())
    except ValueError:
        return False
    return True


MDS = Mds()
