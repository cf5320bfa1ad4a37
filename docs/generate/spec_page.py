"""The page of a job spec's fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from docs.generate.words import escaped, examples_of, facts, head
from dsort.builder.builder import InputCalls, SpecBuilder
from dsort.builder.outputs import KeyMapCalls, OrderCalls, OutputCalls
from dsort.builder.steps import StepCalls
from dsort.spec.inputs import JobConfig

__all__ = ["spec_page"]

INTRODUCTION = """
A spec is a JSON or YAML object. This page lists each field with its type, its limits and its
default. [Writing a spec](../specs.md) is ordered by task. `dsort spec check` checks a spec and
prints all of its problems at once. `dsort spec schema` prints the JSON Schema of this page.
"""
GROUPS = {
    "Inputs": InputCalls,
    "Outputs": OutputCalls,
    "Steps": StepCalls,
    "Order": OrderCalls,
    "External key map": KeyMapCalls,
    "Reactions": None,
    "The job": SpecBuilder,
}
"""The fields that go together: a class of the builder sets them, or ``reactions``."""
LAST = "Kept for AIStore's sake"


def spec_page(schema: Mapping[str, Any]) -> str:
    """Every field of a spec, by group."""
    fields: dict[str, Any] = schema["properties"]
    new = {name for name, field in fields.items() if not field.get("deprecated")} - {"Config"}
    new -= {*SpecBuilder.set_by()}
    reactions = [name for name in JobConfig.model_fields if name in new]
    if unset := new - {*reactions}:
        raise ValueError(f"no call of the builder sets {unset}")
    groups = {
        title: reactions if calls is None else [*vars(calls)["_set_by"]]
        for title, calls in GROUPS.items()
    }
    grouped = {name for names in groups.values() for name in names}
    groups[LAST] = [name for name in fields if name not in grouped]
    parts = [head("Spec", "the JSON Schema of a spec"), INTRODUCTION]
    for title, names in groups.items():
        parts.append(f"## {title}")
        parts += [_field(name, fields[name], schema) for name in names]
    parts.append("## Examples")
    parts += [
        f"```json\n{json.dumps(each, indent=2, ensure_ascii=False)}\n```"
        for each in schema["examples"]
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _field(name: str, field: Mapping[str, Any], schema: Mapping[str, Any], level: int = 3) -> str:
    """``schema``: the object that the field is of, with the definitions."""
    definitions = schema.get("$defs", {})
    each_of = (field, *field.get("anyOf", ()), *([field["items"]] if "items" in field else ()))
    variants = [_resolved(each, definitions) for each in each_of]
    said = [facts(field, {}, required=name.rpartition(".")[2] in schema.get("required", ()))]
    said += [_joined(each.get("description", "")) for each in (field, *variants)]
    said.append(examples_of(field))
    parts = [f"{'#' * level} `{name}` {{ #{name.replace('.', '-').lower()} }}"]
    parts += [each for each in dict.fromkeys(said) if each]
    for variant in variants:
        fields = variant.get("properties", {})
        if name == "Config":  # the same fields as at the top
            parts.append(f"It takes {', '.join(f'[`{each}`](#{each})' for each in fields)}.")
            continue
        inside = {"$defs": definitions, "required": variant.get("required", ())}
        parts += [_field(f"{name}.{key}", each, inside, level + 1) for key, each in fields.items()]
    return "\n\n".join(parts)


def _joined(text: str) -> str:
    return escaped(" ".join(text.split()))


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in schema:
        return schema
    definition: Mapping[str, Any] = definitions[schema["$ref"].rpartition("/")[2]]
    return definition
