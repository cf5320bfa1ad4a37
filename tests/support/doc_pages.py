"""The pages that people read, as tests see them: blocks of code by their tag, and a shell that runs
the commands as a user would type them.

=========  ==========================================================================
tag        what a test does with it
=========  ==========================================================================
``sh``     runs it, line by line, in the order of the page
``python`` executes it
a title    (``yaml title="spec.yaml"``) writes it into a file of that name
``text``   with the title ``output``: the block before it prints that (``…``: lines left out)
others     nothing: ``console`` commands need a cluster, an account or a killed job
=========  ==========================================================================
"""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.commands import ROOT, CommandLine
from tests.support.service_process import running_service

TAGS = {"sh", "console", "python", "yaml", "json", "toml", "text"}
GENERATED = ROOT / "docs" / "reference"
HERE, THERE = "http://127.0.0.1:8080", "https://dsort.example.com:8080"
"""The addresses in the pages of a user's own service, and of a team's service."""

OUTPUT = "output"
"""The title of a block that shows what the commands, or the Python, before it print."""
_MASKS = (
    (r"\d{8}-\d{6}-[0-9a-f]{6}", "JOB"),
    (r"\d{4}-\d\d-\d\d\b", "DATE"),
    (r"\d+(\.\d+)? m?s\b", "TIME"),
    (r"\d+ min TIME", "TIME"),
    (r"[\d.]+ [KMG]?i?B/s", "RATE"),
    (r"(?m)^read  .*", "READ"),
    (r"movement   \w+, \d+ workers?", "MOVEMENT"),
)
"""Texts that differ from one run of a command to the next, and their replacements."""

_FENCE = re.compile(r'(?ms)^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$')


@dataclass(frozen=True)
class Block:
    """A block of code. ``title``: the name of the file that it is, or nothing."""

    tag: str
    title: str
    text: str

    def write(self, directory: Path) -> Path:
        """Write the file. For a title ``~/…``, ``directory`` stands for the user's home."""
        path = directory / self.title.removeprefix("~/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text, "utf-8")
        return path


def hand_written() -> list[Path]:
    """All pages that are not generated."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if GENERATED not in path.parents]
    return sorted([*pages, ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    found = _FENCE.findall(page.read_text("utf-8"))
    return [Block(tag, title, text) for tag, title, text in found]


def commands(text: str) -> Iterator[str]:
    """The commands of a block; a command may take several lines."""
    command = ""
    for line in text.splitlines():
        if not command and (not line.strip() or line.startswith("#")):
            continue
        command += line
        if command.endswith("\\"):
            command = command[:-1]
        elif _is_whole(command):
            yield from command.partition("  #")[0].strip().split("; ")
            command = ""
        else:
            command += "\n"
    assert not command, f"no end: {command}"


def masked(text: str) -> str:
    """The output of a command, without the parts that differ from run to run."""
    for pattern, mask in _MASKS:
        text = re.sub(pattern, mask, text)
    return text


def _is_whole(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:  # a quotation that the next line closes
        return False
    return True


class Shell:
    """Runs the code of pages in the directory ``place``. ``refused``: verb → the exit code with
    which it fails there, as ``resume`` does for a finished job."""

    def __init__(
        self,
        place: Path,
        cli: CommandLine,
        monkeypatch: pytest.MonkeyPatch,
        services: ExitStack,
        refused: Mapping[str, int] | None = None,
    ) -> None:
        self.place, self.cli, self.monkeypatch = place, cli, monkeypatch
        self.services, self.refused = services, refused or {}
        monkeypatch.syspath_prepend(str(place))  # pages import the files that they show
        self.url, self.job_id = "", ""
        self.found: dict[str, object] = {}
        """The names that the page's Python code has defined."""
        self.printed = ""
        """The output of the last block."""

    def run(self, block: Block) -> None:
        """Run, write or compare a block, as its tag requires."""
        if block.title == OUTPUT:
            self.compare(block.text)
        elif block.title:
            block.write(self.place)
        elif block.tag == "python":
            with redirect_stdout(io.StringIO()) as written:
                exec(self._addressed(block.text), self.found)
            self.printed = written.getvalue()
        elif block.tag == "sh":
            self.printed = ""
            for command in commands(block.text):
                self(command)

    def compare(self, shown: str) -> None:
        """Check that ``shown`` is what the last block printed."""
        lines = masked(shown).splitlines()
        pattern = "".join(
            r"(?:.*\n)*" if line.strip() == "…" else re.escape(line) + r"\n" for line in lines
        )
        printed = masked(self.printed.replace(str(self.place), "/data"))
        assert re.fullmatch(pattern, printed), f"shown:\n{shown}\nprinted:\n{printed}"

    def __call__(self, command: str) -> None:
        command = re.sub(r"\bJOB\b", self.job_id, self._addressed(command))
        if command.startswith("dsort serve"):
            self.serve(*_words(command)[1:])
        elif export := re.match(r"export (\w+)=(?:\$\((.*?)\)|(\S+))", command):
            self.monkeypatch.setenv(export[1], self.dsort(export[2]) if export[2] else export[3])
        elif command.startswith("dsort ") and not re.search(r" \|\|? |\$\(", command):
            self.dsort(command)
        else:
            self.other(command)

    def serve(self, *arguments: str) -> None:
        """Start a service, and end the one that an earlier command started."""
        self.services.close()
        arguments = tuple(word.replace("0.0.0.0", "127.0.0.1") for word in arguments)
        self.url = self.services.enter_context(running_service(self.place, *arguments)).url

    def dsort(self, command: str) -> str:
        """Run ``dsort …``. Returns its output."""
        words = _words(command)
        ended = self.cli(*words)
        assert ended.code == self.refused.get(words[0], 0), f"{command}: {ended.err}"
        assert "warning" not in ended.err, f"{command}: {ended.err}"
        self.printed += ended.out or ended.err
        if words[0] == "start":
            self.job_id = ended.out.strip()
        return ended.out.strip()

    def other(self, command: str) -> None:
        """Run any other program."""
        line = command.replace("curl ", "curl --fail --silent --show-error --cacert cert.pem ")
        line = line.replace("DNS:dsort.example.com", "IP:127.0.0.1")
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        with self.monkeypatch.context() as context:
            context.setenv("PATH", path)
            done = subprocess.run(
                ["bash", "-c", line], cwd=self.place, capture_output=True, text=True, timeout=60
            )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        self.printed += done.stdout
        if "--data-binary" in line:
            self.job_id = json.loads(done.stdout)["job_id"]

    def _addressed(self, text: str) -> str:
        return text.replace(THERE, self.url).replace(HERE, self.url or HERE)


def _words(command: str) -> list[str]:
    """The words of a command, without ``dsort``."""
    first, *others = shlex.split(command, comments=True)
    assert first == "dsort", command
    return others
