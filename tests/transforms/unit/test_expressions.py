"""Expressions in CEL: what they mean, what is wrong with a text, and what bounds them."""

from __future__ import annotations

import json
import pickle
import time
from typing import Any

import pytest

from dsort.errors import TransformError
from dsort.expressions.expression import Expression
from dsort.expressions.nodes import ExpressionError
from dsort.expressions.reading import MEMBER_BYTES_MAX
from dsort.expressions.semantics import LIST_MAX
from tests.support.internals import RecordTable
from tests.support.record_tables import table_of

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
        'key == "a/000" && shard == "in-0.tar" && input == "" && ordinal == 0',
        'size("jpg") == 100 && size("txt") == 6',
        'size("png;jpg") == 100 && has("png;jpg") && !has("png")',
        f"size() == {sum(map(len, RECORDS[0][1].values()))}",
        'ext("cls") == 3 && ext("txt") == "schön" && size(ext("txt")) == 5',
        'ext("json").n == 7 && ext("json").n == 7.0 && ext("json")["n"] == 7',
        'has(ext("json").n) && !has(ext("json").x) && has(ext("json").m.k)',
        '!has(ext("x.json").a) && !has(ext("json").x.y.z) && !has(ext("json").none.x)',
        '"n" in ext("json") && "x" in ext("json").l && null in ext("json").l',
        'ext("json").l.size() == 3 && ext("json").l[1] == "x"',
        "json.n == 7 && json.m.k && has(json.n) && !has(json.x) && size(json.s) == 3",
        'cls == 3 && txt == "schön" && size(txt) == 5 && json.l.exists(x, x == 1)',
        'ext("json").l.exists(x, x == 1) && !ext("json").l.all(x, x == 1)',
        'ext("json").l.exists_one(x, x == "x") && ext("json").m.all(name, name == "k")',
        'key.startsWith("a/") && key.endsWith("0") && key.contains("/") && key.size() == 5',
        'key.matches("^a/[0-9]+$") && matches(key, r"\\d") && !key.matches("b")',
        '"ÄBc".lowerAscii() == "Äbc" && "äbC".upperAscii() == "äBC"',
        "-7 / 2 == -3 && -7 % 2 == -1 && 7 / -2 == -3 && 7 % -2 == 1 && 1.0 / 0.0 > 1e308",
        '1 + 0.5 == 1.5 && "a" + "b" == "ab" && [1] + [2] == [1, 2] && 2 - -3 == 5',
        'int("12") == 12 && int(1.9) == 1 && double("1e3") == 1000.0 && string(12) == "12"',
        '1 == 1.0 && ext("json").n != "7" && ext("json").l[0] != true',
        "true ? 1 < 2 : 1 / 0 == 1",
        "0x10 == 16 && 1_000 == 1000 && 1_0.5 == 10.5 && .5 < 1.0",
        r'"\x41\u00e9\101\n" == "AéA" + "\n" && r"\d" == "\\d" && ' + '\'"\' == "\\""',
        "1 in [1, 2,] && !(3 in [1, 2]) // and a remark",
        "9007199254740993 > 9007199254740992.0",
        "ordinal + 9007199254740993 > 9007199254740992.0",
    ],
)
def test_an_expression_says_what_cel_says(text: str) -> None:
    assert of_first(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('ext("json").x > 1', "there is no field x"),
        ('ext("json").s > 1', "a text > a number cannot be compared"),
        ('ext("json").n.x', "a number has no field x"),
        ('ext("json").n', "a number (7) is not true or false"),
        ('ext("json").l[3] == 1', "there is no item 3: the list has 3"),
        ('ext("json").l["x"] == 1', "a text ('x') is not the number of an item"),
        ('ext("json").s + 1 == 1', "a text + a number has no meaning"),
        ('ext("json").s.matches("c") && ext("json").n.matches("c")', "is not a text"),
        ('has(ext("json").n.x)', "a number has no field x"),
        ("ordinal / ordinal == 1", "it divides by zero"),
        ("9223372036854775807 + size() > 1", "does not fit in 64 bits"),
        ('size("png") > 1', "there is no png member"),
        ('ext("x.json").n > 1', "there is no x.json member"),
        ('ext("json").n in ext("json").n', "a number (7) is not a list"),
        ('ext("json").n.all(x, x)', "a number (7) is not a list"),
        ('int(ext("json").s) == 1', "is not an integer"),
    ],
)
def test_what_cannot_be_computed_names_the_record_and_the_expression(text: str, words: str) -> None:
    with pytest.raises(TransformError) as refused:
        of_first(text)
    said = refused.value.message
    assert "record a/000 of shard in-0.tar" in said
    assert words in said
    assert text[:20] in said
    assert "has(" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('has(ext("json").a)', "its json member is not JSON"),
        ('ext("cls") == 1', "its cls member is no integer of 64 bits"),
        ('ext("txt") == "x"', "its txt member is not UTF-8 at byte 0"),
        ('ext("json").a == 1', "its json member is not JSON"),
    ],
)
def test_members_that_are_not_what_their_extension_says_are_refused(text: str, words: str) -> None:
    with pytest.raises(TransformError, match=words):
        Expression.of(text).true_of(table_of(RECORDS[1:]), "filter")


def test_what_decides_is_enough_wherever_it_stands() -> None:
    for text in ('size("x") > 1 || has("jpg")', 'has("jpg") || size("x") > 1'):
        assert of_first(text)
    for text in ('size("x") > 1 && has("x")', 'ext("json").x > 1 && has("x")'):
        assert not of_first(text)
    assert of_first('[1, "x"].exists(x, x > 0)')
    with pytest.raises(TransformError, match="there is no x member"):
        of_first('!(size("x") > 1)')


def test_members_are_read_of_records_that_the_index_leaves_open_alone() -> None:
    table = table_of(RECORDS)
    found = Expression.of('ext("cls") == 3 && has("jpg")').true_of(table, "filter")
    assert found.tolist() == [True, False]  # the second one's cls is no number


def test_what_is_right_of_some_records_is_said_of_each() -> None:
    records = [(f"{number:05d}", {"json": b'{"n": %d}' % number}) for number in range(9000)]
    found = Expression.of('ext("json").n % 3 == 0 && ordinal < 8000').true_of(
        table_of(records), "filter"
    )
    assert found.tolist() == [number % 3 == 0 and number < 8000 for number in range(9000)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("size('jpg')", "is a number, not true or false"),
        ("kee == 'a'", "at character 1: there is no kee"),
        ("jpg == 'a'", "and members: json.score, cls, txt"),
        ("cls.x == 1", "a number has no fields"),
        ("key = 'a'", "did you mean ==?"),
        ("has('a') and has('b')", "did you mean &&?"),
        ("key == 'a", "has no end"),
        ("(key == 'a'", ") is missing: the expression ends here"),
        ("size('jpg') < 5MB", "5MB is no number"),
        ("size('jpg') < '5'", "a number < a text has no meaning"),
        ("key > 5", "numbers stand without quotes"),
        ("key && true", "its operands are true or false"),
        ("ext('jpg') == 1", "ext(jpg) cannot be read"),
        ("ext('.json').a == 1", "'.json' is no extension"),
        ("ext(key) == 1", "ext takes an extension"),
        ("has(key)", "has asks for a member or a field"),
        ("key.matches('(')", "is no regular expression"),
        ("key.matches(key)", "the pattern of matches has to be a text"),
        ("key.startswith('a')", 'did you mean "startsWith"?'),
        ("startsWith(key, 'a')", "startsWith is a method"),
        ("key.x == 1", "a text has no fields"),
        ("ext('cls').x == 1", "a number has no fields"),
        ("99999999999999999999 > 1", "does not fit in 64 bits"),
        ("true true", "an operator is missing before true"),
        ("{'a': 1}.a == 1", "maps and messages are not supported"),
        ("b'x' == b'x'", "bytes are not supported"),
        ("if == 1", "if is a reserved word"),
        (r"'\d' == key", r"\d means nothing in a text"),
        ("[1].all(x, [1].all(y, true))", "a list inside a list is not gone through"),
        ("[1].all(1, true)", "a name is missing"),
        ("key.size(1) == 1", "size takes 0 arguments, not 1"),
        ("key == " + "'x' + " * 100 + "'x'", "deep inside each other"),
        ("(" * 50 + "true" + ")" * 50, "deep inside each other"),
        ("!" * 99 + "true", "deep inside each other"),
        ("true || " * 1000 + "true", "has 8,004 characters"),
        ("\x00", "means nothing here"),
        (" || ".join(["key.matches('a')"] * 17), "has 17 patterns, more than 16"),
    ],
)
def test_a_text_that_is_no_expression_is_refused_with_a_hint(text: str, words: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        Expression.of(text)
    assert words in f"{refused.value}\n{refused.value.hint}"


def test_what_a_record_costs_is_bounded() -> None:
    large = table_of([("a", {"json": b'"' + b"x" * MEMBER_BYTES_MAX + b'"'})])
    with pytest.raises(TransformError, match=r"its json member has 1(\.0)? MiB; up to"):
        of_first('ext("json") == "x"', large)
    with pytest.raises(TransformError, match="more than 10,000"):
        of_json("json.all(x, true)", [1] * (LIST_MAX + 1))
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    with pytest.raises(TransformError, match="deep"):
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
    with pytest.raises(
        TransformError, match=r"record a of shard in-0\.tar: .* 1,000,000 steps"
    ) as it:
        of_json(text, LONG)
    assert time.process_time() - started_s < 5
    assert "shorter" in it.value.hint


def test_each_record_has_all_steps_to_itself() -> None:
    text = json.dumps({"l": list(range(9000))}).encode()
    table = table_of([(key, {"json": text}) for key in "abcdefghij"])
    expression = Expression.of("ext('json').l.all(n, n + n >= n && n in [n, 1] && n < 9000)")
    assert expression.true_of(table, "filter").all()


def test_lists_of_two_lengths_are_told_apart_without_steps() -> None:
    assert of_json("json.numbers.all(n, json.numbers != [n])", LONG)


def test_a_part_that_decides_does_so_before_steps_are_spent() -> None:
    assert of_json("json.numbers[0] == 0 || json.numbers.all(n, n in json.numbers)", LONG)
    assert not of_json("json.numbers[0] == 1 && json.numbers.all(n, n in json.numbers)", LONG)


def test_an_expression_goes_to_workers_as_its_text() -> None:
    expression = Expression.of('ext("json").n > 1')
    sent = pickle.loads(pickle.dumps(expression))
    assert sent == expression
    assert sent.true_of(table_of(RECORDS[:1]), "filter").tolist() == [True]


def test_an_expression_says_whether_it_reads_members() -> None:
    assert not Expression.of('size("json") > 1 && key == "a"').reads_members
    assert Expression.of('ext("json").n > 1').reads_members


def test_no_records_are_no_problem() -> None:
    empty = table_of([])
    for text in ('ext("json").n > 1', 'size("x") > 1', 'key == "a"'):
        assert Expression.of(text).true_of(empty, "filter").tolist() == []
