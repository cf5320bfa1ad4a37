"""Man pages of the command line: ``man dsort``, ``man dsort-start``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from docs.generate.sources import Command, Option

__all__ = ["man_pages"]

TOP = "Shuffle, sort and reshard sharded training data."


def man_pages(commands: Sequence[Command], codes: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Names and texts of all pages of section 1, in the macros of man(7)."""
    pages = {"dsort.1": _overview(commands, codes)}
    for each in commands:
        pages[f"{_page(each)}.1"] = _of_command(each)
    return pages


def _page(command: Command) -> str:
    return command.name.replace(" ", "-")


def _head(name: str, in_short: str) -> list[str]:
    title = name.upper().replace("-", r"\-")
    return [
        f'.TH "{title}" "1" "" "dsort" "dsort"',
        ".SH NAME",
        rf"{_text(name)} \- {_text(in_short.rstrip('.'))}",
    ]


def _overview(commands: Sequence[Command], codes: Sequence[tuple[str, str]]) -> str:
    lines = [
        *_head("dsort", TOP),
        ".SH SYNOPSIS",
        r".B dsort",
        _text("COMMAND [OPTIONS] [ARGUMENTS]"),
    ]
    lines.append(".SH COMMANDS")
    for each in commands:
        lines += [".TP", rf"\fB{_text(_page(each))}\fR(1)", _text(each.in_short)]
    lines.append(".SH EXIT STATUS")
    for code, meaning in codes:
        lines += [".TP", rf"\fB{_text(code)}\fR", _text(meaning)]
    return "\n".join(lines) + "\n"


def _of_command(command: Command) -> str:
    lines = [*_head(_page(command), command.in_short), ".SH SYNOPSIS", _text(command.usage)]
    lines.append(".SH DESCRIPTION")
    for paragraph in command.help.split("\n\n"):
        keeps_lines = paragraph.startswith("\b\n")
        text = paragraph.removeprefix("\b\n")
        if keeps_lines:
            lines += [".PP", ".nf", *map(_text, text.splitlines()), ".fi"]
        else:
            lines += [".PP", _text(" ".join(text.split()))]
    for title, entries in (("ARGUMENTS", command.arguments), ("OPTIONS", command.options)):
        if entries:
            lines.append(f".SH {title}")
            lines += [line for each in entries for line in _entry(each)]
    lines += [".SH SEE ALSO", r"\fBdsort\fR(1)"]
    return "\n".join(lines) + "\n"


def _entry(option: Option) -> list[str]:
    return [".TP", rf"\fB{_text(option.written)}\fR", _text(" ".join(option.meaning.split()))]


def _text(text: str) -> str:
    """As roff has it: backslashes and minus signs are meant, and no line is a macro."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"(?m)^([.'])", r"\\&\1", escaped)
