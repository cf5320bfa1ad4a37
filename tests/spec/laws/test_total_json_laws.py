"""Laws of what can always be written: any text, any value, in UTF-8 and in JSON that every reader
takes; and what could be written anyway is written as it is."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.internals import encodable, from_json, is_encodable, to_json

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))
ANY_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | ANY_TEXT
    | st.binary()
    | st.just(PurePosixPath("caf\udce9")),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(ANY_TEXT | st.integers() | st.none(), inner)
        | st.tuples(inner)
        | st.frozensets(st.integers())
    ),
)


@given(ANY_TEXT)
def test_any_text_can_be_written(text: str) -> None:
    shown = encodable(text)
    assert is_encodable(shown)
    assert shown.encode().decode() == shown
    if is_encodable(text):
        assert shown == text


@given(st.binary())
def test_bytes_that_are_no_utf8_are_escapes(data: bytes) -> None:
    shown = encodable(data.decode("utf-8", "surrogateescape"))
    assert shown == data.decode("utf-8", "backslashreplace")


@given(ANY_VALUE)
def test_any_value_is_json_that_every_reader_takes(value: Any) -> None:
    def refuse(name: str) -> Any:
        raise AssertionError(name)

    found = json.loads(to_json(value).encode(), parse_constant=refuse)
    json.dumps(found, ensure_ascii=False).encode()
    assert from_json(to_json(value)) == found


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists))
def test_json_is_written_unchanged(value: Any) -> None:
    assert json.loads(to_json(value)) == value


def test_a_value_that_is_deeper_than_the_stack_is_cut() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert "..." in to_json(deep)


@given(st.text())
def test_any_text_is_read_as_something(text: str) -> None:
    from_json(text)


def test_a_torn_document_says_so() -> None:
    assert from_json('{"a": 1, "b')["unreadable"].startswith("no JSON")
