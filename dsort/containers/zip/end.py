"""The end of a zip: the end record, with its zip64 record and locator, read and written."""

from __future__ import annotations

from msgspec import Struct

from dsort.containers.zip.layout import (
    END,
    END64,
    END64_MAGIC,
    END_MAGIC,
    LARGE,
    LOCATOR,
    LOCATOR_MAGIC,
    MANY,
)
from dsort.errors import CorruptShardError

__all__ = ["TAIL_BYTES_MAX", "ZipEnd", "end_record", "end_record_bytes", "find_end"]

TAIL_BYTES_MAX = 0xFFFF + END.size + LOCATOR.size + END64.size
"""The maximum length of an end: all of it is in so many bytes at the end of a shard."""

_VERSION_64 = 45


class ZipEnd(Struct, frozen=True):
    """Where the central directory of a zip is, in the shard."""

    directory_start: int
    directory_end: int
    entries: int
    entries_modulo: int  # the number of entries is known modulo this
    shift: int  # added to offsets in the zip: bytes before it that they do not count
    comment_bytes: int = 0
    trailing_bytes: int = 0


def find_end(shard: str, tail: bytes, base: int) -> ZipEnd:
    """The end of the shard whose last bytes are ``tail``, which begins at byte ``base``."""
    at, comment_bytes, trailing = _find_record(shard, tail, base)
    fields = END.unpack_from(tail, at)
    _, disk, directory_disk, on_disk, count, size, offset, _ = fields
    directory_end, modulo, shift64 = base + at, MANY + 1, None
    large = _read_large(shard, tail, at, base)
    if large is not None:
        for narrow, wide, marker in zip(fields[1:7], large, _MARKERS, strict=True):
            if narrow not in (marker, wide):
                raise CorruptShardError(shard, base + at, "its two end records disagree")
        disk, directory_disk, on_disk, count, size, offset = large
        directory_end, modulo = base + at - LOCATOR.size - END64.size, 1 << 64
        shift64 = directory_end - LOCATOR.unpack_from(tail, at - LOCATOR.size)[2]
    if disk or directory_disk or on_disk != count:
        raise CorruptShardError(shard, base + at, "it is one disk of a zip of several")
    start = directory_end - size
    if start - offset < 0 or start < 0 or shift64 not in (None, start - offset):
        raise CorruptShardError(
            shard, base + at, "its end record does not say where the central directory is"
        )
    return ZipEnd(start, directory_end, count, modulo, start - offset, comment_bytes, trailing)


_MARKERS = (MANY, MANY, MANY, MANY, LARGE, LARGE)


def _find_record(shard: str, tail: bytes, base: int) -> tuple[int, int, int]:
    """(where in ``tail`` the end record is, bytes of its comment, bytes after that)."""
    behind: tuple[int, int, int] | None = None
    exact: list[tuple[int, int, int]] = []
    cut = False
    at = tail.rfind(END_MAGIC)
    while at >= 0:
        if at + END.size <= len(tail):
            comment_bytes: int = END.unpack_from(tail, at)[-1]
            trailing = len(tail) - at - END.size - comment_bytes
            if trailing == 0:
                exact.append((at, comment_bytes, 0))
            elif trailing > 0 and behind is None:
                behind = at, comment_bytes, trailing
            cut |= trailing < 0
        at = tail.rfind(END_MAGIC, 0, at)
    if len(exact) > 1:
        raise CorruptShardError(shard, base + exact[0][0], "two end records fit the zip's end")
    if exact:
        return exact[0]
    if behind is None:
        text = "the comment of its end record is cut off" if cut else "it has no end record"
        raise CorruptShardError(shard, base + len(tail), f"{text}: it is cut off, or no zip")
    return behind


def _read_large(
    shard: str, tail: bytes, at: int, base: int
) -> tuple[int, int, int, int, int, int] | None:
    """The numbers in the zip64 end record that belongs to the end record at ``at``; None if there
    is none."""
    place = at - LOCATOR.size
    if place < 0 or tail[place : place + 4] != LOCATOR_MAGIC:
        return None
    _, disk, _, disks = LOCATOR.unpack_from(tail, place)
    if disk or disks > 1:
        raise CorruptShardError(shard, base + place, "it is one disk of a zip of several")
    place -= END64.size
    if place < 0 or tail[place : place + 4] != END64_MAGIC:
        raise CorruptShardError(
            shard, base + at, "there is no zip64 end record before its locator, or a long one"
        )
    fields = END64.unpack_from(tail, place)
    if fields[1] != END64.size - 12:
        raise CorruptShardError(shard, base + place, "a zip64 end record of another length")
    return fields[4:]


def end_record_bytes(members: int, directory_bytes: int, stored_bytes: int) -> int:
    """The length of the records at the end of a zip."""
    is_large = _is_large(members, directory_bytes, stored_bytes)
    return END.size + (END64.size + LOCATOR.size) * is_large


def end_record(members: int, directory_bytes: int, stored_bytes: int) -> bytes:
    """The records at the end of a zip whose directory of ``members`` entries begins at byte
    ``stored_bytes``."""
    end = END.pack(
        END_MAGIC,
        0,
        0,
        min(members, MANY),
        min(members, MANY),
        min(directory_bytes, LARGE),
        min(stored_bytes, LARGE),
        0,
    )
    if not _is_large(members, directory_bytes, stored_bytes):
        return end
    place = stored_bytes + directory_bytes
    sizes = (members, members, directory_bytes, stored_bytes)
    versions = (_VERSION_64, _VERSION_64)
    large = END64.pack(END64_MAGIC, END64.size - 12, *versions, 0, 0, *sizes)
    return large + LOCATOR.pack(LOCATOR_MAGIC, 0, place, 1) + end


def _is_large(members: int, directory_bytes: int, stored_bytes: int) -> bool:
    return members >= MANY or directory_bytes >= LARGE or stored_bytes >= LARGE
