"""How files of a job that are no output shards are staged: whole, in pieces, with their XXH3."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from dsort.storage.bucket import Bucket
from dsort.storage.output_buckets import bucket_for

__all__ = ["stage_pieces"]


def stage_pieces(
    bucket: Bucket, token: str, name: str, size_bytes: int, pieces: Iterable[bytes]
) -> tuple[str, str]:
    """Store ``size_bytes`` in ``pieces`` under ``token``, until they get the ``name``; (receipt,
    XXH3 of 64 bits in hexadecimal digits). See ``Bucket.stage``."""
    digest, at = xxhash.xxh3_64(), 0
    with bucket.stage(token, name=name, size_bytes=size_bytes) as held:
        for piece in pieces:
            digest.update(piece)
            held.write_at(at, [piece])
            at += len(piece)
        receipt = held.finish()
        if not bucket_for(bucket, name).seals_on_finish:
            held.sync()
    return receipt, digest.hexdigest()
