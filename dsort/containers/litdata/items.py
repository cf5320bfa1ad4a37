"""Items as members, and the schema of items made of members."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from dsort.containers.bare_rows import BareRows, Value
from dsort.containers.samples import KEY_COLUMN
from dsort.data.members import MemberTable
from dsort.errors import ConversionError
from dsort.naming.names import readable

__all__ = ["bare_items", "item_schema", "leaf_names"]

_FORMATS: Final[Mapping[str, str]] = {
    "txt": "str",
    "cls": "str",
    "json": "str",
    "jpg": "jpeg",
    "jpeg": "jpeg",
}
"""By the last part of an extension. All others are ``bytes``."""
_NUMBERS: Final = {
    "int": struct.Struct("<q"),
    "float": struct.Struct("<d"),
    "bool": struct.Struct("<B"),
}
_LEAF: Final[dict[str, Any]] = {"type": None, "context": None, "children_spec": []}
_MAPPINGS: Final = ("builtins.dict", "collections.OrderedDict")
_DEPTH_MAX: Final = 64
_NAME_CHARS_MAX: Final = 4096


def item_schema(names: tuple[str, ...]) -> str:
    """The schema of items that are dictionaries with values of these names (see
    ``LitData.schema_in``)."""
    tree = {
        "type": "builtins.dict",
        "context": json.dumps(names),
        "children_spec": [_LEAF] * len(names),
    }
    formats = ["str" if name == KEY_COLUMN else _format(name) for name in names]
    schema = {
        "data_format": formats,
        "data_spec": json.dumps((1, tree)),
        "item_loader": "PyTreeLoader",
    }
    return json.dumps(schema, sort_keys=True)


def _format(name: str) -> str:
    return _FORMATS.get(name.rpartition(".")[2].lower(), "bytes")


def leaf_names(spec: object, count: int) -> list[str]:
    """The names of the ``count`` leaves of items, from the ``data_spec`` of their index: keys of
    dictionaries, and positions in everything that is not a dictionary, with dots between them if
    they are nested. If the spec does not describe exactly so many leaves, or a name is longer than
    ``_NAME_CHARS_MAX``, they are numbered."""
    try:
        _, tree = json.loads(spec) if isinstance(spec, str) else (1, None)
        names = list[str]()
        for path in islice(_paths(tree, _DEPTH_MAX), count + 1):
            names.append(".".join(path))
            if len(names[-1]) > _NAME_CHARS_MAX:
                raise ValueError("a leaf has a name of the length of its spec")
    except (LookupError, RecursionError, TypeError, ValueError):
        names = []
    return names if len(names) == count else [str(number) for number in range(count)]


def _paths(tree: Any, depth: int) -> Iterator[tuple[str, ...]]:
    if depth == 0:
        raise ValueError("the spec is nested too deep")
    if tree["type"] is None:
        yield ()
        return
    children = tree["children_spec"]
    keys: list[Any] = [*range(len(children))]
    if tree["type"] in _MAPPINGS:
        keys = json.loads(tree["context"])
    for key, child in zip(keys, children, strict=True):
        for path in _paths(child, depth - 1):
            yield (str(key), *path)


def bare_items(members: MemberTable, read: Callable[[int, int], bytes]) -> MemberTable:
    """See ``Container.bare``."""
    rows = BareRows(members)
    if not len(members):
        return rows.table()
    if not members.schema:
        raise ConversionError(
            "LitData chunks are not converted without their index.json, which says what is in them",
            hint="a job reads it beside its inputs",
        )
    assert members.key_bytes is not None
    schema = json.loads(members.schema)
    formats = schema["data_format"]
    leaves = leaf_names(schema["data_spec"], len(formats))
    encoded = [name.encode("utf-8", "surrogatepass") for name in leaves]
    has_key = KEY_COLUMN in leaves and formats[leaves.index(KEY_COLUMN)] in ("str", "bytes")
    sizes_of = struct.Struct(f"<{len(formats)}I")
    names, key_bytes = members.names.tolist(), members.key_bytes.tolist()
    for record, start in enumerate(members.payload_start.tolist()):
        at = start + sizes_of.size
        key = names[record][: key_bytes[record]]
        found: list[tuple[bytes, Value]] = []
        sizes = sizes_of.unpack(read(start, sizes_of.size))
        for name, leaf, kind, size in zip(leaves, encoded, formats, sizes, strict=True):
            if has_key and name == KEY_COLUMN:
                key = read(at, size) or key
            elif kind in _NUMBERS:
                found.append((leaf, _number(key, name, kind, read(at, size))))
            else:
                found.append((leaf, (at, size)))
            at += size
        rows.add(record, key, found)
    return rows.table()


def _number(key: bytes, name: str, kind: str, value: bytes) -> bytes:
    """A number as text: a float becomes the shortest text that is read as the same float."""
    layout = _NUMBERS[kind]
    if len(value) != layout.size:
        raise ConversionError(
            f"the leaf {name} of {readable(key)} has {len(value):,} bytes: no {kind} has",
            hint="its index.json is of other chunks, or the chunk is damaged",
        )
    return str(layout.unpack(value)[0]).encode()
