"""Members as columns, in the layout of Hugging Face: finds the kind of column for each extension,
and makes rows of records.

The first input decides the columns and their kinds. So that nothing is lost, a later member that
does not fit is an error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dsort.containers.columnar.arrow import pa
from dsort.data.arrow_arrays import arrow_bytes, arrow_numbers, arrow_structs
from dsort.errors import ConversionError, InputError
from dsort.naming.names import KEY_COLUMN, is_utf8, readable, shortened

# --------------------------------------------------------------------------------------------------
# Cells whose values a user's function receives and returns: types by name, and content as values.
#
# Between a worker and the process of the function, a value is the content of a member: a number
# or text as it is written, a list or struct in JSON. The type of the column decides which.


def changed_schema(schema: Any, dropped: Sequence[str], columns: Mapping[str, str]) -> Any:
    """``schema`` without some columns, and with ``columns``, which are new or replace a column of
    the same name. ``columns``: the name of the type of each column. Metadata about columns is left
    out."""
    fields = {field.name: field for field in schema if field.name not in dropped}
    for name, kind in columns.items():
        fields[name] = pa.field(name, _type_named(kind))
    return pa.schema(list(fields.values()))


def _type_named(text: str) -> Any:
    if text.startswith("list<"):
        return pa.list_(_type_named(text[5:-1]))
    return pa.type_for_alias(text)


def cell_decoders(schema: Any) -> dict[str, str]:
    """The decoder for the content of each column (``user_code.encoding``). ``InputError`` for a
    column that a round trip would change."""
    for field in schema:
        if not is_struct_of_bytes(field.type) and _has_bytes_within(field.type):
            raise InputError(
                f"column {shortened(field.name)} has the type {shortened(str(field.type))}, with "
                "bytes inside, which cannot be passed to a function",
                hint="drop the column first",
            )
    return {field.name: _decoder(field.type) for field in schema}


def _has_bytes_within(kind: Any) -> bool:
    if not pa.types.is_nested(kind):
        return False
    within = [kind.field(at).type for at in range(kind.num_fields)]
    return any("binary" in str(each) or _has_bytes_within(each) for each in within)


def _decoder(kind: Any) -> str:
    types = pa.types
    if types.is_boolean(kind):
        return "bool"
    if types.is_integer(kind):
        return "int"
    if types.is_floating(kind):
        return "float"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "bytes"
    if is_struct_of_bytes(kind):
        return "bytes"
    return "json" if types.is_nested(kind) else "txt"


def is_struct_of_bytes(kind: Any) -> bool:
    """Whether a column has files: ``struct<bytes, path>``, as in Hugging Face's libraries."""
    return pa.types.is_struct(kind) and [each.name for each in kind] == ["bytes", "path"]


def typed_value(shard: str, name: bytes, content: bytes, kind: Any) -> Any:
    """The ``content`` of the cell ``name`` as a value for a column of type ``kind``.
    ``ConversionError`` if the content is no value of this type."""
    decoder = _decoder(kind)
    try:
        if decoder == "bytes":
            return content
        text = content.decode()
        if decoder == "bool":
            return bool(int(text))
        if decoder == "int":
            return int(text)
        if decoder == "float":
            return float(text)
        if decoder == "json":
            return json.loads(text)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return text
        return pa.scalar(text).cast(kind)
    except (ValueError, RecursionError, pa.ArrowException):
        raise ConversionError(
            f"{readable(name)} of shard {shard} is no value of type {kind}",
            hint="the step's field `columns` sets the types of the columns that it makes",
        ) from None


def typed_array(shard: str, name: str, values: Sequence[Any], kind: Any) -> Any:
    """The results of ``typed_value`` for all rows, some of them None, as one array.
    ``ConversionError``."""
    try:
        return pa.array(values, kind)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        text = (str(error).splitlines() or [""])[0][:200]
        raise ConversionError(
            f"column {name} of shard {shard} cannot be of type {kind}: {text}",
            hint="the step's field `columns` sets the types of the columns that it makes",
        ) from None


_IMAGES = frozenset(["jpg", "jpeg", "png", "gif", "webp", "bmp", "tif", "tiff"])
_SOUNDS = frozenset(["wav", "flac", "mp3", "ogg", "opus", "m4a"])
_NUMBERS = frozenset({"cls"})
_TEXTS = frozenset({"txt", "json", "text", "caption"})
_INT64_MAX = (1 << 63) - 1


def text_is_whole_number(content: bytes) -> bool:
    """Whether a content is a whole number of 64 bits in its usual form, so that a column of numbers
    reproduces it."""
    try:
        number = int(content) if len(content) <= 20 else _INT64_MAX + 1
    except ValueError:
        return False
    return abs(number) <= _INT64_MAX and str(number).encode() == content


class ColumnKinds:
    """Finds the kind of each column from the members of one shard."""

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}

    def needs_content(self, extension: str) -> bool:
        """Whether the kind of the column may still change with the content of members."""
        last = extension.rpartition(".")[2].lower()
        known = self._kinds.get(extension)
        return known != "binary" and (last in _NUMBERS or last in _TEXTS)

    def add(self, extension: str, content: bytes | None) -> None:
        """Add a member with this extension, without its dot. ``content``: None if not needed."""
        last = extension.rpartition(".")[2].lower()
        if content is None:
            kind = "image" if last in _IMAGES else "sound" if last in _SOUNDS else "binary"
            self._kinds.setdefault(extension, kind)
            return
        known = self._kinds.setdefault(extension, "int64" if last in _NUMBERS else "string")
        if known == "int64" and not text_is_whole_number(content):
            known = "string"
        if known == "string" and not is_utf8(content):
            known = "binary"
        self._kinds[extension] = known

    @property
    def kinds(self) -> Mapping[str, str]:
        """The kind of each column, in the order of their first members."""
        return self._kinds


def schema_of_kinds(kinds: Mapping[str, str]) -> Any:
    """The schema of rows with these columns, and the metadata that Hugging Face's libraries
    read."""
    media = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    types = {"image": media, "sound": media, "int64": pa.int64(), "string": pa.string()}
    features: dict[str, object] = {KEY_COLUMN: {"dtype": "string", "_type": "Value"}}
    fields = [pa.field(KEY_COLUMN, pa.string())]
    for extension, kind in kinds.items():
        fields.append(pa.field(extension, types.get(kind, pa.binary())))
        names = {"image": {"_type": "Image"}, "sound": {"_type": "Audio"}}
        features[extension] = names.get(kind, {"dtype": kind, "_type": "Value"})
    described = json.dumps({"info": {"features": features}})
    return pa.schema(fields, metadata={"huggingface": described})


def batch_of_records(
    shard: str,
    schema: Any,
    keys: Sequence[bytes],
    members: Sequence[Iterable[tuple[bytes, bytes]]],
) -> Any:
    """Records as a record batch. ``members``: the members of each record, as (extension with its
    dot, content). ``ConversionError`` names a member without a place in the schema."""
    columns: dict[str, list[Any]] = {name: [None] * len(keys) for name in schema.names}
    for row, key in enumerate(keys):
        if KEY_COLUMN in columns:
            columns[KEY_COLUMN][row] = _utf8(shard, key, key, "key")
        for extension, content in members[row]:
            name = extension.removeprefix(b".").decode("utf-8", "replace")
            if not extension.startswith(b".") or name == KEY_COLUMN or name not in columns:
                raise ConversionError(
                    f"member {readable(key + extension)} of shard {shard} has no column: no member "
                    "of the first input has its extension",
                    hint="put a shard with all extensions first; stray_members: drop leaves out "
                    "members without an extension",
                )
            columns[name][row] = _value(shard, key, extension, content, schema.field(name).type)
    arrays = [_array(shard, field.name, columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.remove_metadata())


def row_contents(
    key: bytes, cells: Iterable[tuple[bytes, bytes]], key_column: str | None
) -> Iterator[tuple[bytes, bytes]]:
    """The members of a record as cells, (extension with its dot, content). ``key_column``: the
    column that gets the key of a record that was a row; "": ``__key__``, if the schema has it. In
    such a record, an empty member without an extension stands for a row of nulls. None: the record
    was not a row."""
    if key_column is None:
        yield from cells
        return
    own = f".{key_column}".encode()
    yield from (cell for cell in cells if (cell[0] or cell[1]) and cell[0] != own)
    if key_column not in ("", KEY_COLUMN):
        yield own, key


def _value(shard: str, key: bytes, extension: bytes, content: bytes, kind: Any) -> Any:
    if is_struct_of_bytes(kind):
        return content, readable(key.rpartition(b"/")[2] + extension).encode()
    if pa.types.is_int64(kind):
        if not text_is_whole_number(content):
            raise _unfit(
                shard, key + extension, "is no whole number, unlike those of the first input"
            )
        return int(content)
    if pa.types.is_string(kind):
        return _utf8(shard, key + extension, content, "text")
    return (
        content if pa.types.is_binary(kind) else typed_value(shard, key + extension, content, kind)
    )


def _array(shard: str, name: str, values: list[Any], kind: Any) -> Any:
    """The results of ``_value`` for all rows, some of them None, as one array."""
    is_known = np.array([value is not None for value in values], np.bool_)
    if is_struct_of_bytes(kind):
        parts = [[value and value[at] for value in values] for at in range(kind.num_fields)]
        fields = [arrow_bytes(part, kind.field(at).type) for at, part in enumerate(parts)]
        return arrow_structs(fields, kind, is_known)
    if pa.types.is_int64(kind):
        return arrow_numbers(np.array([value or 0 for value in values], np.int64), is_known)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return arrow_bytes(values, kind)
    return typed_array(shard, name, values, kind)


def _utf8(shard: str, name: bytes, content: bytes, what: str) -> bytes:
    if not is_utf8(content):
        raise _unfit(shard, name, f"is no {what} in UTF-8")
    return content


def _unfit(shard: str, name: bytes, reason: str) -> ConversionError:
    return ConversionError(
        f"{readable(name)} of shard {shard} {reason}",
        hint="put a shard with such a member first: the first input decides the types",
    )
