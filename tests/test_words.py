"""Prose in the code: the subject of a sentence is a named thing."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BANNED = re.compile(
    r"\b(whoever|nobody|somebody|anybody|(?:is|are|was|were) told|those that there are"
    r"|(?:go|goes|gone|going) on with|(?:what|that) is none)\b",
    re.IGNORECASE,
)
"""Words without a thing that they name. Machines set, read, receive, report, fail and resume."""


HEADLESS = re.compile(r"(?:^|[.:;] )What [a-z][^?]*$")
"""A line of a page that begins a sentence with a clause as its subject. Questions are fine."""
PAGES = ["*.md", "docs/**/*.md", "cluster/**/*.md", "specs/*.yaml"]


def prose(path: Path) -> list[tuple[int, str]]:
    """The docstrings, comments and messages of a file, with their lines."""
    text = path.read_text("utf-8")
    constants = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    found = [(each.lineno, each.value) for each in constants if isinstance(each.value, str)]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [each for each in tokens if each.type == tokenize.COMMENT]
    return found + [(each.start[0], each.string) for each in comments]


def lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a page, with their numbers."""
    return list(enumerate(path.read_text("utf-8").splitlines(), 1))


def banned_in(paths: Iterable[Path], read: Callable[[Path], list[tuple[int, str]]]) -> list[str]:
    """Each banned word, with its place."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {word.group()}"
        for path in sorted(paths)
        for line, text in read(path)
        for word in BANNED.finditer(text)
    ]


def test_docstrings_comments_and_messages_name_their_subjects() -> None:
    wrong = banned_in((ROOT / "dsort").rglob("*.py"), prose)
    assert not wrong, "\n".join(["", *wrong])


def test_pages_and_specs_name_their_subjects() -> None:
    wrong = banned_in((path for glob in PAGES for path in ROOT.glob(glob)), lines)
    assert not wrong, "\n".join(["", *wrong])


def test_no_sentence_of_a_page_has_a_clause_with_what_as_its_subject() -> None:
    pages = [
        path for glob in PAGES[:2] for path in ROOT.glob(glob) if "reference" not in path.parts
    ]
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in pages
        for number, line in lines(path)
        if HEADLESS.search(line) and not line.startswith(("#", "|"))
    ]
    assert not wrong, "\n".join(["", *wrong])
