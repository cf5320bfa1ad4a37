"""The TFRecord container: the interface of this folder to the rest of dsort."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final

import numpy as np
from awscrt.checksums import crc32c
from msgspec.structs import replace
from numpy.typing import NDArray

from dsort.containers.bare_rows import BareRows, Value, record_table
from dsort.containers.base import KeyedContainer, Need, Scanner
from dsort.containers.facets import Seals
from dsort.containers.tfrecord.example import (
    HEAD_BYTES,
    KEY_FEATURE,
    TAIL_BYTES,
    ExampleBytes,
    Feature,
    NoExampleError,
    length_checksums,
    masked,
    masked_all,
    packed_frames,
    stored_checksums,
)
from dsort.data.columns import Int64s, UInt8s
from dsort.data.members import MemberTable
from dsort.errors import ContentKeyError, ConversionError, CorruptShardError, InputError
from dsort.naming.names import readable

# --------------------------------------------------------------------------------------------------
# Reads the frames of a TFRecord shard from windows on its bytes, and checks their checksums.
#
# A frame is ``u64 length | u32 masked CRC-32C of the length | record | u32 masked CRC-32C of the
# record``, little-endian. Nothing follows the last frame: a shard that was cut between two frames
# looks like a whole one.
#
# Hopping from length to length costs 0.2 µs a record; the checksums of all lengths in a window
# are computed at once, those of records one by one.


EXTENSION = b".tfrecord"
"""The extension of the one member of a record, after its key."""
FRAME_BYTES = HEAD_BYTES + TAIL_BYTES
KEYED_BYTES_MAX = 256 << 20
"""The maximum size of a record with a key: it is read at once to find the key, and a larger one
would not fit in a worker's memory."""

_LENGTH, _SUM = struct.Struct("<Q"), struct.Struct("<I")

KeyOf = Callable[[memoryview, int], bytes]
"""Returns the key of a record, given its bytes and its number."""


class FrameScan:
    """The frames of one shard found so far. ``key_of``: None if records are numbered."""

    def __init__(self, shard: str, size_bytes: int, key_of: KeyOf | None) -> None:
        self._shard = shard
        self._size = size_bytes
        self._key_of = key_of
        self._starts: list[Int64s] = []
        self._lengths: list[Int64s] = []
        self._keys: list[bytes] = []
        self._count = 0

    def scanner(self) -> Scanner:
        """See ``Container.scanner``."""
        at = 0
        while at < self._size:
            at += self._whole_frames((yield Need(at, min(HEAD_BYTES, self._size - at))), at)
            if at == self._size:
                break
            if self._size - at < FRAME_BYTES:
                raise self._cut_short(at)
            length = self._length((yield Need(at, HEAD_BYTES)), at)
            if self._key_of is None:
                yield from self._large_frame(at, length)
                at += length + FRAME_BYTES
            else:
                at += self._whole_frames((yield Need(at, length + FRAME_BYTES)), at)
        return self._table()

    def _table(self) -> MemberTable:
        none = np.zeros(0, np.int64)
        starts, lengths = (
            np.concatenate([none, *self._starts]),
            np.concatenate([none, *self._lengths]),
        )
        keys = None if self._key_of is None else self._keys
        return replace(
            record_table(self._shard, EXTENSION, starts, lengths + FRAME_BYTES, keys),
            payload_start=starts + HEAD_BYTES,
            payload_bytes=lengths,
        )

    def _whole_frames(self, view: memoryview, base: int) -> int:
        """Read all frames that end in ``view``; return where in ``view`` the next frame begins.
        ``view`` begins at byte ``base`` of the shard."""
        unpack, at, end = _LENGTH.unpack_from, 0, len(view) - FRAME_BYTES
        starts: list[int] = []
        add = starts.append
        while at <= end:
            add(at)
            at += unpack(view, at)[0] + FRAME_BYTES
        if at > len(view):
            at = starts.pop()
        if starts:
            self._check(view, base, [*starts, at])
        return at

    def _check(self, view: memoryview, base: int, bounds: list[int]) -> None:
        """Check both checksums of each frame. A wrong length leads to bytes that are not frames, so
        the error is about the first frame that is wrong. ``bounds``: where frames begin, and where
        the last one ends."""
        data = np.frombuffer(view, np.uint8)
        sums = [
            crc32c(view[start + HEAD_BYTES : stop - TAIL_BYTES]) for start, stop in pairwise(bounds)
        ]
        ends = np.array(bounds, np.int64)
        starts, lengths = ends[:-1], np.diff(ends) - FRAME_BYTES
        found = masked_all(np.array(sums, np.uint32))
        wrong_length = length_checksums(lengths) != _sums_at(data, starts + _LENGTH.size)
        wrong = wrong_length | (found != _sums_at(data, starts + HEAD_BYTES + lengths))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise self._mismatch(base + int(starts[row]), of_length=bool(wrong_length[row]))
        if self._key_of is not None:
            for number, (start, stop) in enumerate(pairwise(bounds), self._count):
                record = view[start + HEAD_BYTES : stop - TAIL_BYTES]
                self._keys.append(self._key_of(record, number))
        self._take(starts + base, lengths)

    def _take(self, starts: Int64s, lengths: Int64s) -> None:
        self._starts.append(starts)
        self._lengths.append(lengths)
        self._count += len(starts)

    def _length(self, view: memoryview, start: int) -> int:
        """The length of the record whose frame begins at byte ``start`` with ``view``."""
        length: int = _LENGTH.unpack_from(view)[0]
        (stored,) = _SUM.unpack_from(view, _LENGTH.size)
        if masked(crc32c(view[: _LENGTH.size])) != stored:
            raise self._mismatch(start, of_length=True)
        if length + FRAME_BYTES > self._size - start:
            raise self._cut_short(start)
        if self._key_of is not None and length > KEYED_BYTES_MAX:
            raise InputError(
                f"record {self._count} of shard {self._shard} has {length:,} bytes: a key is "
                f"looked for in records of up to {KEYED_BYTES_MAX:,}",
                hint="leave out key_field: then records are numbered",
            )
        return length

    def _large_frame(self, start: int, length: int) -> Generator[Need, memoryview, None]:
        """Read a frame that is larger than a window piece by piece."""
        at, stop, checksum = start + HEAD_BYTES, start + HEAD_BYTES + length, 0
        while at < stop:
            piece = (yield Need(at))[: stop - at]
            checksum = crc32c(piece, checksum)
            at += len(piece)
            del piece
        (stored,) = _SUM.unpack_from((yield Need(stop, TAIL_BYTES)))
        if masked(checksum) != stored:
            raise self._mismatch(start, of_length=False)
        self._take(np.array([start]), np.array([length]))

    def _mismatch(self, start: int, *, of_length: bool) -> CorruptShardError:
        what = "the length of a record" if of_length else "a record"
        return CorruptShardError(self._shard, start, f"{what} does not match its checksum")

    def _cut_short(self, start: int) -> CorruptShardError:
        return CorruptShardError(self._shard, start, "the shard ends within a record")


def _sums_at(data: UInt8s, places: Int64s) -> NDArray[np.uint32]:
    """The little-endian u32 at each of ``places``."""
    rows = np.ascontiguousarray(data[places[:, None] + np.arange(_SUM.size)])
    return rows.view("<u4").reshape(-1)


_EXAMPLE_HINT: Final = (
    "only tf.train.Example can be converted; a job from .tfrecord to .tfrecord moves any record"
)


@dataclass(frozen=True, slots=True)
class TFRecord(KeyedContainer):
    """TFRecord shards. ``key_field``: the feature that is the key; "": records are numbered.

    A record is a frame, and is moved with both of its checksums. In a conversion the key is the
    feature ``__key__``, if there is one and ``key_field`` names no other. An Example becomes a
    record whose members are its features, and a record becomes an Example whose features are its
    members, in their order, after the feature ``__key__``:

    | feature | member |
    |---|---|
    | one bytes value | ``key.feature``, the value |
    | one number | ``key.feature``, the number as text |
    | several bytes values | ``key.feature.0``, ``key.feature.1``, … |
    | several numbers, or no value | ``key.feature.json``, a JSON array |

    A slash in a feature's name becomes a dot in the member's name, because text after a slash would
    be part of another key. A member ``cls`` that is an integer as Python writes it becomes an int64
    feature; all others become bytes features. So members that are read back from TFRecord are the
    same, byte for byte."""

    suffixes = (".tfrecord", ".tfrecords")
    packed = staticmethod(packed_frames)
    keeps_keys = True
    no_other_name = (
        "a .tfrecord record cannot be called {name}: the key is in the record",
        "choose other reactions than rename, or leave out key_field",
    )
    seals = Seals(TAIL_BYTES, HEAD_BYTES, crc32c, stored_checksums)

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
        assert members.own.key_bytes is not None
        names, key_bytes = members.names.tolist(), members.own.key_bytes.tolist()
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
        raise NoExampleError("the feature does not have one value of the type bytes or int64")
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
