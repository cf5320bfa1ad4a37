"""``dsort/web/static/examples.js``: the specs of ``specs/`` as what the editor begins with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

__all__ = ["TEMPLATES_SCRIPT", "templates_script"]

TEMPLATES_SCRIPT: Final = "dsort/web/static/examples.js"
SPECS: Final = Path(__file__).resolve().parents[2] / "specs"
_ROW: Final = re.compile(r"^\| \[([^]/]+)\]\(\1\) \| (.*?) \| (.*?) ?\|$", re.MULTILINE)
_LEFT_OUT: Final = ("annotate", "image-folder", "blog-post")
"""They run a program, or read loose files, of this machine: no service takes them. And one shows
names of older versions."""
_HEAD: Final = """\
/* Specs to start from: those of specs/, written by `make docs`. Each has a title and its text. */
export const EXAMPLES = [
"""


def templates_script() -> str:
    """The script: [title, text] of each spec that needs no file beside it."""
    beside = [
        each.name
        for each in SPECS.iterdir()
        if each.suffix not in (".json", ".yaml") and each.is_file()
    ]
    lines = []
    for name, shows, _ in _ROW.findall((SPECS / "README.md").read_text("utf-8")):
        text = (SPECS / name).read_text("utf-8")
        if name.startswith(_LEFT_OUT) or any(other in text for other in beside):
            continue
        title = f"{name.partition('.')[0]}: {_title(shows)}"
        lines.append(f"  {json.dumps([title, text], ensure_ascii=False)},\n")
    return f"{_HEAD}{''.join(lines)}];\n"


def _title(shows: str) -> str:
    """What the table says of a spec, up to the first semicolon, as plain text."""
    return re.sub(r"[`*]", "", shows.partition(";")[0]).strip()
