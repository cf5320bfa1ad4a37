"""Sizes, quantities, durations and moments have one way of writing them, wherever they stand. (What
is no size: ``tests/golden/specs.jsonl``.)"""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from dsort.durations import (
    Duration,
    format_duration,
    format_moment,
    parse_duration,
    parse_duration_s,
    parse_moment,
)
from dsort.sizes import Bytes, Percent, agreed, format_bytes, parse_quantity


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (100 * 1024**2, "100 MiB"),
        (3 * 1024**3 // 2, "1.5 GiB"),
        (1024**2 - 1, "1.0 MiB"),  # never 1024.0 KiB
        (2**63, "8 EiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_sizes_are_shown_in_the_largest_fitting_unit(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(("count", "text"), [(0, "lines are"), (1, "line is"), (2, "lines are")])
def test_a_text_agrees_with_its_count(count: int, text: str) -> None:
    assert agreed("[line|lines] [is|are] (see [a])", count) == f"{text} (see [a])"


@pytest.mark.parametrize(
    ("text", "quantity"),
    [
        ("80%", Percent(80)),
        ("1%", Percent(1)),
        (" 99 % ", Percent(99)),
        ("080%", Percent(80)),
        ("10GB", Bytes(10 * 1024**3)),
        ("10 gib", Bytes(10 * 1024**3)),
        ("512B", Bytes(512)),
    ],
)
def test_a_quantity_is_a_percentage_or_a_size_with_its_unit(
    text: str, quantity: Percent | Bytes
) -> None:
    assert parse_quantity(text) == quantity


def test_quantities_are_shown_as_they_are_written() -> None:
    assert [str(Percent(80)), str(Bytes(10 * 1024**3))] == ["80%", "10 GiB"]


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("500ms", Duration(0, 0.5)),
        ("45s", Duration(0, 45)),
        (" 30 m ", Duration(0, 1800)),
        ("1.5H", Duration(0, 5400)),
        ("7d", Duration(7, 0)),
        ("1.5d", Duration(1, 43200)),
        ("1w", Duration(7, 0)),
        ("1d12h", Duration(1, 43200)),
        ("p1dt12h", Duration(1, 43200)),
        ("0s", Duration(0, 0)),
    ],
)
def test_a_duration_is_read(text: str, duration: Duration) -> None:
    assert parse_duration(text) == duration
    assert parse_duration_s(text) == duration.days * 86400 + duration.seconds


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "1h1d", "5 min", "P", "PT", "1m" * 99])
def test_another_text_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


def test_a_duration_is_printed() -> None:
    seconds = (0.4, 12.34, 245, 7800)
    printed = ["0.40 s", "12.3 s", "4 min 05 s", "2 h 10 min"]
    assert [*map(format_duration, seconds)] == printed


def test_a_moment_without_an_offset_is_one_of_the_zone() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    expected = datetime(2026, 1, 31, 1, tzinfo=UTC)
    assert parse_moment("2026-01-31T02:00", berlin) == expected
    assert parse_moment("2026-01-31T01:00:00Z", berlin) == expected
    assert parse_moment("2026-01-31T03:00+02:00") == expected
    assert format_moment(expected, berlin) == "2026-01-31 02:00 CET"
    assert format_moment(expected.replace(second=7), UTC) == "2026-01-31 01:00:07 UTC"


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-13-01", "1769824800"])
def test_another_text_is_no_moment(text: str) -> None:
    with pytest.raises(ValueError):
        parse_moment(text)
