"""Wildcards of policies match whole texts, and in a time that no pattern can stretch."""

from __future__ import annotations

import re
import time

from hypothesis import given
from hypothesis import strategies as st

from tests.support.internals import has_wildcard, wildcard_match

SECONDS_MAX = 3.0


@given(st.text("ab/*?", max_size=8), st.text("ab/", max_size=10))
def test_a_star_is_any_text_and_a_question_mark_one_character(pattern: str, text: str) -> None:
    meant = "".join({"*": ".*", "?": "."}.get(sign, re.escape(sign)) for sign in pattern)
    assert wildcard_match(pattern, text) is bool(re.fullmatch(meant, text))
    assert has_wildcard(pattern) is (meant != re.escape(pattern))


def test_no_pattern_takes_long() -> None:
    begin = time.process_time()
    assert not wildcard_match("*a" * 200 + "b", "a" * 2_000)
    assert wildcard_match("*a" * 200, "a" * 2_000)
    assert time.process_time() - begin < SECONDS_MAX
