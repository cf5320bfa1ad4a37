"""The TFRecord container: the interface of this folder to the rest of dsort.

A record is a frame, and is moved with both of its checksums. It has no name: its key is a feature
of its ``tf.train.Example`` (``key_field``), or else its position. In a conversion the key is the
feature ``__key__``, if there is one and ``key_field`` names no other.

Converted, an Example is a record whose members are its features, and a record becomes an Example
whose features are its members, in their order, after the feature ``__key__``:

| feature | member |
|---|---|
| one bytes value | ``key.feature``, the value |
| one number | ``key.feature``, the number as text |
| several bytes values | ``key.feature.0``, ``key.feature.1``, … |
| several numbers, or no value | ``key.feature.json``, a JSON array |

A slash in a feature's name becomes a dot in the member's name, because text after a slash would be
part of another key. A member ``cls`` that is an integer as Python writes it becomes an int64
feature; all others become bytes features. So members that are read back from TFRecord are the same,
byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from dsort.containers.bare_rows import BareRows, Value
from dsort.containers.base import Container, ContainerOptions, Scanner
from dsort.containers.facets import Packing, Seals
from dsort.containers.tfrecord.checksums import crc32c
from dsort.containers.tfrecord.example import ExampleBytes, Feature, NoExampleError
from dsort.containers.tfrecord.frames import (
    HEAD_BYTES,
    KEY_FEATURE,
    TAIL_BYTES,
    packed_frames,
    stored_checksums,
)
from dsort.containers.tfrecord.scan import FrameScan
from dsort.data.members import MemberTable
from dsort.errors import ContentKeyError, ConversionError
from dsort.naming.names import readable

__all__ = ["TFRECORD", "TFRecord"]

_EXAMPLE_HINT: Final = (
    "only tf.train.Example can be converted; a job from .tfrecord to .tfrecord moves any record"
)


@dataclass(frozen=True, slots=True)
class TFRecord(Container):
    """TFRecord shards. ``key_field``: the feature that is the key; "": records are numbered."""

    key_field: str = ""

    suffixes = (".tfrecord", ".tfrecords")
    packing = Packing(packed_frames)
    keeps_keys = True
    no_other_name = (
        "a .tfrecord record cannot be called {name}: its key is in it",
        "choose other reactions than rename, or leave out key_field",
    )
    seals = Seals(TAIL_BYTES, HEAD_BYTES, crc32c, stored_checksums)

    def with_options(self, options: ContainerOptions) -> TFRecord:
        return replace(self, key_field=options.key_field)

    @property
    def numbers_records(self) -> bool:
        return not self.key_field

    def scanner(self, shard: str, size_bytes: int) -> Scanner:
        key_of = None
        if self.key_field:
            wanted = self.key_field.encode()

            def key_of(record: memoryview, number: int) -> bytes:
                try:
                    return _key(record, wanted)
                except NoExampleError as error:
                    raise ContentKeyError(
                        f"record {number} of shard {shard} has no key {self.key_field}: {error}",
                        hint="key_field is the name of a feature of a tf.train.Example with one "
                        "value, of bytes or int64; without it records are numbered",
                    ) from None

        return FrameScan(shard, size_bytes, key_of).scanner()

    # -- conversion ------------------------------------------------------------------------------

    def bare(self, members: MemberTable, read: Callable[[int, int], bytes]) -> MemberTable:
        assert members.key_bytes is not None
        names, key_bytes = members.names.tolist(), members.key_bytes.tolist()
        starts, lengths = members.payload_start.tolist(), members.payload_bytes.tolist()
        rows = BareRows(members)
        examples = ExampleBytes(read)
        for record, (name, size) in enumerate(zip(names, key_bytes, strict=True)):
            key = name[:size]
            try:
                features = _by_name(examples.features(starts[record], lengths[record]))
            except NoExampleError as error:
                raise ConversionError(
                    f"record {readable(key)} is no tf.train.Example: {error}", hint=_EXAMPLE_HINT
                ) from None
            own = features.get(KEY_FEATURE)
            if (
                self.key_field in ("", KEY_FEATURE.decode())
                and own is not None
                and len(own.ranges) == 1
            ):
                key = read(*own.ranges[0]) or key
                del features[own.name]
            rows.add(record, key, chain.from_iterable(map(_members_of, features.values())))
        return rows.table()


def _key(record: memoryview, wanted: bytes) -> bytes:
    examples = ExampleBytes(lambda at, size: record[at : at + size])
    for feature in examples.features(0, len(record)):
        if feature.name != wanted:
            continue
        if feature.kind == "int64" and len(feature.numbers) == 1:
            return feature.number_text()
        if feature.kind == "bytes" and len(feature.ranges) == 1:
            start, size = feature.ranges[0]
            if size:
                return bytes(record[start : start + size])
        raise NoExampleError("the feature has not one value, of bytes or int64")
    raise NoExampleError("there is no such feature")


def _by_name(features: Iterable[Feature]) -> dict[bytes, Feature]:
    """The features by name. ``NoExampleError`` for two features of one name: protocol buffers would
    keep the last."""
    found: dict[bytes, Feature] = {}
    for feature in features:
        if feature.name in found:
            raise NoExampleError(f"it has two features {readable(feature.name)}")
        found[feature.name] = feature
    return found


def _members_of(feature: Feature) -> Iterator[tuple[bytes, Value]]:
    """(extension, literal or range) of each member that a feature becomes."""
    name = feature.name
    if len(feature.ranges) == 1:
        yield name, feature.ranges[0]
    elif feature.ranges:
        for number, each in enumerate(feature.ranges):
            yield b"%b.%d" % (name, number), each
    elif len(feature.numbers) == 1:
        yield name, feature.number_text()
    else:
        yield name + b".json", feature.json_text()


TFRECORD = TFRecord()
