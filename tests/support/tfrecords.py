"""TFRecord shards, written and read with the ``tfrecord`` package of PyPI and with protobuf.
Checksums come from the ``crc32c`` package, which dsort does not use."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tfrecord import example_pb2
from tfrecord.reader import tfrecord_iterator
from tfrecord.writer import TFRecordWriter

Features = Mapping[str, tuple[str, Any]]
"""Name → (``byte``, ``int`` or ``float``; value or list of values)."""


def example_bytes(features: Features) -> bytes:
    """An Example, serialised by protobuf: the same bytes in each process."""
    datum = {name: (value, kind) for name, (kind, value) in features.items()}
    example = example_pb2.Example.FromString(TFRecordWriter.serialize_tf_example(datum))
    data: bytes = example.SerializeToString(deterministic=True)
    return data


def frame(record: bytes) -> bytes:
    """A record with its length and checksums."""
    length = struct.pack("<Q", len(record))
    crc = TFRecordWriter.masked_crc
    framed: bytes = length + crc(length) + record + crc(record)
    return framed


def frames_in(path: Path) -> list[bytes]:
    """The records of a shard. Checks that the package would write exactly its bytes for them."""
    found = [bytes(record) for record in tfrecord_iterator(str(path))]
    assert b"".join(map(frame, found)) == path.read_bytes()
    return found


def features_of(record: bytes) -> dict[str, tuple[str, list[Any]]]:
    """The features of an Example, parsed by protobuf."""
    example = example_pb2.Example.FromString(record)
    found = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        found[name] = (kind or "", list(getattr(feature, kind).value) if kind else [])
    return found


def examples_in(paths: Iterable[Path]) -> list[dict[str, tuple[str, list[Any]]]]:
    """The Examples of several shards, in order."""
    return [features_of(record) for path in paths for record in frames_in(path)]
