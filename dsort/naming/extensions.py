"""The containers and codecs of dsort itself, by the suffixes of shards: one line each. Packages add
others by entry points.

Nothing is loaded here, so that a spec is read without the libraries of the formats.
"""

from __future__ import annotations

from typing import Final, NamedTuple

DEFAULT_EXTENSION: Final = ".tar"
"""The extension of shards whose names have no known suffix."""

CONTAINERS: Final = {
    DEFAULT_EXTENSION: "tar.container:TAR",
    ".zip": "zip.container:ZIP",
    ".tfrecord": "tfrecord.container:TFRECORD",
    ".tfrecords": "tfrecord.container:TFRECORD",
    ".jsonl": "lines.container:JSON_LINES",
    ".ndjson": "lines.container:JSON_LINES",
    ".txt": "lines.container:TEXT_LINES",
    ".msgpack": "objects.container:MSGPACK",
    ".mp": "objects.container:MSGPACK",
    ".cbor": "objects.container:CBOR",
    ".cbors": "objects.container:CBOR",
    ".mds": "mds:MDS",
    ".bin": "litdata:LITDATA",
    ".parquet": "columnar.container:PARQUET",
    ".arrow": "columnar.container:ARROW",
    ".arrows": "columnar.container:ARROW_STREAM",
}
"""Suffix → the module in ``dsort.containers``, and its container."""


class KnownCodec(NamedTuple):
    """A codec: the first of its ``suffixes`` is the one that dsort writes. ``magics``: each of its
    files begins with one of these. ``place``: its module in ``dsort.containers``, and its class."""

    name: str
    suffixes: tuple[str, ...]
    magics: tuple[bytes, ...]
    place: str


CODECS: Final = (
    KnownCodec("gzip", (".gz",), (b"\x1f\x8b",), "codecs.gzip:Gzip"),
    KnownCodec("zstd", (".zst", ".zstd"), (b"\x28\xb5\x2f\xfd",), "codecs.zstd:Zstd"),
    KnownCodec("lz4", (".lz4",), (b"\x04\x22\x4d\x18",), "codecs.lz4:Lz4"),
    KnownCodec("bzip2", (".bz2",), (b"BZh",), "codecs.xz:Bzip2"),
    KnownCodec("xz", (".xz",), (b"\xfd7zXZ\x00",), "codecs.xz:Xz"),
)


def known_codec(name: str) -> KnownCodec:
    """The line of a codec of dsort itself."""
    return next(each for each in CODECS if each.name == name)
