"""What member of which record a loose file becomes, by its name."""

from __future__ import annotations

import pytest

from dsort.loose_files.members import (
    HIDDEN,
    NO_CLASS,
    NO_EXTENSION,
    ODD_NAME,
    OTHER,
    NameRules,
)
from tests.support.internals import KeyPattern


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (b"a.jpg", (b"a", b"jpg")),
        (b"a/b.c/d.seg.png", (b"a/b.c/d", b"seg.png")),
        (b"a/\xff\n.x", (b"a/\xff\n", b"x")),
        (b"..a.jpg", HIDDEN),
        (b".git/config.txt", HIDDEN),
        (b"a/.b.jpg", HIDDEN),
        (b"README", NO_EXTENSION),
        (b"a.b/README", NO_EXTENSION),
        (b"a.", NO_EXTENSION),
        (b"/etc/passwd.txt", ODD_NAME),
        (b"a//b.txt", ODD_NAME),
        (b"../b.txt", ODD_NAME),
        (b"a/../b.txt", ODD_NAME),
        (b"a/./b.txt", ODD_NAME),
        (b"a\0.txt", ODD_NAME),
    ],
)
def test_a_name_is_parted_at_its_first_dot(path: bytes, found: object) -> None:
    assert NameRules().member_of(path) == found


def test_dots_before_the_last_one_become_underscores() -> None:
    rules = NameRules(at_first_dot=False)
    assert rules.member_of(b"a.b/c.d.e.jpg") == (b"a.b/c_d_e", b"jpg")
    assert rules.member_of(b"c..jpg") == (b"c_", b"jpg")


def test_keys_are_paths_names_or_what_a_pattern_says() -> None:
    path = b"train/cat/1.jpg"
    assert NameRules(key="name").member_of(path) == (b"1", b"jpg")
    assert NameRules(key="joined").member_of(path) == (b"traincat1", b"jpg")
    rules = NameRules(pattern=KeyPattern("train/(.*)"))
    assert rules.member_of(path) == (b"cat/1", b"jpg")
    assert rules.member_of(b"val/cat/1.jpg") == OTHER
    leads_out = NameRules(pattern=KeyPattern("x(.*)"))
    assert leads_out.member_of(b"x/a.txt") == ODD_NAME


def test_a_pattern_has_a_group() -> None:
    with pytest.raises(ValueError, match="no group"):
        KeyPattern("a.*")
    with pytest.raises(ValueError, match="no regular expression"):
        KeyPattern("(a")


def test_with_classes_a_file_is_in_a_directory() -> None:
    rules = NameRules(directory_from=len(b"train/"))
    assert rules.member_of(b"train/cat/1.jpg") == (b"train/cat/1", b"jpg")
    assert rules.member_of(b"train/1.jpg") == NO_CLASS


def test_extensions_are_chosen_in_any_case() -> None:
    rules = NameRules(extensions=[b"jpg"])
    assert rules.member_of(b"a.JPG") == (b"a", b"JPG")
    assert rules.member_of(b"a.txt") == OTHER
