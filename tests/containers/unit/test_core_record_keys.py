"""Which part of a member's name is the record key: WebDataset's rule, and what has no key."""

from __future__ import annotations

import pytest

from tests.support.internals import BytesColumn, split_name, split_names

CASES = [
    (b"000001.jpg", b"000001", b"jpg"),
    (b"a.tar.gz", b"a", b"tar.gz"),
    (b"dir/a.jpg", b"dir/a", b"jpg"),
    (b"dir.v1/sub.d/a.jpg", b"dir.v1/sub.d/a", b"jpg"),
    (b"/abs/a.jpg", b"/abs/a", b"jpg"),
    (b"./a.jpg", b"./a", b"jpg"),
    (b"a.", b"a", b""),
    (b"a..jpg", b"a", b".jpg"),
    (b"a b.JPG", b"a b", b"JPG"),
    (b"\xff\xfe.jpg", b"\xff\xfe", b"jpg"),
    (b"README", b"README", b""),
    (b"dir.v1/README", b"dir.v1/README", b""),
    (b".hidden", b".hidden", b""),
    (b".hidden.jpg", b".hidden.jpg", b""),
    (b"dir/.hidden.jpg", b"dir/.hidden.jpg", b""),
    (b"..jpg", b"..jpg", b""),
    (b"dir/", b"dir/", b""),
    (b"dir.d/", b"dir.d/", b""),
    (b"", b"", b""),
]


@pytest.mark.parametrize(("name", "key", "extension"), CASES)
def test_a_name_is_split_at_the_first_dot_of_its_last_part(
    name: bytes, key: bytes, extension: bytes
) -> None:
    assert split_name(name) == (key, extension)


@pytest.mark.parametrize("order", [1, -1])
def test_a_column_is_split_as_each_name_is(order: int) -> None:
    names = [name for name, _, _ in CASES][::order]
    found = split_names(BytesColumn.of(names))
    assert [n[:k] for n, k in zip(names, found.key_bytes.tolist(), strict=True)] == [
        split_name(name)[0] for name in names
    ]
    with_extension = {b"a.": True}  # an extension may be empty: then it is no stray
    assert found.stray.tolist() == [
        not (split_name(name)[1] or with_extension.get(name, False)) for name in names
    ]


def test_an_empty_column_has_no_names() -> None:
    found = split_names(BytesColumn.of([]))
    assert (len(found.key_bytes), len(found.stray)) == (0, 0)
