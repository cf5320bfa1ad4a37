"""What each command of the list has: ``--json`` where it prints, ``--server`` where a service has a
route for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from docs.generate.sources import openapi_document
from dsort.cli.main import whole_app

WITHOUT_JSON: Final = {
    "cat": "writes the bytes of a shard, and nothing else",
    "view export": "writes JSON lines, or requests in JSON",
    "serve": "runs until it is stopped; --url-file has its address",
}
WITHOUT_SERVER: Final = {
    "verify": "no route reads inputs and outputs again; `verify` of a spec does, in the job",
    "where": "no route reads lineages",
    "materialize": "no route copies shards; the spec of a view without `output: view` writes them",
    "view export": "has all ranges of a record; the pages of the route for them are bounded",
    "remove": "no route finds the shards that hold some keys, which the job's spec needs",
    "serve": "is the service",
    "gen-shards": "no route writes test shards",
}
SUBMITTING: Final = dict.fromkeys(
    ("shuffle", "sort", "reshard", "convert", "ingest", "transform", "append", "start", "plan"),
    "POST /v1/jobs",
)
ROUTES: Final = {
    **SUBMITTING,
    "show": "GET /v1/jobs/{job_id}",
    "log": "GET /v1/jobs/{job_id}/log",
    "wait": "GET /v1/jobs/{job_id}/events",
    "stop": "POST /v1/jobs/{job_id}/stop",
    "resume": "POST /v1/jobs/{job_id}/resume",
    "rm": "DELETE /v1/jobs/{job_id}",
    "gc": "GET /v1/garbage/{bucket}",
    "ls": "GET /v1/listings/{bucket}",
    "inspect": "GET /v1/records/{bucket}/{name}",
    "cat": "GET /v1/objects/{bucket}/{name}",
    "urls": "GET /v1/objects/{bucket}/{name}",
    "schedule add": "POST /v1/schedules",
    "schedule ls": "GET /v1/schedules",
    "schedule show": "GET /v1/schedules/{name}",
    "schedule pause": "POST /v1/schedules/{name}/pause",
    "schedule resume": "POST /v1/schedules/{name}/resume",
    "schedule run": "POST /v1/schedules/{name}/run-now",
    "schedule rm": "DELETE /v1/schedules/{name}",
    "token add": "POST /v1/tokens",
    "token ls": "GET /v1/tokens",
    "token rm": "DELETE /v1/tokens/{name}",
    "transforms add": "PUT /v1/transforms/{name}",
    "transforms ls": "GET /v1/transforms",
    "transforms show": "GET /v1/transforms/{use}",
    "transforms rm": "DELETE /v1/transforms/{use}",
    "spec check": "POST /v1/validate",
    "spec schema": "GET /v1/schema",
}


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for inner, each in command.commands.items():
            yield from commands(f"{name} {inner}".strip(), each)
    else:
        yield name, command


COMMANDS: Final = dict(commands("", whole_app()))


def options_of(name: str) -> set[str]:
    return {text for param in COMMANDS[name].params for text in param.opts}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_prints_has_json(name: str) -> None:
    assert ("--json" in options_of(name)) == (name not in WITHOUT_JSON)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_with_a_route_has_server(name: str) -> None:
    assert ("--server" in options_of(name)) == (name in ROUTES)
    assert (name in ROUTES) != (name in WITHOUT_SERVER)


def test_the_routes_are_those_of_the_service() -> None:
    paths = openapi_document()["paths"]
    known = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert set(ROUTES.values()) <= known


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_each_default_in_brackets(name: str) -> None:
    context = COMMANDS[name].make_context(name, [], resilient_parsing=True)
    for param in COMMANDS[name].params:
        _, help_ = param.get_help_record(context) or ("", "")
        assert "Default:" not in help_
        if param.required or param.param_type_name == "argument" or param.is_flag:
            continue
        if param.get_default(context):
            assert "[default: " in help_


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_has_one_metavar_for_one_kind_of_value(name: str) -> None:
    metavars = {param.metavar for param in COMMANDS[name].params}
    assert not metavars & {"SPAN", "AGE", "REACTION", "DATASET"}
