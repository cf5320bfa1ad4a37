"""Prose in the code: the subject of a sentence is a named thing."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BANNED = re.compile(
    r"\b(whoever|nobody|somebody|anybody|(?:is|are|was|were) told|those that there are"
    r"|(?:go|goes|gone|going) on with|(?:what|that) is none)\b",
    re.IGNORECASE,
)
"""Words without a thing that they name. Machines set, read, receive, report, fail and resume."""


def prose(path: Path) -> list[tuple[int, str]]:
    """The docstrings and comments of a file, with their lines."""
    text = path.read_text("utf-8")
    values = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    constants = [each for each in values if isinstance(each, ast.Constant)]
    found = [(each.lineno, each.value) for each in constants if isinstance(each.value, str)]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [each for each in tokens if each.type == tokenize.COMMENT]
    return found + [(each.start[0], each.string) for each in comments]


def test_docstrings_and_comments_name_their_subjects() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {word.group()}"
        for path in sorted((ROOT / "dsort").rglob("*.py"))
        for line, text in prose(path)
        for word in BANNED.finditer(text)
    ]
    assert not wrong, "\n".join(["", *wrong])
