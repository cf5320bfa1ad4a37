"""The LitData container, the chunks of Lightning: ``u32 n | u32 offset[n + 1] | items``.

An item is a u32 size for each of its leaves, and then the leaves. Chunks do not describe their
leaves: the ``index.json`` beside the chunks does, and is needed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import xxhash
from msgspec import Meta, Raw, Struct

from dsort.containers.bare_rows import record_table
from dsort.containers.base import Container, ContainerOptions, Scanner
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
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.errors import ConversionError, CorruptShardError
from dsort.naming.names import KEY_COLUMN, readable

EXTENSION: Final = b".bin"
"""The extension of the one member of a record, after its key."""
_FORMATS: Final[Mapping[str, str]] = {
    "txt": "str",
    "cls": "str",
    "json": "str",
    "jpg": "jpeg",
    "jpeg": "jpeg",
}
"""The format of a leaf, by the last part of its extension. All other leaves are ``bytes``."""
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
    ``schema_in``)."""
    tree = {
        "type": "builtins.dict",
        "context": json.dumps(names),
        "children_spec": [_LEAF] * len(names),
    }
    formats = ["str" if name == KEY_COLUMN else format_of(name, _FORMATS) for name in names]
    schema = {
        "data_format": formats,
        "data_spec": json.dumps((1, tree)),
        "item_loader": "PyTreeLoader",
    }
    return json.dumps(schema, sort_keys=True)


def leaf_names(spec: object, count: int) -> list[str]:
    """The names of the ``count`` leaves of items, from the ``data_spec`` of their index. A leaf is
    named by its key in a dictionary, or else by its position; nested names have dots between them.
    If the spec does not describe exactly ``count`` leaves, or a name is longer than
    ``_NAME_CHARS_MAX``, the leaves are numbered."""
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
    if not len(members):
        return bare_samples(members, read, [], None)
    if not members.own.schema:
        raise ConversionError(
            "LitData chunks are not converted without their index.json, which describes items",
            hint="put the index.json beside the chunks, in the input bucket",
        )
    schema = json.loads(members.own.schema)
    formats = schema["data_format"]
    leaves = leaf_names(schema["data_spec"], len(formats))
    values = [
        SampleValue(name, text=partial(_number, name, kind) if kind in _NUMBERS else None)
        for name, kind in zip(leaves, formats, strict=True)
    ]
    has_key = KEY_COLUMN in leaves and formats[leaves.index(KEY_COLUMN)] in ("str", "bytes")
    return bare_samples(members, read, values, KEY_COLUMN if has_key else None)


def _number(name: str, kind: str, key: bytes, value: bytes) -> bytes:
    """A number as text; of a float, the shortest text that stands for exactly that float."""
    layout = _NUMBERS[kind]
    if len(value) != layout.size:
        raise ConversionError(
            f"the leaf {name} of {readable(key)} has {len(value):,} bytes, too few or too many for "
            f"{kind}",
            hint="its index.json is of other chunks, or the chunk is damaged",
        )
    return str(layout.unpack(value)[0]).encode()


INDEX: Final = "index.json"
LEAVES_MAX: Final = 4096
CONFIG_BYTES_MAX: Final = 1 << 20
"""The config describes each leaf in 65 to 130 bytes, besides its name."""
_KEPT: Final = ("data_format", "data_spec", "item_loader")
"""The settings that all items have in common. The rest of a config is about the writer."""


class _Config(Struct):
    """The settings that are used, or that are refused if they are set."""

    data_format: Annotated[list[str], Meta(min_length=1, max_length=LEAVES_MAX)]
    data_spec: Any
    item_loader: Any
    compression: Any = None
    encryption: Any = None


class _Index(Struct):
    """An index. The list of chunks is checked to be JSON and then dropped, because the values of
    this list would take up to 30 times the length of the file."""

    config: Raw


def schema_in(data: bytes) -> str:
    """See :class:`Schemas`."""
    try:
        config_bytes = bytes(msgspec.json.decode(data, type=_Index).config)
    except (RecursionError, msgspec.DecodeError) as error:
        raise ValueError(f"it is no index of LitData: {error}") from None
    if len(config_bytes) > CONFIG_BYTES_MAX:
        raise ValueError(
            f"its config has {len(config_bytes):,} bytes, more than {CONFIG_BYTES_MAX:,}"
        )
    try:
        config = msgspec.json.decode(config_bytes, type=_Config)
    except (RecursionError, msgspec.DecodeError) as error:
        raise ValueError(f"it is no index of LitData: {error}") from None
    odd = [name for name in ("compression", "encryption") if getattr(config, name)]
    if odd:
        raise ValueError(f"its config has {odd[0]}: such chunks are not read")
    return json.dumps({name: getattr(config, name) for name in _KEPT}, sort_keys=True)


def schema_of_members(extensions: Sequence[str]) -> str:
    """See :class:`Schemas`."""
    return item_schema(columns_of(extensions))


def schema_difference(schema: str, other: str) -> str:
    """See :class:`Schemas`."""
    one, two = json.loads(schema), json.loads(other)
    name = next((name for name in _KEPT if one[name] != two[name]), _KEPT[0])
    return f"has the {name} {two[name]}, not {one[name]}"


@dataclass(frozen=True, slots=True)
class LitData(Container):
    """LitData chunks. ``schema``: the description of all items in the index, as JSON; "": the index
    was not read, and leaves are not read.

    Items are moved unchanged, so the index of every directory must describe them alike. Items have
    no names: records are numbered. In a conversion the leaf ``__key__`` is the key, if it is text.
    An item becomes a record whose members are its leaves, named as in the index (``image``,
    ``boxes.0``): numbers (``int``, ``float``, ``bool``) become text, all other leaves become
    members unchanged. Records become items that are dictionaries, with ``__key__`` and the
    extensions of the members as keys; all records must have the same extensions. Values are kept
    byte for byte, and the format defines how a reader decodes them (``_FORMATS``)."""

    schema: str = ""
    member_defaults: tuple[tuple[str, bytes], ...] = ()

    suffixes = (".bin",)
    head = Head(
        table_bytes,
        lambda stored: offset_table(table_bytes(len(stored)), stored),
        SHARD_BYTES_MAX,
    )
    keeps_keys = True
    no_other_name = (
        "an item of a LitData chunk cannot be called {name}: it has no name",
        "choose other reactions than rename",
    )
    bare = staticmethod(bare_items)
    schemas = Schemas(schema_of_members, schema_difference, INDEX, schema_in)

    def with_options(self, options: ContainerOptions) -> LitData:
        return replace(self, member_defaults=options.member_defaults)

    def with_schema(self, schema: str) -> LitData:
        return replace(self, schema=schema)

    @property
    def numbers_records(self) -> bool:
        return True

    def scanner(self, shard: str, size_bytes: int) -> Scanner:
        leaves = len(json.loads(self.schema)["data_format"]) if self.schema else 0  # 0: unknown
        offsets = yield from read_offsets(shard, size_bytes, "chunk", "items", has_head=False)
        starts, lengths = offsets[:-1], np.diff(offsets)
        short = np.flatnonzero(lengths < max(4 * leaves, 1))
        if len(short):
            text = "an item is shorter than the sizes of its leaves"
            raise CorruptShardError(shard, int(starts[short[0]]), text)
        if leaves:
            yield from read_sizes(shard, offsets, leaves, 0, "an item")
        return record_table(shard, EXTENSION, starts, lengths, schema=self.schema)

    # -- conversion ------------------------------------------------------------------------------

    def packed(
        self, members: MemberTable, records: FormedRecords, payloads: Payloads
    ) -> MemberTable:
        return packed_samples(members, records, item_schema, "a LitData data set")

    # -- writing ---------------------------------------------------------------------------------

    @property
    def index(self) -> ShardIndex:
        return ShardIndex(INDEX, self._index_of)

    def _index_of(self, outputs: Sequence[OutputFile]) -> bytes:
        # Without records there is no schema, and an index without one cannot be read.
        kept: dict[str, Any] = json.loads(self.schema or item_schema((KEY_COLUMN,)))
        writer = {"chunk_bytes": None, "chunk_size": None, "compression": None, "encryption": None}
        chunks = [
            {
                "chunk_bytes": output.file_bytes - table_bytes(output.records),
                "chunk_size": output.records,
                "dim": None,
                "filename": output.name,
            }
            for output in outputs
        ]
        # Caches identify an index by its creation time. The same chunks need the same index, and
        # different chunks a different one, so the time is derived from their content.
        sums = np.array([int(output.xxh3, 16) for output in outputs], np.uint64)
        index = {
            "chunks": chunks,
            "config": {**writer, **kept},
            "updated_at": str(xxhash.xxh3_64_intdigest(sums.tobytes())),
        }
        return json.dumps(index, sort_keys=True).encode()


LITDATA = LitData()
