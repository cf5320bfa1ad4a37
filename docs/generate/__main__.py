"""``python -m docs.generate``: write the reference pages again, and the page's examples."""

from __future__ import annotations

from pathlib import Path

from docs.generate import MAN, manuals, pages, scripts

__all__: list[str] = []

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    written = {f"docs/{name}": text for name, text in pages().items()} | scripts() | manuals()
    for old in sorted((ROOT / MAN).glob("*")):
        if f"{MAN}/{old.name}" not in written:  # of a command that there is no more
            old.unlink()
    for name, text in written.items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"wrote {name}")
