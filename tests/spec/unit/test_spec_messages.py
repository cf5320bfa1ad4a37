"""Messages are plain words, unknown fields get the closest name, and no jargon gets through."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pydantic import ValidationError

from dsort.errors import SpecError
from dsort.spec.config import JobConfig
from dsort.spec.dialects import translate
from dsort.spec.hints import PLAIN_WORDS, closest, describe
from dsort.spec.load import parse_spec
from dsort.spec.model import JobSpec
from tests.support.sampling import examples
from tests.support.spec_cases import CONTENT, problems_of, small

JARGON = ("Input should", "pydantic", "https://", "type=", "Extra inputs", "NoneType", "str type")


@pytest.mark.parametrize(
    ("fields", "path", "hint"),
    [
        ({"output_fromat": "x"}, "output_fromat", 'did you mean "output_format"?'),
        ({"Output_Format": "x"}, "Output_Format", 'did you mean "output_format"?'),
        ({"order_fle": "x"}, "order_fle", 'did you mean "ekm_file"?'),
        ({"conf": {}}, "conf", 'did you mean "Config"?'),
        ({"transform": {"steps": [{"map": {"pyton": "a:b", "python": "a:b"}}]}},
         "transform.steps[0].map.pyton", 'did you mean "python"?'),
        ({"transform": {"steps": [{"keep_keys": {"kys": ["a"]}}]}},
         "transform.steps[0].keep_keys.kys", 'did you mean "keys"?'),
        ({"xyzzy": 1}, "xyzzy", ""),
        ({"seed": 42}, "seed", 'it belongs in "algorithm"'),
        ({"kind": "shuffle"}, "kind", 'it belongs in "algorithm"'),
        ({"template": "a-{0..9}"}, "template", 'it belongs in "input_format"'),
        ({"algorithm": {"sed": 1}}, "algorithm.sed", 'did you mean "seed"?'),
        ({"algorithm": {"format_typ": 1}}, "algorithm.format_typ",
         'did you mean "content_key_type"?'),
        ({"algorithm": {"dry_run": True}}, "algorithm.dry_run", "it belongs at the top level"),
        ({"Config": {"missing_shard": "warn"}}, "Config.missing_shard",
         'did you mean "missing_shards"?'),
        ({"input_format": {"names": ["a"]}}, "input_format.names", 'did you mean "objnames"?'),
    ],
)  # fmt: skip
def test_an_unknown_field_gets_the_closest_known_name(
    fields: dict[str, Any], path: str, hint: str
) -> None:
    problem = problems_of(small(**fields))[path]
    assert problem.message == "unknown field"
    assert problem.hint == hint


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


ONE_OF_EACH: dict[str, dict[str, Any]] = {
    "bool_type": {"dry_run": "x"},
    "dict_type": {"ekm": [], "output_format": ...},
    "extra_forbidden": {"xyzzy": 1},
    "greater_than_equal": {"extract_concurrency_max_limit": -1},
    "int_type": {"extract_concurrency_max_limit": "x"},
    "less_than_equal": {"extract_concurrency_max_limit": 2**63},
    "literal_error": {"verify": "x"},
    "missing": {"inputs": [{"name": "web"}]},
    "model_type": {"algorithm": 1},
    "string_too_short": {"ekm": {"a-%d": [""]}, "output_format": ...},
    "string_type": {"description": 1},
    "too_short": {"transform": {"steps": []}},
    "tuple_type": {"input_format": {"objnames": 1}},
    "value_error": {"output_format": "x"},
}


@pytest.mark.parametrize("kind", sorted(PLAIN_WORDS))
def test_every_kind_of_error_in_the_table_can_happen_and_is_in_plain_words(kind: str) -> None:
    fields = ONE_OF_EACH[kind]
    with pytest.raises(ValidationError) as error:
        JobSpec.model_validate(translate(small(**fields)).fields)
    assert [each["type"] for each in error.value.errors()] == [kind]
    for problem in problems_of(small(**fields)).values():
        assert problem.message
        assert not any(word in problem.message + problem.hint for word in JARGON)


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


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("missing_shard", 'did you mean "missing_shards"?'),
        ("sed", 'did you mean "seed", in "algorithm"?'),
        ("output_fromat", 'did you mean "output_format"?'),
    ],
)
def test_a_mistyped_field_of_another_object_is_found_there(field: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec({"input_bck": "images", "output_format": "x-{0..9}", field: "1"})
    assert [problem.hint for problem in caught.value.problems if problem.path == field] == [hint]


@pytest.mark.parametrize("spec", [{"a.b": 1}, {"algorithm": {".": 1}}, {"Config": {"a.b.c": 1}}])
def test_an_unknown_name_with_a_dot_is_unknown_and_nothing_worse(spec: dict[str, object]) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec({"input_bck": "a", "output_format": "x-%d", "output_shard_records": 1, **spec})
    assert [each.message for each in caught.value.problems] == ["unknown field"]
