"""Tests match errors by class, by fields and by what they name, and not by the words of messages:
a message may be put better, and no test fails for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import pytest

from tests.support.commands import ROOT

PLACES = re.compile(
    r"and|at|attempt|bucket|byte|bytes|cell|cells|character|characters|class|"
    r"code|codec|column|columns|directory|dsort|field|fields|files|group|in|"
    r"input|inputs|items|job|jobs|key|keys|line|link|member|members|names|node|"
    r"number|object|objects|of|output|page|part|partition|parts|pip|process|"
    r"record|records|row|rows|sample|samples|segment|shard|shards|signal|step|"
    r"steps|template|times|to|type|user|version|with|worker|workers"
)
"""Words that tell what a name or a number is of."""
PLAIN, SIGN = re.compile("[a-z]{2,}"), re.compile("[^a-z]")


OWN = {"raises": 1, "refused": 2}
"""Matchers of tests/support, and where their texts begin."""


def matched(tree: ast.Module) -> Iterator[ast.Constant]:
    """The texts that errors are to have in their messages, also those that are parameters."""
    for test in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        columns = dict(_columns(test))
        for call in (node for node in ast.walk(test) if isinstance(node, ast.Call)):
            for node in (node for each in _texts(call) for node in ast.walk(each)):
                if isinstance(node, ast.Name):
                    yield from _strings(columns.get(node.id, []))
                yield from _strings([node])


def _texts(call: ast.Call) -> list[ast.expr]:
    """What is matched by a call, if it matches anything."""
    name = ast.unparse(call.func)
    if name in ("pytest.raises", "pytest.warns"):
        return [each.value for each in call.keywords if each.arg == "match"]
    if name in OWN:
        hints = [each.value for each in call.keywords if each.arg == "hint"]
        return [*call.args[OWN[name] :], *hints]
    return []


def _columns(test: ast.FunctionDef) -> Iterator[tuple[str, list[ast.AST]]]:
    """The values of each parameter of a test, as far as they stand above it."""
    for each in test.decorator_list:
        if isinstance(each, ast.Call) and ast.unparse(each.func).endswith("parametrize"):
            names, cases = each.args[:2]
            if isinstance(names, ast.Tuple) and isinstance(cases, ast.List):
                rows = [case.elts for case in cases.elts if isinstance(case, ast.Tuple)]
                for at, name in enumerate(names.elts):
                    yield ast.literal_eval(name), [row[at] for row in rows]


def _strings(nodes: Sequence[ast.AST]) -> Iterator[ast.Constant]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node


def _is_prose(words: list[str]) -> bool:
    """Whether a word is no name: it is plain, and neither behind a place nor beside a sign."""
    words = [word.strip(",:;()") for word in words]
    for at, word in enumerate(words):
        before, after = words[at - 1] if at else "", words[at + 1] if at + 1 < len(words) else ""
        is_name = PLACES.fullmatch(before) or SIGN.search(before) or SIGN.search(after)
        if len(words) > 1 and PLAIN.fullmatch(word) and not (PLACES.fullmatch(word) or is_name):
            return True
    return False


def prose_in(source: str) -> list[str]:
    """Texts with words that are no names and that the test did not put in itself."""
    tree = ast.parse(source)
    texts = list(matched(tree))
    skipped = {id(text) for text in texts}
    others = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and id(node) not in skipped
    ]
    given = "\n".join(each for each in others if isinstance(each, str))
    found = []
    for text in texts:
        plain = re.sub(r"\\(.)", r"\1", text.value)
        if _is_prose(plain.split()) and plain not in given:
            found.append(plain)
    return found


def test_errors_are_matched_by_what_they_name_and_not_by_prose() -> None:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        assert (path, prose_in(path.read_text(encoding="utf-8"))) == (path, [])


@pytest.mark.parametrize(
    ("text", "is_prose"),
    [
        ("shard in-0.tar", False),
        ("record a of shard s, byte 7", False),
        ("--ray-address", False),
        ("is no address", True),
        ("record a has another key", True),
        ("file .* is gone", True),
    ],
)
def test_prose_is_found_among_names(text: str, is_prose: bool) -> None:
    for call in (f"pytest.raises(InputError, match={text!r})", f"raises(InputError, {text!r})"):
        assert bool(prose_in(f"def test():\n {call}")) == is_prose
        assert prose_in(f"def test():\n {call}\n write({text!r})") == []
    table = f"@pytest.mark.parametrize(('a', 'named'), [(1, {text!r})])\ndef test():\n"
    assert bool(prose_in(f"{table} raises(InputError, named)")) == is_prose
