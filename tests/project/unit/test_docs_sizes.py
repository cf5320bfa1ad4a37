"""Pages are short, and fit on a screen."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.commands import ROOT
from tests.support.doc_pages import hand_written

COLUMNS_MAX = 120
ARCHITECTURE_BYTES_MAX = 40_000
LINES_MAX = {"README.md": 150, "docs/design": 80, "docs": 300}
WIDE = re.compile(r"\||\[[^\]]+\]: |0 2 \* \* \* ")
"""Lines that cannot be wrapped: rows of tables, definitions of links, a crontab."""


def pages() -> list[Path]:
    readmes = [path for folder in ("cluster", "benchmarks", "packages", "specs")
               for path in (ROOT / folder).rglob("README.md")]  # fmt: skip
    return [*hand_written(), ROOT / "ARCHITECTURE.md", *readmes]


def lines_max(page: Path) -> int | None:
    name = page.relative_to(ROOT).as_posix()
    return next((most for start, most in LINES_MAX.items() if name.startswith(start)), None)


def test_no_page_is_longer_than_its_reader_has_patience_for() -> None:
    long = {
        str(page.relative_to(ROOT)): count
        for page in pages()
        if (most := lines_max(page)) and (count := len(page.read_text("utf-8").splitlines())) > most
    }
    assert not long


def test_lines_of_pages_fit_in_120_columns() -> None:
    wide = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in pages()
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1)
        if len(line) > COLUMNS_MAX and not WIDE.match(line)
    ]
    assert not wide, "\n".join(["", *wide])


def test_pages_of_decisions_are_numbered_and_listed() -> None:
    stems = sorted(page.stem for page in (ROOT / "docs" / "design").glob("*.md"))
    stems.remove("index")
    assert [stem[:4] for stem in stems] == [f"{n:03d}-" for n in range(1, len(stems) + 1)]
    for page in ("ARCHITECTURE.md", "docs/design/index.md", "mkdocs.yml"):
        text = (ROOT / page).read_text("utf-8")
        assert not [stem for stem in stems if stem not in text], page


def test_the_page_on_the_architecture_can_be_read_at_once() -> None:
    assert (ROOT / "ARCHITECTURE.md").stat().st_size <= ARCHITECTURE_BYTES_MAX
