"""The build hook of ``dsort-client``: puts those modules of dsort into its wheel that the client
and the command line import when they are loaded, and a few that they import when they run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["FilesHook", "files_of", "imports_of"]

REPOSITORY = Path(__file__).resolve().parents[2]
STARTS = ("dsort", "dsort.__main__", "dsort.client")
LOADED_LATER = (
    "dsort.builder",
    "dsort.log_lines",
    "dsort.spec.field_problems",
    "dsort.spec.ingest",
    "dsort.spec.load",
    "dsort.spec.outputs",
    "dsort.spec.transform",
    "dsort.spec.schema",
    "dsort.spec.yaml_text",
    "dsort.version",
)
OF_CLIENT = "dsort-client.txt"
"""What tells dsort that it is this distribution (``dsort/installation.py``)."""


class FilesHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the files to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds."""
        included = build_data["force_include"]
        for path in files_of(REPOSITORY):
            included[str(path)] = path.relative_to(REPOSITORY).as_posix()
        included[str(REPOSITORY / "dsort/py.typed")] = "dsort/py.typed"
        included[str(Path(__file__).with_name(OF_CLIENT))] = f"dsort/{OF_CLIENT}"


def files_of(repository: Path) -> list[Path]:
    """The modules, and the packages that they are in."""
    verbs = (f"dsort.cli.{path.stem}" for path in (repository / "dsort/cli").glob("[!_]*.py"))
    found: set[Path] = set()
    left = [*STARTS, *LOADED_LATER, *verbs]
    while left:
        name = left.pop()
        path = _file(repository, name)
        if not name or path is None or path in found:  # a name in a module, or known
            continue
        found.add(path)
        left.append(name.rpartition(".")[0])
        left += [each for each in imports_of(path) if each.partition(".")[0] == "dsort"]
    return sorted(found)


def _file(repository: Path, name: str) -> Path | None:
    base = repository.joinpath(*name.split("."))
    places = (base / "__init__.py", base.with_suffix(".py"))
    return next((each for each in places if each.is_file()), None)


def imports_of(path: Path) -> Iterator[str]:
    """The names that a module imports when it is loaded, and of ``from a import b`` also ``a.b``,
    which may be a module."""
    for node in _run_at_once(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def _run_at_once(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements outside functions, and those that only type checkers read left out."""
    for each in statements:
        if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING":
            yield from _run_at_once(each.orelse)
        elif isinstance(each, ast.If | ast.Try | ast.With | ast.ClassDef):
            yield from _run_at_once(each.body)
            yield from _run_at_once([*getattr(each, "orelse", ()), *getattr(each, "finalbody", ())])
        else:
            yield each
