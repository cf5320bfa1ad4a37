"""The TFRecord container: what the rest of dsort sees of this folder.

A record is a frame, and moves with both of its checksums. It has no name: its key is a feature of
the ``tf.train.Example`` that it holds (``key_field``), or else its position. In a conversion it is
the feature ``__key__``, if there is one and ``key_field`` names no other.

Converted, an Example is a record whose members are its features, and a record becomes an Example
whose features are its members, in their order, behind the feature ``__key__``:

| feature | member |
|---|---|
| one bytes value | ``key.feature``, the value |
| one number | ``key.feature``, the number as text |
| several bytes values | ``key.feature.0``, ``key.feature.1``, … |
| several numbers, or no value | ``key.feature.json``, a JSON array |

A slash in a feature's name is a dot in the member's, for what is behind a slash would be another
key. A member ``cls`` that is an integer as Python writes it becomes an int64 feature; all others
become bytes features. So members come back from TFRecord as they were, byte for byte.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dsort.containers.bare_rows import BareRows, Value
from dsort.containers.base import Container, ContainerOptions, Payloads
from dsort.containers.tfrecord.checksums import (
    crc32c,
    frame_head,
    length_checksums,
    masked,
    masked_all,
)
from dsort.containers.tfrecord.example import (
    ExampleBytes,
    Feature,
    NoExampleError,
    example_feature,
    varint,
)
from dsort.containers.tfrecord.scan import TFRecordScanner
from dsort.data.entries import PlacedEntries
from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.errors import ContentKeyError, ConversionError
from dsort.naming.names import readable

__all__ = ["TFRECORD", "TFRecord"]

KEY_FEATURE: Final = "__key__"
"""The feature that a converted record's key is in; webdataset calls it so, too."""
_KEY: Final = b"__key__"
EXAMPLE_BYTES_MAX: Final = (1 << 31) - 1
"""No protocol buffer may be larger."""

_SUM = struct.Struct("<I")
_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_INTEGER_BYTES_MAX: Final = 20
_CLS: Final = b"cls"
_EXAMPLE_HINT: Final = (
    "only tf.train.Example can be converted; a job from .tfrecord to .tfrecord moves any record"
)


@dataclass(frozen=True, slots=True)
class TFRecord(Container):
    """TFRecord shards. ``key_field``: the feature that is the key; "": records are numbered."""

    key_field: str = ""

    suffixes = (".tfrecord", ".tfrecords")
    packs_others = True

    def with_options(self, options: ContainerOptions) -> TFRecord:
        return replace(self, key_field=options.key_field)

    @property
    def numbers_records(self) -> bool:
        return not self.key_field

    def scanner(self, shard: str, size_bytes: int) -> TFRecordScanner:
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

        return TFRecordScanner(shard, size_bytes, key_of)

    # -- conversion ------------------------------------------------------------------------------

    def bare(self, members: MemberTable, read: Callable[[int, int], bytes]) -> MemberTable:
        assert members.key_bytes is not None
        names, key_bytes = members.names.tolist(), members.key_bytes.tolist()
        starts, lengths = members.payload_start.tolist(), members.payload_bytes.tolist()
        rows = BareRows()
        examples = ExampleBytes(read)
        for record, (name, size) in enumerate(zip(names, key_bytes, strict=True)):
            key = name[:size]
            try:
                features = _by_name(examples.features(starts[record], lengths[record]))
            except NoExampleError as error:
                raise ConversionError(
                    f"record {readable(key)} is no tf.train.Example: {error}", hint=_EXAMPLE_HINT
                ) from None
            own = features.get(_KEY)
            if self.key_field in ("", KEY_FEATURE) and own is not None and len(own.ranges) == 1:
                key = read(*own.ranges[0]) or key
                del features[own.name]
            rows.add(record, key, chain.from_iterable(map(_members_of, features.values())))
        return rows.table(members)

    def packed(
        self, members: MemberTable, records: FormedRecords, payloads: Payloads
    ) -> MemberTable:
        names, sizes = members.names.tolist(), members.payload_bytes.tolist()
        key_bytes, rows = records.key_bytes.tolist(), records.member_rows.tolist()
        frames = _Frames(sizes, payloads)
        range_length = members.range_length.copy()
        for first, stop in pairwise(records.member_offsets.tolist()):
            own = rows[first:stop]
            key = names[own[0]][: key_bytes[own[0]]]
            heads: list[bytes] = []
            for row in own:
                feature = _feature_name(key, names[row][key_bytes[row] :])
                number = _integer(feature, sizes[row], payloads, row)
                heads.append(example_feature(feature, sizes[row], number))
                if number is not None:
                    range_length[row] = sizes[row] = 0
            frames.add(key, own, heads)
        literals, tails = frames.finish()
        for row, payload in members.literals.items():
            if sizes[row] and row in literals:
                literals[row] += payload
        return replace(
            members, literals=literals, tails=tails, range_length=range_length, entries=None
        )

    # -- headers and writing ---------------------------------------------------------------------

    def renamed(self, headers: bytes, new_name: bytes) -> bytes:
        raise ConversionError(
            f"a .tfrecord record cannot be called {readable(new_name)}: its key is in it",
            hint="choose other reactions than rename, or leave out key_field",
        )

    def encode(self, name: bytes, payload: bytes) -> tuple[Sequence[bytes], bytes]:
        return (frame_head(len(payload)), payload, _SUM.pack(masked(crc32c(payload)))), b""

    def end_bytes(self, members: int, entries_bytes: int, stored_bytes: int) -> int:
        return 0

    def end(self, entries: PlacedEntries, stored_bytes: int) -> bytes:
        return b""


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
    """``NoExampleError`` for two features of one name: protocol buffers would keep the last."""
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


def _feature_name(key: bytes, suffix: bytes) -> bytes:
    """The feature that a member becomes. ``suffix``: the end of its name, behind the key; that of a
    member without an extension is empty, and so is the name of its feature."""
    feature = suffix[1:]
    why = ""
    if suffix == b".":
        why = "has an empty extension"
    elif feature == _KEY:
        why = "is the feature that the key goes to"
    try:
        feature.decode()
    except UnicodeDecodeError:
        why = "is no UTF-8, which names of features are"
    if why:
        raise ConversionError(
            f"record {readable(key)} has a member {readable(key + suffix)}: that {why}",
            hint="rename the member",
        )
    return feature


def _integer(feature: bytes, size_bytes: int, payloads: Payloads, row: int) -> int | None:
    """The number that a member becomes; None if it stays bytes."""
    if feature != _CLS or not 0 < size_bytes <= _INTEGER_BYTES_MAX:
        return None
    text = b"".join(map(bytes, payloads.pieces(row)))
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None


class _Frames:
    """Puts a frame around the features of each record. Lengths and checksums of all of them are
    encoded at once. ``sizes``: of the values of all rows."""

    def __init__(self, sizes: Sequence[int], payloads: Payloads) -> None:
        self._sizes = sizes
        self._payloads = payloads
        self._literals: dict[int, bytes] = {}
        self._first_rows: list[int] = []
        self._last_rows: list[int] = []
        self._lengths: list[int] = []
        self._checksums: list[int] = []

    def add(self, key: bytes, rows: Sequence[int], heads: Sequence[bytes]) -> None:
        """One record: its members' rows, and what stands before the value of each."""
        sizes, literals = self._sizes, self._literals
        key_entry = example_feature(_KEY, len(key)) + key
        entries_bytes = len(key_entry) + sum(map(len, heads)) + sum([sizes[row] for row in rows])
        before = b"\n" + varint(entries_bytes) + key_entry
        length = len(before) - len(key_entry) + entries_bytes
        if length > EXAMPLE_BYTES_MAX:
            raise ConversionError(
                f"record {readable(key)} would be an Example of {length:,} bytes; the largest has "
                f"{EXAMPLE_BYTES_MAX:,}",
                hint="split the record, or choose another container",
            )
        checksum = 0
        for row, head in zip(rows, heads, strict=True):
            literal = before + head
            checksum = crc32c(literal, checksum)
            if sizes[row]:
                for piece in self._payloads.pieces(row):
                    checksum = crc32c(piece, checksum)
            literals[row] = literal
            before = b""
        self._first_rows.append(rows[0])
        self._last_rows.append(rows[-1])
        self._lengths.append(length)
        self._checksums.append(checksum)

    def finish(self) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """(literals, tails) of all rows, without payloads."""
        literals = self._literals
        lengths = np.array(self._lengths, np.int64)
        heads = zip(
            _each(lengths.astype("<u8"), 8), _each(length_checksums(lengths), 4), strict=True
        )
        for row, (length, checksum) in zip(self._first_rows, heads, strict=True):
            literals[row] = length + checksum + literals[row]
        sums = _each(masked_all(np.array(self._checksums, np.uint32)), 4)
        return literals, dict(zip(self._last_rows, sums, strict=True))


def _each(numbers: NDArray[Any], size: int) -> list[bytes]:
    """Each of some little-endian numbers of ``size`` bytes."""
    data = numbers.tobytes()
    return [data[at : at + size] for at in range(0, len(data), size)]


TFRECORD = TFRecord()
