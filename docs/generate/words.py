"""Texts and JSON Schemas in the words of a page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = [
    "defined",
    "escaped",
    "examples_of",
    "facts",
    "fields_of",
    "head",
    "muted",
    "paragraphs",
    "type_of",
]

INLINE = re.compile(r"(`[^`]*`)")
TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "object",
    "null": "null",
}
UNBOUNDED = 2**63 - 1
"""The text of a schema for a bound that no user meets."""


def head(title: str, source: str) -> str:
    """The top of a generated page."""
    return f"<!-- Written by `make docs` from {source}: change that, not this. -->\n\n# {title}\n"


def escaped(text: str) -> str:
    """``text`` as Markdown that shows it as it is; code in backticks stays code."""
    parts = INLINE.split(text.replace("``", "`"))
    return "".join(
        part if part.startswith("`") else re.sub(r"([\\*_\[\]|])", r"\\\1", _no_tags(part))
        for part in parts
    )


def _no_tags(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def paragraphs(text: str) -> str:
    """A docstring: its paragraphs with their lines joined, those that click's ``\\b`` marks as
    code."""
    made = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if "\b" in paragraph:
            title, *lines = paragraph.replace("\b", "").strip("\n").splitlines()
            body = "\n".join(line.removeprefix("  ") for line in lines)
            made.append(f"{title}\n\n```console\n{body}\n```")
        else:
            made.append(escaped(" ".join(paragraph.split())))
    return "\n\n".join(made)


def defined(term: str, *lines: str) -> str:
    """An entry of a list of definitions."""
    first, *others = [line for line in lines if line]
    return "\n".join([term, f":   {first}", *(f"\n    {line}" for line in others), ""])


def type_of(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """What values a field takes, in a few words; a definition is named, with a link to it."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if name in definitions else "object"
    if "enum" in schema or "const" in schema:
        values = schema.get("enum") or [schema["const"]]
        shown = ", ".join(f"`{each}`" if each else "an empty text" for each in values)
        return "one of " * (len(values) > 1) + shown
    if "anyOf" in schema:
        kinds = [type_of(each, definitions) for each in schema["anyOf"]]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
    kind = schema.get("type")
    if kind == "array":
        return f"list of {type_of(schema.get('items', {}), definitions)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {type_of(schema['additionalProperties'], definitions)}"
    return TYPES.get(str(kind), "anything")


def facts(
    schema: Mapping[str, Any],
    definitions: Mapping[str, Any],
    *,
    required: bool = False,
    nullable: bool = False,
    before: str = "",
) -> str:
    """The line below a field's name: type, bounds, default. ``nullable``: whether null has a
    meaning of its own there (in answers; in what users write it is the same as nothing)."""
    said = [*([before] * bool(before)), type_of(schema, definitions), *_bounds(schema)]
    if required:
        said.append("**required**")
    elif schema.get("default") not in (None, "", [], {}):
        said.append(f"default `{json.dumps(schema['default'], ensure_ascii=False)}`")
    if nullable and any(each.get("type") == "null" for each in schema.get("anyOf", ())):
        said.append("may be null")
    if schema.get("deprecated"):
        said.append("*has no effect*")
    return muted(*said)


def muted(*said: str) -> str:
    """Facts in a line, less prominent than what a field means."""
    return f'<span class="facts">{" · ".join(said)}</span>'


def _bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    for each in (schema, *schema.get("anyOf", ())):
        low, high = each.get("minimum"), each.get("maximum")
        if low is not None:
            yield f"at least {low:,.16g}"
        if high is not None and high < UNBOUNDED:
            yield f"at most {high:,.16g}"
        if "maxLength" in each:
            yield f"at most {each['maxLength']:,} characters"


def examples_of(schema: Mapping[str, Any]) -> str:
    """A sentence with the examples of a field, if it has any."""
    shown = [f"`{json.dumps(each, ensure_ascii=False)}`" for each in schema.get("examples", ())]
    return f"For example {', '.join(shown)}." if shown else ""


def fields_of(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], *, answered: bool = True
) -> str:
    """The fields of an object as a list of definitions. ``answered``: of an answer, and not of
    what users write."""
    made = []
    required = () if answered else schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        line = facts(field, definitions, required=name in required, nullable=answered)
        said = escaped(field.get("description", ""))
        examples = "" if answered else examples_of(field)
        made.append(defined(f"`{name}`", line, said, examples))
    return "\n".join(made)
