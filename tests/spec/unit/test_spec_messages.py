"""Messages are plain words without jargon, tracebacks show hints, and specs can be sent."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import traceback
from typing import Any

import pytest

from dsort.errors import InputError, SpecError, SpecProblem
from dsort.spec.field_problems import closest
from dsort.spec.inputs import JobConfig
from dsort.spec.load import parse_spec
from dsort.spec.model import JobSpec
from dsort.spec.part import describe
from tests.support.commands import ROOT
from tests.support.refusals import raises
from tests.support.sampling import examples
from tests.support.spec_cases import CONTENT, small, spec_of

JARGON = (
    "Input should",
    "String should",
    "Tuple should",
    "parse string",
    "pattern",
    "pydantic",
    "https://",
    "type=",
    "Extra inputs",
    "NoneType",
    "str type",
)


def test_closest_looks_past_case_and_gives_up_on_strangers() -> None:
    assert closest("SHUFFLE", ["none", "shuffle"]) == "shuffle"
    assert closest("banana", ["none", "shuffle"]) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "nothing"),
        (True, "true"),
        (1.5, "the number 1.5"),
        ("é", 'the text "é"'),
        ({}, "an object"),
        ((), "a list"),
        (b"x", "a bytes"),
        ("x" * 500, 'the text "' + "x" * 99 + "..."),
    ],
)
def test_values_are_described_as_their_writer_would(value: object, words: str) -> None:
    assert describe(value) == words


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**70, 1.5, "", "x", "warn", "shuffle", ".cls", "10MB", "a-%d",
    "a-{0..9}", "../x", [], [1], ["a"], ["a", None], {}, {"name": 1}, {"a-%d": ["x"]},
    {"a-%d": 1}, {"kind": []}, {"seed": {}}, {"missing_shards": 5}, [[]], {"a": {"b": {}}},
]  # fmt: skip


def test_whatever_is_written_the_answer_is_a_spec_or_problems_in_plain_words(
    rng: random.Random,
) -> None:
    """Random values in random fields: nothing but ``SpecError``, and no jargon. So the table of
    plain words is complete."""
    whole = parse_spec(small()).spec.canonical()
    names = [*whole, "dsorter_type", "bck", "extension", "order_file", "missing_shards", "other"]
    parts = {
        "algorithm": [*whole["algorithm"], "ext", "format_type", "other"],
        "input_format": [*whole["input_format"], "other"],
        "Config": [*JobConfig.model_fields, "other"],
    }
    refused, count = 0, examples(3000)
    for _ in range(count):
        mapping = dict(small(algorithm=dict(rng.choice([CONTENT, {"kind": "shuffle"}]))))
        for name in rng.sample(names, rng.randint(0, 3)):
            mapping[name] = rng.choice(VALUES)
        for part, fields in parts.items():
            if rng.random() < 0.2:
                mapping[part] = {rng.choice(fields): rng.choice(VALUES) for _ in range(3)}
        said = ""
        try:
            parse_spec(mapping)
        except SpecError as error:
            refused += 1
            said = str(error)
        assert not any(word in said for word in JARGON), said
    assert count / 3 < refused < count


def test_a_traceback_in_python_shows_the_hint() -> None:
    error = InputError("there is no shard x.tar", hint="`dsort ls` shows what is there")
    for each in (error, pickle.loads(pickle.dumps(error))):
        shown = "".join(traceback.format_exception(each))
        assert shown.count("hint: `dsort ls` shows what is there") == 1


def test_a_traceback_in_python_shows_the_hint_of_a_problem_of_a_spec() -> None:
    error = SpecError([SpecProblem("order", "there is no order shard", "shards or sequential")])
    assert "shards or sequential" in "".join(traceback.format_exception(error))


def test_a_spec_that_no_loader_read_is_sent_as_well() -> None:
    code = (
        "import pickle, dsort\n"
        "spec = dsort.JobSpec.model_validate({'input_bck': 'in', 'keep_shards': True})\n"
        "assert pickle.loads(pickle.dumps(spec)) == spec\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_text_of_the_error_has_a_line_and_a_hint_for_each_problem() -> None:
    with pytest.raises(SpecError) as error:
        parse_spec(small(output_format=..., algorithm={"kind": "shufle"}))
    kinds = "none, alphanumeric, shuffle, md5, content, keys or value"
    assert str(error.value).splitlines() == [
        f'algorithm.kind: must be {kinds}, not the text "shufle"',
        '  hint: did you mean "shuffle"?',
        "output_format: is required",
        '  hint: e.g. "shard-%06d" (or an external key map: ekm)',
    ]
    assert error.value.exit_code == 2


def test_no_spec_that_breaks_a_rule_can_be_made_in_python_either() -> None:
    with raises(SpecError, paths=["output_format"]):
        JobSpec.model_validate({"input_bck": "samples"})
    made = JobSpec.model_validate(small())
    assert made == spec_of()
