"""Types of Parquet that Arrow does not have: INTERVAL, TIME with a time zone, ENUM, BSON, VARIANT,
GEOMETRY, GEOGRAPHY, and types that are newer than pyarrow.

pyarrow reads and writes such a column as the type in which it is stored. So the annotations of the
file's own schema travel in the metadata of Arrow fields, and are put into the schema of outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dsort.containers.columnar.arrow import pa
from dsort.containers.columnar.thrift import I32, LIST, STRUCT, ThriftStruct, read_struct, written
from dsort.errors import InputError
from dsort.naming.names import shortened

_KEY = b"dsort:parquet_types"
"""A key in the metadata of a field. The value of this key is a struct whose field 1 lists elements,
each with its path."""
_WAY = 100
"""The path to an element from its column: the index of the child at each level."""
_TYPE, _LENGTH, _NAME, _CHILDREN, _CONVERTED, _SCALE, _PRECISION, _LOGICAL = 1, 2, 4, 5, 6, 7, 8, 10
_ANNOTATION = (_CONVERTED, _SCALE, _PRECISION, _LOGICAL)
_DEPTH_MAX = 100
_IN_ARROW = frozenset({1, 2, 3, 5, 6, 8, 10, 11, 12, 14, 15})
"""The logical types that Arrow has: texts, maps, lists, decimals, dates, timestamps, integers,
nulls, JSON, UUID, FLOAT16."""
_ENUM, _TIME = 4, 7
_IN_UTC = 1  # of a TIME
_LOGICAL_NAMES = {_ENUM: "ENUM", _TIME: "TIME WITH TIME ZONE", 13: "BSON"}
_LOGICAL_NAMES |= {16: "VARIANT", 17: "GEOMETRY", 18: "GEOGRAPHY"}
_CONVERTED_TIMES = frozenset({7, 8, 9, 10})
"""Times and timestamps without a logical type: Parquet defines them as UTC, and DuckDB reads them
as times without a zone."""
_CONVERTED_LOGICAL = {4: _ENUM, 20: 13}
_INTERVAL = 21


def with_types_of(schema: Any, elements: Sequence[ThriftStruct]) -> Any:
    """The Arrow schema of a file. The fields of the schema also get the annotations of the Parquet
    ``elements`` for types that Arrow lacks. ``ValueError`` if the elements do not match the columns
    of the schema."""
    found: list[list[ThriftStruct]] = [[] for _ in schema]
    for way, element in _ways(elements):
        if way[0] >= len(found):
            raise ValueError("the footer describes more columns than its schema has")
        if _is_own(element):
            kept = {key: element[key] for key in (_TYPE, _LENGTH, *_ANNOTATION) if key in element}
            found[way[0]].append(kept | {_WAY: (LIST, (I32, list(way[1:])))})
    fields = []
    for field, types in zip(without_types(schema), found, strict=True):
        data = written({1: (LIST, (STRUCT, types))})
        fields.append(
            field.with_metadata((field.metadata or {}) | {_KEY: data}) if types else field
        )
    return pa.schema(fields, schema.metadata)


def _ways(elements: Sequence[ThriftStruct]) -> Iterator[tuple[tuple[int, ...], ThriftStruct]]:
    """Yield (path, element) for each element except the root. The path to an element has the number
    of a child at each level. ``ValueError`` if the elements do not form a tree."""
    counts, way = [_children(elements[0]) if elements else 0], [-1]
    for element in elements[1:]:
        while counts and way[-1] + 1 >= counts[-1]:
            counts.pop()
            way.pop()
        if not counts or len(way) > _DEPTH_MAX:
            raise ValueError("the elements of the schema are no tree")
        way[-1] += 1
        yield tuple(way), element
        if _children(element):
            counts.append(_children(element))
            way.append(-1)


def _children(element: ThriftStruct) -> int:
    count = element.get(_CHILDREN, (I32, 0))[1]
    return count if isinstance(count, int) else 0


def _is_own(element: ThriftStruct) -> bool:
    """Whether pyarrow would write a different annotation."""
    if _LOGICAL not in element:
        converted = element.get(_CONVERTED, (I32, -1))[1]
        return converted in (*_CONVERTED_TIMES, *_CONVERTED_LOGICAL, _INTERVAL)
    kind, value = _logical(element)
    if kind == _TIME:
        return value.get(_IN_UTC, (0, False))[1] is True
    return kind > 0 and kind not in _IN_ARROW


def _logical(element: ThriftStruct) -> tuple[int, ThriftStruct]:
    """The number of the logical type, and its parameters; -1 if it is invalid."""
    value = element[_LOGICAL][1]
    if not isinstance(value, dict) or len(value) != 1:
        return -1, {}
    ((kind, (_, parameters)),) = value.items()
    return kind, parameters if isinstance(parameters, dict) else {}


def without_types(schema: Any) -> Any:
    """The schema without the metadata that :func:`with_types_of` adds."""
    if not has_types(schema):
        return schema
    fields = []
    for field in schema:
        metadata = {key: value for key, value in (field.metadata or {}).items() if key != _KEY}
        fields.append(field.with_metadata(metadata or None))
    return pa.schema(fields, schema.metadata)


def has_types(schema: Any) -> bool:
    """Whether a column has a type of Parquet that Arrow does not have."""
    return any(_KEY in (field.metadata or {}) for field in schema)


def _types_of(field: Any) -> list[ThriftStruct]:
    data = (field.metadata or {}).get(_KEY)
    if data is None:
        return []
    types: list[ThriftStruct] = read_struct(memoryview(data), 0)[0][1][1][1]
    return types


# -- between shards --------------------------------------------------------------------------------


def check_same_types(shard: str, field: Any, wanted: Any) -> None:
    """``InputError`` unless two fields of equal Arrow types also have the same types in Parquet."""
    meanings = [_meanings(each) for each in (field, wanted)]
    if meanings[0] != meanings[1]:
        texts = [" and ".join(_texts(each)) or "no such type" for each in meanings]
        more = " with other parameters" if texts[0] == texts[1] else ""
        raise InputError(
            f"column {shortened(field.name)} of shard {shard} is {texts[0]} in Parquet, but in the "
            f"first input it is {texts[1]}{more}",
            hint="cast the column to one type in all inputs",
        )


_Meanings = dict[tuple[int, ...], tuple[int, ThriftStruct]]


def _meanings(field: Any) -> _Meanings:
    """The types of a column by their paths, each (number of the logical type, its parameters): the
    same for all forms in which writers express a type. A type that Arrow has is left out."""
    found: _Meanings = {}
    for each in _types_of(field):
        if _LOGICAL in each:
            found[tuple(each[_WAY][1][1])] = _logical(each)
        elif not _is_converted_time(each):
            converted = each[_CONVERTED][1]
            kind = _CONVERTED_LOGICAL.get(converted, -converted)
            found[tuple(each[_WAY][1][1])] = kind, {}
    return found


def _is_converted_time(element: ThriftStruct) -> bool:
    return _LOGICAL not in element and element[_CONVERTED][1] in _CONVERTED_TIMES


def _texts(meanings: _Meanings) -> list[str]:
    names = _LOGICAL_NAMES | {-_INTERVAL: "INTERVAL"}
    return sorted({names.get(kind, f"logical type {kind}") for kind, _ in meanings.values()})


def refuse_types(schema: Any, suffix: str) -> None:
    """``InputError`` if a column has a type of Parquet that shards with ``suffix`` cannot have."""
    for field in schema:
        texts = _texts(_meanings(field))
        if texts:
            raise InputError(
                f"column {shortened(field.name)} is {' and '.join(texts)} in Parquet, which "
                f"{suffix} shards do not have",
                hint="write .parquet, cast the column in the inputs, or leave it out with the "
                "step fields",
            )


# -- in outputs ------------------------------------------------------------------------------------


def with_types(footer: ThriftStruct, schema: Any) -> set[str]:
    """Put the types of ``schema`` into the schema of ``footer``, which pyarrow wrote for it.
    Returns the paths of columns that have no order, and so no least value. ``InputError`` for a
    type that has no place in the schema of ``footer``."""
    elements: list[ThriftStruct] = footer[2][1][1]
    places = dict(_ways(elements))
    unordered = set()
    for column, field in enumerate(schema):
        for each in _types_of(field):
            way = (column, *each[_WAY][1][1])
            element = places.get(way, {})
            if any(element.get(key) != each.get(key) for key in (_TYPE, _LENGTH)):
                if _is_converted_time(each):
                    continue
                raise InputError(
                    f"column {shortened(field.name)} is stored in an old layout of Parquet's "
                    "lists, in which dsort cannot keep its types",
                    hint="write the inputs again with another program",
                )
            for key in _ANNOTATION:
                element.pop(key, None)
            element.update({key: each[key] for key in _ANNOTATION if key in each})
            ordered = dict(sorted(element.items()))
            element.clear()
            element.update(ordered)
            if _TYPE in each and not _has_order(each):
                names = (places[way[: at + 1]][_NAME][1].decode() for at in range(len(way)))
                unordered.add(".".join(names))
    return unordered


def _has_order(element: ThriftStruct) -> bool:
    """Whether values of a type have the same order as their stored form."""
    if _LOGICAL in element:
        return _logical(element)[0] == _TIME
    return _is_converted_time(element)
