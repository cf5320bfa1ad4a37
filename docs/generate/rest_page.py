"""The pages of the service's routes and of a schedule's fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from docs.generate.words import defined, escaped, facts, fields_of, head, type_of

__all__ = ["rest_page", "schedule_page"]

TITLES = {
    "jobs": "Jobs",
    "schedules": "Schedules",
    "data": "Data: buckets, shards, records and members",
    "storage": "Storage",
    "specs": "Specs",
    "access": "Tokens and the audit trail",
    "service": "The service itself",
    "transforms": "Named transforms, with `--aistore`",
    "objects": "Objects, with `--aistore`",
    "aistore": "AIStore's routes, with `--aistore`",
}
INTRODUCTION = """
`dsort serve` answers here; `/openapi.json` is the document that this page is made of.
[The service](../operations/service.md) says how to start one.

Requests carry a token, `Authorization: Bearer …`, unless the service was started with `--no-auth`.
Bodies and answers are JSON unless it is said; a spec or a schedule may be YAML as well. Times are
RFC 3339, UTC. Errors are problem documents (RFC 9457, `application/problem+json`) with the words
of the command line: [Problem](#problem).
"""
ELSEWHERE = {"JobSpec": "[a job spec](spec.md)"}
"""Shapes that have pages of their own."""


def rest_page(document: Mapping[str, Any]) -> str:
    """Every route with what it takes and answers, and the shapes of the answers."""
    shapes = {
        name: shape
        for name, shape in document["components"]["schemas"].items()
        if name not in ELSEWHERE and not name.startswith("Body_")
    }
    parts = [head("REST", "the OpenAPI document of the service"), INTRODUCTION]
    parts += ["## Errors", _errors(document)]
    shown: set[str] = set()
    for tag, title in TITLES.items():
        parts.append(f"## {title}")
        parts += [
            _route(method, path, route, shapes, shown)
            for method, path, route in _routes(document)
            if route["tags"] == [tag]
        ]
    parts.append("## Shapes\n\nAnswers may have more fields than are listed.")
    for name in sorted(shapes):
        said = escaped(" ".join(shapes[name].get("description", "").split()))
        parts += [f"### {name}", said, fields_of(shapes[name], shapes)]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def schedule_page(document: Mapping[str, Any]) -> str:
    """Every field of a schedule, from the body of the route that makes one."""
    body = document["paths"]["/v1/schedules"]["post"]["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    introduction = """
A schedule is a JSON or YAML object for `dsort schedule add [NAME] -f FILE` and for
[`POST /v1/schedules`](rest.md#post-v1-schedules). The options of
[`dsort schedule add`](cli.md#dsort-schedule-add) say the same as the fields.
[Schedules](../operations/service.md#every-night) shows them at work.
"""
    parts = [head("Schedule", "the OpenAPI document of the service"), introduction]
    parts += ["## Fields", fields_of(schema, schema["$defs"], answered=False)]
    parts += ["## Hook", escaped(schema["$defs"]["Hook"]["description"])]
    parts.append(fields_of(schema["$defs"]["Hook"], {}, answered=False))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _routes(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, operations in document["paths"].items():
        for method, route in operations.items():
            if [tag for tag in route["tags"] if tag not in TITLES]:
                raise ValueError(f"docs/generate/rest_page.py has no title for {route['tags']}")
            yield method.upper(), path, route


def _errors(document: Mapping[str, Any]) -> str:
    said: dict[str, str] = {}
    for _, _, route in _routes(document):
        for status, answer in route["responses"].items():
            if status >= "400":
                said.setdefault(status, answer["description"])
    rows = [f"| {status} | {escaped(text)} |" for status, text in sorted(said.items())]
    return "\n".join(["| status | when |", "|---|---|", *rows])


def _route(
    method: str,
    path: str,
    route: Mapping[str, Any],
    shapes: Mapping[str, Any],
    shown: set[str],
) -> str:
    """``shown``: the shapes that have an example further up; those of this route are added."""
    anchor = f"{method} {path}".lower().replace("{", "").replace("}", "")
    anchor = anchor.replace(" /", "-").replace("/", "-")
    parts = [
        f"### {escaped(route['summary'])} {{ #{anchor} }}",
        f"```text\n{method} {path}\n```",
        escaped(" ".join(route.get("description", "").split())),
        "\n".join(_parameter(each) for each in route.get("parameters", ())),
        _body(route, shapes),
        _answers(route, shapes),
        _example(route, shown),
    ]
    return "\n\n".join(part for part in parts if part)


def _parameter(parameter: Mapping[str, Any]) -> str:
    places = {"path": "in the path", "query": "query", "header": "header"}
    required = parameter.get("required", False)
    line = facts(parameter["schema"], {}, required=required, before=places[parameter["in"]])
    return defined(f"`{parameter['name']}`", line, escaped(parameter.get("description", "")))


def _body(route: Mapping[str, Any], shapes: Mapping[str, Any]) -> str:
    body = route.get("requestBody")
    if body is None:
        return ""
    kinds = " or ".join("`" + kind + "`" for kind in body["content"])
    media = next(iter(body["content"].values()))
    schema = media.get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    made = escaped(body.get("description", ""))
    if name in ELSEWHERE:
        made = ELSEWHERE[name]
    elif name in shapes:
        made = f"[{name}](#{name.lower()})"
    elif "cron" in schema.get("properties", {}):
        made = "[a schedule](schedule.md)"
    example = media.get("example")
    if not made and example is not None:
        made = f"like `{json.dumps(example, ensure_ascii=False)}`"
    return f"**Body** ({kinds}): {made.removesuffix('.')}."


def _answers(route: Mapping[str, Any], shapes: Mapping[str, Any]) -> str:
    rows, errors = [], []
    for status, answer in route["responses"].items():
        if status >= "400":
            errors.append(status)
            continue
        said = answer.get("description", "")
        content: dict[str, Any] = answer.get("content") or {"": {}}
        kind, media = next(iter(content.items()))
        shape = type_of(media.get("schema", {}), shapes)
        if not shape.startswith("["):  # no shape that has a name
            shape = f"`{kind}`" if kind not in ("", "application/json") else ""
        plain = "" if said == "Successful Response" else escaped(said.removesuffix("."))
        rows.append(f"**{status}** " + ": ".join(part for part in (shape, plain) if part))
    answers = "; ".join(row.strip() for row in rows)
    return f"**Answers** {answers}. Errors: {', '.join(errors)}."


def _example(route: Mapping[str, Any], shown: set[str]) -> str:
    for status, answer in sorted(route["responses"].items(), reverse=True):
        for media in answer.get("content", {}).values():
            if status < "300" and media.get("example") is not None:
                shape = media.get("schema", {}).get("$ref", "")
                if shape in shown:
                    return ""
                shown |= {shape} - {""}
                example = media["example"]
                text, tag = json.dumps(example, indent=2, ensure_ascii=False), "json"
                if isinstance(example, str):
                    text, tag = example.strip("\n"), "text"
                lines = [f"```{tag}", *text.splitlines(), "```"]
                return "\n".join(
                    [f'??? example "Example ({status})"', "", *(f"    {e}" for e in lines)]
                )
    return ""
