"""Data to look at on the page: pictures, sounds, JSON, text, bytes, and texts with HTML."""

from __future__ import annotations

import io
import json
import struct
import wave
import zlib
from pathlib import Path
from typing import Final

from tests.support.tars import tar_of

RECORDS: Final = 70
HOSTILE_KEY: Final = "<img src=x onerror=alert(1)>"
HTML: Final = b"<!doctype html><title>owned</title><script>document.title='owned'</script>"
SVG: Final = (
    b'<svg xmlns="http://www.w3.org/2000/svg" onload="document.title=1"><script>1</script></svg>'
)


def write_data(bucket: Path) -> None:
    """Write two shards of records of all kinds, and a shard of hostile records."""
    bucket.mkdir()
    for shard in range(2):
        files = {}
        for number in range(RECORDS):
            key = f"{shard}{number:04}"
            files[f"{key}.png"] = _png(number * 3, 96, 64)
            files[f"{key}.json"] = json.dumps(
                {"label": number % 5, "caption": f"Picture {number}", "box": [1, 2, 3]}
            ).encode()
            files[f"{key}.wav"] = _wav()
        (bucket / f"train-{shard}.tar").write_bytes(tar_of(files))
    hostile = {
        f"{HOSTILE_KEY}.html": HTML,
        f"{HOSTILE_KEY}.svg": SVG,
        f"{HOSTILE_KEY}.png": SVG,
        "big.png": _png(0, 96, 64)[:16] + struct.pack(">II", 60_000, 60_000) + b"\x08\2\0\0\0",
        "torn.png": _png(0, 96, 64)[:60],
        "text.txt": b"one line\n" * 400,
        "text.bin": bytes(range(256)),
        "text.empty": b"",
    }
    (bucket / "odd").mkdir()
    (bucket / "odd" / "hostile.tar").write_bytes(tar_of(hostile))


def _png(hue: int, width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    line = b"\0" + b"".join(bytes(((hue + x) % 256, x * 2 % 256, 160)) for x in range(width))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(line * height)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def _wav() -> bytes:
    written = io.BytesIO()
    with wave.open(written, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8000)
        sound.writeframes(bytes(128 + (i * 16) % 64 for i in range(800)))
    return written.getvalue()
