"""Log lines: standard ``logging``, with one logger a room: ``dsort.storage``, ``dsort.job``.

Importing dsort configures nothing. Commands and job processes write lines to standard error
(:func:`lines_on_stderr`). Workers send lines to the coordinator (:func:`lines_to_coordinator`),
which handles them as its own (:func:`pass_on`)."""

from __future__ import annotations

import logging
import math
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final, NamedTuple

__all__ = [
    "LineFormatter",
    "LineHandler",
    "LogLine",
    "Sparing",
    "about",
    "about_attempt",
    "about_worker",
    "level_in_force",
    "lines_on_stderr",
    "lines_through",
    "lines_to_coordinator",
    "log_to_stderr",
    "logger_of",
    "one_sentence",
    "pass_on",
    "redact",
    "without_tracebacks",
]

TOP: Final = "dsort"
HOST: Final = f"{TOP}.service"
"""The room of the service. In the log of an attempt, its lines do not name their room; all other
lines come from the job itself."""
TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%S"

logging.getLogger(TOP).addHandler(logging.NullHandler())  # else Python prints warnings itself


def logger_of(room: str) -> logging.Logger:
    """The logger of a room, which all of its modules share."""
    return logging.getLogger(f"{TOP}.{room}")


def level_in_force() -> int:
    """The lowest level of lines in this process and in its workers."""
    return logging.getLogger(TOP).getEffectiveLevel()


# -- secrets -------------------------------------------------------------------------------------

_TOKEN = r"(dsort_[0-9a-f]{12}_)[0-9a-f]+"
_TICKET = r"(?i)(\bticket=)[^&\s\"']+"
_USER = r"(?i)(\b[a-z][a-z0-9+.-]*://)[^/\s@]+@"
_SIGNATURE = (
    r"(?i)([?&](?:x-[a-z]+-[a-z-]+|[a-z]*accesskeyid|googleaccessid|signature|sig|policy"
    r"|key-pair-id|[a-z_-]*token|[a-z_-]*password)=)(?!dsort_[0-9a-f]{12}_\.\.\.)[^&\s\"']+"
)
"""Parameters of the signed URLs of Amazon, CloudFront, Google, Azure and similar stores. The part
of a service's token that ``redact`` leaves is kept here, too: it shows whose token it was."""


def redact(text: str) -> str:
    """``text`` without secrets: tokens of a service, tickets, users and passwords in URLs, and
    parameters of signed URLs."""
    text = re.sub(_TICKET, r"\1...", re.sub(_TOKEN, r"\1...", text))
    return re.sub(_SIGNATURE, r"\1...", re.sub(_USER, r"\1", text))


# -- whose lines they are ------------------------------------------------------------------------

_Origin = MutableMapping[str, object]
_here: ContextVar[_Origin | None] = ContextVar("_here", default=None)
_running: list[_Origin] = []


@contextmanager
def about(job_id: str) -> Iterator[None]:
    """Mark the lines that the body logs as lines about the job ``job_id``. Lines of other threads
    have the mark, too, as long as no other job runs in the process."""
    origin: _Origin = {"job": job_id}
    token = _here.set(origin)
    _running.append(origin)
    try:
        yield
    finally:
        _running[:] = [each for each in _running if each is not origin]
        _here.reset(token)


def about_attempt(attempt: int) -> None:
    """Mark the lines of this context with the number of the job's attempt, too."""
    if (origin := _here.get()) is not None:
        origin["attempt"] = attempt


def about_worker(*, job: str, attempt: int, worker: int, node: str = "") -> None:
    """Mark all later lines of this process as lines of the worker. In a forked process, this
    replaces the marks of the process that it was forked from."""
    _here.set(None)
    _running[:] = [{"job": job, "attempt": attempt, "worker": worker, "node": node}]


def _origin_here() -> Mapping[str, object]:
    return _here.get() or (_running[0] if len(_running) == 1 else {})


# -- how they look, and where they go ------------------------------------------------------------


class LineFormatter(logging.Formatter):
    """Formats one line: time, level, room, job or worker, message. ``is_of_attempt``: for a file of
    one attempt. Its lines name neither job nor attempt, and have their level as a letter; a message
    of several lines keeps its line breaks."""

    def __init__(self, *, is_of_attempt: bool = False) -> None:
        super().__init__(datefmt=TIME_FORMAT)
        self._is_of_attempt = is_of_attempt

    def format(self, record: logging.LogRecord) -> str:
        """The line; below it a traceback, if the record has one."""
        moment = self.formatTime(record, TIME_FORMAT)
        origin: Mapping[str, object] = getattr(record, "origin", None) or _origin_here()
        names = ("worker", "node") if self._is_of_attempt else origin
        whose = " ".join(f"{name} {origin[name]}" for name in names if origin.get(name, "") != "")
        level = record.levelname[0] if self._is_of_attempt else record.levelname.lower()
        place = " ".join(filter(None, (record.name, whose))) + ": "
        lines = record.getMessage().splitlines() or [""]
        if self._is_of_attempt:
            place = "" if record.name == HOST else place
        else:
            moment += f".{record.msecs:03.0f}"
            lines = [" ".join(lines)]
        lines[0] = f"{moment} {level} {place}{lines[0]}"
        if record.exc_info:
            lines += self.formatException(record.exc_info).splitlines()
        return redact("\n".join(map(_printable, lines)))


def _printable(text: str) -> str:
    """A line without control characters of a terminal, also if a stranger chose the names in it."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or "\udc80" <= each <= "\udcff" else ascii(each)[1:-1]
        for each in text
    )


class LineHandler(logging.Handler):
    """Writes each line with ``write``. A line that cannot be written does not disturb the job."""

    def __init__(self, write: Callable[[str], None], formatter: LineFormatter) -> None:
        super().__init__()
        self._write = write
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record's line."""
        with suppress(OSError, ValueError):  # the reader is gone, or the stream is closed
            self._write(self.format(record))


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


_through: Callable[[str], None] = _to_stderr


def lines_through(write: Callable[[str], None] | None) -> None:
    """From now on, ``write`` writes the lines of a command, because it also draws on standard
    error; None: lines go to standard error again."""
    global _through
    _through = write or _to_stderr


def _write_line(line: str) -> None:
    _through(line)


@contextmanager
def lines_on_stderr(level: str) -> Iterator[None]:
    """Lines of the body go to standard error, from ``level`` on. For dsort's own processes."""
    top, handler = logging.getLogger(TOP), LineHandler(_write_line, LineFormatter())
    before = top.level
    top.addHandler(handler)
    top.setLevel(level.upper())
    try:
        yield
    finally:
        top.setLevel(before)
        top.removeHandler(handler)


@contextmanager
def log_to_stderr(
    level: str, libraries: str, formatter: LineFormatter
) -> Iterator[logging.Handler]:
    """Lines of the body go to standard error: dsort's from ``level`` on, those of ``libraries``
    from their own levels on. The processes of a service use this. The body gets the handler that
    writes the lines."""
    handler = LineHandler(_write_line, formatter)
    root, top = logging.getLogger(), logging.getLogger(TOP)
    before = root.level, top.level
    root.addHandler(handler)
    root.setLevel(libraries.upper())
    top.setLevel(level.upper())
    try:
        yield handler
    finally:
        root.removeHandler(handler)
        root.setLevel(before[0])
        top.setLevel(before[1])


# -- from a worker to its coordinator ------------------------------------------------------------


class LogLine(NamedTuple):
    """A log line on its way from a worker to the coordinator. ``created``: seconds since 1970."""

    logger: str
    level: int
    created: float
    message: str
    origin: Mapping[str, object]


class _Sender(logging.Handler):
    def __init__(self, send: Callable[[LogLine], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.exc_info:
            message += f"\n{logging.Formatter().formatException(record.exc_info)}"
        line = LogLine(record.name, record.levelno, record.created, message, dict(_origin_here()))
        with suppress(OSError, ValueError):  # the coordinator is gone, and so is the job
            self._send(line)


def lines_to_coordinator(
    level: int, send: Callable[[LogLine], None], *, on_stderr: bool = False
) -> None:
    """From now on, ``send`` takes the lines of this worker's process, in place of the handlers of
    the coordinator from which it was forked. ``on_stderr``: the lines are also written to standard
    error."""
    top = logging.getLogger(TOP)
    top.propagate = False
    top.handlers[:] = [_Sender(send)]
    if on_stderr:
        top.addHandler(LineHandler(_write_line, LineFormatter()))
    top.setLevel(level)


def pass_on(line: LogLine) -> None:
    """Handle a worker's line here."""
    log = logging.getLogger(line.logger)
    if log.isEnabledFor(line.level):
        record = logging.makeLogRecord(
            {
                "name": line.logger,
                "levelno": line.level,
                "levelname": logging.getLevelName(line.level),
                "created": line.created,
                "msecs": line.created % 1 * 1000,
                "msg": line.message,
                "origin": line.origin,
            }
        )
        log.handle(record)


# -- lines that come again and again -------------------------------------------------------------


class Sparing:
    """Decides when a message that occurs again and again is logged: the first time, and then once
    in ``pause_s`` seconds. Threads may share it."""

    def __init__(self, pause_s: float, clock: Callable[[], float]) -> None:
        self._pause_s = pause_s
        self._clock = clock
        self._lock = threading.Lock()
        self._said_s = -math.inf

    def is_due(self) -> bool:
        """Whether the message is due now; after that, it is not due for a while."""
        with self._lock:
            now_s = self._clock()
            if now_s - self._said_s < self._pause_s:
                return False
            self._said_s = now_s
            return True


_HEADER: Final = r"Traceback \(most recent call (last|first)\):\s*$"
_FRAME: Final = r"\s+File \"[^\n]*\", line \d+"
_CHAIN: Final = (
    r"\s*(During handling of the above exception, another exception occurred:"
    r"|The above exception was the direct cause of the following exception:)\s*$"
)


def without_tracebacks(text: str) -> str:
    """``text`` with only the last line of each traceback, which is the raised error."""
    kept: list[str] = []
    inside = False  # a traceback, whose indented lines are frames
    for line in text.splitlines(keepends=True):
        if re.search(_HEADER, line) or re.match(_FRAME, line):
            inside = True
        elif re.match(_CHAIN, line):
            inside = True
            while kept and not kept[-1].strip():
                kept.pop()
        elif inside and (not line.strip() or line[:1].isspace()):
            continue
        else:
            inside = False
            kept.append(line)
    return "".join(kept)


def one_sentence(text: str) -> str:
    """The message of an error without the tracebacks in it, in one line if there were any."""
    short = without_tracebacks(text)
    return text if short == text else " ".join(short.split())
