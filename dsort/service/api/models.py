"""The parts of the OpenAPI document that describe bodies and answers: examples, problems, the body
of a spec."""

from __future__ import annotations

import json
from typing import Any, Final

from dsort.service.problems import PROBLEM_JSON
from dsort.spec.schema import schema as job_schema

_AS_TEXT: Final = "as_text"
"""FastAPI drops all nulls from the document, also those in examples; a text keeps them."""
_TITLES: Final = {
    400: "The request or the spec is wrong: every problem is reported.",
    401: "No token, or one that is not known.",
    403: "The token's role or buckets do not allow it.",
    404: "There is no such thing, or none that the token may see.",
    409: "It cannot be combined with the state that the thing is in.",
    413: "The body is too large.",
    422: "The data does not allow it.",
    429: "Too many requests: `Retry-After` says how long to wait.",
    501: "Not served by dsort.",
    502: "The bucket or its store fails.",
    503: "Not ready.",
}
RETRY_AFTER: Final = {
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}
}
"""The header of an answer that sets when to try again."""


def body_like(example: object) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that takes a JSON body like ``example``."""
    return {"requestBody": {"content": {"application/json": {"example": example}}}}


def restore_examples(operation: dict[str, Any]) -> None:
    """Turn the examples of :func:`shown` in an operation of the OpenAPI document from text back
    into JSON."""
    for answer in operation["responses"].values():
        for media in answer.get("content", {}).values():
            example = media.get("example")
            if isinstance(example, dict) and _AS_TEXT in example:
                media["example"] = json.loads(example[_AS_TEXT])


def shown(
    status: int,
    example: object,
    *,
    media_type: str = "application/json",
    located: str = "",
    **more: object,
) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route that answers ``status`` with something like ``example``.
    ``located``: what the header ``Location`` names."""
    content = {media_type: {"example": {_AS_TEXT: json.dumps(example)}}}
    answer: dict[str, Any] = {"content": content, **more}
    if located:
        answer["headers"] = {"Location": {"description": located, "schema": {"type": "string"}}}
    return {status: answer}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route that may answer with problems of these statuses."""
    schema = {"$ref": "#/components/schemas/Problem"}
    found: dict[int | str, dict[str, Any]] = {
        status: {
            "description": _TITLES[status],
            "content": {PROBLEM_JSON: {"schema": schema}},
        }
        for status in statuses
    }
    if 429 in found:
        found[429]["headers"] = RETRY_AFTER
    return found


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
