"""Names that are all as long are read as a table: what comes out is what comes of any names."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from tests.support.internals import (
    BytesColumn,
    FormedRecords,
    MemberTable,
    form_records,
    rows_equal_earlier,
    run_sums,
    split_name,
    split_names,
)

SHARDS: dict[str, list[bytes]] = {
    "two members a record": [b"%05d.%b" % (n // 2, (b"jpg", b"cls")[n % 2]) for n in range(40)],
    "one": [b"%05d.json" % n for n in range(40)],
    "long keys": [b"dir/%030d.%b" % (n // 3, (b"a", b"b", b"c")[n % 3]) for n in range(40)],
    "keys that come again": [b"%05d.%03d" % (n % 7, n) for n in range(40)],
    "extensions that come again": [b"%05d.%03d" % (n // 8, n % 3) for n in range(40)],
    "keys and extensions that come again": [b"k%04d.%03d" % (n % 3, n % 5) for n in range(40)],
    "strays": [b"%09d" % n for n in range(40)],
    "hidden files": [b"d/.%07d" % n for n in range(40)],
    "dots at other places": [b"%05d.jpg" % 1, b"%04d.json" % 1, b"%09d" % 1, b"1/2345678"],
    "dots and slashes at other places": [b"a/b/c.jpg", b"a/b.c.jpg", b"a.b/c.jpg", b"a.b.c.jpg"],
    "shorter than a word": [b"%d.%d" % (n // 3 % 10, n % 4) for n in range(40)],
    "no names at all": [b"", b"", b""],
}


def table(names: list[bytes], order: list[int]) -> MemberTable:
    """Members of which number ``order[i]`` lies in place ``i``."""
    rows = np.arange(len(names), dtype=np.int64)
    starts = np.array(order, np.int64) * 1024
    return MemberTable(
        names=BytesColumn.of(names),
        kind=np.zeros(len(names), np.uint8),
        payload_start=starts + 512,
        payload_bytes=rows,
        range_start=starts,
        range_length=np.full(len(names), 1024, np.int64),
    )


def shown(formed: FormedRecords, members: MemberTable, count: int) -> list[object]:
    """All that is known of the first ``count`` records."""
    segments = formed.segments(members)
    found: list[object] = [formed.non_adjacent, formed.repeated, formed.strays]
    for record in range(count):
        own = slice(*formed.member_offsets[record : record + 2].tolist())
        pieces = slice(*segments.offsets[record : record + 2].tolist())
        starts, lengths = segments.start[pieces].tolist(), segments.length[pieces].tolist()
        found += [formed.keys[record], int(formed.key_hash[record])]
        found += [formed.member_rows[own].tolist(), starts, lengths]
        found += [int(formed.payload_bytes[record]), int(formed.stored_bytes[record])]
        found += formed.key_bytes[formed.member_rows[own]].tolist()
    return found


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("shard", SHARDS)
def test_records_are_those_that_the_same_names_make_beside_a_longer_one(
    shard: str, scattered: bool
) -> None:
    names = SHARDS[shard]
    order = [*range(len(names))]
    if scattered:
        random.Random(1).shuffle(order)
    alone = table(names, order)
    longer = table([*names, b"one-that-is-longer/than-all.others"], [*order, len(order)])
    formed, wanted = form_records(alone, "keep"), form_records(longer, "keep")
    assert len(wanted) == len(formed) + 1
    assert shown(formed, alone, len(formed)) == shown(wanted, longer, len(formed))


@pytest.mark.parametrize("shard", SHARDS)
def test_each_name_is_split_as_by_itself(shard: str) -> None:
    names = SHARDS[shard]
    found = split_names(BytesColumn.of(names))
    keys = [split_name(name)[0] for name in names]
    assert found.key_bytes.tolist() == [*map(len, keys)]
    assert found.stray.tolist() == [key == name for key, name in zip(keys, names, strict=True)]


@pytest.mark.parametrize("width", [7, 8, 9, 15, 16, 17, 31])
def test_rows_are_compared_byte_by_byte(width: int) -> None:
    drawn = random.Random(width)
    rows = [bytes(drawn.choice(b"ab") for _ in range(width)) for _ in range(60)]
    texts = BytesColumn.of(rows)
    for start, stop, lag in itertools.product(range(width + 1), range(width + 1), (1, 2, 5)):
        found = rows_equal_earlier(texts, width, start, stop, lag)
        if width < 8:
            assert found is None
            continue
        assert found is not None
        pairs = zip(rows[lag:], rows[:-lag], strict=True)
        assert found.tolist() == [one[start:stop] == other[start:stop] for one, other in pairs]


@pytest.mark.parametrize("counts", [[1] * 5, [3] * 4, [9] * 3, [2, 1, 2], [1, 3], []])
def test_runs_are_summed_up_whatever_their_lengths(counts: list[int]) -> None:
    offsets = np.append(0, np.cumsum(counts)).astype(np.int64)
    values = np.arange(10, 10 + sum(counts))
    wanted = [int(values[a:b].sum()) for a, b in itertools.pairwise(offsets.tolist())]
    assert run_sums(values, offsets).tolist() == wanted
