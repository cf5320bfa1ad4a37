"""Reads objects that dsort keeps in buckets, without trust in their content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dsort.data.json_values import Checked, checked
from dsort.errors import StorageError
from dsort.storage.bucket import Bucket, ReadObject

BLOCK_BYTES = 8 << 20


def read_small(bucket: Bucket, name: str, *, bytes_max: int) -> bytes:
    """The content of an object. ``StorageError`` if it has more than ``bytes_max`` bytes, before
    any of them is read, because a file may claim to have terabytes. ``ObjectNotFoundError`` if it
    does not exist."""
    with bucket.open(name) as opened:
        size_bytes = opened.info.size_bytes
        if size_bytes > bytes_max:
            raise StorageError(
                f"{name} in {bucket.uri} has {size_bytes:,} bytes, and is to have {bytes_max:,} at "
                "most",
                hint="dsort did not write it so: look who may write to the bucket",
            )
        return read_bytes(opened, 0, size_bytes)


def read_bytes(opened: ReadObject, offset: int, length: int) -> bytes:
    """``length`` bytes of an open object, from ``offset`` on."""
    data = bytearray(length)
    opened.read_into(memoryview(data), offset)
    return bytes(data)


def read_blocks(opened: ReadObject, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The content of an open object, however large, in blocks."""
    size_bytes = opened.info.size_bytes
    for offset in range(0, size_bytes, block_bytes):
        yield read_bytes(opened, offset, min(block_bytes, size_bytes - offset))


def read_json(bucket: Bucket, name: str, *, bytes_max: int) -> Any:
    """The JSON in a small object. ``StorageError`` if it is no JSON."""
    return parse_json(read_small(bucket, name, bytes_max=bytes_max), f"{name} in {bucket.uri}")


def parse_as(data: bytes, what: str, kind: type[Checked]) -> Checked:
    """The JSON in ``data`` as a ``kind``. ``StorageError`` that names ``what`` if it is none."""
    content = parse_json(data, what)
    try:
        return checked(content, kind)
    except ValueError as error:
        raise StorageError(f"{what} is damaged: {error}") from None


def parse_json(data: bytes, what: str) -> Any:
    """The JSON in ``data``. ``StorageError`` that names ``what`` if it is no JSON."""
    try:
        return json.loads(data.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise StorageError(f"{what} is damaged: it is no JSON ({reason})") from None
