"""Cells whose values a user's function receives and returns: types by name, and content as values.

Between a worker and the process of the function, a value is the content of a member: a number or
text as it is written, a list or struct in JSON. The type of its column defines which.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dsort.errors import ConversionError, InputError
from dsort.naming.names import readable, shortened

__all__ = ["cell_decoders", "changed_schema", "is_struct_of_bytes", "typed_array", "typed_value"]


def changed_schema(schema: Any, dropped: Sequence[str], columns: Mapping[str, str]) -> Any:
    """``schema`` without some columns, and with other columns, types by name, which replace those
    of the same name. Metadata about columns is left out."""
    import pyarrow as pa

    fields = {field.name: field for field in schema if field.name not in dropped}
    for name, kind in columns.items():
        fields[name] = pa.field(name, _type_named(kind))
    return pa.schema(list(fields.values()))


def _type_named(text: str) -> Any:
    import pyarrow as pa

    if text.startswith("list<"):
        return pa.list_(_type_named(text[5:-1]))
    return pa.type_for_alias(text)


def cell_decoders(schema: Any) -> dict[str, str]:
    """The decoder for the content of each column (``user_code.encoding``). ``InputError`` for a
    column whose values would not be the same after a round trip."""
    for field in schema:
        if not is_struct_of_bytes(field.type) and _has_bytes_within(field.type):
            raise InputError(
                f"column {shortened(field.name)} has the type {shortened(str(field.type))}, whose "
                "bytes no function can be given",
                hint="take out the column first",
            )
    return {field.name: _decoder(field.type) for field in schema}


def _has_bytes_within(kind: Any) -> bool:
    import pyarrow as pa

    if not pa.types.is_nested(kind):
        return False
    within = [kind.field(at).type for at in range(kind.num_fields)]
    return any("binary" in str(each) or _has_bytes_within(each) for each in within)


def _decoder(kind: Any) -> str:
    import pyarrow as pa

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
    import pyarrow as pa

    return pa.types.is_struct(kind) and [each.name for each in kind] == ["bytes", "path"]


def typed_value(shard: str, name: bytes, content: bytes, kind: Any) -> Any:
    """The ``content`` of the cell ``name`` as a value for a column of type ``kind``.
    ``ConversionError`` if it is not such a value."""
    import pyarrow as pa

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
            hint="columns: of the step says which types the columns have that it makes",
        ) from None


def typed_array(shard: str, name: str, values: Sequence[Any], kind: Any) -> Any:
    """An array of the results of ``typed_value`` for all rows, and None. ``ConversionError``."""
    import pyarrow as pa

    try:
        return pa.array(values, kind)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        text = (str(error).splitlines() or [""])[0][:200]
        raise ConversionError(
            f"column {name} of shard {shard} cannot be of type {kind}: {text}",
            hint="columns: of the step says which types the columns have that it makes",
        ) from None
