"""The JSON Schema of a spec, for editors and for clients in other languages."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from dsort.spec.model import current_job_spec

_EXAMPLES: list[dict[str, Any]] = [
    {
        "input_bck": "images",
        "input_format": {"template": "samples-{00..18}"},
        "output_format": "shuffled-shard-%d",
        "output_shard_size": "100MB",
        "algorithm": {"kind": "shuffle", "seed": 42},
    },
    {
        "input_bck": {
            "name": "images",
            "provider": "aws",
            "prefix": "train",
            "endpoint_url": "http://10.0.0.1:8333",
        },
        "output_bck": "s3://shuffled/train",
        "output_format": "shuffled-%06d",
        "output_shard_size": "1GB",
        "algorithm": {"kind": "shuffle", "seed": 42},
    },
    {
        "input_bck": "file:///data/images",
        "output_bck": "file:///data/sorted",
        "output_format": "by-class-%04d",
        "output_shard_records": 1000,
        "algorithm": {"kind": "content", "extension": ".cls", "content_key_type": "int"},
    },
]


class _Generator(GenerateJsonSchema):
    """Removes the titles of fields, which only repeat their names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a spec in today's names. Rules between the fields are not
    in it; ``dsort spec check`` also checks these."""
    body = current_job_spec().model_json_schema(by_alias=True, schema_generator=_Generator)
    body.pop("title")
    # The model has reactions and limits in Config, like AIStore; a spec has them at the top.
    config = body["properties"].pop("Config")
    body["properties"] |= {**body["$defs"]["JobConfig"]["properties"], "Config": config}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dsort job spec",
        **body,
        "anyOf": [{"required": ["input_bck"]}, {"required": ["inputs"]}],
        "examples": _EXAMPLES,
    }
