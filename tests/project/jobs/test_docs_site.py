"""The pages build into a site without a warning, the site needs no network to be read, and its
search finds the page that answers a question first."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urljoin

import pytest

from tests.support.commands import ROOT

LOADED = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?\s(?:src|href)=\"?([^\"\s>]+)")
REMOTE = ("http:", "https:", "//")
TITLE_WEIGHT = 1_000
"""As in the search of the theme: a word in a title counts a thousand times a word in the text."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as ``make docs`` builds it."""
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return directory


def test_every_page_is_built(site: Path) -> None:
    sources = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site) for path in site.rglob("*.html")}
    assert built - {Path("404.html")} == {path.with_suffix(".html") for path in sources}
    assert not list(site.rglob("*.py"))


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = {
        (path.name, address)
        for path in site.rglob("*.html")
        for address in LOADED.findall(path.read_text("utf-8"))
    }
    assert any(address.endswith(".css") for _, address in loaded)
    assert any(address.endswith(".js") for _, address in loaded)
    assert not [each for each in loaded if each[1].startswith(REMOTE)]
    styles = [path.read_text("utf-8") for path in site.rglob("*.css")]
    assert not [
        found for text in styles for found in re.findall(r"url\([\"']?(?:https?:)?//", text)
    ]


def test_every_file_that_a_page_loads_is_there(site: Path) -> None:
    for path in site.rglob("*.html"):
        base = "/" + path.relative_to(site).as_posix()
        for address in LOADED.findall(path.read_text("utf-8")):
            name = urljoin(base, address).partition("?")[0].lstrip("/")
            assert (site / name).exists(), f"{path.name}: {address}"


def test_links_of_the_readme_lead_somewhere(site: Path) -> None:
    """Those of pages are looked at by the strict build; these lead to files, and to their heads."""
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text("utf-8")):
            name, _, anchor = target.partition("#")
            assert (ROOT / name).exists(), f"{page}: {target}"
            if anchor:
                html = (site / name).relative_to(site / "docs").with_suffix(".html")
                assert f'id="{anchor}"' in (site / html).read_text("utf-8"), f"{page}: {target}"


@pytest.fixture(scope="module")
def sections(site: Path) -> list[dict[str, str]]:
    """The sections of all pages, as they are in the index of the search."""
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    found: list[dict[str, str]] = index["docs"]
    return found


def score(section: dict[str, str], words: list[str]) -> float:
    """How well a section has all of the words; 0 if one is missing."""
    title = re.findall(r"\w+", section["title"].lower())
    text = re.findall(r"\w+", section["text"].lower())
    found = 0.0
    for word in words:
        in_title = title.count(word) * TITLE_WEIGHT / max(len(title), 1)
        in_text = text.count(word) / (len(text) + 100)
        if not in_title + in_text:
            return 0
        found += in_title + in_text
    return found


@pytest.mark.parametrize(
    ("question", "page"),
    [
        ("sort by length", "faq.html"),
        ("train val split", "faq.html"),
        ("slack", "faq.html"),
        ("out of disk", "troubleshooting.html"),
    ],
)
def test_the_first_page_found_answers_the_question(
    question: str, page: str, sections: list[dict[str, str]]
) -> None:
    words = question.split()
    best = max(sections, key=lambda section: score(section, words))
    assert best["location"].partition("#")[0] == page
