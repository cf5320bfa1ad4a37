"""The page of a job spec's fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from docs.generate.words import escaped, examples_of, facts, head

__all__ = ["spec_page"]

INTRODUCTION = """
A spec is a JSON or YAML object. This page lists each field with its type, its limits and its
default. [Writing a spec](../specs.md) is ordered by task. `dsort spec check` checks a spec and
prints all of its problems at once. `dsort spec schema` prints the JSON Schema of this page.
"""
GROUPS: dict[str, tuple[str, ...]] = {
    "Inputs": (
        "input_bck",
        "input_format",
        "inputs",
        "ingest",
        "mix",
        "join",
        "input_extension",
        "key_field",
        "max_expansion",
    ),
    "Outputs": (
        "output_bck",
        "output_format",
        "output_extension",
        "output_shard_size",
        "output_shard_size_is",
        "output_shard_size_counts",
        "output_shard_records",
        "output_shard_count",
        "equalize",
        "keep_shards",
        "split",
        "outputs",
        "split_by",
        "exact",
        "stratify",
        "strip_final_newline",
        "member_defaults",
        "output_compression_level",
        "output_compression",
        "row_group_rows",
        "row_group_bytes",
        "lineage",
        "output",
        "overwrite",
        "remove_stale",
        "index",
    ),
    "Steps": ("require", "transform", "deduplicate"),
    "Order": ("algorithm",),
    "External key map": ("ekm", "ekm_file", "ekm_file_sep", "ekm_default", "compatibility"),
    "Reactions": (
        "missing_shards",
        "corrupt_shards",
        "incomplete_shards",
        "concatenated_shards",
        "duplicated_records",
        "duplicate_keys",
        "stray_members",
        "unsafe_names",
        "ekm_malformed_line",
        "ekm_missing_key",
    ),
    "The job": (
        "description",
        "dry_run",
        "verify",
        "amend",
        "on_shard",
        "on_success",
        "on_failure",
        "max_mem_usage",
        "default_max_mem_usage",
        "extract_concurrency_max_limit",
        "create_concurrency_max_limit",
    ),
}
"""Which fields go together."""
LAST = "Kept for AIStore's sake"


def spec_page(schema: Mapping[str, Any]) -> str:
    """Every field of a spec, by group."""
    fields: dict[str, Any] = schema["properties"]
    grouped = {name for names in GROUPS.values() for name in names}
    if unknown := grouped - fields.keys():
        raise ValueError(f"docs/generate/spec_page.py groups fields that are gone: {unknown}")
    rest = tuple(name for name in fields if name not in grouped)
    if new := [name for name in rest if name != "Config" and not fields[name].get("deprecated")]:
        raise ValueError(f"docs/generate/spec_page.py has no group for the fields {new}")
    groups = {**GROUPS, LAST: rest}
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
