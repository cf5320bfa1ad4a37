"""The message about a bug names the error that was raised, and not its place in the code."""

from __future__ import annotations

import traceback

import pytest

from dsort.log_lines import one_sentence, without_tracebacks


def raised() -> str:
    """The traceback of an error that came of another, with lines of their own in their texts."""
    try:
        try:
            {}["key"]
        except KeyError as error:
            raise ValueError("odd\nand more of it") from error
    except ValueError:
        return traceback.format_exc()


def test_only_what_was_raised_is_left() -> None:
    log = f"12:00 I before\n12:01 E {raised()}12:02 I after\n"
    assert without_tracebacks(log) == (
        "12:00 I before\nKeyError: 'key'\nValueError: odd\nand more of it\n12:02 I after\n"
    )


def test_the_end_of_a_traceback_is_known_as_one() -> None:
    torn = raised()[raised().index("  File") :]
    assert "File" not in without_tracebacks(torn)
    assert "ValueError: odd" in without_tracebacks(torn)


def test_an_error_is_one_sentence() -> None:
    text = f"a worker failed:\n{raised()}"
    assert one_sentence(text) == "a worker failed: KeyError: 'key' ValueError: odd and more of it"


@pytest.mark.parametrize("text", ["", "no traceback\n  at all\n", "Traceback: odd", "a\n\nb"])
def test_other_texts_are_as_they_are(text: str) -> None:
    assert without_tracebacks(text) == text
    assert one_sentence(text) == text
