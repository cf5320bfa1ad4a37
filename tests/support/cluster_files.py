"""Reads the files in ``cluster/`` and parses their parts: manifests, commands, versions."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from dsort.version import dsort_version
from tests.support.commands import ROOT

CLUSTER = ROOT / "cluster"
_VERBS = ("dsort", "ray")


def read_text(name: str) -> str:
    """A file of ``cluster/``, or with ``../`` of the repository."""
    return (CLUSTER / name).read_text(encoding="utf-8")


def read_json(name: str) -> Any:
    return json.loads(read_text(name))


def read_yaml(name: str) -> Any:
    (document,) = read_documents(read_text(name))
    return document


def read_documents(text: str) -> Iterator[Any]:
    """The documents of a YAML text, parsed in C where PyYAML can: each test process reads all
    manifests to collect its tests."""
    return yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def image(target: str) -> str:
    """The part of the Dockerfile that makes a target, without the stages that it comes from."""
    stages = re.split(r"(?m)^(?=FROM )", read_text("Dockerfile"))
    return next(each for each in stages if each.splitlines()[0].endswith(f" AS {target}"))


def read_unit(name: str = "dsort.service") -> dict[str, list[str]]:
    """The settings of a systemd unit. A setting that appears twice has two values."""
    found: dict[str, list[str]] = {}
    for field, value in re.findall(r"(?m)^([A-Z]\w+)=(.*)$", read_text(f"systemd/{name}")):
        found.setdefault(field, []).append(value)
    return found


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    """All Kubernetes objects in ``cluster/kuberay/``, with the file each is in."""
    for path in sorted((CLUSTER / "kuberay").glob("*.yaml")):
        for document in read_documents(path.read_text(encoding="utf-8")):
            yield path.name, document


def namespaces_let_in(policy: dict[str, Any]) -> list[str]:
    """The other namespaces whose pods a NetworkPolicy lets in; "*" for all of them."""
    peers = [peer for rule in policy["ingress"] for peer in rule.get("from", [{}])]
    selectors = [peer.get("namespaceSelector") for peer in peers if set(peer) != {"podSelector"}]
    return [
        (each or {}).get("matchLabels", {}).get("kubernetes.io/metadata.name", "*")
        for each in selectors
    ]


def of_kind(kind: str) -> dict[str, Any]:
    """The object of this kind in ``cluster/kuberay/``, the first if there are several."""
    return next(each for _, each in manifests() if each["kind"] == kind)


def validate(document: object, kind: str) -> None:
    """``jsonschema.ValidationError`` if ``document`` has fields that its ``kind`` does not have."""
    schemas = _schemas()
    jsonschema.Draft202012Validator({**schemas[kind], "$defs": schemas["$defs"]}).validate(document)


@cache
def _schemas() -> Any:
    return yaml.safe_load(Path(__file__).with_name("cluster_schemas.yaml").read_text("utf-8"))


def walk(value: object) -> Iterator[dict[str, Any]]:
    """All objects in a document, however deep."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from walk(item)


@cache
def project() -> Any:
    """``pyproject.toml``, with the version that it takes from the code."""
    document = tomllib.loads(read_text("../pyproject.toml"))
    return {**document, "project": {**document["project"], "version": dsort_version()}}


def locked_versions(name: str) -> dict[str, set[str]]:
    """The versions of each package that a lock allows (several: one for each Python)."""
    found: dict[str, set[str]] = {}
    for package, version in re.findall(r"(?m)^([a-z0-9-]+)==([^\s;]+)", read_text(name)):
        found.setdefault(package, set()).add(version)
    return found


def command_lines(text: str) -> list[list[str]]:
    """The calls of dsort and of ray in a shell command, a ``CMD`` or a README, as words.

    The command that ``ray job submit`` runs (after ``--``) is a further call.
    """
    calls: list[list[str]] = []
    text = re.sub(r"\$\(date [^)]*\)", "20260131", text)  # as the shell expands it
    for part in re.split(r";|&&|\|\||(?<!\\)\n", text):
        part = part.replace("\\\n", " ").strip()
        if not re.match(r"(dsort|ray)\s", part):
            continue
        words = shlex.split(part, comments=True)
        inner = words[words.index("--") + 1 :] if "--" in words else []
        calls += [each for each in (words, inner) if each and each[0] in _VERBS]
    return calls


def dsort_commands(text: str) -> list[str]:
    """The calls of dsort in a text, also in comments and after other commands (``sudo -u
    dsort``)."""
    return re.findall(
        r"(?<![\w/.-])(?:/opt/dsort/bin/)?(dsort (?:serve|token|start) [^\n#]*)", text
    )


def parse_command(words: list[str]) -> None:
    """Parse ``words`` with the real command line of dsort or ray, and do nothing else.

    ``ValueError`` with the program's own message if the program would refuse them.
    """
    import click

    try:
        _parse(words)
    except click.ClickException as error:
        raise ValueError(f"{shlex.join(words)}: {error}") from error


def _parse(words: list[str]) -> None:
    if words[0] == "dsort":
        from dsort.cli.main import whole_app

        command: Any = whole_app()
    else:
        from ray.scripts.scripts import cli

        command = cli
    arguments = words[1:]
    context = None
    while hasattr(command, "commands"):
        verb, *arguments = arguments
        if verb not in command.commands:
            raise ValueError(f"{words[0]} has no {verb}")
        command = command.commands[verb]
        context = command.context_class(command, info_name=verb, parent=context)
    options = dict(command.context_settings)
    command.make_context(words[0], arguments, parent=context and context.parent, **options)
