"""Prose in code and pages: the subject of a sentence is a named thing."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BANNED = re.compile(
    r"(?<![a-z])(whoever|nobody|somebody|anybody|(?:is|are|was|were) told|those that there are"
    r"|(?:go|goes|gone|going) on with|(?:what|that) is none)(?![a-z])",
    re.IGNORECASE,
)
"""Words without a thing that they name. Machines set, read, receive, report, fail and resume."""
HEADLESS = re.compile(r"(?:^|[.:;] )What [a-z][^?]*$")
"""A line of a page that begins a sentence with a clause as its subject. Questions are fine."""
SUBJECT = re.compile(
    r"(?:^|[.:;] )What (?:[\w`.]+ )+?(?:stays?|gets|keeps [^.]* is"
    r"|is (?:gone|ignored|kept|made into|refused|(?:\w+ )?checked))\b[^?:;.]*"
)
"""Such a sentence of a docstring, by its second verb. "What a job did." is none, and fine."""

CODE = [f"{root}/**/*.py" for root in ("dsort", "packages", "benchmarks", "docs/generate", "tests")]
PAGES = [
    *("*.md", "docs/**/*.md", "cluster/**/*.md", "benchmarks/**/*.md", "packages/**/*.md"),
    *("specs/*.md", "specs/*.yaml", "dsort/web/static/*.js", "dsort/web/static/*.html"),
]

WORDS_MAY_STAND = {
    "tests/test_words.py": "it lists the words",
    "tests/support/user_functions.py": "pinned manifests have the digest of this file",
}
"""Files, as patterns, where words may stand, with the reason."""


def strings(path: Path) -> list[tuple[int, str]]:
    """The docstrings and messages of a file, with their lines."""
    constants = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Constant)]
    return [(each.lineno, each.value) for each in constants if isinstance(each.value, str)]


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def prose(path: Path) -> list[tuple[int, str]]:
    """The docstrings, messages, comments and names of functions of a file, with their lines."""
    read = io.StringIO(path.read_text("utf-8")).readline
    comments = [each for each in tokenize.generate_tokens(read) if each.type == tokenize.COMMENT]
    functions = [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]
    found = strings(path) + [(each.start[0], each.string.lstrip("# ")) for each in comments]
    return found + [(node.lineno, node.name.replace("_", " ")) for node in functions]


def lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a page, with their numbers."""
    return list(enumerate(path.read_text("utf-8").splitlines(), 1))


def files(globs: Iterable[str]) -> list[Path]:
    found = {path for glob in globs for path in ROOT.glob(glob)}
    return sorted(path for path in found if "__pycache__" not in path.parts)


def banned() -> Iterator[tuple[str, str]]:
    """Each file with a banned word, and the word with its place."""
    for path in files([*CODE, *PAGES]):
        name = path.relative_to(ROOT).as_posix()
        if not BANNED.search(path.read_text("utf-8").replace("_", " ")):
            continue  # most files, at a tenth of the time
        for line, text in prose(path) if path.suffix == ".py" else lines(path):
            for word in BANNED.finditer(text):
                yield name, f"{name}:{line}: {word.group()}"


def clauses() -> Iterator[str]:
    """Each sentence of code with a clause as its subject, with its place."""
    for path in files(CODE[:-1]):
        for line, text in prose(path):
            for found in SUBJECT.finditer(" ".join(text.split())):
                yield f"{path.relative_to(ROOT)}:{line}: {found.group().lstrip('.:; ')}"


def test_prose_names_things_and_persons() -> None:
    wrong = [
        place for name, place in banned() if not any(fnmatch(name, e) for e in WORDS_MAY_STAND)
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_no_sentence_of_code_has_a_clause_with_what_as_its_subject() -> None:
    wrong = [*clauses()]
    assert not wrong, "\n".join(["", *wrong])


def test_no_sentence_of_a_page_has_a_clause_with_what_as_its_subject() -> None:
    pages = [path for path in files(PAGES) if path.suffix == ".md"]
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in pages
        if "reference" not in path.parts  # made of docstrings, which the test above reads
        for number, line in lines(path)
        if HEADLESS.search(line) and not line.startswith(("#", "|"))  # no sentences
    ]
    assert not wrong, "\n".join(["", *wrong])
