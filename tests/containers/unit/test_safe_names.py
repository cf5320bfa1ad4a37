"""Names that lead out of an archive are found, and made safe without a collision."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.internals import (
    BytesColumn,
    new_safe_names,
    safe_name,
    target_escapes,
    unsafe_links,
    unsafe_rows,
)

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


@pytest.mark.parametrize(
    ("links", "unsafe"),
    [
        ({b"d": b".", b"d/e/f.jpg": b"../../x"}, [b"d/e/f.jpg"]),
        ({b"a/b/c": b"..", b"a/b/c/x.jpg": b"../../y"}, [b"a/b/c/x.jpg"]),
        ({b"a/b/c": b"..", b"./a//b/./c/d/x": b"../y"}, [b"./a//b/./c/d/x"]),
        ({b"a/b/c/": b"..", b"a/b/c/x": b"../y"}, [b"a/b/c/x"]),
        ({b"d": b".", b"x": b"d/../y"}, [b"x"]),
        ({b"d": b".", b"x": b"./d/e/../../y"}, [b"x"]),
        ({b"a/d": b".", b"a/b/x": b"../d/../y"}, [b"a/b/x"]),
        ({b"d": b".", b"x": b"e/../d/f"}, []),
        ({b"d": b".", b"d/x": b"d/y", b"z": b"d/x"}, []),
        ({b"d": b".", b"dd/x": b"../y", b"d2": b"dd/../d"}, []),
        ({b"a.jpg": b"dir/a.jpg", b"dir/b.jpg": b"../a.jpg", b"dir/c.jpg": b"b.jpg"}, []),
        ({b"x": b"../out", b"y": b"/abs"}, [b"x", b"y"]),
        # b/c is c, and d/l is l.
        ({b"b": b".", b"b/c": b".", b"a": b"c/../x", b"z": b"x"}, [b"a"]),
        ({b"b": b".", b"b/d": b".", b"d/l": b"../x"}, [b"d/l"]),
        ({b"d": b".", b"d/x": b"y", b"z": b"a..b/x"}, []),
    ],
)
def test_a_link_is_followed_through_others(links: dict[bytes, bytes], unsafe: list[bytes]) -> None:
    items = list(links.items())
    for order in (items, items[::-1]):
        found = unsafe_links([(row, *item) for row, item in enumerate(order)])
        assert sorted(order[row][0] for row in found) == sorted(unsafe)


def test_no_link_leads_out_where_none_is_called_unsafe(rng: random.Random, tmp_path: Path) -> None:
    """Random links, made on a real file system: what resolves to without is called unsafe."""
    seen = 0
    for number in range(400):
        root = tmp_path / str(number) / "in" / "in" / "in"
        root.mkdir(parents=True)
        links = []
        for _ in range(rng.randint(2, 5)):
            name = "/".join(rng.choices("abc", k=rng.randint(1, 3)))
            target = "/".join(rng.choices(["a", "b", "c", ".", ".."], k=rng.randint(1, 4)))
            try:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).symlink_to(target)
            except OSError:
                continue
            links.append((name, target))
        found = unsafe_links([(i, a.encode(), b.encode()) for i, (a, b) in enumerate(links)])
        out = [i for i, (name, _) in enumerate(links) if not _is_inside(root / name, root)]
        assert found or not out, links
        seen += bool(out)
    assert seen > 20


def _is_inside(path: Path, root: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # a loop
        return True


def test_very_long_targets_through_links_take_no_square_of_time() -> None:
    deep = b"a/" * 100_000
    links = [(0, deep + b"l", b"."), (1, deep + b"x", b"a/../" * 200_000 + b"y")]
    assert unsafe_links(links) == []
