"""The answers that the process of a shard writes for users who inspect a shard or a bucket.

A stranger may have written any input. So memory and the size of the answer are bounded, whatever
the shard contains.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct, to_builtins

from dsort.data.json_values import to_json
from dsort.errors import DsortError, InputError, NotFoundError, TooLargeError
from dsort.job.gc import find_garbage
from dsort.reading.shard import Record, Shard, extension_of
from dsort.results.journal import list_job_directories
from dsort.results.layout import manifest_name
from dsort.results.manifest import parse_manifest
from dsort.sizes import format_bytes
from dsort.storage.bucket import Bucket
from dsort.storage.small_objects import read_small

MEMBERS_LISTED_MAX: Final = 16  # of each record of a page: further members are only counted
MEMBERS_SHOWN_MAX: Final = 64  # of a record with its content
NAME_CHARACTERS_MAX: Final = 1024  # of a key or a name: in a tar, names may have megabytes
CONTENT_BYTES_MAX: Final = 6 << 20  # of all records that are shown at once
PAYLOAD_BYTES_MAX: Final = 64 << 20
RANGE_BYTES_MAX: Final = 4 << 20  # a player requests the rest itself
MANIFEST_BYTES_MAX: Final = 32 << 20
MANIFESTS_MAX: Final = 16
GARBAGE_MAX: Final = 10_000
_RANGE: Final = re.compile(r"bytes=\s*(?:([0-9]{1,18})-([0-9]{1,18})?|-([0-9]{1,18}))\s*")

Order = Mapping[str, Any]


def records(shard: Shard, order: Order) -> Iterator[bytes]:
    """A page of the records of a shard: keys, and for each member its name and size."""
    keys, limit, text = shard.keys, int(order["limit"]), str(order["text"])
    with_text = (number for number in range(int(order["first"]), len(keys)) if text in keys[number])
    rows = [_row(shard.record(number)) for number in islice(with_text, limit)]
    document = {"total": len(keys), "records": rows, "next_number": next(with_text, None)}
    yield to_json(document).encode()


def shown(shard: Shard, order: Order) -> Iterator[bytes]:
    """Records with their content: the records with the given numbers, or random records."""
    total = len(shard)
    numbers = [int(each) for each in order["numbers"]]
    if order["random"]:
        count = min(int(order["random"]), total)
        numbers = sorted(random.Random(str(order["seed"])).sample(range(total), count))
    left = CONTENT_BYTES_MAX
    found = []
    for number in numbers:
        document, left = shown_record(record_of(shard, number), left)
        found.append(document)
    yield to_json({"total": total, "records": found}).encode()


def payload(shard: Shard, order: Order) -> Iterator[bytes]:
    """One member of a record: a line that describes the bytes, and then all bytes of the member, or
    at most ``RANGE_BYTES_MAX`` of the bytes that the header ``Range`` requests."""
    record, member = record_of(shard, int(order["number"])), int(order["member"])
    if member >= len(record.sizes):
        raise NotFoundError(
            f"record {record.index} has {len(record.sizes)} members, none is number {member}"
        )
    name = [*record.sizes][member]
    size_bytes = record.sizes[name]
    try:
        part = parse_range(order["range"], size_bytes)
    except UnsatisfiableRangeError:
        yield to_json({"size_bytes": size_bytes, "status": 416}).encode() + b"\n"
        return
    # To read a part of a compressed shard, all bytes before the part have to be inflated.
    if size_bytes > PAYLOAD_BYTES_MAX and (part is None or shard.record_index is None):
        raise TooLargeError(
            f"{name} has more than {format_bytes(PAYLOAD_BYTES_MAX)}", hint="`dsort cat` writes it"
        )
    start, stop = part or (0, size_bytes)
    count = stop - start if part is None else min(stop - start, RANGE_BYTES_MAX)
    said = {"size_bytes": size_bytes, "start": start, "status": 200 if part is None else 206}
    yield to_json(said).encode() + b"\n"
    yield record.read(name, start, count)


def counts(bucket: Bucket, order: Order) -> Iterator[bytes]:
    """The numbers of records of these shards as {name: records}, each from the newest manifest that
    lists the shard with its present length. Other shards are left out."""
    sizes = dict(zip(order["names"], order["sizes"], strict=True))
    found: dict[str, int] = {}
    directories = [each for each in list_job_directories(bucket) if each.has_manifest]
    newest = sorted(directories, key=lambda each: each.job_id, reverse=True)
    for directory in newest[:MANIFESTS_MAX]:
        if len(found) == len(sizes):
            break
        try:
            name = manifest_name(directory.job_id)
            manifest = parse_manifest(read_small(bucket, name, bytes_max=MANIFEST_BYTES_MAX))
        except DsortError:
            continue  # no manifest, or of another version: the list lacks its numbers
        for output in manifest.outputs:
            if sizes.get(output.name) == output.file_bytes:
                found.setdefault(output.name, output.records)
    yield to_json({"records": found}).encode()


def garbage(bucket: Bucket, order: Order) -> Iterator[bytes]:
    """The remains of dead jobs in a bucket, and in scratch for it."""
    bases = [Path(order["scratch"])] if order["scratch"] else []
    old_s = float(order["older_than_s"])
    found = [
        {
            "kind": each.kind,
            "where": each.where,
            "what": each.what,
            "job_id": each.job_id,
            "objects": each.objects,
            "size_bytes": each.size_bytes,
            "age_s": each.age_s,
            "resumable": each.resumable,
            "is_old": each.age_s >= old_s,
        }
        for each in islice(find_garbage(bucket, scratch_bases=bases), GARBAGE_MAX)
    ]
    yield to_json({"bucket": order["uri"], "garbage": found}).encode()


def record_of(shard: Shard, number: int) -> Record:
    """The record with this number; ``InputError`` if the shard has no such record."""
    if not 0 <= number < len(shard):
        raise InputError(
            f"shard {shard.name} has {len(shard):,} records, none is number {number:,}"
        )
    return shard.record(number)


def _row(record: Record, members_max: int = MEMBERS_LISTED_MAX) -> dict[str, Any]:
    listed = islice(record.sizes.items(), members_max)
    return {
        "number": record.index,
        "key": short(record.key),
        "members": [_member(record, name, size_bytes) for name, size_bytes in listed],
        "members_total": len(record.sizes),
        "size_bytes": record.size_bytes,
    }


def _member(record: Record, name: str, size_bytes: int) -> dict[str, Any]:
    extension = extension_of(name, record.key)
    shown_as = short(f".{extension}") if extension else ""
    return {"name": short(name), "extension": shown_as, "size_bytes": size_bytes}


def short(name: str) -> str:
    """``name``, cut after ``NAME_CHARACTERS_MAX`` characters."""
    return name if len(name) <= NAME_CHARACTERS_MAX else f"{name[:NAME_CHARACTERS_MAX]}…"


def shown_record(record: Record, left: int) -> tuple[dict[str, Any], int]:
    """The record with the previews of its members, and the number of bytes that may still be sent
    whole."""
    document = _row(record, MEMBERS_SHOWN_MAX)
    for name, member in zip(record.sizes, document["members"], strict=False):
        try:
            head = record.read(name, 0, SHOWN_BYTES_MAX)
        except InputError as error:  # only this member cannot be read
            member |= {"kind": "bytes", "problem": error.message}
            continue
        preview = preview_of(name, head, member["size_bytes"])
        sent_bytes = len(preview.content or b"")
        if sent_bytes > left:
            preview = Preview(preview.kind, preview.media_type, preview.width, preview.height)
            sent_bytes = 0
        left -= sent_bytes
        member |= to_builtins(preview)
    return document, left


class UnsatisfiableRangeError(ValueError):
    """The object has none of the requested bytes."""


def parse_range(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """The range of ``size_bytes`` that the header ``Range`` requests (RFC 9110, section 14), as
    (first byte, byte after the last). None means all bytes, because the header is missing, invalid,
    or requests several ranges. ``UnsatisfiableRangeError``."""
    match = _RANGE.fullmatch(header.lower()) if header is not None else None
    if match is None:
        return None
    if match[3] is not None:
        count = min(int(match[3]), size_bytes)
        if not count:
            raise UnsatisfiableRangeError
        return size_bytes - count, size_bytes
    start = int(match[1])
    stop = size_bytes if match[2] is None else min(int(match[2]) + 1, size_bytes)
    if match[2] is not None and int(match[2]) < start:
        return None
    if start >= size_bytes:
        raise UnsatisfiableRangeError
    return start, stop


# -- how a member is shown: as a picture, a sound, JSON, text, or plain bytes ------------------

# The bytes decide, not the name. A member is a picture or a sound only if browsers decode it to
# nothing but pixels or samples. SVG and HTML are documents, which may run code, so they are shown
# as text.

Kind = Literal["image", "audio", "json", "text", "bytes"]

SHOWN_BYTES_MAX: Final = 256 << 10
"""The most bytes of one member in a list of records. The page requests the rest separately."""
TEXT_BYTES_MAX: Final = 16 << 10
HEX_BYTES_MAX: Final = 256
IMAGE_PIXELS_MAX: Final = 64 << 20
"""A few bytes can declare a picture of any size. The page does not decode larger pictures."""

_TEXT_CONTROLS: Final = frozenset("\t\n\r\f")
_JPEG_SIZES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_JSON: Final = (".json", ".jsonl", ".ndjson", ".geojson")
_AUDIO: Final = (
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
)
_BYTES: Final = "application/octet-stream"
_MP3_NAMES: Final = (".mp3", ".mpga")


class Preview(
    Struct, frozen=True, omit_defaults=True, rename={"hexadecimal": "hex", "content": "base64"}
):
    """The preview of a member. ``width``, ``height``: of a picture, in pixels. ``text``,
    ``hexadecimal``: its beginning. ``content``: the whole content of a small picture; None for all
    others. ``to_builtins`` makes its document, without the empty fields."""

    kind: Kind
    media_type: str
    width: int | None = None
    height: int | None = None
    text: str | None = None
    hexadecimal: str | None = None
    content: bytes | None = None


def preview_of(name: str, head: bytes, size_bytes: int) -> Preview:
    """The preview of the member ``name`` of ``size_bytes``; ``head`` are its first bytes."""
    image = _image(head)
    if image is not None:
        media_type, width, height = image
        if 0 < width * height <= IMAGE_PIXELS_MAX:
            content = head if len(head) == size_bytes else None
            return Preview("image", media_type, width, height, content=content)
        return Preview("bytes", _BYTES, width, height, hexadecimal=_hex(head))
    audio = _audio(name, head)
    if audio:
        return Preview("audio", audio)
    text = _text(head[:TEXT_BYTES_MAX], is_whole=size_bytes <= TEXT_BYTES_MAX)
    if text is None:
        return Preview("bytes", _BYTES, hexadecimal=_hex(head))
    if name.lower().endswith(_JSON):
        return Preview("json", "application/json", text=text)
    return Preview("text", "text/plain", text=text)


def _hex(head: bytes) -> str:
    return head[:HEX_BYTES_MAX].hex()


def _text(head: bytes, *, is_whole: bool) -> str | None:
    """``head`` as text; None if it is not text. The last character may be cut."""
    for cut in range(1 if is_whole else 4):
        try:
            text = head[: len(head) - cut].decode()
        except UnicodeDecodeError:
            continue
        if any(each < " " and each not in _TEXT_CONTROLS for each in text) or "\x7f" in text:
            return None
        return text
    return None


def _audio(name: str, head: bytes) -> str:
    for magic, media_type in _AUDIO:
        if head.startswith(magic):
            return media_type
    if head.startswith(b"RIFF") and head[8:12] == b"WAVE":
        return "audio/wav"
    if head[4:11] in (b"ftypM4A", b"ftypM4B"):
        return "audio/mp4"
    is_frame = len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0
    return "audio/mpeg" if is_frame and name.lower().endswith(_MP3_NAMES) else ""


def _image(head: bytes) -> tuple[str, int, int] | None:
    """(media type, width, height) from the header; None if ``head`` is no picture, or has no
    size."""
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
        return "image/png", _big(head, 16, 4), _big(head, 20, 4)
    if head.startswith((b"GIF87a", b"GIF89a")) and len(head) >= 10:
        return "image/gif", _little(head, 6, 2), _little(head, 8, 2)
    if head.startswith(b"BM") and len(head) >= 26 and _little(head, 14, 4) >= 40:
        height = _little(head, 22, 4)
        # The height is negative if rows are stored from the top down.
        return "image/bmp", _little(head, 18, 4), min(height, 2**32 - height)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP" and len(head) >= 30:
        return _webp(head)
    if head.startswith(b"\xff\xd8\xff"):
        return _jpeg(head)
    if head[4:12] in (b"ftypavif", b"ftypavis"):
        return _avif(head)
    return None


def _webp(head: bytes) -> tuple[str, int, int] | None:
    kind = head[12:16]
    if kind == b"VP8X":
        return "image/webp", _little(head, 24, 3) + 1, _little(head, 27, 3) + 1
    if kind == b"VP8L":
        bits = _little(head, 21, 4)
        return "image/webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return "image/webp", _little(head, 26, 2) & 0x3FFF, _little(head, 28, 2) & 0x3FFF
    return None


def _jpeg(head: bytes) -> tuple[str, int, int] | None:
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if marker in _JPEG_SIZES:
            return "image/jpeg", _big(head, at + 7, 2), _big(head, at + 5, 2)
        if marker == 0xFF:  # padding
            at += 1
        elif marker in (0x01, *range(0xD0, 0xD8)):
            at += 2
        else:
            at += 2 + max(_big(head, at + 2, 2), 2)
    return None


def _avif(head: bytes) -> tuple[str, int, int] | None:
    """The largest size in the file: a file may have sizes of the picture, of its parts and of a
    thumbnail."""
    sizes, at = [], head.find(b"ispe")
    while at >= 0 and at + 16 <= len(head):
        sizes.append((_big(head, at + 8, 4), _big(head, at + 12, 4)))
        at = head.find(b"ispe", at + 4)
    if not sizes:
        return None
    return "image/avif", max(width for width, _ in sizes), max(height for _, height in sizes)


def _big(data: bytes, at: int, count: int) -> int:
    return int.from_bytes(data[at : at + count], "big")


def _little(data: bytes, at: int, count: int) -> int:
    return int.from_bytes(data[at : at + count], "little")
