"""Docstrings of modules are short: a reader who opens a file sees code on the first screen."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.commands import ROOT

LINES_MAX = 5
ROOTS = ("dsort", "benchmarks", "packages", "docs/generate")
LONGER = Path(__file__).parents[1] / "long_docstrings.txt"
"""Modules whose docstrings are longer. The list only shrinks; this module writes it anew:
``python -m tests.project.unit.test_module_docstrings``."""


def longer_ones() -> list[str]:
    """Modules whose docstrings have more than ``LINES_MAX`` lines."""
    return [
        path.relative_to(ROOT).as_posix()
        for root in ROOTS
        for path in sorted((ROOT / root).rglob("*.py"))
        if len((ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").splitlines())
        > LINES_MAX
    ]


def listed() -> list[str]:
    return LONGER.read_text("utf-8").split()


def test_docstrings_of_modules_have_at_most_five_lines() -> None:
    new = sorted({*longer_ones()} - {*listed()})
    assert not new, "\n".join(["", *new])


def test_a_module_with_a_short_docstring_is_no_exception() -> None:
    done = sorted({*listed()} - {*longer_ones()})
    assert not done, "\n".join(["run this module to write the list again:", *done])


if __name__ == "__main__":
    LONGER.write_text("".join(f"{name}\n" for name in longer_ones()), "utf-8")
