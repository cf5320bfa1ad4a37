"""``python -m docs.generate.pictures``: draws a terminal and the page of a job for the docs."""

from __future__ import annotations

import io
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


def draw() -> None:
    """Run the commands in a new directory, and write their output and their job as pictures."""
    PICTURES.mkdir(exist_ok=True)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as directory:
        for command in COMMANDS:
            console.print(Text(f"$ {command}", style="bold green"), soft_wrap=False)
            console.print(Text(_run(command, directory)))
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
