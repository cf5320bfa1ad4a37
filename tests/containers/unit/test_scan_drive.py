"""A scanner says which bytes it reads next; the reader that drives it chooses the windows."""

from __future__ import annotations

import pytest

from dsort.containers.base import Need, Scan, Scanner, drive
from dsort.errors import InvariantError
from tests.support.internals import MemberTable
from tests.support.tar_reading import scan

DATA = bytes(range(100))
TABLE = scan("empty.tar", bytes(1024))


def scanner(*needs: Need) -> Scanner:
    """Checks that each of the windows has the bytes that are needed."""
    for need in needs:
        window = yield need
        assert bytes(window[: need.at_least]) == DATA[need.offset :][: need.at_least]
    return TABLE


def windows_read(*needs: Need, window_bytes: int, align: int = 1) -> list[tuple[int, int]]:
    found = []

    def read(offset: int, size: int) -> memoryview:
        found.append((offset, size))
        return memoryview(DATA)[offset : offset + size]

    table: MemberTable = drive(
        scanner(*needs), len(DATA), read, window_bytes=window_bytes, align=align
    )
    assert table is TABLE
    return found


def test_a_window_serves_all_needs_that_it_holds() -> None:
    needs = Need(0, 4), Need(4, 6), Need(9), Need(0, 10), Need(10, 1)
    assert windows_read(*needs, window_bytes=10) == [(0, 10), (10, 10)]


def test_a_window_is_as_long_as_needed_and_ends_with_the_shard() -> None:
    needs = Need(90, 10), Need(5, 50), Need(97), Need(100, 0)
    assert windows_read(*needs, window_bytes=20) == [(90, 10), (5, 50), (97, 3)]


def test_windows_begin_at_multiples() -> None:
    needs = Need(7, 4), Need(12), Need(99)
    assert windows_read(*needs, window_bytes=8, align=4) == [(4, 8), (12, 8), (96, 4)]


def test_a_window_without_the_bytes_needed_is_refused_and_the_right_one_taken() -> None:
    begun = Scan(scanner(Need(10, 5)))
    for window, offset in ((DATA[10:14], 10), (DATA[11:], 11), (b"", 10)):
        with pytest.raises(ValueError, match="does not hold byte 10 to byte 15"):
            begun.feed(window, offset)
    with pytest.raises(InvariantError, match="still needs byte 10"):
        _ = begun.table
    begun.feed(DATA, 0)
    assert (begun.need, begun.table) == (None, TABLE)
