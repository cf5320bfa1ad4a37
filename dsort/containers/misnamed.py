"""Shards whose names do not say that they are encoded."""

from __future__ import annotations

from collections.abc import Callable

from dsort.containers.codecs.decoding import Decoding, format_of
from dsort.containers.registry import codec_of
from dsort.errors import CorruptShardError

__all__ = ["refuse_misnamed"]

HEAD_BYTES = 262
TRIAL_BYTES = 64 << 10


def refuse_misnamed(shard: str, read: Callable[[int, int], bytes], size_bytes: int) -> None:
    """``CorruptShardError`` for a shard that is encoded, though its name does not say so: its
    first bytes are those of a codec, and can be decoded. ``read``: from where, how many bytes."""
    found, suffix = format_of(read(0, min(HEAD_BYTES, size_bytes)))
    codec = codec_of(f".tar{suffix}") if found not in ("", "tar") else None
    if codec is None:
        return
    head = read(0, min(TRIAL_BYTES, size_bytes))
    try:
        if not next(iter(Decoding(shard, codec, [head], len(head))), b""):
            return
    except CorruptShardError:
        return
    raise CorruptShardError(
        shard,
        0,
        f"the file is {found}, and its name does not say so",
        hint=f"add {suffix} to its name, or set input_extension",
    )
