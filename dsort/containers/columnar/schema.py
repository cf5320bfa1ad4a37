"""Schemas: the types with which rows are processed, whether the columns of two shards agree, and
how many bytes rows take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dsort.containers.columnar.arrow import pa
from dsort.containers.columnar.parquet_types import check_same_types
from dsort.data.columns import BytesColumn, Int64s, offsets_of
from dsort.errors import InputError
from dsort.naming.names import shortened

_NULL_BYTES = 8
"""The size of a null in a list, once the list is read."""


def plain_schema(shard: str, schema: Any) -> Any:
    """The schema with which rows of ``schema`` are processed, without its metadata: its *plain*
    types. Dictionaries and views refer to values elsewhere, out of reach once rows are separated.
    So dictionaries and views are decoded when rows are read, and made again when rows are written.
    ``InputError`` for a type that cannot be processed."""
    if not len(schema):
        raise InputError(f"shard {shard} has no columns", hint="leave it out")
    if len(set(schema.names)) != len(schema.names):
        raise InputError(f"shard {shard} has two columns of one name", hint="rename one of them")
    fields = []
    for field in schema:
        kind = _plain_type(field.type)
        if kind is None or _is_out_of_place(kind):
            raise InputError(
                f"column {shortened(field.name)} of shard {shard} has the type "
                f"{shortened(str(field.type))}, which dsort cannot take apart by rows",
                hint="cast it to a plain type",
            )
        fields.append(pa.field(field.name, kind, field.nullable))
    return pa.schema(fields)


def _plain_type(kind: Any) -> Any:
    """The type with which a column of ``kind`` is processed; None if such a column cannot be
    processed."""
    if pa.types.is_dictionary(kind):
        return None if pa.types.is_nested(kind.value_type) else _plain_type(kind.value_type)
    views = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
    return views.get(str(kind), kind)


def _is_out_of_place(kind: Any) -> bool:
    """Whether a type that should be plain contains a dictionary, a view, a union or a run-length
    code."""
    if isinstance(kind, pa.BaseExtensionType):
        return _is_out_of_place(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_union(kind) or "view" in str(kind).split("<")[0]:
        return True
    if pa.types.is_run_end_encoded(kind):
        return True
    return any(_is_out_of_place(kind.field(at).type) for at in range(kind.num_fields))


def decoded(batch: Any, plain: Any) -> Any:
    """A record batch as it was read, converted to the types of the schema ``plain``; columns are
    matched by name."""
    columns = []
    for field in plain:
        column = batch.column(batch.schema.get_field_index(field.name))
        try:
            columns.append(cast(column, field.type))
        except NotImplementedError as error:
            text = f"column {shortened(field.name)} is {shortened(str(column.type))}: {error}"
            raise NotImplementedError(text) from None
    return pa.RecordBatch.from_arrays(columns, schema=plain)


def cast(array: Any, kind: Any) -> Any:
    """``array`` as ``kind``, with the same values. pyarrow cannot cast nulls to every type, nor
    dictionaries from or to views; so of a dictionary, only the values are cast."""
    if pa.types.is_null(array.type) and array.type != kind:
        return pa.nulls(len(array), kind)
    if pa.types.is_dictionary(array.type):
        wanted = kind.value_type if pa.types.is_dictionary(kind) else kind
        if array.type.value_type != wanted:
            values, ordered = array.dictionary.cast(wanted), array.type.ordered
            array = pa.DictionaryArray.from_arrays(array.indices, values, ordered=ordered)
    return array if array.type == kind else array.cast(kind)


def encoded(batch: Any, schema: Any) -> Any:
    """A record batch of plain types, converted to the types and the metadata of ``schema``."""
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        if pa.types.is_dictionary(field.type) and not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        columns.append(cast(column, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def for_parquet(schema: Any) -> Any:
    """``schema`` with dictionaries that pyarrow can write to Parquet: texts or binaries instead of
    views, and no dictionaries of nulls."""
    fields = []
    for field in schema:
        kind = field.type
        if pa.types.is_dictionary(kind):
            plain = _plain_type(kind)
            if pa.types.is_null(plain):
                field = field.with_type(plain)
            elif is_view(kind.value_type):
                field = field.with_type(pa.dictionary(kind.index_type, plain, kind.ordered))
        fields.append(field)
    return pa.schema(fields, schema.metadata)


def check_same(shard: str, schema: Any, wanted: Any) -> bool:
    """Whether two schemas also have the same metadata. ``InputError`` unless both have the same
    columns, in any order. How a writer lays out texts and binaries does not matter, and neither
    does whether a column can have nulls, or has only nulls."""
    names, known = set(schema.names), set(wanted.names)
    if names != known:
        has, name = ("lacks", min(known - names)) if known - names else ("has", min(names - known))
        raise InputError(
            f"shard {shard} {has} the column {shortened(name)}, which the first input "
            f"{'has' if has == 'lacks' else 'lacks'}",
            hint="all inputs of a job need the same columns",
        )
    for field in wanted:
        other = schema.field(field.name)
        is_null = field.nullable and str(other.type) == "null"
        if other.nullable > field.nullable or not (
            is_null
            or other.type.equals(field.type)
            or _layout_apart(other.type) == _layout_apart(field.type)
        ):
            raise InputError(
                f"column {shortened(field.name)} of shard {shard} is {_text(other)}, but in the "
                f"first input it is {_text(field)}",
                hint="cast the column to one type in all inputs",
            )
        if not is_null:
            check_same_types(shard, other, field)
    alike = schema_of(schema_bytes(schema))  # that loses some names within types
    return bool(alike.equals(wanted, check_metadata=True))


def _layout_apart(kind: Any) -> Any:
    """A type without dictionaries, views and the width of offsets: its values only."""
    plain = _plain_type(kind)
    narrow = {"large_string": pa.string(), "large_binary": pa.binary()}
    return kind if plain is None else narrow.get(str(plain), plain)


def _text(field: Any) -> str:
    return shortened(str(field.type)) + ("" if field.nullable else " not null")


def is_media(kind: Any) -> bool:
    """Whether a column holds files, like Hugging Face's images and sounds."""
    if not pa.types.is_struct(kind):
        return False
    names = {kind.field(at).name for at in range(kind.num_fields)}
    return {"bytes", "path"} <= names


def schema_bytes(schema: Any) -> bytes:
    """A schema as bytes, metadata included."""
    return bytes(schema.serialize())


def schema_of(data: bytes) -> Any:
    """The schema from the bytes that :func:`schema_bytes` made."""
    return pa.ipc.read_schema(pa.py_buffer(data))


# -- other columns -------------------------------------------------------------------------------


FEATURES_BYTES_MAX: Final = 16 << 20
"""The names of 21,841 classes take 0.5 MB. Decoded JSON takes 20 times the length of its text."""


def with_columns(schema: Any, columns: Sequence[tuple[str, int]]) -> Any:
    """``schema`` with other columns: (name, the index of its previous column; -1: a new column, of
    texts). Hugging Face's metadata describes the new columns; it is removed if it is longer than
    ``FEATURES_BYTES_MAX``. The metadata of pandas is removed. ``InputError`` for columns that are
    not possible."""
    names = [name for name, _ in columns]
    again = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if not names or again is not None:
        text = "no column" if again is None else f"two columns {shortened(again)}"
        raise InputError(f"the steps would leave {text}", hint="drop one of them first")
    fields = [
        pa.field(name, pa.string()) if at < 0 else schema.field(at).with_name(name)
        for name, at in columns
    ]
    metadata = {key: value for key, value in (schema.metadata or {}).items() if key != b"pandas"}
    described = metadata.get(b"huggingface", b"")
    if len(described) > FEATURES_BYTES_MAX:
        del metadata[b"huggingface"]
    elif described:
        metadata[b"huggingface"] = _features(described, schema.names, columns)
    return pa.schema(fields, metadata or None)


def _features(data: bytes, names: Sequence[str], columns: Sequence[tuple[str, int]]) -> bytes:
    """The metadata for Hugging Face's libraries, for other columns; unchanged if it does not
    describe columns."""
    try:
        described = json.loads(data)
        known = described["info"]["features"]
        features = {
            name: {"dtype": "string", "_type": "Value"} if at < 0 else known[names[at]]
            for name, at in columns
            if at < 0 or names[at] in known
        }
        described["info"]["features"] = features
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return data
    return json.dumps(described).encode()


# -- sizes ----------------------------------------------------------------------------------------


def batch_bytes(batch: Any) -> int:
    """How many bytes the rows of a record batch take. A list of nulls has no bytes, whatever its
    length, so each of its nulls counts ``_NULL_BYTES``."""
    return int(batch.nbytes) + _NULL_BYTES * sum(_listed_nulls(each, 0) for each in batch.columns)


def _listed_nulls(array: Any, depth: int) -> int:
    """How many nulls are in the lists of an array of any type."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _listed_nulls(array.storage, depth)
    if pa.types.is_null(kind):
        return len(array) if depth else 0
    if pa.types.is_struct(kind):
        return sum(_listed_nulls(array.field(at), depth) for at in range(kind.num_fields))
    lists = lists_of(array)
    return 0 if lists is None else _listed_nulls(lists[0], depth + 1)


def row_bytes(batch: Any) -> Int64s:
    """How many bytes the values of each row take, shape ``(n,)``: texts and binaries their lengths,
    other values their widths; nulls inside values, offsets and the like count as 0."""
    total = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        total += _value_bytes(column)
    return total


def _value_bytes(array: Any) -> Int64s:
    kind, count = array.type, len(array)
    if isinstance(kind, pa.BaseExtensionType):
        return _value_bytes(array.storage)
    if pa.types.is_struct(kind):
        total = np.zeros(count, np.int64)
        for at in range(kind.num_fields):
            total += _value_bytes(array.field(at))
        return total
    if pa.types.is_null(kind):
        return np.zeros(count, np.int64)
    if is_varying(kind):
        return np.diff(value_offsets(array))
    lists = lists_of(array)
    if lists is not None:
        items, offsets = lists
        return np.diff(offsets_of(_value_bytes(items))[offsets])
    return np.full(count, max(kind.bit_width // 8, 1), np.int64)


def lists_of(array: Any) -> tuple[Any, Int64s] | None:
    """(the items of all lists of an array, or the entries of all its maps; the place in these where
    each list begins, and the end of the last one), for any kind of lists; None for an array without
    lists."""
    kind, count = array.type, len(array)
    if pa.types.is_fixed_size_list(kind):
        width = kind.list_size
        # Lists that are null have items, too; items before a slice have to be passed over.
        items = array.values.slice(array.offset * width, count * width)
        return items, np.arange(count + 1, dtype=np.int64) * width
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        offsets = value_offsets(array)
        first, last = int(offsets[0]), int(offsets[-1])
        return list_values(array).slice(first, last - first), offsets - first
    return None


def list_values(array: Any) -> Any:
    """The values of all lists; for maps, their entries."""
    if not pa.types.is_map(array.type):
        return array.values
    return pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])


def is_varying(kind: Any) -> bool:
    """Whether values are texts or binaries of any length."""
    tests = ("is_string", "is_large_string", "is_binary", "is_large_binary")
    return any(getattr(pa.types, test)(kind) for test in tests)


def is_view(kind: Any) -> bool:
    """Whether values are views of texts or binaries."""
    return str(kind) in ("string_view", "binary_view")


def is_binary(kind: Any) -> bool:
    """Whether values are binaries of any length."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def value_offsets(array: Any) -> Int64s:
    """The offsets of an array of texts or lists, shape ``(n + 1,)``."""
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    is_large = is_large or pa.types.is_large_list(array.type)
    kind = np.dtype(np.int64 if is_large else np.int32)
    buffer = array.buffers()[1]
    # An array of no rows may come without offsets, though the format asks for one.
    if buffer is None or not len(array):
        return np.zeros(len(array) + 1, np.int64)
    start = array.offset * kind.itemsize
    return np.frombuffer(buffer, kind, len(array) + 1, start).astype(np.int64)


def nulls_of(array: Any) -> NDArray[np.bool_]:
    """Which values of an array are null, shape ``(n,)``. pyarrow's own function loads pandas if it
    is installed, which costs each worker 0.3 s."""
    count = len(array)
    if pa.types.is_null(array.type) or not array.null_count:
        return np.full(count, pa.types.is_null(array.type))
    bits = np.frombuffer(array.buffers()[0], np.uint8)
    stop = array.offset + count
    found: NDArray[np.bool_] = np.unpackbits(bits, count=stop, bitorder="little") == 0
    return found[array.offset :]


def bytes_column(array: Any) -> BytesColumn:
    """An array of texts or binaries as a column of bytes; nulls are empty."""
    offsets = value_offsets(array)
    buffer = array.buffers()[2]
    if buffer is None or not len(array):
        return BytesColumn.empty(len(array))
    blob = np.frombuffer(buffer, np.uint8)[offsets[0] : offsets[-1]]
    return BytesColumn(offsets - offsets[0], blob.copy())
