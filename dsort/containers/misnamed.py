"""Refuses encoded shards whose names do not have the suffix of their codec."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dsort.containers.base import Container
from dsort.containers.codecs.base import Codec
from dsort.containers.codecs.decoding import Decoding, format_of
from dsort.containers.registry import codec_of
from dsort.errors import CorruptShardError

__all__ = ["refuse_misnamed"]

HEAD_BYTES = 262
TRIAL_BYTES = 64 << 10
READ_BYTES = 1 << 20
ZIP_END_BYTES = 22
ZIP_COMMENT_BYTES_MAX = 0xFFFF


def refuse_misnamed(
    shard: str, container: Container, read: Callable[[int, int], bytes], size_bytes: int
) -> None:
    """``CorruptShardError`` for a shard that is encoded although its name does not show it: its
    first bytes are those of a codec, and can be decoded. ``read``: returns bytes, by offset and
    count.

    The first line of a text may consist of such bytes, too. In that case the file ends as lines do,
    and other bytes follow the bytes that can be decoded."""
    found, suffix = format_of(read(0, min(HEAD_BYTES, size_bytes)))
    if found == "zip" and container.begins_bare and _ends_as_zip(read, size_bytes):
        raise CorruptShardError(shard, 0, "the file is a zip", hint="its name should end in .zip")
    codec = codec_of(f".tar{suffix}") if found not in ("", "tar") else None
    if codec is None or not _begins(shard, codec, read(0, min(TRIAL_BYTES, size_bytes))):
        return
    if container.begins_bare and read(size_bytes - 1, 1) == b"\n":
        pieces = (
            read(at, min(READ_BYTES, size_bytes - at)) for at in range(0, size_bytes, READ_BYTES)
        )
        if _goes_on(shard, codec, pieces, size_bytes):
            return
    raise CorruptShardError(
        shard,
        0,
        f"the file is {found}, and its name does not say so",
        hint=f"add {suffix} to its name, or set input_extension",
    )


def _ends_as_zip(read: Callable[[int, int], bytes], size_bytes: int) -> bool:
    """Whether the last record of a zip ends at the end of the file."""
    start = max(size_bytes - ZIP_END_BYTES - ZIP_COMMENT_BYTES_MAX, 0)
    tail = read(start, size_bytes - start)
    at = tail.rfind(b"PK\5\6")
    comment = int.from_bytes(tail[at + ZIP_END_BYTES - 2 : at + ZIP_END_BYTES], "little")
    return at >= 0 and at + ZIP_END_BYTES + comment == len(tail)


def _begins(shard: str, codec: Codec, head: bytes) -> bool:
    """Whether ``head`` is the beginning of an encoded file."""
    try:
        return bool(next(iter(Decoding(shard, codec, [head], len(head))), b""))
    except CorruptShardError:
        return False


def _goes_on(shard: str, codec: Codec, pieces: Iterable[bytes], size_bytes: int) -> bool:
    """Whether other bytes follow the encoded members at the beginning of the file. A file that is
    cut off counts as encoded, and so does one that decodes to too many bytes."""
    try:
        for _ in Decoding(shard, codec, pieces, size_bytes):
            pass
    except CorruptShardError as error:
        return "follows its last" in error.message
    return False
