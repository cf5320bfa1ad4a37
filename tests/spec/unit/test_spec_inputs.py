"""Several inputs in a spec: what it becomes, and all that is wrong with it at once."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from dsort.spec.load import parse_spec
from tests.support.internals import compile_pipeline, steps_of
from tests.support.spec_cases import small

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


def test_deduplicate_means_the_same_when_it_is_written_out() -> None:
    spec = parse_spec(small(deduplicate={"by": "content", "extensions": ["jpg"]})).spec
    assert parse_spec(spec.canonical()).spec == spec
    compared = compile_pipeline(spec, steps=steps_of(spec)).compared
    assert compared.extensions == ("jpg",)
    spec = parse_spec(small(deduplicate={})).spec
    assert not compile_pipeline(spec, steps=steps_of(spec)).compared


def test_what_all_inputs_say_of_their_container_is_said_of_all() -> None:
    named = [{**each, "input_extension": ".zip"} for each in TWO]
    assert parse_spec(several(*named)).spec.input_extension == ".zip"
    other = [named[0], {**TWO[1], "input_extension": ".jsonl"}]
    assert parse_spec(several(*other)).spec.input_extension == ".tar"
