"""The logs of job processes: a file for each attempt, on the machine that it ran on."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final

from dsort.log_lines import without_tracebacks

__all__ = [
    "NO_LEVEL",
    "TAIL_BYTES",
    "log_event",
    "log_path",
    "read_logs",
    "remove_logs",
    "tail",
]

TAIL_BYTES = 16 << 10
DIRECTORY = "logs"
NO_LEVEL: Final = "-"
_LOGGED = re.compile(r"\S+ ([DIWEC]) ")


def log_path(state_dir: Path, job_id: str, attempt: int) -> Path:
    """The path of the log of an attempt."""
    return state_dir / DIRECTORY / f"{job_id}-{attempt}.log"


def read_logs(state_dir: Path, job_id: str, *, bytes_max: int = 1 << 20) -> str:
    """A job's logs on this machine, all attempts in order; only the end, if they are long."""
    texts = [_end(path, bytes_max) for path in _paths(state_dir, job_id)]
    return "".join(texts)[-bytes_max:]


def remove_logs(state_dir: Path, job_id: str) -> None:
    """Remove a job's logs from this machine."""
    for path in _paths(state_dir, job_id):
        with contextlib.suppress(OSError):
            path.unlink()


def tail(path: Path, *, bytes_max: int = TAIL_BYTES) -> str:
    """The end of a log, from the beginning of a line; "" if there is no log."""
    text = _end(path, bytes_max)
    return text if len(text) < bytes_max // 4 else text.partition("\n")[2] or text


def log_event(path: Path) -> dict[str, str] | None:
    """The end of a log as the data of an event, for all who may see the job; None if it is empty.

    ``text``: without tracebacks, which stay in the file for those who run the service. ``levels``:
    a letter for each of its lines, as ``LineFormatter`` writes it, or ``-`` for a line that was not
    logged.
    """
    text = without_tracebacks(tail(path))
    return {"text": text, "levels": "".join(map(_level, text.splitlines()))} if text else None


def _level(line: str) -> str:
    found = _LOGGED.match(line)
    return found[1] if found else NO_LEVEL


def _paths(state_dir: Path, job_id: str) -> list[Path]:
    """The existing logs of a job's attempts, in order."""
    found = {}
    for path in (state_dir / DIRECTORY).glob("*.log"):
        owner, _, attempt = path.stem.rpartition("-")
        if owner == job_id and attempt.isdecimal():
            found[int(attempt)] = path
    return [found[attempt] for attempt in sorted(found)]


def _end(path: Path, bytes_max: int) -> str:
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(size - bytes_max, 0))
            return log.read(bytes_max).decode("utf-8", "replace")
    except OSError:
        return ""
