"""``python -m docs.generate.pictures``: draws a terminal, the page and the mixing of a job."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tempfile
from math import sqrt
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.support.chromium import chromium

PICTURES = Path(__file__).parents[1] / "pictures"
COLUMNS = 80
COMMANDS = (
    "dsort gen-shards 'images/samples-{00..18}.tar' --fcount 100 --fsize 50KB --fext jpg,cls",
    "dsort shuffle images shuffled --shard-size 10MB --seed 42",
    "dsort verify shuffled",
)
PAGE = {"width": 1100, "height": 1400}
CELL = 14
HEAT_STYLE = (
    "text{font:14px sans-serif;fill:#555}.cell{fill:#1f6f8b}.frame{fill:none;stroke:#999}"
    "@media(prefers-color-scheme:dark){text{fill:#bbb}.cell{fill:#5cc4e6}}"
)
"""Pages show the heat maps as an image, which follows the light or dark scheme of the reader."""


def _run(command: str, directory: str) -> str:
    """The output of a command, both streams in the order in which they were written."""
    words = ["bash", "-c", command]
    ended = subprocess.run(
        words,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "COLUMNS": str(COLUMNS)},
    )
    return ended.stdout.replace(f"{directory}/", "/data/").rstrip()


def _heat_map(counts: list[list[int]], left: int, top: int) -> list[str]:
    """A cell for each pair of an input shard (row) and an output shard (column): the stronger, the
    more of the records of the input shard are in the output shard.

    The strength is the root of the share. With the share itself, an even spread over many output
    shards would look like an empty map.
    """
    cells = []
    for row, line in enumerate(counts):
        for column, count in enumerate(line):
            share = count / max(sum(line), 1)
            place = f'x="{left + column * CELL}" y="{top + row * CELL}"'
            size = f'width="{CELL}" height="{CELL}"'
            if share:
                paint = f'class="cell" fill-opacity="{sqrt(share):.3f}"'
                cells.append(f"<rect {place} {size} {paint}/>")
    return cells


def heat_maps(before: list[list[int]], after: list[list[int]]) -> str:
    """Both heat maps side by side, as SVG."""
    height, side, gap, margin = len(before) * CELL, len(before[0]) * CELL, 60, 30
    width = 2 * side + gap + 2 * margin
    size = f'viewBox="0 0 {width} {height + 2 * margin + 10}" width="{width}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        "<title>Records of each input shard (rows) in each output shard (columns)</title>",
        f"<style>{HEAT_STYLE}</style>",
    ]
    for counts, left, words in (
        (before, margin, "before: input order"),
        (after, margin + side + gap, "after: dsort shuffle"),
    ):
        parts += [
            f'<text x="{left}" y="{margin - 10}">{words}</text>',
            f'<rect class="frame" x="{left}" y="{margin}" width="{side}" height="{height}"/>',
            *_heat_map(counts, left, margin),
            f'<text x="{left}" y="{margin + height + 20}">output shards &#8594;</text>',
            f'<text text-anchor="end" transform="translate({left - 10} {margin}) rotate(-90)">'
            f"&#8592; input shards</text>",
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw() -> None:
    """Run the commands in a new directory, and write their output and their job as pictures."""
    PICTURES.mkdir(exist_ok=True)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as directory:
        for command in COMMANDS:
            console.print(Text(f"$ {command}", style="bold green"), soft_wrap=False)
            console.print(Text(_run(command, directory)))
        mixing = json.loads(_run("dsort show shuffled --html - --json", directory))["mixing"]
        (PICTURES / "mixing.svg").write_text(heat_maps(mixing["before"], mixing["counts"]))
        page = Path(directory) / "page.html"
        page.write_text(_run("dsort show shuffled --html -", directory))
        with chromium() as browser:
            tab = browser.new_page(viewport=PAGE)
            tab.goto(page.as_uri())
            tab.screenshot(path=PICTURES / "page.png")
    picture = console.export_svg(title="dsort")
    # Rich names fonts of a host elsewhere; a page of dsort fetches nothing from other hosts.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    (PICTURES / "terminal.svg").write_text(picture + "\n")


if __name__ == "__main__":
    draw()
