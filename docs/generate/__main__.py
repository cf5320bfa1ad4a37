"""``python -m docs.generate``: write the pages of docs/reference/ again."""

from __future__ import annotations

from pathlib import Path

from docs.generate import pages

__all__: list[str] = []

DOCS = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    for name, text in pages().items():
        path = DOCS / name
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"wrote docs/{name}")
