"""Scans of a shard by windows, and their results in plain values."""

from __future__ import annotations

from typing import Any

from dsort.containers.base import Container, drive
from tests.support.internals import MemberTable


def in_windows(container: Container, shard: str, data: bytes, window_bytes: int) -> MemberTable:
    """The members of a shard that is read in windows of ``window_bytes``, or of more bytes where a
    scan needs them."""
    scanner, view = container.scanner(shard, len(data)), memoryview(data)

    def read(offset: int, size: int) -> memoryview:
        assert 0 <= offset <= offset + size <= len(data)
        return view[offset : offset + size]

    return drive(scanner, len(data), read, window_bytes=window_bytes)


def columns_of(members: MemberTable) -> dict[str, Any]:
    """A member table in values that can be compared."""
    return {
        "names": members.names.tolist(),
        "payload": list(zip(members.payload_start, members.payload_bytes, strict=True)),
        "range": list(zip(members.range_start, members.range_length, strict=True)),
        "around": (dict(members.literals), dict(members.tails)),
        "notes": members.notes,
        "records": None if members.own.record_of is None else members.own.record_of.tolist(),
        "key_bytes": None if members.own.key_bytes is None else members.own.key_bytes.tolist(),
    }


def payloads_of(members: MemberTable, data: bytes) -> list[bytes]:
    """The payload of each member of a shard."""
    pairs = zip(members.payload_start.tolist(), members.payload_bytes.tolist(), strict=True)
    return [data[start : start + length] for start, length in pairs]


def stored_in(members: MemberTable, data: bytes) -> bytes:
    """The content of an output shard of these members, without its head and its end."""
    pairs = zip(members.range_start.tolist(), members.range_length.tolist(), strict=True)
    return b"".join(
        members.literals.get(row, b"")
        + (data[start : start + length] if length else b"")
        + members.tails.get(row, b"")
        for row, (start, length) in enumerate(pairs)
    )
