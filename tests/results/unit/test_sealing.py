"""Frames that are made around payloads are the same, whenever their checksums are taken."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from dsort.containers.tfrecord.container import TFRECORD
from dsort.storage.directory.bucket import LocalBucket
from tests.support.datasets import Member, Shard
from tests.support.internals import (
    LENGTHS_MAX,
    PayloadBuffer,
    Segments,
    ShardBytes,
    bare_table,
    form_records,
    packed_records,
    slices_of,
    slices_of_sources,
    slices_with_literals,
)

LABEL_LAST = ("cls", b"7")


def stored(path: Path, *, are_sealed_later: bool) -> tuple[memoryview, Segments]:
    """The shard, and the frames of its records in it."""
    with LocalBucket(path.parent).open(path.name) as source:
        shard = ShardBytes(path.name, source, PayloadBuffer(1 << 20), mapped=False)
        members = bare_table(shard.members())
        records = form_records(members, "keep")
        packed, frames = packed_records(
            shard, members, records, TFRECORD, are_sealed_later=are_sealed_later
        )
        assert shard.whole is not None
        return memoryview(bytes(shard.whole)), frames.segments(packed)


@pytest.mark.parametrize("longest", [40, 4_000, 60_000])
@pytest.mark.parametrize("labels", [[], [LABEL_LAST], [("cls", b"no number"), ("txt", b"")]])
def test_seals_are_the_same_whenever_they_are_made(
    labels: list[tuple[str, bytes]], longest: int, tmp_path: Path
) -> None:
    source = random.Random(longest)
    members = []
    for key in range(9, 30):
        picture = "bin", source.randbytes(source.randrange(1, longest))
        members += [Member(f"{key}.{name}", data) for name, data in [picture, *labels]]
    path = tmp_path / "a.tar"
    path.write_bytes(Shard(tuple(members)).data[: -2 * 512 if not labels else None])
    whole, early = stored(path, are_sealed_later=False)
    _, late = stored(path, are_sealed_later=True)
    sizes = np.add.reduceat(early.length, early.offsets[:-1])
    assert np.add.reduceat(late.length, late.offsets[:-1]).tolist() == sizes.tolist()
    one = np.zeros(len(sizes), np.int32)
    made = slices_with_literals({0: whole}, one, late, sizes, TFRECORD.seals)
    frames = b"".join(piece for some in made for piece in some)
    assert frames == b"".join(slices_of(whole, early))
    read = TFRECORD.scan("a.tfrecord", frames)
    assert len(read) == 21
    raw = Segments(np.arange(22), read.range_start, read.range_length, np.zeros(0, np.uint8))
    views = {0: memoryview(frames)}
    again = slices_with_literals(views, one, raw, sizes, TFRECORD.seals)
    assert b"".join(piece for some in again for piece in some) == frames  # they are whole


def test_records_with_literals_are_their_segments_in_order() -> None:
    source = random.Random(5)
    views = {shard: memoryview(source.randbytes(9_000)) for shard in (0, 3)}
    for lengths in ([6], [3, 40], [*range(1, LENGTHS_MAX + 9)]):
        parts, offsets, literals, of_record = [], [0], b"", []
        for record in range(300):
            of_record.append(source.choice([0, 3]))
            # Of one length: literal and range by turns, as of records of one member.
            kinds = "lr" if len(lengths) == 1 else source.choice(["lr", "lrl", "r", "l", "rlr"])
            for kind in kinds:
                size = lengths[record % len(lengths)] if kind == "l" else source.randrange(200)
                parts.append((-1 - len(literals) if kind == "l" else source.randrange(8_000), size))
                literals += source.randbytes(size) if kind == "l" else b""
            offsets.append(len(parts))
        start, length = np.array(parts, np.int64).T.copy()
        blob = np.frombuffer(literals, np.uint8)
        segments = Segments(np.array(offsets), start, length, blob)
        sizes = np.add.reduceat(length, segments.offsets[:-1])
        shards = np.array(of_record, np.int32)
        wanted = b"".join(slices_of_sources(views, shards, segments))
        made = slices_with_literals(views, shards, segments, sizes, None)
        assert b"".join(piece for some in made for piece in some) == wanted
