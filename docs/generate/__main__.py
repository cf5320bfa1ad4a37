"""``python -m docs.generate``: write the reference pages again, and the page's examples."""

from __future__ import annotations

from pathlib import Path

from docs.generate import pages, scripts

__all__: list[str] = []

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    written = {f"docs/{name}": text for name, text in pages().items()} | scripts()
    for name, text in written.items():
        path = ROOT / name
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"wrote {name}")
