"""Expressions in CEL: what they mean, what is wrong with a text, and what bounds them."""

from __future__ import annotations

import json
import pickle
import time
from typing import Any

import pytest

from dsort.errors import TransformError
from dsort.expressions.expression import Expression
from dsort.expressions.parser import ExpressionError
from dsort.expressions.reading import MEMBER_BYTES_MAX
from dsort.expressions.semantics import LIST_MAX
from tests.support.internals import RecordTable
from tests.support.record_tables import table_of
from tests.support.refusals import raises

RECORDS: list[tuple[str, dict[str, bytes]]] = [
    (
        "a/000",
        {
            "jpg": b"x" * 100,
            "json": b'{"n": 7, "f": 0.5, "s": "cat", "l": [1, "x", null], "m": {"k": true}, '
            b'"none": null}',
            "cls": b" 3\n",
            "txt": "schön".encode(),
        },
    ),
    ("b", {"png": b"x" * 9, "meta.json": b"[1]", "cls": b"x", "txt": b"\xff", "json": b"{"}),
]


def of_first(text: str, records: RecordTable | None = None) -> bool:
    """What ``text`` is of the first record."""
    table = records or table_of(RECORDS[:1])
    return bool(Expression.of(text).true_of(table, "filter")[0])


def of_json(text: str, value: Any) -> bool:
    table = table_of([("a", {"json": json.dumps(value).encode()})])
    return of_first(text.replace("json", 'ext("json")'), table)


@pytest.mark.parametrize(
    "text",
    [
        'ext("json").x > 1',
        'ext("json").s > 1',
        'ext("json").n.x',
        'ext("json").n',
        'ext("json").l[3] == 1',
        'ext("json").l["x"] == 1',
        'ext("json").s + 1 == 1',
        'ext("json").s.matches("c") && ext("json").n.matches("c")',
        'has(ext("json").n.x)',
        "ordinal / ordinal == 1",
        "9223372036854775807 + size() > 1",
        'size("png") > 1',
        'ext("x.json").n > 1',
        'ext("json").n in ext("json").n',
        'ext("json").n.all(x, x)',
        'int(ext("json").s) == 1',
    ],
)
def test_what_cannot_be_computed_names_the_record_and_the_expression(text: str) -> None:
    with raises(TransformError, "record a/000 of shard in-0.tar", text[:20], hint="has("):
        of_first(text)


@pytest.mark.parametrize(
    ("text", "member"),
    [
        ('has(ext("json").a)', "json"),
        ('ext("cls") == 1', "cls"),
        ('ext("txt") == "x"', "txt"),
        ('ext("json").a == 1', "json"),
    ],
)
def test_members_that_are_not_what_their_extension_says_are_refused(text: str, member: str) -> None:
    with raises(TransformError, "record b of shard in-0.tar", member):
        Expression.of(text).true_of(table_of(RECORDS[1:]), "filter")


def test_a_class_that_is_a_name_can_be_read_as_a_text() -> None:
    table = table_of([("a", {"cls": b"cat"})])
    with raises(TransformError, "cls", hint='text("cls")'):
        of_first("cls > 1", table)
    assert of_first('text("cls") == "cat"', table)


def test_an_operand_that_decides_alone_hides_errors_of_the_other() -> None:
    for text in ('size("x") > 1 || has("jpg")', 'has("jpg") || size("x") > 1'):
        assert of_first(text)
    for text in ('size("x") > 1 && has("x")', 'ext("json").x > 1 && has("x")'):
        assert not of_first(text)
    assert of_first('[1, "x"].exists(x, x > 0)')
    with raises(TransformError, 'size("x")'):
        of_first('!(size("x") > 1)')


def test_what_is_right_of_some_records_is_said_of_each() -> None:
    records = [(f"{number:05d}", {"json": b'{"n": %d}' % number}) for number in range(9000)]
    found = Expression.of('ext("json").n % 3 == 0 && ordinal < 8000').true_of(
        table_of(records), "filter"
    )
    assert found.tolist() == [number % 3 == 0 and number < 8000 for number in range(9000)]


def test_what_a_record_costs_is_bounded() -> None:
    large = table_of([("a", {"json": b'"' + b"x" * MEMBER_BYTES_MAX + b'"'})])
    with raises(TransformError, "json", "1 MiB"):
        of_first('ext("json") == "x"', large)
    with raises(TransformError, "10,000"):
        of_json("json.all(x, true)", [1] * (LIST_MAX + 1))
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    with raises(TransformError, "32"):
        of_json("json == json", deep)
    started_s = time.process_time()
    assert not of_json('json.matches("(a|a)*(a|a)*(a|a)*b")', "a" * 100_000)
    assert time.process_time() - started_s < 5


LONG: dict[str, Any] = {
    "numbers": list(range(9000)),
    "lists": [[1] * 9000] * 8,
    "text": "x" * 500_000,
    "other": "x" * 200_000 + "y",
}


@pytest.mark.sample(keep=4)
@pytest.mark.parametrize(
    "text",
    [
        "json.numbers.all(n, n in json.numbers)",
        "json.numbers.exists_one(n, json.lists == json.lists)",
        "json.numbers.exists(n, json.lists != json.lists)",
        'json.numbers.all(n, !json.text.contains("xxxxxxxxxxxxxxxxy"))',
        'json.numbers.all(n, !json.text.matches("y"))',
        'json.numbers.all(n, json.text + "y" != json.text + "z")',
        "json.numbers.all(n, json.text < json.other)",
        "json.numbers.all(n, json.other >= json.text)",
        " && ".join(['!json.text.contains("y")'] * 80),
        " || ".join(['json.text.lowerAscii() == "y"'] * 80),
        f"json.numbers.all(n, {'n + 1 > n && ' * 40} true)",
    ],
)
def test_an_expression_takes_a_bounded_number_of_steps_for_a_record(text: str) -> None:
    started_s = time.process_time()
    with raises(TransformError, "record a of shard in-0.tar", "1,000,000", hint="shorter"):
        of_json(text, LONG)
    assert time.process_time() - started_s < 5


def test_each_record_has_all_steps_to_itself() -> None:
    text = json.dumps({"l": list(range(9000))}).encode()
    table = table_of([(key, {"json": text}) for key in "abcdefghij"])
    expression = Expression.of("ext('json').l.all(n, n + n >= n && n in [n, 1] && n < 9000)")
    assert expression.true_of(table, "filter").all()


def test_lists_of_two_lengths_differ_without_steps() -> None:
    assert of_json("json.numbers.all(n, json.numbers != [n])", LONG)


def test_a_part_that_decides_does_so_before_steps_are_spent() -> None:
    assert of_json("json.numbers[0] == 0 || json.numbers.all(n, n in json.numbers)", LONG)
    assert not of_json("json.numbers[0] == 1 && json.numbers.all(n, n in json.numbers)", LONG)


def test_an_expression_goes_to_workers_as_its_text() -> None:
    expression = Expression.of('ext("json").n > 1')
    sent = pickle.loads(pickle.dumps(expression))
    assert sent == expression
    assert sent.true_of(table_of(RECORDS[:1]), "filter").tolist() == [True]


def test_a_pattern_that_is_no_regular_expression_is_refused() -> None:
    with raises(ExpressionError, "character 13"):
        Expression.of("key.matches('(')")
