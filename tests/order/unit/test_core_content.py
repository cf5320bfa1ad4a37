"""Content keys: what counts as an int, a float and a string, in a member or in its JSON."""

from __future__ import annotations

import json

import pytest

from tests.support.internals import ContentValueError, content_value
from tests.support.refusals import raises

INF = float("inf")
DOCUMENT = json.dumps(
    {"i": 3, "f": 2.5, "whole": 4.0, "s": " text ", "n": "12", "b": True, "none": None}
    | {"list": [10, {"x": 11}], "a": {"b": {"c": 5}}, "o": {"z": 1, "a": "ü"}}
).encode()
INTS: list[tuple[bytes, int]] = [
    (b"7", 7), (b" 7\n", 7), (b"\t-7\r\n", -7), (b"+7", 7), (b"007", 7), (b"-0", 0),
    (b"9223372036854775807", 2**63 - 1), (b"-9223372036854775808", -(2**63)),
    (b"9223372036854775808", 2**63), (b"-" + b"9" * 4096, -(10**4096) + 1),
    (b"0" * 9000 + b"7", 7), (b"+" + b"0" * 9000, 0),
]  # fmt: skip
FLOATS: list[tuple[bytes, float]] = [
    (b"7", 7.0), (b" 1.5\n", 1.5), (b"-1e3", -1000.0), (b".5", 0.5), (b"inf", INF),
    (b"-Infinity", -INF), (b"1e999", INF), (b"5e-324", 5e-324),
]  # fmt: skip
STRINGS = [
    (b" a b \n", b"a b"), (b"", b""), (b"\n", b""), (b"\xff\0x", b"\xff\0x"),
    ("größe".encode(), "größe".encode()),
]  # fmt: skip
FIELDS: list[tuple[str, str, float | bytes]] = [
    ("i", "int", 3), ("i", "float", 3.0), ("f", "float", 2.5), ("whole", "int", 4),
    ("s", "string", b"text"), ("n", "int", 12), ("n", "float", 12.0), ("a.b.c", "int", 5),
    ("list.0", "int", 10), ("list.1.x", "int", 11),
]  # fmt: skip


def test_contents_and_fields_are_read_by_their_kind() -> None:
    """Strings are bytes, without the white space around them unless it is asked for."""
    for kind, cases in (("int", INTS), ("float", FLOATS), ("string", STRINGS)):
        for content, value in cases:
            assert content_value(content, kind, None) == value, (kind, content[:20])
    for field, kind, found in FIELDS:
        assert content_value(DOCUMENT, kind, field) == found, (field, kind)
    assert content_value(b" a b \n", "string", None, strip=False) == b" a b \n"
    assert content_value(DOCUMENT, "string", "s", strip=False) == b" text "
    assert content_value(b" 7\n", "int", None, strip=False) == 7


WRONG: dict[str, list[bytes]] = {
    "int": [
        b"", b" ", b"x", b"1.0", b"1_000", b"0x10", b"1 2", b"\xff", "٣".encode(), b"\0",
        b"x" * 10_000,
    ],
    "float": [b"", b"x", b"1,5", b"1_0.0", b"0x1p3", b"\xff"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "content"), [(kind, each) for kind, cases in WRONG.items() for each in cases]
)
def test_what_is_no_number_is_refused_and_shown_in_part(kind: str, content: bytes) -> None:
    with raises(ContentValueError, kind) as refused:
        content_value(content, kind, None)
    assert len(str(refused.value)) < 100


@pytest.mark.parametrize("content", [b"nan", b"NaN", b"-nan"])
def test_nan_has_no_place(content: bytes) -> None:
    with raises(ContentValueError, "NaN"):
        content_value(content, "float", None)


def test_integers_of_any_reasonable_length_are_keys_and_longer_ones_are_refused_by_name() -> None:
    for text in (b"1" * 4097, b"-" + b"1" * 4097, b"1" * 1_000_000):
        with raises(ContentValueError, "4,096") as refused:
            content_value(text, "int", None)
        assert len(str(refused.value)) < 100
        with raises(ContentValueError, "4,096"):
            content_value(b'{"a": %s}' % text, "int", "a")
        assert content_value(b'{"b": %s, "a": 7}' % text, "int", "a") == 7
    assert content_value(b'{"a": -1%s}' % (b"0" * 4095), "int", "a") == -(10**4095)


def test_whole_numbers_of_json_are_exact_however_they_are_written() -> None:
    for number, value in (
        (b"1e30", 10**30), (b"100000000000000000000001.0", 10**23 + 1), (b"1.5e1", 15)
    ):  # fmt: skip
        assert content_value(b'{"a": %s}' % number, "int", "a") == value
    assert content_value(b'{"a": -Infinity}', "float", "a") == -INF


WRONG_JSON = [
    *((b'{"a": %s}' % each, "int", "a") for each in
      (b"1e5000", b"1e999999999999", b"1e-999999999", b"1.5", b"-0.1", b"9" * 5000)),
    *((b'{"a": %s}' % each, "float", "a") for each in (b"NaN", b"1" + b"0" * 400)),
    (b'{"a": Infinity}', "int", "a"),
    *((each, "int", "a") for each in (b"", b"{", b"\xff\xfe\xfd", b"[" * 100_000)),
    *((DOCUMENT, "int", field) for field in ("b", "none", "list", "f", "s")),
    (DOCUMENT, "float", "o"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "kind", "field"), WRONG_JSON)
def test_a_field_of_another_type_or_of_no_json_is_refused(
    content: bytes, kind: str, field: str
) -> None:
    with pytest.raises(ContentValueError):
        content_value(content, kind, field)


@pytest.mark.parametrize("field", ["x", "a.x", "a.b.c.d", "list.2", "list.x", "i.0", "s.0"])
def test_a_field_that_is_missing_is_no_value(field: str) -> None:
    with pytest.raises(KeyError):
        content_value(DOCUMENT, "int", field)


@pytest.mark.parametrize(
    ("field", "named"),
    [
        *(("none", "null"), ("b", "true"), ("i", "3"), ("f", "2.5")),
        *(("o", ""), ("list", ""), ("a.b", "")),
    ],
)
def test_only_a_string_is_compared_as_one(field: str, named: str) -> None:
    with raises(ContentValueError, f"field {field}: ", named):
        content_value(DOCUMENT, "string", field)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32-le"])
def test_json_in_another_encoding_has_the_same_keys_and_the_same_limit(encoding: str) -> None:
    for text, kind, key in (
        ('{"a": 12345678901234567890123}', "int", 12345678901234567890123),
        ('{"a": 1.50}', "float", 1.5),
        ('{"a": "é\\ud800"}', "string", "é\ud800".encode("utf-8", "surrogatepass")),
    ):
        assert content_value(text.encode(encoding), kind, "a") == key
    lone = '{"a": "\udfff"}'.encode(encoding, "surrogatepass")
    assert content_value(lone, "string", "a") == b"\xed\xbf\xbf"
    bomb = ('{"a": 1, "b": [' + "[]," * (1 << 20) + "[]]}").encode(encoding)
    with raises(ContentValueError, "field a"):
        content_value(bomb, "int", "a")


def test_lone_surrogates_of_json_are_kept_apart() -> None:
    first, second = (content_value(b'{"a": "\\ud80%d"}' % n, "string", "a") for n in (0, 1))
    assert first != second
