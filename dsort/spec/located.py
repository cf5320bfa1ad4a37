"""Finds the buckets and the files in a spec, by the types of its fields."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import get_type_hints, is_typeddict

from dsort.naming.locations import FileLocation
from dsort.storage.ref import BucketRef

__all__ = ["located"]

Located = tuple[str, FileLocation | BucketRef]


def located(value: object, kind: Any = None, path: str = "") -> Iterator[Located]:
    """(path of the field, its bucket or file) of each bucket and each file in ``value``, a part of
    a spec whose type is ``kind``. Models, typed dicts, lists and mappings are searched; for a
    union, each type is tried."""
    if isinstance(value, BucketRef):
        yield path, value
    elif isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            yield from located(getattr(value, name), field.annotation, _joined(path, name))
    elif kind is FileLocation:
        if isinstance(value, str):
            yield path, FileLocation(value)
    elif is_typeddict(kind):
        if isinstance(value, Mapping):
            for name, each in get_type_hints(kind, include_extras=True).items():
                if name in value:
                    yield from located(value[name], each, _joined(path, name))
    else:
        yield from _in_parts(value, kind, path)


def _in_parts(value: object, kind: Any, path: str) -> Iterator[Located]:
    """The same if ``kind`` is made of other types: ``X | None``, ``list[X]``, ..."""
    origin, parts = get_origin(kind), get_args(kind)
    holds = origin if isinstance(origin, type) and issubclass(origin, Collection) else None
    if origin is Annotated:
        yield from located(value, parts[0], path)
    elif origin is not None and holds is None:
        for each in parts:
            yield from located(value, each, path)
    elif isinstance(value, Mapping) and (holds is None or issubclass(holds, Mapping)):
        of_key, of_value = parts or (None, None)
        for key, each in value.items():
            yield from located(key, of_key, path)
            yield from located(each, of_value, _joined(path, str(key)))
    elif isinstance(value, (list, tuple, set, frozenset)) and not (
        holds and issubclass(holds, Mapping)
    ):
        is_row = holds is tuple and ... not in parts
        for number, each in enumerate(value):
            own = parts[number if is_row else 0] if parts else None
            yield from located(each, own, f"{path}[{number}]")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
