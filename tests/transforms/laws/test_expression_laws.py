"""Random expressions over random records are what Google's own CEL says they are."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cel_expr_python import cel

from dsort.errors import TransformError
from dsort.expressions.expression import Expression
from tests.support.internals import RecordTable
from tests.support.record_tables import table_of

Text = tuple[str, str]
"""An expression as dsort reads it, and as the judge does, whose variables are other names."""

FIELDS = ("n", "f", "s", "l", "m", "none")
WORDS = ("", "a", "cat", "Ünï", "7", "2.5")
INTEGERS = (-9, -1, 0, 1, 2, 7, 2**62, -(2**63))
FLOATS = (-1.5, 0.0, 0.5, 2.0, 1e300)
PATTERNS = ("^c", "a|7", "[0-9]", "x$")


def both(template: str, *parts: Text) -> Text:
    return template.format(*(p[0] for p in parts)), template.format(*(p[1] for p in parts))


class Writer:
    """Writes expressions of a type; ``rng`` chooses, ``depth`` bounds."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def pick(self, depth: int, leaves: list[Callable[[], Text]], inner: list[Any]) -> Text:
        if depth <= 0 or not inner or self.rng.random() < 0.3:
            return self.rng.choice(leaves)()
        template, *types = self.rng.choice(inner)
        return both(template, *(getattr(self, each)(depth - 1) for each in types))

    def field(self, name: str) -> Text:
        return f'ext("json").{name}', f"j.{name}"

    def constant(self, values: tuple[Any, ...]) -> Text:
        value = self.rng.choice(values)
        text = json.dumps(value, ensure_ascii=False)
        return text, text

    def integer(self, depth: int) -> Text:
        return self.pick(
            depth,
            [
                lambda: self.constant(INTEGERS),
                lambda: ("ordinal", "ordinal"),
                lambda: ('size("jpg")', "s_jpg"),
                lambda: ('ext("cls")', "c"),
                lambda: self.field("n"),
                lambda: self.field("m.n"),
            ],
            [
                *((f"({{}} {sign} {{}})", "integer", "integer") for sign in "+-*/%"),
                ("{}.size()", "text"),
                ("({} ? {} : {})", "boolean", "integer", "integer"),
                ("int({})", "number"),
            ],
        )

    def number(self, depth: int) -> Text:
        return self.pick(
            depth,
            [lambda: self.constant(FLOATS), lambda: self.field("f")],
            [*((f"({{}} {sign} {{}})", "number", "number") for sign in "+-*/")],
        )

    def text(self, depth: int) -> Text:
        return self.pick(
            depth,
            [
                lambda: self.constant(WORDS),
                lambda: ("key", "key"),
                lambda: ('ext("txt")', "t"),
                lambda: self.field("s"),
            ],
            [("({} + {})", "text", "text"), ("string({})", "integer")],
        )

    def items(self, depth: int) -> Text:
        return self.pick(
            depth, [lambda: self.field("l"), lambda: ('[1, "a", 2.5]', 'dyn([1, "a", 2.5])')], []
        )

    def anything(self, depth: int) -> Text:
        name = self.rng.choice(FIELDS)
        return self.pick(depth, [lambda: self.field(name)], [])

    def boolean(self, depth: int) -> Text:
        body = self.rng.choice(["x == 1", "x > 0", 'x == "a"', "x != null"])
        pattern = self.rng.choice(PATTERNS)
        name = self.rng.choice(FIELDS)
        return self.pick(
            depth,
            [
                lambda: ('has("jpg")', "h_jpg"),
                lambda: (f'has(ext("json").{name})', f"(h_json && has(j.{name}))"),
                lambda: (f'("{name}" in ext("json"))', f'("{name}" in j)'),
                lambda: self.constant((True, False)),
            ],
            [
                *[("({} && {})", "boolean", "boolean"), ("({} || {})", "boolean", "boolean")] * 2,
                ("!({})", "boolean"),
                ("({} ? {} : {})", "boolean", "boolean", "boolean"),
                *((f"({{}} {sign} {{}})", "integer", "integer") for sign in ("<", ">=", "==")),
                *((f"({{}} {sign} {{}})", "number", "number") for sign in (">", "<=", "!=")),
                ("({} < {})", "text", "text"),
                ("({} == {})", "text", "text"),
                ("({} == {})", "anything", "anything"),
                ("({} in {})", "anything", "items"),
                ("{}.contains({})", "text", "text"),
                ("{}.startsWith({})", "text", "text"),
                ("{}.endsWith({})", "text", "text"),
                (f'{{}}.matches("{pattern}")', "text"),
                (f"{{}}.exists(x, {body})", "items"),
                (f"{{}}.all(x, {body})", "items"),
                (f"{{}}.exists_one(x, {body})", "items"),
            ],
        )


def drawn_document(rng: random.Random) -> dict[str, Any]:
    odd = [None, "text", [], True]
    kinds: dict[str, Callable[[], Any]] = {
        "n": lambda: rng.choice(INTEGERS),
        "f": lambda: rng.choice(FLOATS),
        "s": lambda: rng.choice(WORDS),
        "l": lambda: rng.sample([1, "a", 2.5, 0, None, True, [1], {"a": 1}], rng.randrange(5)),
        "m": lambda: {"n": rng.choice(INTEGERS)},
        "none": lambda: None,
    }
    document = {}
    for name, kind in kinds.items():
        draw = rng.random()
        if draw < 0.85:
            document[name] = kind()
        elif draw < 0.92:
            document[name] = rng.choice(odd)
    return document


def drawn_records(rng: random.Random) -> tuple[RecordTable, list[dict[str, Any]]]:
    """Records, and the judge's variables for each."""
    records, known = [], []
    for ordinal in range(12):
        key = f"{rng.choice(['a', 'cat', 'ü'])}/{ordinal}"
        members: dict[str, bytes] = {"x": b""}
        variables: dict[str, Any] = {
            "key": key,
            "ordinal": ordinal,
            "h_jpg": False,
            "h_json": False,
        }
        if rng.random() < 0.8:
            members["jpg"] = bytes(rng.randrange(300))
            variables |= {"h_jpg": True, "s_jpg": len(members["jpg"])}
        if rng.random() < 0.8:
            number = rng.randrange(10)
            members["cls"], variables["c"] = b"%d\n" % number, number
        if rng.random() < 0.8:
            text = rng.choice(WORDS)
            members["txt"], variables["t"] = text.encode(), text
        if rng.random() < 0.9:
            document = drawn_document(rng)
            members["json"], variables["j"] = json.dumps(document).encode(), document
            variables["h_json"] = True
        records.append((key, members))
        known.append(variables)
    return table_of(records), known


def judged(expression: Any, variables: dict[str, Any]) -> bool | None:
    """What the judge says; None if it is an error."""
    value = expression.eval(data=variables)
    plain = value.value()
    return plain if value.type() == cel.Type.BOOL and isinstance(plain, bool) else None


def computed(expression: Expression, table: RecordTable, row: int) -> bool | None:
    """What dsort says of one record alone."""
    try:
        return bool(expression.true_of(table.keeping(np.arange(len(table)) == row), "filter")[0])
    except TransformError:
        return None


ENVIRONMENT = cel.NewEnv(
    variables={
        "j": cel.Type.DYN,
        "c": cel.Type.INT,
        "t": cel.Type.STRING,
        "key": cel.Type.STRING,
        "ordinal": cel.Type.INT,
        "s_jpg": cel.Type.INT,
        "h_jpg": cel.Type.BOOL,
        "h_json": cel.Type.BOOL,
    }
)


@pytest.mark.parametrize("turn", range(4))
def test_expressions_are_what_another_implementation_says(turn: int, rng: random.Random) -> None:
    writer = Writer(rng)
    counts = {True: 0, False: 0, None: 0}
    for _ in range(40):
        table, known = drawn_records(rng)
        text, other = writer.boolean(4)
        try:
            expression = Expression.of(text)
        except ValueError as error:
            pytest.fail(f"{text}: {error}")
        judge = ENVIRONMENT.compile(other)
        alone = [judged(judge, {**variables, "ordinal": 0}) for variables in known]
        found = [computed(expression, table, row) for row in range(len(table))]
        assert found == alone, f"{text}\n{other}"
        wanted = [judged(judge, variables) for variables in known]
        if None not in wanted:
            assert expression.true_of(table, "filter").tolist() == wanted, text
        for each in wanted:
            counts[each] += 1
    assert min(counts.values()) > 0
