"""Output for people and programs: stdout for data, stderr for messages, and the format of
figures."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import re
import select
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TextIO

from dsort.durations import format_duration
from dsort.errors import StorageError
from dsort.naming.names import place as place
from dsort.sizes import format_bytes, format_count

count, duration = format_count, format_duration

COLUMNS_MIN = 20
TABLE_COLUMNS_MIN = 80
ITEMS_AT_ONCE = 1000
_LEAD = re.compile(r" *(error: |hint: |warning: )?")
_ANY_TEXT = "dsort-any-text"
_COMMAND = re.compile(r"`[^`]*`")


def prepare_streams() -> None:
    """Make stdout and stderr write names that are not UTF-8 with their original bytes, and escape
    characters that cannot be encoded. Output to streams that were already closed when the process
    began is discarded."""
    codecs.register_error(_ANY_TEXT, _bytes_or_escapes)
    _open_closed_descriptors()
    sys.stdin = sys.stdin or os.fdopen(0, "r", encoding="utf-8")
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ANY_TEXT)


def _bytes_or_escapes(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    # One character at a time: of two, one may stand for a byte.
    code = ord(error.object[error.start])
    is_byte = 0xDC80 <= code <= 0xDCFF
    return bytes([code - 0xDC00]) if is_byte else _escape(chr(code)), error.start + 1


def _open_closed_descriptors() -> None:
    """Open the descriptors of closed standard streams. Otherwise the next opened file, perhaps an
    output shard, would get the number of such a stream, and its messages."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # opens the lowest free number


def write(text: str) -> None:
    """Put ``text`` and a line end on stdout. ``StorageError`` if it cannot be written, for example
    on a full disk; ``BrokenPipeError`` if the reader is gone."""
    try:
        sys.stdout.write("\n".join(map(_line, text.split("\n"))) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # no error of the command: it ends as by SIGPIPE
        raise
    except OSError as error:
        abandon_stdout()
        raise StorageError(f"cannot write to standard output: {error.strerror}") from error


def abandon_stdout() -> None:
    """Discard what stdout has not flushed. Otherwise Python would fail when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_json(value: object) -> None:
    """Put one JSON document on stdout."""
    write(json.dumps(value, indent=2, default=str))


def write_either(document: object, text: str, *, as_json: bool) -> None:
    """Put a JSON document on stdout, or the text for people."""
    if as_json:
        write_json(document)
    else:
        write(text)


def write_rows(
    documents: Sequence[object],
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    as_json: bool,
    empty: str = "",
) -> None:
    """Put a list on stdout: the JSON documents, or a table for people. ``empty``: the message in
    place of a table without rows."""
    if as_json:
        write_json(documents)
    elif empty and not documents:
        inform(empty)
    else:
        write(table(header, [[*map(printable, row)] for row in rows]))


def write_json_list(document: Mapping[str, object], name: str, items: Iterable[object]) -> None:
    """Put the ``document`` on stdout; its list ``name``, which is empty in ``document``, gets
    ``items``. Items are written as they come, so there may be any number of them."""
    before, after = json.dumps(document, indent=2).split(f'"{name}": []', 1)
    texts = (json.dumps(item, indent=2).replace("\n", "\n    ") for item in items)
    held = f'{before}"{name}": ['
    some = list(islice(texts, ITEMS_AT_ONCE))
    if not some:
        return write(f"{held}]{after}")
    while some:
        more = list(islice(texts, ITEMS_AT_ONCE))
        listed = ",\n    ".join(some) + ("," if more else f"\n  ]{after}")
        write(f"{held}\n    {listed}" if held else f"    {listed}")
        held, some = "", more
    return None


def inform(text: str) -> None:
    """Put a message on stderr. The command does not fail if the message cannot be written or has no
    reader."""
    columns = _columns(sys.stderr)
    with contextlib.suppress(OSError):
        for line in map(_line, text.split("\n")):
            beside = _LEAD.match(line)
            sys.stderr.write(fitted(line, columns, " " * (beside.end() if beside else 0)) + "\n")
        sys.stderr.flush()


def warn(text: str) -> None:
    """Put a warning on stderr."""
    inform(f"warning: {text}")


def reader_gone(stream: TextIO) -> bool:
    """Whether ``stream`` is a pipe whose reader is gone, as in ``dsort ls B | head``."""
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def size(size_bytes: float) -> str:
    """A number of bytes for people, in binary units: ``512 B``, ``1.4 GiB``."""
    return format_bytes(int(size_bytes))


def number(value: int) -> str:
    """A count with thousands marked: ``1,234,567``."""
    return f"{value:,}"


def rate(size_bytes: float, elapsed_s: float) -> str:
    """Bytes a second for people; "" if the rate is not known."""
    if elapsed_s <= 0 or size_bytes <= 0:
        return ""
    return f"{size(size_bytes / elapsed_s)}/s"


def printable(text: str) -> str:
    """``text`` with control characters shown as escapes, so that a name cannot steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or "\udc80" <= c <= "\udcff" else _escape(c) for c in text)


def _line(text: str) -> str:
    """A line of output that is safe to print, even if an untrusted user chose its text."""
    return "\t".join(map(printable, text.split("\t")))


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _columns(stream: TextIO) -> int | None:
    """The width of the terminal in columns; None if ``stream`` is not a terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def width() -> int:
    """The width of a table on stdout in columns: that of its terminal, at least 80."""
    return max(_columns(sys.stdout) or 0, TABLE_COLUMNS_MIN)


def fitted(line: str, columns: int | None, indent: str = "") -> str:
    """``line``, wrapped between words and never within a `` `command` ``; a terminal would wrap it
    anywhere."""
    if columns is None or len(line) <= columns:
        return line
    whole = _COMMAND.sub(lambda command: command[0].replace(" ", "\0"), line)
    lines = textwrap.wrap(
        whole,
        max(columns, len(indent) + COLUMNS_MIN),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ")


def fields(pairs: Iterable[tuple[str, str]]) -> str:
    """``name  value`` lines with the values aligned; pairs without a value are left out."""
    kept = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in kept), default=0)
    columns, indent = _columns(sys.stdout), " " * (width + 2)
    return "\n".join(fitted(f"{name:<{width}}  {value}", columns, indent) for name, value in kept)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> str:
    """Aligned columns with a header line. ``right`` holds ``r`` for each column set to the right
    and ``l`` for the others; the last column is not padded."""
    # Our own code, not rich's: a pipe gets the same text as a terminal, nothing that a script may
    # need is wrapped or cut, and importing rich's tables and console costs 37 ms of each command.
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    sides = right.ljust(len(header), "l")
    return "\n".join(
        "  ".join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(line, widths, sides, strict=True)
        ).rstrip()
        for line in lines
    )
