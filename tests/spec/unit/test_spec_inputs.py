"""Several inputs in a spec: what it becomes, and all that is wrong with it at once."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from dsort.spec.load import parse_spec
from tests.support.internals import compile_pipeline
from tests.support.spec_cases import problems_of, small

TWO = [
    {"name": "web", "input_bck": "s3://raw/web", "input_format": {"prefix": "v2/"}},
    {"name": "code", "input_bck": "code", "input_format": {"template": "c-{0..9}"}},
]


def several(*inputs: Any, **fields: Any) -> dict[str, Any]:
    return small(**{"input_bck": ..., "inputs": list(inputs), "output_bck": "out", **fields})


def test_inputs_are_read_one_after_the_other() -> None:
    spec = parse_spec(several(*TWO)).spec
    assert [(each.name, each.bucket.uri, each.path) for each in spec.sources] == [
        ("web", "s3://raw/web", "inputs[0]."),
        ("code", "code", "inputs[1]."),
    ]
    assert [each.shard_name("a.tar") for each in spec.sources] == ["web/a.tar", "code/a.tar"]
    assert spec.input_uri == "s3://raw/web, code"


def test_one_bucket_is_a_source_without_a_name() -> None:
    (source,) = parse_spec(small()).spec.sources
    assert (source.name, source.bucket.uri, source.shard_name("a.tar")) == ("", "samples", "a.tar")


def test_a_spec_with_inputs_means_the_same_when_it_is_written_out() -> None:
    spec = parse_spec(several(*TWO)).spec
    written = spec.canonical()
    assert {"input_bck", "input_format"}.isdisjoint(written)
    assert parse_spec(written).spec == spec
    assert "inputs" not in parse_spec(small()).spec.canonical()


def test_the_container_is_that_of_the_first_name_that_tells() -> None:
    tables = [{**TWO[0]}, {**TWO[1], "input_format": {"glob": "*.jsonl"}}]
    assert parse_spec(several(*tables)).spec.input_extension == ".jsonl"


def test_weights_are_exactly_what_is_written() -> None:
    weighed = [{**TWO[0], "weight": 0.1}, {**TWO[1], "repeat": 3}]
    spec = parse_spec(several(*weighed)).spec
    assert [each.weight for each in spec.sources] == [Fraction(1, 10), Fraction(3)]
    assert spec.weighs_inputs
    assert parse_spec(spec.canonical()).spec == spec
    assert not parse_spec(several(*TWO)).spec.weighs_inputs


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ({"input_bck": ...}, "input_bck", "is required"),
        ({"inputs": TWO, "output_bck": "x"}, "input_bck", "cannot be combined with inputs"),
        (
            several(*TWO, input_format={"prefix": "a"}),
            "input_format",
            "cannot be combined with inputs",
        ),
        (several(*TWO, output_bck=...), "output_bck", "is required where there are inputs"),
        (several(TWO[0], {**TWO[1], "name": "web"}), "inputs[1].name", "the name of two inputs"),
        (several({**TWO[0], "name": "a/b"}), "inputs[0].name", "is no name of an input"),
        (several({**TWO[0], "name": ".."}), "inputs[0].name", "is no name of an input"),
        (several({"name": "web"}), "inputs[0].input_bck", "is required"),
        (several({"input_bck": "a"}), "inputs[0].name", "is required"),
        (several({**TWO[0], "inpt": 1}), "inputs[0].inpt", "unknown field"),
        (
            several({**TWO[1], "input_format": {"template": "a-{0..1}", "prefix": "b"}}),
            "inputs[0].input_format",
            "only one of them",
        ),
        (
            several({**TWO[1], "input_format": {"objnames": ["a.tar", "a.tar"]}}),
            "inputs[0].input_format.objnames[1]",
            "is named twice",
        ),
        (
            several(TWO[0], {**TWO[1], "input_bck": "https://host/x", "input_format": {}}),
            "inputs[1].input_format",
            "must name the shards",
        ),
        (
            several(
                {**TWO[0], "input_format": {"objnames": ["a.tar"]}},
                {**TWO[1], "input_format": {"objnames": ["a.zip", "b.tar"]}},
            ),
            "inputs[1].input_format.objnames[1]",
            'ends in ".tar", but inputs[1].input_extension is ".zip"',
        ),
        (several(*TWO * 51), "inputs", ""),
        (several({**TWO[0], "weight": 2, "repeat": 2}), "inputs[0].repeat", "only one of"),
        (several({**TWO[0], "weight": 0}), "inputs[0].weight", ""),
        (several({**TWO[0], "records": 5}, mix={"records": 9}), "inputs[0].records", "with mix"),
        (several(*TWO, mix={}), "mix", "needs records or stop"),
        (
            several(*TWO, mix={"records": 9, "stop": "all_exhausted"}),
            "mix",
            "has records and stop",
        ),
        (several(*TWO, mix={"stop": "sometime"}), "mix.stop", ""),
        (several(*TWO, mix={"stop": "all_exhausted", "replacement": True}), "mix.replacement", ""),
        ({"mix": {"records": 9}}, "mix", "needs inputs"),
        (
            several({**TWO[0], "weight": 2}, input_extension=".parquet"),
            "inputs",
            "rows of tables cannot be copied",
        ),
        (
            several({**TWO[0], "weight": 2}, input_extension=".jsonl", key_field="/id"),
            "inputs",
            "would have the key of their record",
        ),
    ],
)
def test_what_is_wrong_is_said_where_it_is(fields: dict[str, Any], path: str, words: str) -> None:
    problems = problems_of(fields if "output_format" in fields else small(**fields))
    assert words in problems[path].message


def test_all_problems_of_all_inputs_are_said_at_once() -> None:
    problems = problems_of(
        several(
            {"name": "a b", "input_bck": "in"},
            {**TWO[1], "input_format": {"tmplate": "x"}},
            output_shard_records=-1,
        )
    )
    assert {"inputs[0].name", "inputs[1].input_format.tmplate", "output_shard_records"} <= {
        *problems
    }
    assert problems["inputs[1].input_format.tmplate"].hint == 'did you mean "template"?'


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ({"deduplicate": {"by": "size"}}, "deduplicate.by", ""),
        ({"deduplicate": {"extensions": ["jpg"]}}, "deduplicate.extensions", "by: content"),
        ({"deduplicate": {"by": "content", "extensions": [".jpg"]}}, None, "begins with a dot"),
        ({"deduplicate": {}, "duplicate_keys": "drop"}, "duplicate_keys", "leaves none"),
        (
            {"deduplicate": {"by": "content"}, "duplicate_keys": "rename"},
            "duplicate_keys",
            "chosen before it",
        ),
        (
            {"deduplicate": {"by": "content"}, "input_extension": ".parquet"},
            "deduplicate.by",
            "not supported for .parquet",
        ),
        (
            several({**TWO[0], "repeat": 2}, deduplicate={"by": "content"}),
            "deduplicate",
            "they would count as equal",
        ),
    ],
)
def test_what_is_wrong_with_deduplicate(
    fields: dict[str, Any], path: str | None, words: str
) -> None:
    problems = problems_of(fields if "output_format" in fields else small(**fields))
    assert words in problems[path or "deduplicate.extensions[0]"].message


def test_deduplicate_means_the_same_when_it_is_written_out() -> None:
    spec = parse_spec(small(deduplicate={"by": "content", "extensions": ["jpg"]})).spec
    assert parse_spec(spec.canonical()).spec == spec
    compared = compile_pipeline(spec).compared
    assert compared is not None
    assert compared.extensions == ("jpg",)
    assert compile_pipeline(parse_spec(small(deduplicate={})).spec).compared is None


def test_what_all_inputs_say_of_their_container_is_said_of_all() -> None:
    named = [{**each, "input_extension": ".zip"} for each in TWO]
    assert parse_spec(several(*named)).spec.input_extension == ".zip"
    other = [named[0], {**TWO[1], "input_extension": ".jsonl"}]
    assert parse_spec(several(*other)).spec.input_extension == ".tar"
