"""The search of the site finds the page that answers a question first."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.support.commands import ROOT

TITLE_WEIGHT = 1_000
"""As in the search of the theme: a word in a title counts a thousand times a word in the text."""


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The sections of all pages, as ``mkdocs build`` puts them into the index of the search."""
    site = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)]
    subprocess.run(words, cwd=ROOT, check=True, env={"NO_MKDOCS_2_WARNING": "1"})
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
