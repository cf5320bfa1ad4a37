"""Classes of the engine have few fields: what belongs together is a value of its own."""

from __future__ import annotations

import ast
from pathlib import Path

import dsort

PACKAGE = Path(dsort.__file__).parent
ENGINE = (
    *("data", "job", "keymap", "moves", "naming", "order", "pipeline", "reading", "results"),
    *("runtime", "scratch", "transforms", "verification", "workers"),
)
FIELDS_MAX = 12


def test_no_class_of_the_engine_has_many_fields() -> None:
    wrong = []
    for path in (path for room in ENGINE for path in (PACKAGE / room).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)):
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            count = sum("ClassVar" not in ast.unparse(each.annotation) for each in fields)
            if count > FIELDS_MAX:
                wrong.append(f"{path.relative_to(PACKAGE)}: {node.name} has {count} fields")
    assert wrong == []
