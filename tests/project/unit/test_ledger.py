"""The ledger of ``tests/golden/ledger.csv`` has a line for all that users can write or call."""

from __future__ import annotations

from pathlib import Path

from tests.golden.ledger import STATUSES, lines, mentions, names

TESTS = Path(__file__).resolve().parents[2]


def test_the_ledger_has_a_line_for_each_field_command_and_route() -> None:
    kept = {(line.kind, line.name) for line in lines() if line.status == "kept"}
    assert kept == set(names())


def test_each_line_names_a_test_that_uses_what_it_is_about() -> None:
    assert {line.status for line in lines()} <= set(STATUSES)
    wrong = [
        line
        for line in lines()
        if line.status == "kept"
        and not mentions(line.kind, line.name, (TESTS / line.test).read_text())
    ]
    assert wrong == []
