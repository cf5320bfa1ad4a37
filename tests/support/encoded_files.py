"""Encoded files: made by the libraries and tools of others, decoded and encoded by ours."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import subprocess
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard

from dsort.containers.codecs.base import Codec
from dsort.containers.codecs.decoding import Decoding
from dsort.containers.registry import codec_of
from tests.support.internals import encoded_pieces

SUFFIXES = (".gz", ".zst", ".lz4", ".bz2", ".xz")
WRITTEN = SUFFIXES[:3]
_MAKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, 6, mtime=1),
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    ".lz4": lambda data: lz4.frame.compress(data, content_checksum=True),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
_TOOLS = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4", ".bz2": "bzip2", ".xz": "xz"}


def codec(suffix: str) -> Codec:
    """The codec of ``suffix``."""
    found = codec_of(f".tar{suffix}")
    assert found is not None
    return found


def made_elsewhere(suffix: str, data: bytes) -> bytes:
    """``data`` encoded by another library, as one member."""
    return _MAKERS[suffix](data)


def encoded(suffix: str, data: bytes, level: int | None = None, step: int = 100_000) -> bytes:
    """A file as a job writes it, of ``data`` that comes ``step`` bytes at a time."""
    kind = codec(suffix)
    pieces = (data[at : at + step] for at in range(0, len(data), step))
    return b"".join(encoded_pieces(kind, kind.level_or_default(level), pieces))


def decoded(suffix: str, data: bytes, *, step: int = 100_000, max_expansion: float = 200) -> bytes:
    """The bytes that a job reads from a file that comes ``step`` bytes at a time."""
    pieces = (data[at : at + step] for at in range(0, len(data), step))
    return b"".join(
        Decoding(f"a.tar{suffix}", codec(suffix), pieces, len(data), max_expansion=max_expansion)
    )


def judged(suffix: str, data: bytes) -> bytes:
    """The bytes that the tool of the format decodes. Without the tool, the test is skipped."""
    tool = _TOOLS[suffix]
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    done = subprocess.run([tool, "-dc"], input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
