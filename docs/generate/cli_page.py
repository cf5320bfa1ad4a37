"""The page of the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from docs.generate.sources import Command, Option
from docs.generate.words import defined, escaped, head, muted, paragraphs

__all__ = ["cli_page"]

INTRODUCTION = """
Data goes to standard output, everything else to standard error. `--json` prints results as JSON.
All commands take URIs where a bucket, a shard or a manifest is meant. `dsort COMMAND --help` says
the same as this page; [Running jobs](../running.md) has the commands by task.
"""


def cli_page(commands: Sequence[Command], codes: Sequence[tuple[str, str]]) -> str:
    """Every verb with every option, and the exit codes."""
    parts = [head("Command line", "the options of the commands"), INTRODUCTION, _overview(commands)]
    parts += [_section(each) for each in commands]
    parts.append("## Exit codes\n\n| code | meaning |\n|---|---|")
    parts += [f"| {code} | {escaped(meaning)} |" for code, meaning in codes]
    return "\n".join(parts) + "\n"


def _overview(commands: Sequence[Command]) -> str:
    rows = [
        f"| [`{each.name}`](#{each.name.replace(' ', '-')}) | {escaped(each.in_short)} |"
        for each in commands
    ]
    return "\n".join(["| command | does |", "|---|---|", *rows, ""])


def _section(command: Command) -> str:
    parts = [
        f"## `{command.name}` {{ #{command.name.replace(' ', '-')} }}",
        paragraphs(command.help),
        f"```text\n{command.usage}\n```",
    ]
    if command.arguments:
        parts.append("\n".join(map(_entry, command.arguments)))
    parts.append("\n".join(map(_entry, command.options)))
    return "\n\n".join(parts)


def _entry(option: Option) -> str:
    """``[default: one a core]  [x>=1]`` become a line of their own."""
    meaning, *brackets = re.split(r"\s{2,}\[", option.meaning)
    extras = [each.removesuffix("]") for each in brackets]
    if not brackets and re.fullmatch(r"\[[^]]*\]", meaning):
        meaning, extras = "", [meaning[1:-1]]
    said = [_extra(part) for each in extras for part in each.split("; ")]
    return defined(f"`{option.written}`", escaped(meaning), muted(*said) if said else "")


def _extra(text: str) -> str:
    name, colon, value = text.partition(": ")
    if text == "required":
        return "**required**"
    if colon and name in ("default", "env var"):
        value = f"`{value}`" if " " not in value else escaped(value)
        return f"{'environment' if name == 'env var' else name}: {value}"
    return f"`{text}`"
