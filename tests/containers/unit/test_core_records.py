"""Members become records: by key, in first-seen order, and whatever is odd is counted."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.internals import (
    BytesColumn,
    FormedRecords,
    MemberKind,
    MemberTable,
    form_records,
    rows_equal_earlier,
)

FILE, LINK, DIRECTORY, DEVICE = (
    MemberKind.FILE,
    MemberKind.SYMLINK,
    MemberKind.DIRECTORY,
    MemberKind.DEVICE,
)


def table(
    *members: bytes | tuple[bytes, MemberKind], literals: dict[int, bytes] | None = None
) -> MemberTable:
    """Members of 512 bytes of headers and, in row ``i``, ``i`` bytes of payload in 512."""
    pairs = [m if isinstance(m, tuple) else (m, FILE) for m in members]
    rows = np.arange(len(pairs), dtype=np.int64)
    return MemberTable(
        names=BytesColumn.of([name for name, _ in pairs]),
        kind=np.array([kind for _, kind in pairs], np.uint8),
        payload_start=rows * 1024 + 512,
        payload_bytes=rows,
        range_start=rows * 1024,
        range_length=np.full(len(pairs), 1024, np.int64),
        literals=literals or {},
    )


def rows_of(formed: FormedRecords) -> list[list[int]]:
    bounds = formed.member_offsets.tolist()
    rows = formed.member_rows.tolist()
    return [rows[a:b] for a, b in itertools.pairwise(bounds)]


def segments_of(formed: FormedRecords, members: MemberTable) -> list[list[tuple[int, int]]]:
    segments = formed.segments(members)
    bounds = segments.offsets.tolist()
    pairs = [*zip(segments.start.tolist(), segments.length.tolist(), strict=True)]
    return [pairs[a:b] for a, b in itertools.pairwise(bounds)]


def test_adjacent_members_of_one_key_are_a_record() -> None:
    members = table(b"a.jpg", b"a.cls", b"d/a.jpg", b"b.jpg", b"b.txt", b"b.x.y")
    formed = form_records(members, "keep")
    assert formed.keys.tolist() == [b"a", b"d/a", b"b"]
    assert rows_of(formed) == [[0, 1], [2], [3, 4, 5]]
    assert formed.payload_bytes.tolist() == [1, 2, 12]
    assert formed.stored_bytes.tolist() == [2048, 1024, 3072]
    assert segments_of(formed, members) == [[(0, 2048)], [(2048, 1024)], [(3072, 3072)]]
    assert formed.non_adjacent == 0


def test_a_shard_may_be_empty() -> None:
    members = table()
    formed = form_records(members, "keep")
    assert len(formed) == 0
    assert rows_of(formed) == []
    assert segments_of(formed, members) == []


def test_scattered_members_are_brought_together_where_the_first_was() -> None:
    members = table(b"b.jpg", b"a.jpg", b"b.cls", b"c.jpg", b"a.cls", b"b.txt")
    formed = form_records(members, "keep")
    assert formed.keys.tolist() == [b"b", b"a", b"c"]
    assert rows_of(formed) == [[0, 2, 5], [1, 4], [3]]
    assert formed.non_adjacent == 3
    assert segments_of(formed, members) == [
        [(0, 1024), (2048, 1024), (5120, 1024)],
        [(1024, 1024), (4096, 1024)],
        [(3072, 1024)],
    ]


def test_members_that_lie_one_after_the_other_in_disorder_are_not_joined_across_records() -> None:
    members = table(b"a.jpg", b"b.jpg", b"a.cls", b"b.cls")
    formed = form_records(members, "keep")
    assert segments_of(formed, members) == [
        [(0, 1024), (2048, 1024)],
        [(1024, 1024), (3072, 1024)],
    ]


def test_of_a_repeated_name_the_last_one_stays_in_its_place() -> None:
    members = table(b"a.jpg", b"a.cls", b"a.jpg", b"a.txt", b"a.jpg")
    formed = form_records(members, "keep", keep_last=True)
    assert rows_of(formed) == [[1, 3, 4]]
    assert sorted(formed.repeated) == [0, 2]


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        # as webdataset has them: three samples, and all of them whole
        ("a.jpg a.cls b.jpg b.cls a.jpg a.cls", [[0, 1], [2, 3], [4, 5]]),
        ("a.jpg b.jpg a.jpg", [[0], [1], [2]]),
        # nothing collides: brought together, from however many groups
        ("a.jpg b.jpg a.cls b.cls a.txt", [[0, 2, 4], [1, 3]]),
        # two of three groups collide: which the third belongs to would be a guess
        ("a.jpg b.jpg a.cls c.jpg a.jpg", [[0], [1], [2], [3], [4]]),
        ("a.jpg b.jpg a.jpg c.jpg a.cls", [[0], [1], [2], [3], [4]]),
        # each key for itself
        ("a.jpg b.jpg a.jpg b.cls a.cls", [[0], [1, 3], [2], [4]]),
        # one group that has a name twice, of a key whose groups do not collide
        ("a.jpg a.jpg b.jpg a.cls", [[1, 3], [2]]),
        ("a.jpg a.jpg b.jpg a.jpg", [[1], [2], [3]]),
        # strays are passed over, as webdataset does
        ("a.jpg README a.cls", [[0, 2], [1]]),
        ("a.jpg README a.jpg", [[2], [1]]),
        ("a.jpg README b.jpg LICENSE a.jpg", [[0], [1], [2], [3], [4]]),
        # strays of one name
        ("README README a.jpg", [[1], [2]]),
        ("README a.jpg README", [[0], [1], [2]]),
        ("a a.jpg a a.cls", [[0], [1, 3], [2]]),
    ],
)
def test_groups_of_one_key_are_brought_together_where_no_member_collides(
    names: str, rows: list[list[int]]
) -> None:
    members = names.encode().split()
    formed = form_records(table(*members), "keep", keep_last=True)
    assert rows_of(formed) == rows
    assert sorted({*range(len(members))} - {*formed.member_rows.tolist()}) == sorted(
        formed.repeated
    )


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        ("a.jpg a.jpg", [[0], [1]]),
        ("a.jpg a.cls a.jpg a.cls b.jpg", [[0, 1], [2, 3], [4]]),
        ("a.jpg a.cls a.cls a.jpg", [[0, 1], [2, 3]]),
        ("a.jpg a.cls a.jpg a.txt a.jpg", [[0, 1], [2, 3], [4]]),
        # the last a.cls: it would be a guess which of the two it belongs to
        ("a.jpg a.jpg b.jpg a.cls", [[0], [1], [2], [3]]),
        ("a.jpg a.jpg b.jpg a.jpg", [[0], [1], [2], [3]]),
        ("a.jpg README a.jpg", [[0], [1], [2]]),
        ("a.jpg README a.cls a.jpg", [[0, 2], [1], [3]]),
        ("README README a.jpg", [[0], [1], [2]]),
        ("a.jpg b.jpg a.cls b.jpg b.cls", [[0, 2], [1], [3, 4]]),
    ],
)
def test_a_name_that_comes_again_begins_another_record(names: str, rows: list[list[int]]) -> None:
    members = table(*names.encode().split())
    formed = form_records(members, "keep")
    assert rows_of(formed) == rows
    assert sorted(formed.member_rows.tolist()) == [*range(len(members))]


def test_records_of_one_shard_and_key_have_one_hash() -> None:
    formed = form_records(table(b"a.jpg", b"b.jpg", b"a.jpg"), "keep")
    assert formed.key_hash[0] == formed.key_hash[2] != formed.key_hash[1]
    assert formed.non_adjacent == 0


def test_two_keys_with_one_hash_are_two_records(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [b"a.jpg", b"b.jpg", b"a.cls", b"b.cls", b"b.jpg", b"c.jpg"]
    wanted = rows_of(form_records(table(*names), "keep"))
    monkeypatch.setattr(
        "dsort.data.records.hash_keys", lambda keys, count: np.zeros(count, np.uint64)
    )
    assert rows_of(form_records(table(*names), "keep")) == wanted == [[0, 2], [1], [3, 4], [5]]


def test_new_keys_leave_records_as_they_are() -> None:
    members = table(b"a.jpg", b"b.jpg", b"a.jpg", b"a.txt", b"README", b"b.jpg", b"README")
    formed = form_records(members, "keep")
    names = [b"a.jpg", b"b.jpg", b"new.jpg", b"new.txt", b"README", b"b.jpg", b"READ"]
    named = replace(members, names=BytesColumn.of(names), literals={2: b"L" * 1536})
    again = formed.with_keys({2: b"new", 5: b"READ"}, named)
    assert rows_of(again) == rows_of(formed)
    assert again.keys.tolist() == [b"a", b"b", b"new", b"README", b"b", b"READ"]
    fresh = form_records(table(b"new.jpg", b"READ"), "keep")
    assert again.key_hash[[2, 5]].tolist() == fresh.key_hash.tolist()
    assert again.key_bytes[[2, 3, 6]].tolist() == [3, 3, 4]
    assert again.stored_bytes.tolist() == [1024, 1024, 2048 + 1536, 1024, 1024, 1024]


@pytest.mark.parametrize("count", [5, 16, 17, 18, 60])
def test_repeated_names_in_a_record_of_many_members(count: int) -> None:
    names = [b"a.%d" % number for number in range(count)]
    members = table(*names, names[0], names[1], names[-1], b"b.jpg")
    apart = form_records(members, "keep")
    assert rows_of(apart) == [[*range(count)], [count, count + 1, count + 2], [count + 3]]
    formed = form_records(members, "keep", keep_last=True)
    last = [*range(2, count - 1), count, count + 1, count + 2]
    assert rows_of(formed) == [last, [count + 3]]
    assert sorted(formed.repeated) == [0, 1, count - 1]


def test_extensions_that_only_look_alike_are_not_repeated() -> None:
    formed = form_records(table(b"a.jpg", b"a.JPG", b"a.jp", b"a.jpg2", b"a..jpg"), "keep")
    assert rows_of(formed) == [[0, 1, 2, 3, 4]]
    assert formed.repeated == ()


STRAYS = table(
    b"a.jpg", b"README", (b"d/", DIRECTORY), (b"a.link", LINK), (b"pipe.jpg", DEVICE), b".hidden",
    (b"link", LINK), b"a.cls", (b"d.x/", DIRECTORY),
)  # fmt: skip


def test_kept_strays_are_records_of_their_own_but_directories_and_devices_go() -> None:
    formed = form_records(STRAYS, "keep")
    assert formed.keys.tolist() == [b"a", b"README", b".hidden", b"link"]
    assert rows_of(formed) == [[0, 3, 7], [1], [5], [6]]
    assert formed.dropped == (2, 4, 8)
    assert formed.strays == (1, 2, 4, 5, 6, 8)


def test_dropped_strays_include_links() -> None:
    formed = form_records(STRAYS, "drop")
    assert formed.keys.tolist() == [b"a"]
    assert rows_of(formed) == [[0, 7]]
    assert formed.dropped == (1, 2, 3, 4, 5, 6, 8)


def test_strays_to_abort_for_are_all_named() -> None:
    formed = form_records(STRAYS, "abort")
    assert {1, 2, 4, 5, 6, 8} <= set(formed.strays)
    assert formed.dropped == ()


def test_a_stray_and_a_record_of_one_name_are_two() -> None:
    formed = form_records(table(b"a", b"a.jpg", b"a.cls"), "keep")
    assert formed.keys.tolist() == [b"a", b"a"]
    assert rows_of(formed) == [[0], [1, 2]]
    assert formed.key_hash[0] != formed.key_hash[1]


def test_literals_stand_before_the_bytes_they_replace() -> None:
    members = table(b"a.jpg", b"a.cls", b"b.jpg", literals={1: b"L" * 512, 2: b"M" * 1536})
    formed = form_records(members, "keep")
    assert formed.stored_bytes.tolist() == [2560, 2560]
    assert segments_of(formed, members) == [
        [(0, 1024), (-1, 512), (1024, 1024)],
        [(-513, 1536), (2048, 1024)],
    ]
    assert formed.segments(members).literals.tobytes() == b"L" * 512 + b"M" * 1536


def test_literals_of_members_left_out_are_left_out() -> None:
    members = table(b"a.jpg", b"a.jpg", (b"d/", DIRECTORY), literals={0: b"x", 1: b"y", 2: b"z"})
    formed = form_records(members, "keep", keep_last=True)
    assert formed.segments(members).literals.tobytes() == b"y"
    assert segments_of(formed, members) == [[(-1, 1), (1024, 1024)]]
    assert formed.stored_bytes.tolist() == [1025]


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
