"""Kinds of sidecars that packages add have names that are theirs alone."""

from __future__ import annotations

import pytest

from dsort.sidecars import kinds
from dsort.sidecars.base import Sidecar


@pytest.mark.parametrize("name", ["none", "lineage", "samples", "wids", "../up", "a/b", "", "A b"])
def test_a_name_that_is_taken_or_no_word_is_refused(name: str) -> None:
    class Own(Sidecar):
        kind = name

    with pytest.raises(ValueError, match=r"there already|is no name"):
        kinds.SIDECARS.register(kinds._checked(Own))
    assert name == "wids" or name not in kinds.SIDECARS
