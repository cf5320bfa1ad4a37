"""Digests by which records are compared that are duplicates if their content, or the value of a
field, is equal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

from dsort.data.columns import UInt64s
from dsort.data.record_table import RecordTable
from dsort.moves.input_shard import ShardBytes
from dsort.pipeline.pipeline import Deduplication

if TYPE_CHECKING:
    from dsort.expressions.expression import Expression

DEDUPLICATE: Final = "deduplicate"
_HALF = (1 << 64) - 1


def digests_of(shard: ShardBytes, table: RecordTable, compared: Deduplication) -> UInt64s:
    """A digest of each record (128 bits), shape ``(n, 2)``: of its content, or of its field."""
    if compared.value is None:
        return _digests_of_content(shard, table, compared.extensions)
    return digests_of_field(table, compared.value)


def digests_of_field(table: RecordTable, value: Expression) -> UInt64s:
    """XXH3-128 of the value of each record; shape ``(n, 2)``. ``TransformError`` names a record
    that has none."""
    from dsort.expressions.expression import text_of_value

    digests = np.zeros((len(table), 2), np.uint64)
    for record, found in enumerate(value.values_of(table, f"{DEDUPLICATE}: by")):
        digest = xxhash.xxh3_128_intdigest(text_of_value(found))
        digests[record] = digest & _HALF, digest >> 64
    return digests


def _digests_of_content(
    shard: ShardBytes, table: RecordTable, extensions: Sequence[str]
) -> UInt64s:
    """XXH3-128 of the members of each record that have one of ``extensions`` (none: of all), with
    these extensions, in their order; shape ``(n, 2)``. Zeros for a record without such members."""
    digests = np.zeros((len(table), 2), np.uint64)
    for each in extensions:
        table.fits(f"{DEDUPLICATE}: {each}", bool(table.members_with(f".{each}").any()))
    names, records = table.members.names, table.records
    offsets, rows = records.member_offsets.tolist(), records.member_rows.tolist()
    key_bytes = records.key_bytes
    wanted = [b"." + each.encode("utf-8", "surrogateescape") for each in extensions]
    for record in range(len(table)):
        own = {
            names[row][int(key_bytes[row]) :]: row
            for row in rows[offsets[record] : offsets[record + 1]]
        }
        chosen = [each for each in wanted if each in own] if wanted else sorted(own)
        if not chosen:
            continue
        state = xxhash.xxh3_128()
        for extension in chosen:
            row = own[extension]
            size_bytes = int(table.members.payload_bytes[row])
            state.update(b"%d %d " % (len(extension), size_bytes) + extension)
            for piece in _payload(shard, table, row):
                state.update(piece)
        value = state.intdigest()
        digests[record] = value & _HALF, value >> 64
    return digests


def _payload(shard: ShardBytes, table: RecordTable, row: int) -> Iterable[memoryview | bytes]:
    if table.members.payload_start[row] < 0:
        return [table.members.literals.get(row, b"")]
    return shard.payload(table.members, row)
