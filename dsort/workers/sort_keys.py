"""The sort keys of one shard's records, by the job's algorithm."""

from __future__ import annotations

from typing import cast

import numpy as np

from dsort.data.columns import BytesColumn, Int32s, Int64s, UInt8s
from dsort.data.hashing import md5_digests, shard_seed, shuffle_words
from dsort.data.index import SortKeys
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.errors import ContentKeyError
from dsort.order.content import ContentValueError, content_key
from dsort.order.rule import SortRule
from dsort.order.sort import big_int_words, float_words, natural_keys
from dsort.workers.source import ShardBytes

__all__ = ["sort_keys"]

_RANK = {"first": 0, "last": 2}


def sort_keys(
    rule: SortRule,
    shard: ShardBytes,
    members: MemberTable,
    records: FormedRecords,
    group: Int32s | None,
) -> SortKeys:
    """The sort key of each record; ``ContentKeyError`` names shard and record."""
    count = len(records)
    if rule.kind == "shuffle":
        words = shuffle_words(records.key_hash, shard_seed(rule.seed, shard.name))
        return SortKeys(count, group=group, words=words)
    if rule.kind == "md5":
        words, text = md5_digests(records.keys.tolist())
        return SortKeys(count, group=group, words=words, text=text)
    if rule.kind == "alphanumeric":
        keys = natural_keys(records.keys.tolist()) if rule.natural else records.keys
        return SortKeys(count, group=group, text=keys)
    if rule.kind == "content":
        return _content_keys(rule, shard, members, records, group)
    return SortKeys(count, group=group)


def _content_keys(
    rule: SortRule,
    shard: ShardBytes,
    members: MemberTable,
    records: FormedRecords,
    group: Int32s | None,
) -> SortKeys:
    rows = _content_rows(rule, members, records).tolist()
    values: list[int | float | bytes | None] = []
    for record, row in enumerate(rows):
        values.append(_value(rule, shard, members, row) if row >= 0 else None)
        if values[-1] is None and rule.content_missing == "abort":
            raise _missing(rule, shard, records.keys[record], has_member=row >= 0)
    rank: UInt8s | None = None
    if rule.content_missing != "abort":
        missing_rank = _RANK[rule.content_missing]
        rank = np.array([missing_rank if v is None else 1 for v in values], np.uint8)
    if rule.content_type == "string":
        text = BytesColumn.of([v if isinstance(v, bytes) else b"" for v in values])
        return SortKeys(len(values), group=group, rank=rank, text=text)
    numbers = [0 if v is None else v for v in values]
    if rule.content_type == "int":
        words, ties = big_int_words(cast(list[int], numbers))
        return SortKeys(len(values), group=group, rank=rank, words=words, text=ties)
    words = float_words(np.array(numbers, np.float64))
    return SortKeys(len(values), group=group, rank=rank, words=words)


def _content_rows(rule: SortRule, members: MemberTable, records: FormedRecords) -> Int64s:
    """For each record the member table row with the content extension, or -1."""
    extension = rule.content_extension.encode("utf-8", "surrogateescape")
    rows = records.member_rows
    lengths = members.names.lengths[rows] - records.key_bytes[rows]
    of_length = np.flatnonzero(lengths == len(extension))
    starts = members.names.offsets[:-1][rows[of_length]] + records.key_bytes[rows[of_length]]
    wanted = np.frombuffer(extension, np.uint8)
    span = members.names.blob[starts[:, None] + np.arange(len(extension))]
    hits = of_length[(span == wanted).all(axis=1)]
    record_of = np.searchsorted(records.member_offsets, hits, side="right") - 1
    found = np.full(len(records), -1, np.int64)
    found[record_of] = rows[hits]
    return found


def _value(
    rule: SortRule, shard: ShardBytes, members: MemberTable, row: int
) -> int | float | bytes | None:
    content = shard.at(int(members.payload_start[row]), int(members.payload_bytes[row]))
    try:
        return content_key(content, rule)
    except KeyError:
        return None
    except ContentValueError as problem:
        name = members.names[row].decode("utf-8", "backslashreplace")
        raise ContentKeyError(
            f"member {name} of shard {shard.name} is no content key: {problem}",
            hint="mend the member, or sort by another extension or content_key_type",
        ) from None


def _missing(rule: SortRule, shard: ShardBytes, key: bytes, *, has_member: bool) -> ContentKeyError:
    record = key.decode("utf-8", "backslashreplace")
    what = (
        f"has no field {rule.json_field} in its {rule.content_extension} member"
        if has_member
        else f"has no {rule.content_extension} member"
    )
    return ContentKeyError(
        f"record {record} of shard {shard.name} {what}",
        hint="set algorithm.content_key_missing to first or last to keep such records",
    )
