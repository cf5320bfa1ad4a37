"""The build hook of ``dsort-client``: puts modules of dsort into the wheel. These are the modules
that the client and the command line import when they are loaded, and the modules of specs that they
import later. In the wheel, ``dsort.errors`` is ``dsort_client.errors``, and the command ``dsort``
is ``dsort-client``.
"""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["HERE_ONLY", "FilesHook", "files_of", "imports_of", "renamed"]

REPOSITORY = Path(__file__).resolve().parents[2]
STARTS = ("dsort.__main__", "dsort.client", "dsort.builder")
LATER = "dsort.spec."
"""Modules that are in the wheel even if they are imported only when a command runs."""
HERE_ONLY = ("gen-shards", "materialize", "remove", "serve", "verify", "where")
"""Commands that only ``dsort-shards`` has. In texts of the client they keep their names: ``dsort
serve``."""
NAME = re.compile(
    r"^(\s*(?:from|import) )dsort(?=[.\s])"  # imports
    r"|(?<=[\"'])dsort(?=\.\w+\.)"  # modules that are imported by their names
    r"|\bdsort(?=\.(?:(?:Async)?Client|read)\b)",  # names for users, in docstrings
    re.MULTILINE,
)
VERB = re.compile(r"""(?:_Verb\(|^    )"([\w-]+)"(?:, "|: _Group)""", re.MULTILINE)


class FilesHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the files to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds."""
        self._place = tempfile.TemporaryDirectory()
        commands = commands_of(REPOSITORY)
        for path in files_of(REPOSITORY):
            name = path.relative_to(REPOSITORY / "dsort").as_posix()
            made = Path(self._place.name, name)
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_text(renamed(path.read_text(encoding="utf-8"), commands), encoding="utf-8")
            build_data["force_include"][str(made)] = f"dsort_client/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called by hatchling when it has built."""
        self._place.cleanup()


def commands_of(repository: Path) -> re.Pattern[str]:
    """Where a text names a command that the client has, too."""
    table = (repository / "dsort/cli/main.py").read_text(encoding="utf-8")
    verbs = "|".join(sorted({*VERB.findall(table)} - {*HERE_ONLY}))
    return re.compile(rf"\bdsort (?=(?:{verbs})\b)")


def renamed(text: str, commands: re.Pattern[str]) -> str:
    """A module of ``dsort`` as a module of ``dsort_client``."""
    text = NAME.sub(lambda found: f"{found[1] or ''}dsort_client", text)
    return commands.sub("dsort-client ", text)


def files_of(repository: Path) -> list[Path]:
    """The modules of the client, and the packages of these modules."""
    verbs = (f"dsort.cli.{path.stem}" for path in (repository / "dsort/cli").glob("[!_]*.py"))
    found: set[Path] = set()
    left = [*STARTS, *verbs]
    while left:
        name = left.pop()
        path = _file(repository, name)
        if not name or path is None or path in found:  # no module, or a known module
            continue
        found.add(path)
        left.append(name.rpartition(".")[0])
        left += [each for each in imports_of(path) if each.partition(".")[0] == "dsort"]
    return sorted(found - {repository / "dsort/__init__.py"})  # the client has a file of its own


def _file(repository: Path, name: str) -> Path | None:
    base = repository.joinpath(*name.split("."))
    places = (base / "__init__.py", base.with_suffix(".py"))
    return next((each for each in places if each.is_file()), None)


def imports_of(path: Path) -> Iterator[str]:
    """The names that a module imports when it is loaded, and those names of ``LATER`` that it
    imports later. ``from a import b`` gives ``a`` and also ``a.b``, which may be a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield from _names(_run_at_once(tree.body))
    yield from (each for each in _names(ast.walk(tree)) if each.startswith(LATER))


def _names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def _run_at_once(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported. Bodies of functions, and statements that
    only type checkers read, are left out."""
    for each in statements:
        if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING":
            yield from _run_at_once(each.orelse)
        elif isinstance(each, ast.If | ast.Try | ast.With | ast.ClassDef):
            yield from _run_at_once(each.body)
            yield from _run_at_once([*getattr(each, "orelse", ()), *getattr(each, "finalbody", ())])
        else:
            yield each
