"""What the command line says fits the terminal, and can be copied from it."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from dsort.cli import output

COMMAND = "`dsort stop 20260131-020000-abcdef --server https://dsort.example.com:8080`"


@contextmanager
def terminal(columns: int) -> Iterator[tuple[TextIO, int]]:
    """(what writes to a terminal, what reads it)."""
    reading, writing = pty.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(writing, "w") as stream:
        yield stream, reading
    os.close(reading)


def test_messages_break_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"hint: {'word ' * 12}goes on: {COMMAND} ends it, {'and ' * 8}so on"
    with terminal(80) as (stream, reading):
        monkeypatch.setattr("sys.stderr", stream)
        output.inform(text)
        lines = os.read(reading, 4096).decode().splitlines()
    assert len(lines) > 2
    assert all(len(line) <= 80 or COMMAND in line for line in lines)
    assert any(COMMAND in line for line in lines)
    assert all(line.startswith("      ") for line in lines[1:])
    assert " ".join(line.strip() for line in lines) == text


def test_values_stay_beside_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(40) as (stream, _):
        monkeypatch.setattr("sys.stdout", stream)
        printed = output.fields([("took", "one, two, three, four, five, six, seven"), ("on", "vm")])
    assert printed.splitlines() == [
        "took  one, two, three, four, five, six,",
        "      seven",
        "on    vm",
    ]


def test_what_is_no_terminal_gets_lines_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    text = "error: " + "word " * 40
    output.inform(text)
    assert capfd.readouterr().err == text + "\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("caf\udce9", b"caf\xe9"), ("\ud83d", b"\\ud83d"), ("\udce9\ud83d", b"\xe9\\ud83d")],
)
def test_any_name_can_be_put_out(monkeypatch: pytest.MonkeyPatch, text: str, shown: bytes) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    output.prepare_streams()
    output.write(text)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    assert sys.stdout.buffer.getvalue() == shown + b"\n"  # type: ignore[attr-defined]
