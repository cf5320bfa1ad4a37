"""Output shards, names and receipts as columns say what they say as objects."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from tests.support.internals import (
    AT_ONCE,
    CHUNK_BYTES,
    CreatedShards,
    PackedTexts,
    Piece,
    ShardCreated,
    TextsByNumber,
    merge_pieces,
)


def pieces_of(count: int, *, encoded: bool = False) -> list[Piece]:
    """A shard of two pieces, then one of one piece, and so on."""
    return [
        Piece(
            group=0,
            number=at * 2 // 3,
            partition=at % 7,
            row_start=at,
            row_stop=at + 3,
            offset=10 * (at % 3 == 1),
            members=at + 1,
            payload_bytes=at * at,
            stored_bytes=at + 512,
            entries_bytes=at % 2,
            measured_bytes=at if encoded else -1,
        )
        for at in range(count)
    ]


@pytest.mark.parametrize("encoded", [False, True])
def test_shards_have_the_sums_of_their_pieces(encoded: bool) -> None:
    pieces = pieces_of(6, encoded=encoded)
    shards = merge_pieces(pieces)
    assert shards == [*shards] != [*shards][:-1]
    assert [shard.pieces for shard in shards] == [
        tuple(pieces[at] for at in own) for own in ((0, 1), (2,), (3, 4), (5,))
    ]
    first = shards[0]
    assert (first.records, first.members, first.payload_bytes) == (6, 3, 1)
    assert (first.stored_bytes, first.entries_bytes) == (1025, 1)
    assert [shard.measured_bytes for shard in shards] == (
        [1, 2, 7, 5] if encoded else [-1, -1, -1, -1]
    )
    assert shards.total("records") == 18
    assert shards.partitions()[1].tolist() == [0, 1, 2, 3, 4, 5]
    assert shards.partitions()[0].tolist() == [0, 0, 1, 2, 2, 3]


def test_names_come_back_whatever_their_bytes() -> None:
    names = [f"a/{at}-ü\udcff.tar" for at in range(AT_ONCE + 3)]
    packed = PackedTexts(names)
    assert packed == names
    assert (packed[-1], packed[1:3]) == (names[-1], names[1:3])
    with pytest.raises(IndexError):
        packed[len(names)]


def test_texts_by_number_are_as_a_dictionary(rng: random.Random) -> None:
    texts, wanted = TextsByNumber(), dict[int, str]()
    for _ in range(400):
        number = rng.randrange(200)
        if rng.random() < 0.2 and number in wanted:
            del texts[number], wanted[number]
        else:
            texts[number] = wanted[number] = "é" * rng.randrange(CHUNK_BYTES // 300)
    assert len(texts) == len(wanted)
    assert dict(texts) == wanted
    assert 1000 not in texts
    with pytest.raises(KeyError):
        texts[1000]


def test_staged_shards_keep_all_that_is_known_of_them() -> None:
    created = CreatedShards()
    wanted = ShardCreated(3, "0123456789abcdef", '["a\\u0000"]', "", -1)
    created[3] = wanted
    assert dict(created) == {3: wanted}
    assert created.checksum(3) == wanted.xxh3
    created.update((n, replace(wanted, ordinal=n, file_bytes=n)) for n in range(4))
    assert created.file_bytes().tolist() == [0, 1, 2, 3]
    created.clear()
    assert len(created) == 0
