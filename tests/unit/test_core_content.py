"""Content keys: what counts as an int, a float and a string, in a member or in its JSON."""

from __future__ import annotations

import json

import pytest

from dsort.core.content import ContentValueError, content_value


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"7", 7), (b" 7\n", 7), (b"\t-7\r\n", -7), (b"+7", 7), (b"007", 7), (b"-0", 0),
        (b"9223372036854775807", 2**63 - 1), (b"-9223372036854775808", -(2**63)),
    ],
)  # fmt: skip
def test_integers(content: bytes, value: int) -> None:
    assert content_value(content, "int", None) == value


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"7", 7.0), (b" 1.5\n", 1.5), (b"-1e3", -1000.0), (b".5", 0.5), (b"inf", float("inf")),
        (b"-Infinity", float("-inf")), (b"1e999", float("inf")), (b"5e-324", 5e-324),
    ],
)  # fmt: skip
def test_floats(content: bytes, value: float) -> None:
    assert content_value(content, "float", None) == value


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b" a b \n", b"a b"), (b"", b""), (b"\n", b""), (b"\xff\0x", b"\xff\0x"),
        ("größe".encode(), "größe".encode()),
    ],
)  # fmt: skip
def test_strings_are_bytes_without_the_white_space_around(content: bytes, value: bytes) -> None:
    assert content_value(content, "string", None) == value


@pytest.mark.parametrize(
    "content", [b"", b" ", b"x", b"1.0", b"1_000", b"0x10", b"1 2", b"\xff", "٣".encode(), b"\0"]
)
def test_what_is_no_integer(content: bytes) -> None:
    with pytest.raises(ContentValueError, match="is not an int"):
        content_value(content, "int", None)


@pytest.mark.parametrize("content", [b"", b"x", b"1,5", b"1_0.0", b"0x1p3", b"\xff"])
def test_what_is_no_float(content: bytes) -> None:
    with pytest.raises(ContentValueError, match="is not a float"):
        content_value(content, "float", None)


@pytest.mark.parametrize("content", [b"9223372036854775808", b"-9223372036854775809", b"1" * 30])
def test_an_integer_that_is_too_large_is_told_so(content: bytes) -> None:
    with pytest.raises(ContentValueError, match="does not fit in 64 bits"):
        content_value(content, "int", None)
    with pytest.raises(ContentValueError, match="does not fit in 64 bits"):
        content_value(b'{"a": %s}' % content, "int", "a")


@pytest.mark.parametrize("content", [b"nan", b"NaN", b"-nan"])
def test_nan_has_no_place(content: bytes) -> None:
    with pytest.raises(ContentValueError, match="NaN has no place"):
        content_value(content, "float", None)


def test_a_long_wrong_content_is_shown_in_part() -> None:
    with pytest.raises(ContentValueError) as refused:
        content_value(b"x" * 10_000, "int", None)
    assert len(str(refused.value)) < 100


DOCUMENT = json.dumps(
    {
        "i": 3,
        "f": 2.5,
        "whole": 4.0,
        "s": " text ",
        "n": "12",
        "b": True,
        "none": None,
        "list": [10, {"x": 11}],
        "a": {"b": {"c": 5}},
        "o": {"z": 1, "a": "ü"},
    }
).encode()


@pytest.mark.parametrize(
    ("field", "kind", "value"),
    [
        ("i", "int", 3), ("i", "float", 3.0), ("i", "string", b"3"),
        ("f", "float", 2.5), ("f", "string", b"2.5"), ("whole", "int", 4),
        ("s", "string", b"text"), ("n", "int", 12), ("n", "float", 12.0),
        ("a.b.c", "int", 5), ("list.0", "int", 10), ("list.1.x", "int", 11),
        ("none", "string", b"null"), ("b", "string", b"true"),
        ("o", "string", '{"a": "ü", "z": 1}'.encode()),
    ],
)  # fmt: skip
def test_json_fields(field: str, kind: str, value: float | bytes) -> None:
    assert content_value(DOCUMENT, kind, field) == value


@pytest.mark.parametrize("field", ["x", "a.x", "a.b.c.d", "list.2", "list.x", "i.0", "s.0"])
def test_a_field_that_is_not_there(field: str) -> None:
    with pytest.raises(KeyError):
        content_value(DOCUMENT, "int", field)


@pytest.mark.parametrize(
    ("field", "kind"),
    [("b", "int"), ("none", "int"), ("list", "int"), ("f", "int"), ("s", "int"), ("o", "float")],
)
def test_a_field_of_another_type(field: str, kind: str) -> None:
    with pytest.raises(ContentValueError):
        content_value(DOCUMENT, kind, field)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe\xfd", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"]
)
def test_what_is_no_json(content: bytes) -> None:
    with pytest.raises(ContentValueError):
        content_value(content, "int", "a")


def test_json_numbers_without_end_or_place() -> None:
    with pytest.raises(ContentValueError):
        content_value(b'{"a": NaN}', "float", "a")
    with pytest.raises(ContentValueError):
        content_value(b'{"a": Infinity}', "int", "a")
    with pytest.raises(ContentValueError):
        content_value(b'{"a": 1%s}' % (b"0" * 400), "float", "a")
    assert content_value(b'{"a": -Infinity}', "float", "a") == float("-inf")


def test_lone_surrogates_of_json_are_kept_apart() -> None:
    first, second = (content_value(b'{"a": "\\ud80%d"}' % n, "string", "a") for n in (0, 1))
    assert first != second
