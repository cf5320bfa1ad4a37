"""JSON that another program wrote into the database is read as a value that can be sent."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsort.service.database.engine import stored_value
from tests.support.internals import JobOut, to_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_what_the_service_stores_is_read_as_it_was(value: object) -> None:
    assert stored_value(to_json(value)) == json.loads(to_json(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": NaN}', {"a": None}),
        ('["caf\\udce9", "\\ud83d"]', ["caf\\xe9", "\\ud83d"]),
        ('{"\\ud800": "\\ud83d\\ude00"}', {"\\ud800": "\U0001f600"}),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
    ],
)
def test_odd_values_are_read_as_values_that_can_be_sent(text: str, value: object) -> None:
    assert stored_value(text) == value


@pytest.mark.parametrize("levels", [150, 250, 5_000, 200_000])
def test_a_value_of_many_levels_can_be_shown(levels: int) -> None:
    document = {"levels": stored_value("[" * levels + "]" * levels)}
    shown = JobOut(job_id="a", kind="run", state="failed", error=document)
    assert json.loads(to_json(shown.model_dump(mode="json")))["error"]


@pytest.mark.parametrize("text", ["", "[", '{"a"', b"\xff\xfe", "nul"])
def test_a_torn_text_says_so(text: str | bytes) -> None:
    assert stored_value(text)["unreadable"].startswith("no JSON")
