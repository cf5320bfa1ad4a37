"""Stages small objects: they are stored whole and get their names later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Final, NamedTuple

import xxhash

from dsort.storage.bucket import Bucket, Buffer
from dsort.storage.routed import bucket_for

READ_BYTES: Final = 8 << 20


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
    """Store ``pieces``, ``size_bytes`` together, under ``token``. ``may_exist``: whether an earlier
    attempt may have stored an object under it."""
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
    pieces = iter(lambda: file.read(READ_BYTES), b"")
    return stage(bucket, token, name, size_bytes, pieces)


def give_name(bucket: Bucket, staged: Staged) -> None:
    """Give a staged object its name."""
    bucket.publish(staged.token, staged.name, overwrite=staged.replaces, receipt=staged.receipt)
