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
from dsort.spec.inputs import JobConfig
from dsort.spec.load import parse_spec
from dsort.spec.part import closest, describe
from tests.support.commands import ROOT
from tests.support.sampling import examples
from tests.support.spec_cases import CONTENT, small

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


def _map(**options: Any) -> dict[str, Any]:
    return {"transform": {"steps": [{"map": {"python": "a:b", **options}}]}}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"amend": {"job": "x y"}}, "amend.job"),
        (_map(resources={"num_cpus": "x"}), "transform.steps[0].map.resources.num_cpus"),
        (_map(resources={"num_cpus": [1]}), "transform.steps[0].map.resources.num_cpus"),
        (_map(timeout=[1]), "transform.steps[0].map.timeout"),
        (_map(seed=[1]), "transform.steps[0].map.seed"),
        (_map(concurrency=0), "transform.steps[0].map.concurrency"),
        (_map(concurrency="x"), "transform.steps[0].map.concurrency"),
        (_map(concurrency=[1, "x"]), "transform.steps[0].map.concurrency[1]"),
        ({"transform": {"max_errors": 1.5}}, "transform.max_errors"),
        ({"transform": {"rejects": 3}}, "transform.rejects"),
        ({"ingest": {"labels_from": -1}}, "ingest.labels_from"),
        ({"outputs": [{"name": "a", "fraction": 0}]}, "outputs[0].fraction"),
        ({"on_shard": {"exec": ["a"] * 1001}}, "on_shard.exec"),
        ({"key_field": "x" * 1001}, "key_field"),
    ],
)
def test_a_wrong_value_is_described_in_plain_words(fields: dict[str, Any], path: str) -> None:
    (problem,) = [each for each in caught(**fields) if each.path == path]
    assert not any(word in problem.message for word in JARGON), problem


def test_a_near_miss_is_answered_with_what_was_most_likely_meant() -> None:
    (problem,) = caught(output_format="shuffled-06d")
    assert "shuffled-%06d" in problem.hint
    kind, by = caught(algorithm={"kind": "sort", "by": "key"})
    assert (kind.path, by.path) == ("algorithm.kind", "algorithm.by")
    assert "alphanumeric" in kind.hint
    assert kind.hint == by.hint
    (index,) = caught(index="Croisant", checksums="sha256")
    assert index.hint == 'did you mean "croissant"?'


def test_no_hint_asks_for_a_field_that_another_problem_refuses() -> None:
    ended = {"output_shard_size": ..., "output_shard_records": ..., "output_shard_count": ...}
    found = caught(like="other", algorithm={"kind": "none"}, **ended)
    assert [each.path for each in found] == ["output_format"]
    found = caught(index="croissant", output="view")
    assert [each.path for each in found] == ["index"]


def test_a_codec_around_tables_is_refused_where_rows_stay_rows() -> None:
    packed = {"input_extension": ".parquet.gz", "output_extension": ".parquet"}
    (problem,) = caught(**packed)
    assert problem.path == "input_extension"
    inputs = [
        {"name": "a", "input_bck": "a", "input_extension": ".parquet"},
        {"name": "b", "input_bck": "b", "input_extension": ".parquet.zst"},
    ]
    found = caught(inputs=inputs, input_bck=..., output_bck="out", output_extension=".parquet")
    assert [each.path for each in found] == ["inputs[1].input_extension"]
    parse_spec(small(**packed | {"output_extension": ".tar"}))  # cells become members


def caught(**fields: Any) -> tuple[SpecProblem, ...]:
    with pytest.raises(SpecError) as error:
        parse_spec(small(**fields))
    return tuple(error.value.problems)


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
