"""Sizes mean what AIStore takes them to mean: binary units whatever the suffix. Errors say why."""

from __future__ import annotations

import pytest

from dsort.sizes import Bytes, Percent, format_bytes, parse_quantity, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        (4096, 4096),
        ("512B", 512),
        ("10KB", 10240),
        ("10KiB", 10240),
        ("10k", 10240),
        ("10Ki", 10240),
        ("100MB", 100 * 1024**2),
        ("100 mb", 100 * 1024**2),
        ("  1GiB ", 1024**3),
        ("2T", 2 * 1024**4),
        ("1.5KB", 1536),
        (".5M", 512 * 1024),
        ("10.KB", 10240),
        ("1.g", 1024**3),
        ("0.0001KB", 0),  # cut to whole bytes
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_every_suffix_is_binary_and_fractions_are_allowed(text: str | int, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("-1", "must not be negative"),
        ("- 1 GB", "must not be negative"),
        (-1, "must not be negative"),
        ("", "'' is not a size (expecting e.g. '100MB', '1.5GiB' or 4096)"),
        ("MB", "is not a size"),
        ("1e6", "is not a size"),
        ("1,5MB", "is not a size"),
        ("10 MB/s", "is not a size"),
        ("10PB", "is not a size"),
        ("10BB", "is not a size"),
        (".KB", "is not a size"),
        ("1.", "is not a whole number of bytes"),
        ("٣MB", "is not a size"),
        ("9" * 5000, "is not a size"),
        ("1.5", "is not a whole number of bytes"),
        ("1.5B", "is not a whole number of bytes"),
        ("8388608TB", "is too large"),
        (2**63, "is too large"),
    ],
)
def test_what_is_no_size_is_refused_with_the_reason(text: str | int, reason: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_size_bytes(text)
    assert reason in str(error.value)


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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("80", "is not a quantity (expecting e.g. '80%' or '10GB')"),
        ("", "is not a quantity"),
        ("-1 GB", "is not a quantity"),
        ("12.5%", "is not a quantity"),
        ("80%%", "is not a quantity"),
        ("0%", "percent must be in the range (0, 100)"),
        ("100%", "percent must be in the range (0, 100)"),
        ("120%", "percent must be in the range (0, 100)"),
        ("9" * 5000 + "%", "percent must be in the range (0, 100)"),
        ("0GB", "must be more than 0 bytes"),
    ],
)
def test_what_is_no_quantity_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_quantity(text)
    assert reason in str(error.value)


def test_quantities_are_shown_as_they_are_written() -> None:
    assert [str(Percent(80)), str(Bytes(10 * 1024**3))] == ["80%", "10 GiB"]
