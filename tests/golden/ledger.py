"""The ledger: each field of a spec, command and route that there was before the engine was made
anew, what became of it, and a test file that uses it.

``python -m tests.golden.ledger`` adds lines for what is new. A line is never removed: what moves or
goes gets another status, and the commit says why.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

__all__ = ["LEDGER", "STATUSES", "Line", "lines", "mentions", "names"]

TESTS: Final = Path(__file__).resolve().parents[1]
LEDGER: Final = Path(__file__).parent / "ledger.csv"
STATUSES: Final = ("kept", "moved", "dropped")


@dataclass(frozen=True)
class Line:
    """``kind``: field, command or route. ``test``: a file below ``tests``."""

    kind: str
    name: str
    status: str
    test: str


def lines() -> list[Line]:
    """The ledger as it is written."""
    with LEDGER.open(newline="") as file:
        _, *rows = csv.reader(file)
    return [Line(*row) for row in rows]


def names() -> Iterator[tuple[str, str]]:
    """(kind, name) of each field, command and route that there is."""
    from docs.generate.sources import command_line, openapi_document, spec_schema

    schema = spec_schema()
    for name in schema["properties"]:
        yield "field", name
    for title, definition in schema.get("$defs", {}).items():
        for name in definition.get("properties", {}):
            yield "field", f"{title}.{name}"
    for command in command_line():
        yield "command", command.name
    for path, methods in openapi_document()["paths"].items():
        for method in methods:
            if method in ("get", "put", "post", "delete", "patch", "head"):
                yield "route", f"{method.upper()} {path}"


def mentions(kind: str, name: str, text: str) -> bool:
    """Whether the ``text`` of a test uses it."""
    return re.search(_pattern(kind, name), text) is not None


@cache
def _pattern(kind: str, name: str) -> str:
    if kind == "field":
        leaf = re.escape(name.rpartition(".")[2])
        return rf"[\"'.]{leaf}[\"'.:]|\b{leaf}="
    if kind == "command":
        words = [re.escape(word) for word in name.split()[1:]]
        quoted = '", *"'.join(words)
        return rf'\bdsort {" ".join(words)}\b|"{quoted}"'
    path = name.split()[1]
    parts = [re.escape(part) for part in re.split(r"\{[^}]*\}", path)]
    return r"[^/\s\"]+".join(parts)


def _found_test(kind: str, name: str, texts: Mapping[str, str]) -> str:
    for path, text in texts.items():
        if mentions(kind, name, text):
            return path
    return ""


def _main() -> None:
    known = {(line.kind, line.name): line for line in lines()} if LEDGER.exists() else {}
    order = ("jobs", "contract", "laws", "faults", "unit")
    paths = [path for folder in order for path in sorted(TESTS.glob(f"*/{folder}/test_*.py"))]
    texts: dict[str, Any] = {str(path.relative_to(TESTS)): path.read_text() for path in paths}
    for kind, name in names():
        if (kind, name) not in known:
            known[kind, name] = Line(kind, name, "kept", _found_test(kind, name, texts))
    with LEDGER.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Line)])
        writer.writerows(astuple(known[each]) for each in sorted(known))


if __name__ == "__main__":
    _main()
