"""The JSON Schema describes every field in today's names, and agrees with the parser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dsort.spec.dialects import OLDER_NAMES
from dsort.spec.load import parse_spec
from dsort.spec.model import schema
from tests.support.spec_cases import BLOG_POST, CONTENT, small, spec_of


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    Draft202012Validator.check_schema(schema())
    return Draft202012Validator(schema())


def test_the_schema_is_json_and_names_its_dialect() -> None:
    written = json.loads(json.dumps(schema()))
    assert written["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert written["title"] == "dsort job spec"
    assert written["description"].startswith("A dsort job")
    assert written["anyOf"] == [{"required": ["input_bck"]}, {"required": ["inputs"]}]


def objects(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if "properties" in node:
            yield node
        for each in node.values():
            yield from objects(each)
    elif isinstance(node, list):
        for each in node:
            yield from objects(each)


def test_every_field_is_described_and_unknown_ones_are_refused() -> None:
    written = schema()
    for owner in (written, *written["$defs"].values()):
        assert owner["additionalProperties"] is False
        for name, field in owner["properties"].items():
            assert field.get("description"), name
    assert all(each["additionalProperties"] is False for each in objects(written))


def test_the_schema_has_todays_names_and_no_older_one() -> None:
    written = schema()
    known = {
        "": set(written["properties"]),
        "algorithm": set(written["$defs"]["Algorithm"]["properties"]),
        "Config": set(written["$defs"]["JobConfig"]["properties"]),
    }
    whole = spec_of().canonical()
    assert set(whole) <= known[""]
    # In those specs alone that use them.
    later = {"batches", "bins", "compare", "interleave", "keys", "value"}
    assert set(whole["algorithm"]) == known["algorithm"] - later
    for path in OLDER_NAMES:
        owner, _, name = path.rpartition(".")
        assert name not in known[owner], path


def test_fields_without_effect_are_marked_as_deprecated() -> None:
    written = schema()
    marked = {
        name
        for owner in (written, *written["$defs"].values())
        for name, field in owner["properties"].items()
        if field.get("deprecated")
    }
    assert sorted(marked) == [
        "bundle_multiplier",
        "burst_buffer",
        "call_timeout",
        "compression",
        "dsorter_mem_threshold",
        "dsorter_type",
    ]


def test_examples_of_the_schema_are_specs(validator: Draft202012Validator) -> None:
    for example in schema()["examples"]:
        validator.validate(example)
        assert parse_spec(example).warnings == ()


def test_the_schema_accepts_what_the_parser_accepts(validator: Draft202012Validator) -> None:
    for fields in (
        {},
        {"algorithm": dict(CONTENT), "Config": {"missing_shards": "warn"}},
        {"input_bck": {"name": "a", "provider": "ais"}, "output_bck": "file:///out"},
        {"input_bck": "s3://images/a", "output_bck": {"name": "out", "provider": "gcp"}},
        {
            "input_bck": {
                "name": "images",
                "provider": "aws",
                "prefix": "train",
                "endpoint_url": "http://10.0.0.1:8333",
                "region": "eu-west-1",
                "profile": "lab",
            }
        },
        {"output_format": ..., "ekm": {"a-%d": ["x"]}, "output_shard_size": 5000},
        {"algorithm": {"kind": "shuffle", "seed": 42}},
    ):
        validator.validate(small(**fields))
        validator.validate(spec_of(**fields).canonical())


@pytest.mark.parametrize(
    "fields",
    [
        {"output_fromat": "x"},
        {"dry_run": "yes"},
        {"algorithm": {"kind": "random"}},
        {"output_shard_size": -1},
        {"output_shard_records": 0},
        {"input_format": {"objnames": []}},
        {"input_bck": {"name": "a", "provider": "awz"}},
        {"input_bck": {"name": "images", "provider": "aws", "secret_key": "x"}},
        {"input_bck": {"provider": "aws"}},
        {"Config": {"corrupt_shards": "warn"}},
    ],
)
def test_the_schema_refuses_what_is_plainly_wrong(
    validator: Draft202012Validator, fields: dict[str, Any]
) -> None:
    assert not validator.is_valid(small(**fields))


def test_older_specs_are_for_the_parser_only(validator: Draft202012Validator) -> None:
    assert not validator.is_valid(BLOG_POST)
