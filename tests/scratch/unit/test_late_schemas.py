"""What a journal says of the members of records is read as an enemy's."""

from __future__ import annotations

import pytest

from dsort.errors import StorageError
from tests.support.internals import extensions_by_output


@pytest.mark.parametrize("text", ["{", "{}", "[1]", "[[1]]", "[" * 100_000])
def test_what_lists_no_extensions_is_damaged(text: str) -> None:
    with pytest.raises(StorageError, match="damaged"):
        extensions_by_output(text)


def test_extensions_are_listed_by_output() -> None:
    assert extensions_by_output('[["jpg", "cls"], []]') == [["jpg", "cls"], []]
    assert extensions_by_output("") == []
