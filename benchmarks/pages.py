"""Writes measured figures into the pages that quote them: ``-m benchmarks.pages``.

What stands between ``<!-- measured: NAME -->`` and ``<!-- end of NAME -->`` is made of
``benchmarks/results``; a block of which there is no result stays as it is. A test compares pages
with results, so no figure in a block can be written by hand, and another finds figures outside.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from benchmarks.measure import REPOSITORY
from benchmarks.page_blocks import BLOCKS
from benchmarks.page_parts import Results

__all__ = ["BLOCK", "PAGES", "RESULTS", "main", "read_results", "updated"]

PAGES = (
    *("README.md", "docs/index.md", "docs/guarantees.md", "docs/performance.md", "docs/loader.md"),
    *("docs/operations/clusters.md", "docs/operations/deploy.md"),
)
RESULTS = REPOSITORY / "benchmarks" / "results"
BEGIN = re.compile(r"<!-- measured: (?P<name>[\w-]+) -->")
BLOCK = re.compile(BEGIN.pattern + r"(?P<content>.*?)<!-- end of (?P=name) -->", re.DOTALL)


def read_results(directory: Path) -> dict[str, dict[str, Any]]:
    """All results in a directory, by suite."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))}


def updated(text: str, results: Results) -> str:
    """A page with the figures of ``results`` in its blocks. ``ValueError`` for a block without an
    end, or of a name that nobody knows."""
    ended = {match.start() for match in BLOCK.finditer(text)}
    for begin in BEGIN.finditer(text):
        if begin.start() not in ended or begin["name"] not in BLOCKS:
            raise ValueError(f"{begin[0]} has no end, or is none of {', '.join(BLOCKS)}")

    def filled(block: re.Match[str]) -> str:
        name, content = block["name"], BLOCKS[block["name"]](results)
        if content is None:
            return block[0]
        return f"<!-- measured: {name} -->{content}<!-- end of {name} -->"

    return BLOCK.sub(filled, text)


def main(arguments: list[str] | None = None) -> None:
    """Write all blocks of which there are results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    results = read_results(parser.parse_args(arguments).results)
    for name in PAGES:
        page = REPOSITORY / name
        text = page.read_text()
        if (now := updated(text, results)) != text:
            page.write_text(now)
            print(name)


if __name__ == "__main__":
    main()
