"""The body that is a job spec, for the OpenAPI document: its schema and examples."""

from __future__ import annotations

from typing import Any

from dsort.spec.schema import schema as job_schema

__all__ = ["SPEC_BODY", "SPEC_SCHEMA", "spec_schema"]

SPEC_SCHEMA = {"$ref": "#/components/schemas/JobSpec"}

_SHUFFLE = {
    "input_bck": "images",
    "output_bck": "shuffled",
    "input_format": {"template": "samples-{00..18}"},
    "output_format": "shuffled-%04d",
    "output_shard_size": "100MB",
    "algorithm": {"kind": "shuffle", "seed": 42},
}
_BY_CLASS = """\
input_bck: s3://data/images
output_bck: s3://data/by-class
output_format: class-sorted-%06d
output_shard_size: 1GB
algorithm: {kind: content, extension: .cls, content_key_type: int}
"""

SPEC_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A job spec, as `dsort start -f` takes it.",
        "content": {
            "application/json": {
                "schema": SPEC_SCHEMA,
                "examples": {"shuffle": {"summary": "A seeded shuffle", "value": _SHUFFLE}},
            },
            "application/yaml": {
                "schema": SPEC_SCHEMA,
                "examples": {"sort": {"summary": "A sort by class", "value": _BY_CLASS}},
            },
        },
    }
}


def spec_schema() -> dict[str, Any]:
    """The JSON Schema of a spec as a component: its own definitions inlined where they are used."""
    schema = dict(job_schema())
    definitions = schema.pop("$defs", {})
    for outer in ("$schema", "$id"):
        schema.pop(outer, None)
    resolved = _resolved(schema, definitions)
    assert isinstance(resolved, dict)
    return resolved


def _resolved(value: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        reference = value.get("$ref", "")
        if isinstance(reference, str) and reference.startswith("#/$defs/"):
            rest = {key: each for key, each in value.items() if key != "$ref"}
            return _resolved(
                {**definitions[reference.removeprefix("#/$defs/")], **rest}, definitions
            )
        return {key: _resolved(each, definitions) for key, each in value.items()}
    if isinstance(value, list):
        return [_resolved(each, definitions) for each in value]
    return value
