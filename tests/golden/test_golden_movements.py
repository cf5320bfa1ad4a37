"""Which movement is chosen stays what is pinned in ``movements.csv``."""

from __future__ import annotations

import csv

from tests.golden.movements import FILE, HEAD, rows


def test_the_movement_is_the_pinned_one_for_all_sizes_and_memories() -> None:
    with FILE.open(newline="") as file:
        head, *pinned = csv.reader(file)
    assert tuple(head) == HEAD
    found = [*map(list, rows())]
    assert len(found) == len(pinned)
    assert [(now, was) for now, was in zip(found, pinned, strict=True) if now != was] == []


def test_each_movement_and_refusal_is_in_the_table() -> None:
    kinds = {row[HEAD.index("kind")] for row in rows()}
    assert kinds == {"map", "range", "spill", "NotMappableError", "TooLittleMemoryError"}
