"""Where the reference pages come from. The only module here that imports dsort."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsort.cli.exits import exit_table
from dsort.cli.main import whole_app
from dsort.options import RunOptions
from dsort.service.aistore.guest import AistoreGuest
from dsort.service.api.app import create_app
from dsort.service.config import ServiceConfig
from dsort.service.service import Service
from dsort.spec.model import schema

__all__ = ["Command", "Option", "command_line", "exit_codes", "openapi_document", "spec_schema"]


@dataclass(frozen=True)
class Option:
    """An argument or an option: how it is written, and what it means with its default."""

    written: str
    meaning: str


@dataclass(frozen=True)
class Command:
    """A verb: ``dsort start``. ``help`` is the text of ``--help``, with click's ``\\b`` before
    paragraphs that keep their lines."""

    name: str
    usage: str
    in_short: str
    help: str
    arguments: tuple[Option, ...]
    options: tuple[Option, ...]


def spec_schema() -> dict[str, Any]:
    """What ``dsort spec schema`` prints."""
    return dict(schema())


def exit_codes() -> list[tuple[str, str]]:
    """Exit codes with their meanings."""
    return exit_table()


def command_line() -> list[Command]:
    """All verbs in the order of ``dsort --help``, those of groups behind them."""
    return [each for name, verb in whole_app().commands.items() for each in _commands(name, verb)]


def openapi_document() -> dict[str, Any]:
    """What a service answers at ``/openapi.json``."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "data").mkdir()
        config = ServiceConfig(
            run=RunOptions(root=place / "data"),
            state_dir=place / "state",
            database_url=f"sqlite:///{place}/service.db",
            replica="docs",
        )
        with Service(config, AistoreGuest()) as service:
            return create_app(service).openapi()


def _commands(name: str, verb: Any) -> list[Command]:
    if hasattr(verb, "commands"):
        return [
            each
            for inner, part in verb.commands.items()
            for each in _commands(f"{name} {inner}", part)
        ]
    context = verb.make_context(f"dsort {name}", [], resilient_parsing=True)
    shown = [
        (param.param_type_name, Option(*record))
        for param in verb.get_params(context)
        if (record := param.get_help_record(context)) is not None
    ]
    return [
        Command(
            name=f"dsort {name}",
            usage=" ".join([f"dsort {name}", *verb.collect_usage_pieces(context)]),
            in_short=verb.short_help or "",
            help=verb.help or "",
            arguments=tuple(each for kind, each in shown if kind == "argument"),
            options=tuple(each for kind, each in shown if kind == "option"),
        )
    ]
