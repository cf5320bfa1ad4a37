"""How a member of a shard is shown: as a picture, a sound, JSON, text, or plain bytes.

The bytes decide, not the name. Only those pictures and sounds count as such that a browser decodes
to nothing but pixels and samples: SVG and HTML are documents, which may run code, so they are shown
as text.
"""

from __future__ import annotations

import base64
from typing import Any, Final, Literal

from msgspec import Struct

__all__ = ["IMAGE_PIXELS_MAX", "SHOWN_BYTES_MAX", "Kind", "Preview", "preview_of"]

Kind = Literal["image", "audio", "json", "text", "bytes"]

SHOWN_BYTES_MAX: Final = 256 << 10
"""Of one member, sent with the records that are shown; the rest is requested separately."""
TEXT_BYTES_MAX: Final = 16 << 10
HEX_BYTES_MAX: Final = 256
IMAGE_PIXELS_MAX: Final = 64 << 20
"""A few bytes can claim to be a picture of any size: larger pictures are not decoded."""

_TEXT_CONTROLS: Final = frozenset("\t\n\r\f")
_JPEG_SIZES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_JSON: Final = (".json", ".jsonl", ".ndjson", ".geojson")
_AUDIO: Final = (
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
)
_MP3_NAMES: Final = (".mp3", ".mpga")


class Preview(Struct, frozen=True):
    """The preview of a member. ``width``, ``height``: of a picture, in pixels. ``text``,
    ``hexadecimal``: its beginning. ``content``: all of it, for small pictures; else None."""

    kind: Kind
    media_type: str = "application/octet-stream"
    width: int | None = None
    height: int | None = None
    text: str | None = None
    hexadecimal: str | None = None
    content: bytes | None = None

    def to_json(self) -> dict[str, Any]:
        """The preview as a document; empty fields are left out."""
        document = {
            "kind": self.kind,
            "media_type": self.media_type,
            "width": self.width,
            "height": self.height,
            "text": self.text,
            "hex": self.hexadecimal,
            "base64": None if self.content is None else base64.b64encode(self.content).decode(),
        }
        return {name: value for name, value in document.items() if value is not None}


def preview_of(name: str, head: bytes, size_bytes: int) -> Preview:
    """The preview of the member ``name`` of ``size_bytes``, whose first bytes are ``head``."""
    image = _image(head)
    if image is not None:
        media_type, width, height = image
        if 0 < width * height <= IMAGE_PIXELS_MAX:
            content = head if len(head) == size_bytes else None
            return Preview("image", media_type, width, height, content=content)
        return Preview("bytes", width=width, height=height, hexadecimal=_hex(head))
    audio = _audio(name, head)
    if audio:
        return Preview("audio", audio)
    text = _text(head[:TEXT_BYTES_MAX], is_whole=size_bytes <= TEXT_BYTES_MAX)
    if text is None:
        return Preview("bytes", hexadecimal=_hex(head))
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
    """(media type, width, height) from the header; None if it is no picture, or lacks them."""
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
        return "image/png", _big(head, 16, 4), _big(head, 20, 4)
    if head.startswith((b"GIF87a", b"GIF89a")) and len(head) >= 10:
        return "image/gif", _little(head, 6, 2), _little(head, 8, 2)
    if head.startswith(b"BM") and len(head) >= 26 and _little(head, 14, 4) >= 40:
        height = _little(head, 22, 4)
        # Stored from the top down.
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
    """The largest of the sizes in the file: those of the picture, its parts and its thumbnail."""
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
