"""Names that lead out of an archive are found, and made safe without a collision."""

from __future__ import annotations

import random

import pytest

from dsort.core.columns import BytesColumn
from dsort.core.safe_names import new_safe_names, safe_name, target_escapes, unsafe_rows

UNSAFE = {
    b"/abs.jpg": b"abs.jpg",
    b"//a//b.jpg": b"a/b.jpg",
    b"../x.jpg": b"x.jpg",
    b"a/../../x.jpg": b"a/x.jpg",
    b"a/..": b"a",
    b"..": b"_",
    b"/": b"_/",
    b"../": b"_/",
    b"../d/": b"d/",
}
SAFE = [
    b"a.jpg",
    b"a..jpg",
    b"..a/b.jpg",
    b"a../b",
    b"./a.jpg",
    b"a/./b",
    b"...",
    b"",
    b"C:\\x",
    b"a\\..\\b",
]


def test_unsafe_names_are_found_among_others() -> None:
    names = [name for pair in zip(UNSAFE, SAFE, strict=False) for name in pair]
    rows = unsafe_rows(BytesColumn.of(names))
    assert [names[row] for row in rows] == list(UNSAFE)
    assert unsafe_rows(BytesColumn.of([])) == unsafe_rows(BytesColumn.of([b""])) == []


def test_any_name_is_judged_as_by_its_parts(rng: random.Random) -> None:
    names = [
        b"".join(rng.choices([b"/", b".", b"..", b"a"], k=rng.randint(0, 6))) for _ in range(2000)
    ]
    rows = set(unsafe_rows(BytesColumn.of(names)))
    for row, name in enumerate(names):
        assert (row in rows) == (name[:1] == b"/" or b".." in name.split(b"/")), name
        assert unsafe_rows(BytesColumn.of([safe_name(name)])) == []


@pytest.mark.parametrize(("name", "safe"), UNSAFE.items())
def test_a_name_is_made_safe(name: bytes, safe: bytes) -> None:
    assert safe_name(name) == safe


def test_records_stay_together_and_never_meet_another() -> None:
    names = [
        b"../a.jpg",
        b"/a.jpg",
        b"a.jpg",
        b"a-1.jpg",
        b"../a.cls",
        b"/a.cls",
        b"../README",
        b"../d/",
    ]
    got = new_safe_names(BytesColumn.of(names), unsafe_rows(BytesColumn.of(names)))
    assert got == {
        0: b"a-2.jpg",
        1: b"a-3.jpg",
        4: b"a-2.cls",
        5: b"a-3.cls",
        6: b"README",
        7: b"d/",
    }


def test_very_many_of_one_name_take_no_square_of_time() -> None:
    names = BytesColumn.of(
        [b"/" * (i % 50 + 1) + b"../" * (i // 50) + b"a.jpg" for i in range(5000)]
    )
    assert len(set(new_safe_names(names, unsafe_rows(names)).values())) == 5000


@pytest.mark.parametrize(
    ("name", "target", "escapes"),
    [
        (b"l", b"a", False),
        (b"l", b"/etc/passwd", True),
        (b"l", b"../x", True),
        (b"d/l", b"../x", False),
        (b"d/l", b"../../x", True),
        (b"d/l", b"a/../../x", False),
        (b"d/l", b"../a/../../b", True),
        (b"./l", b"../x", True),
    ],
)
def test_a_link_is_followed_on_paper(name: bytes, target: bytes, escapes: bool) -> None:
    assert target_escapes(name, target) is escapes
