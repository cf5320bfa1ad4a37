"""The LitData container: the interface of this folder to the rest of dsort.

A chunk is ``u32 n | u32 offset[n + 1] | items``; an item is a u32 size for each of its leaves, and
then the leaves. Chunks do not describe their leaves: the ``index.json`` beside the chunks does, and
is needed. Items are moved unchanged, so the index of every directory must describe them alike. They
have no names: records are numbered. In a conversion the leaf ``__key__`` is the key, if it is text.

Converted, an item is a record whose members are its leaves, named as in the index (``image``,
``boxes.0``): numbers (``int``, ``float``, ``bool``) become text, all other leaves become members
unchanged. Records become items that are dictionaries of ``__key__`` and the extensions of their
members; all must have the same. Values are kept byte for byte, and the format defines how a reader
decodes them: ``txt``, ``json`` and ``cls`` are ``str``, ``jpg`` and ``jpeg`` are ``jpeg``, all
others are ``bytes``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import xxhash

from dsort.containers.base import Container, ContainerOptions, OutputFile, Payloads
from dsort.containers.litdata.items import bare_items, item_schema
from dsort.containers.litdata.scan import LitDataScanner
from dsort.containers.offset_table import SHARD_BYTES_MAX, offset_table, table_bytes
from dsort.containers.samples import KEY_COLUMN, packed_samples
from dsort.data.columns import Int64s
from dsort.data.entries import PlacedEntries
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.errors import ConversionError
from dsort.naming.names import readable

__all__ = ["LITDATA", "LitData"]

INDEX: Final = "index.json"
LEAVES_MAX: Final = 4096
_KEPT: Final = ("data_format", "data_spec", "item_loader")
"""The settings that all items have in common. The rest of a config is about the writer."""


@dataclass(frozen=True, slots=True)
class LitData(Container):
    """LitData chunks. ``schema``: the description of all items in the index, as JSON; "": the index
    was not read, and leaves are not read."""

    schema: str = ""
    member_defaults: tuple[tuple[str, bytes], ...] = ()

    suffixes = (".bin",)
    has_head = True
    shard_bytes_max = SHARD_BYTES_MAX
    schema_file = INDEX
    packs_others = True
    keeps_keys = True
    needs_like_members = True

    def with_options(self, options: ContainerOptions) -> LitData:
        return replace(self, member_defaults=options.member_defaults)

    def schema_in(self, data: bytes) -> str:
        try:
            config = json.loads(data)["config"]
            kept = {name: config[name] for name in _KEPT}
            odd = [name for name in ("compression", "encryption") if config.get(name)]
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            raise ValueError("it is no index of LitData") from None
        if odd:
            raise ValueError(f"it says {odd[0]}: such chunks are not read")
        leaves = kept["data_format"]
        texts = isinstance(leaves, list) and all(isinstance(leaf, str) for leaf in leaves)
        if not texts or not 0 < len(leaves) <= LEAVES_MAX:
            raise ValueError("its data_format is none")
        return json.dumps(kept, sort_keys=True)

    def with_schema(self, schema: str) -> LitData:
        return replace(self, schema=schema)

    def schema_of_members(self, extensions: Sequence[str]) -> str:
        return item_schema(tuple(sorted([*extensions, KEY_COLUMN])))

    def schema_difference(self, schema: str, other: str) -> str:
        one, two = json.loads(schema), json.loads(other)
        name = next((name for name in _KEPT if one[name] != two[name]), _KEPT[0])
        return f"has the {name} {two[name]}, not {one[name]}"

    can_rename = False

    @property
    def numbers_records(self) -> bool:
        return True

    def scanner(self, shard: str, size_bytes: int) -> LitDataScanner:
        leaves = len(json.loads(self.schema)["data_format"]) if self.schema else 0
        return LitDataScanner(shard, size_bytes, leaves, self.schema)

    # -- conversion ------------------------------------------------------------------------------

    def bare(self, members: MemberTable, read: Callable[[int, int], bytes]) -> MemberTable:
        return bare_items(members, read)

    def packed(
        self, members: MemberTable, records: FormedRecords, payloads: Payloads
    ) -> MemberTable:
        return packed_samples(members, records, item_schema, "a LitData data set")

    # -- headers and writing ---------------------------------------------------------------------

    def renamed(self, headers: bytes, new_name: bytes) -> bytes:
        raise ConversionError(
            f"an item of a LitData chunk cannot be called {readable(new_name)}: it has no name",
            hint="choose other reactions than rename",
        )

    def encode(self, name: bytes, payload: bytes) -> tuple[Sequence[bytes], bytes]:
        return (len(payload).to_bytes(4, "little"), payload), b""

    def head_bytes(self, records: int) -> int:
        return table_bytes(records)

    def head(self, stored_bytes: Int64s) -> bytes:
        return offset_table(table_bytes(len(stored_bytes)), stored_bytes)

    def end_bytes(self, members: int, entries_bytes: int, stored_bytes: int) -> int:
        return 0

    def end(self, entries: PlacedEntries, stored_bytes: int) -> bytes:
        return b""

    def directory_files(self, outputs: Sequence[OutputFile]) -> Mapping[str, bytes]:
        kept: dict[str, Any] = json.loads(self.schema) if self.schema else dict.fromkeys(_KEPT)
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
        return {INDEX: json.dumps(index, sort_keys=True).encode()}


LITDATA = LitData()
