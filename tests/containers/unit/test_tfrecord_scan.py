"""TFRecord shards are read frame by frame, and whatever is not as its checksums say is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from awscrt.checksums import crc32c
from tfrecord.tools.tfrecord2idx import create_index

from dsort.containers.base import Container, ContainerOptions, Scan
from dsort.containers.tfrecord.container import KEYED_BYTES_MAX, TFRECORD
from dsort.containers.tfrecord.example import (
    ROW_BYTES_MAX,
    length_checksums,
    row_checksums,
)
from dsort.errors import ContentKeyError, ConversionError, CorruptShardError, InputError
from dsort.sidecars.kinds import SIDECARS
from tests.support.internals import BytesColumn, MemberTable
from tests.support.refusals import raises
from tests.support.scanning import in_windows
from tests.support.tfrecords import example_bytes, frame

RECORDS = [b"", b"a", bytes(300), b"x" * 70, b"end"]
SHARD = b"".join(map(frame, RECORDS))
KEYED = TFRECORD.with_options(ContainerOptions(key_field="id"))


def scanned_in_windows(
    data: bytes, window_bytes: int, container: Container = TFRECORD
) -> MemberTable:
    return in_windows(container, "s.tfrecord", data, window_bytes)


def payloads(table: MemberTable, data: bytes) -> list[bytes]:
    places = zip(table.payload_start.tolist(), table.payload_bytes.tolist(), strict=True)
    return [data[start : start + size] for start, size in places]


@pytest.mark.parametrize("window_bytes", [1, 13, 16, 17, 100, 10_000])
def test_every_window_finds_the_same_frames(window_bytes: int) -> None:
    table = scanned_in_windows(SHARD, window_bytes)
    assert payloads(table, SHARD) == RECORDS
    stored = zip(table.range_start.tolist(), table.range_length.tolist(), strict=True)
    assert b"".join(SHARD[start : start + size] for start, size in stored) == SHARD
    assert table.names.tolist() == [b"s-%09d.tfrecord" % number for number in range(5)]


def test_an_empty_shard_has_no_records() -> None:
    assert len(TFRECORD.scan("s.tfrecord", b"")) == 0


@pytest.mark.parametrize("window_bytes", [16, 10_000])
def test_a_shard_that_ends_within_a_record_is_refused_wherever_it_ends(window_bytes: int) -> None:
    borders = np.cumsum([0, *(len(frame(record)) for record in RECORDS)]).tolist()
    for end in range(1, len(SHARD)):
        if end in borders:  # nothing tells that more should follow
            assert len(TFRECORD.scan("s", SHARD[:end])) == borders.index(end)
            continue
        with pytest.raises(CorruptShardError) as caught:
            scanned_in_windows(SHARD[:end], window_bytes)
        assert caught.value.offset == max(border for border in borders if border <= end)


@pytest.mark.parametrize("window_bytes", [16, 10_000])
def test_each_flipped_bit_is_found_in_its_record(window_bytes: int) -> None:
    begin = len(frame(RECORDS[0])) + len(frame(RECORDS[1])) + len(frame(RECORDS[2]))
    for at in range(begin, begin + len(frame(RECORDS[3]))):
        for bit in range(0, 8, 3):
            data = bytearray(SHARD)
            data[at] ^= 1 << bit
            with raises(CorruptShardError, shard="s.tfrecord", offset=begin):
                scanned_in_windows(bytes(data), window_bytes)


def test_a_length_with_its_checksum_that_leads_out_of_the_shard_is_refused() -> None:
    head = frame(b"")[:12]
    huge = struct.pack("<Q", 1 << 63)
    checksum = length_checksums(np.array([1 << 40], np.int64))
    data = struct.pack("<QI", 1 << 40, int(checksum[0])) + bytes(100)
    with raises(CorruptShardError, shard="s", offset=0):
        TFRECORD.scan("s", data)
    with raises(CorruptShardError, shard="s", offset=0):
        TFRECORD.scan("s", huge + head[8:] + bytes(100))


@pytest.mark.parametrize("width", [0, 1, 2, 59, ROW_BYTES_MAX])
def test_the_checksums_of_rows_of_a_table_are_those_of_each(width: int) -> None:
    random = np.random.default_rng(width)
    rows = np.tile(random.integers(0, 256, width, np.uint8), (50, 1))
    rows[:, :20] = random.integers(0, 256, (50, min(width, 20)), np.uint8)
    rows[7:, -1:] = 3
    for table in (rows, rows[:1], rows[:0]):
        assert row_checksums(table).tolist() == [crc32c(row.tobytes()) for row in table]


def test_the_checksums_of_many_lengths_are_those_of_each() -> None:
    lengths = [0, 1, 255, 256, 65_537, (1 << 40) + 12_345, (1 << 62) + 1]
    one_by_one = []
    for length in lengths:
        packed = struct.pack("<Q", length)
        one_by_one.append(struct.unpack("<I", frame(packed)[-4:])[0])
    assert length_checksums(np.array(lengths, np.int64)).tolist() == one_by_one


@pytest.mark.parametrize("window_bytes", [16, 64, 10_000])
def test_a_key_is_a_feature_of_bytes_or_of_an_integer(window_bytes: int) -> None:
    records = [
        example_bytes({"id": ("byte", b"a/b"), "image": ("byte", bytes(200))}),
        example_bytes({"id": ("int", -7), "other": ("float", 1.5)}),
    ]
    table = scanned_in_windows(b"".join(map(frame, records)), window_bytes, KEYED)
    assert table.names.tolist() == [b"a/b.tfrecord", b"-7.tfrecord"]
    assert table.own.key_bytes is not None
    assert table.own.key_bytes.tolist() == [3, 2]


@pytest.mark.parametrize(
    "record",
    [
        example_bytes({"other": ("byte", b"a")}),
        example_bytes({"id": ("byte", [b"a", b"b"])}),
        example_bytes({"id": ("byte", b"")}),
        example_bytes({"id": ("float", 1.0)}),
        b"no example",
    ],
)
def test_a_record_without_the_key_is_named(record: bytes) -> None:
    data = frame(example_bytes({"id": ("byte", b"a")})) + frame(record)
    with raises(ContentKeyError, "record 1", "shard s", "key id"):
        KEYED.scan("s", data)


def test_a_record_too_large_to_look_for_its_key_is_refused_before_it_is_read() -> None:
    length = KEYED_BYTES_MAX + 1
    checksum = int(length_checksums(np.array([length], np.int64))[0])
    begun = Scan(KEYED.scanner("s", length + 16))
    with raises(InputError, "record 0 of shard s"):
        begun.feed(struct.pack("<QI", length, checksum), 0)


def test_no_record_gets_another_name() -> None:
    with raises(ConversionError, "b.tfrecord"):
        TFRECORD.renamed(BytesColumn.of([SHARD[:12]]), BytesColumn.of([b"b.tfrecord"]))


def test_the_index_for_dali_is_what_tfrecord2idx_writes(tmp_path: Path) -> None:
    shard, index = tmp_path / "s.tfrecord", tmp_path / "s.idx"
    shard.write_bytes(SHARD)
    create_index(str(shard), str(index))
    table = TFRECORD.scan("s.tfrecord", SHARD)
    assert SIDECARS["dali"].of_shard("s.tfrecord", table, len(SHARD)) == index.read_bytes()
