"""``python -m docs.generate.pictures``: draws a terminal, the page and the mixing of a job."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tempfile
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
COLOR = "#1f6f8b"
HEAT_STYLE = "font: 14px sans-serif; fill: #777"


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
    """One cell for each pair of an input shard (row) and an output shard (column): the darker, the
    more of the records of the input shard are in the output shard."""
    cells = []
    for row, line in enumerate(counts):
        for column, count in enumerate(line):
            share = count / max(sum(line), 1)
            place = f'x="{left + column * CELL}" y="{top + row * CELL}"'
            size = f'width="{CELL}" height="{CELL}"'
            paint = f'fill="{COLOR}" fill-opacity="{share:.3f}"'
            cells.append(f"<rect {place} {size} {paint}/>")
    return cells


def _mixing(before: list[list[int]], after: list[list[int]]) -> str:
    """Both heat maps side by side, as SVG."""
    side, gap, margin = len(before) * CELL, 60, 30
    width, height = 2 * side + gap + 2 * margin, side + 2 * margin + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
        "<title>Records of each input shard (rows) in each output shard (columns)</title>",
    ]
    for counts, left, words in (
        (before, margin, "before: input order"),
        (after, margin + side + gap, "after: dsort shuffle"),
    ):
        parts += [
            f'<text x="{left}" y="{margin - 10}" style="{HEAT_STYLE}">{words}</text>',
            f'<rect x="{left}" y="{margin}" width="{side}" height="{side}" fill="none" '
            f'stroke="#999"/>',
            *_heat_map(counts, left, margin),
            f'<text x="{left}" y="{margin + side + 20}" style="{HEAT_STYLE}">'
            f"output shards &#8594;</text>",
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
        (PICTURES / "mixing.svg").write_text(_mixing(mixing["before"], mixing["counts"]))
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
