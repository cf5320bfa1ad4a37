"""Reads the objects that dsort keeps in buckets, without trust in their content, and stages
objects, which get their names later."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple

import xxhash

from dsort.data.json_values import Checked, checked
from dsort.errors import StorageError
from dsort.storage.bucket import Bucket, Buffer, ReadObject
from dsort.storage.routed import bucket_for

BLOCK_BYTES = 8 << 20


def read_small(bucket: Bucket, name: str, *, bytes_max: int) -> bytes:
    """The content of an object. ``StorageError`` if it has more than ``bytes_max`` bytes; then none
    of them is read, because a file may claim to have terabytes. ``ObjectNotFoundError`` if it does
    not exist."""
    with bucket.open(name) as opened:
        size_bytes = opened.info.size_bytes
        if size_bytes > bytes_max:
            raise StorageError(
                f"{name} in {bucket.uri} has {size_bytes:,} bytes, and is to have {bytes_max:,} at "
                "most",
                hint="dsort did not write it so: check who may write to the bucket",
            )
        return read_bytes(opened, 0, size_bytes)


def read_bytes(opened: ReadObject, offset: int, length: int) -> bytes:
    """``length`` bytes of an open object, from ``offset`` on."""
    data = bytearray(length)
    opened.read_into(memoryview(data), offset)
    return bytes(data)


def read_blocks(opened: ReadObject) -> Iterator[bytes]:
    """The content of an open object, however large, in blocks."""
    size_bytes = opened.info.size_bytes
    for offset in range(0, size_bytes, BLOCK_BYTES):
        yield read_bytes(opened, offset, min(BLOCK_BYTES, size_bytes - offset))


def read_json(bucket: Bucket, name: str, *, bytes_max: int) -> Any:
    """The JSON in a small object. ``StorageError`` if it is no JSON."""
    return parse_json(read_small(bucket, name, bytes_max=bytes_max), f"{name} in {bucket.uri}")


def parse_as(data: bytes, what: str, kind: type[Checked]) -> Checked:
    """The JSON in ``data`` as a ``kind``. ``StorageError`` that names ``what`` if the data has
    another form."""
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


class Staged(NamedTuple):
    """A staged object and the name that it is to get. ``token``, ``receipt``: see
    ``Bucket.stage``; ``replaces``: it replaces the object with that name; ``size_bytes``: -1 if
    unknown; ``xxh3``: 64 bits in hexadecimal digits, "" if unknown."""

    token: str
    name: str
    receipt: str
    replaces: bool = False
    size_bytes: int = -1
    xxh3: str = ""


def stage(
    bucket: Bucket,
    token: str,
    name: str,
    size_bytes: int,
    pieces: Iterable[Buffer],
    *,
    replaces: bool = False,
    may_exist: bool = True,
) -> Staged:
    """Stage ``pieces``, which have ``size_bytes`` bytes in all, under ``token``. ``may_exist``:
    whether an earlier attempt may have staged an object under ``token``."""
    if may_exist:
        bucket.discard(token, names=[name])  # the earlier object may be longer
    digest, at = xxhash.xxh3_64(), 0
    with bucket.stage(token, name=name, size_bytes=size_bytes) as held:
        for piece in pieces:
            digest.update(piece)
            held.write_at(at, [piece])
            at += len(piece)
        receipt = held.finish()
        if not bucket_for(bucket, name).seals_on_finish:
            held.sync()
    return Staged(token, name, receipt, replaces, size_bytes, digest.hexdigest())


def stage_file(bucket: Bucket, token: str, name: str, file: IO[bytes]) -> Staged:
    """Stage the content of ``file``, whose position is at its end."""
    size_bytes = file.tell()
    file.seek(0)
    pieces = iter(lambda: file.read(BLOCK_BYTES), b"")
    return stage(bucket, token, name, size_bytes, pieces)


def give_name(bucket: Bucket, staged: Staged) -> None:
    """Give a staged object its name."""
    bucket.publish(staged.token, staged.name, overwrite=staged.replaces, receipt=staged.receipt)
