"""Shows the progress of a job on stderr: bars on a terminal, lines elsewhere, JSON for programs.

A reporter gets every event of a job, in order, and decides how much of it to show. It does not fail
when the reader of stderr has gone, because the job matters more.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TextIO

from msgspec.structs import asdict

from dsort.cli import output
from dsort.cli.summary import begin_text, done_text, progress_text, started_text
from dsort.closing import ClosesOnExit
from dsort.results.report import Event, JobStarted, JobWarning, PhaseDone, Progress

if TYPE_CHECKING:
    from dsort.cli.bars import Bars

ProgressStyle = Literal["auto", "bar", "plain", "json", "none"]
Clock = Callable[[], float]

PLAIN_INTERVAL_S = 5.0
JSON_INTERVAL_S = 1.0
WARNINGS_OF_A_KIND_MAX = 10
"""The maximum number of printed warnings of one kind: for a thousand missing shards, ten lines and
a count are printed. The report has all of them."""


class Reporter(ClosesOnExit):
    """Base of all reporters. It prints warnings, a limited number of them, and stops once stderr
    has no reader."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._phase, self._shown_at = "", 0.0  # the phase that was shown last, and when
        self.job_id = ""  # of the running job
        self.takes_lines = False  # whether it writes lines of the log
        self._warnings: Counter[str] = Counter()
        self._reader_gone = False

    def __call__(self, event: Event) -> None:
        """Show ``event``, if this reporter shows such events."""
        if isinstance(event, JobStarted):
            self.job_id = event.job_id
        if self._reader_gone:
            return
        try:
            self.show(event)
        except OSError:
            self._reader_gone = True

    def show(self, event: Event) -> None:
        """Show ``event``. ``OSError`` if stderr has no reader or cannot be written."""
        if isinstance(event, JobWarning):
            self._warnings[event.kind] += 1
            if self._warnings[event.kind] <= WARNINGS_OF_A_KIND_MAX:
                self.line(f"warning: {output.printable(event.text)}")

    def warn(self, text: str) -> None:
        """Print a warning about the spec, before the job begins."""
        self(JobWarning(job_id="", kind="spec", text=text))

    def line(self, text: str) -> None:
        """Write one line."""
        self._stream.write(text + "\n")
        self._stream.flush()

    def log_line(self, text: str) -> None:
        """Write a line of the log, which may come from any thread."""
        if not self._reader_gone:
            try:
                self.line(text)
            except OSError:
                self._reader_gone = True

    def break_off(self, text: bytes) -> None:
        """Write a line of a signal handler to stderr at once, and draw nothing from now on."""
        # Not through sys.stderr: the signal may have interrupted a write to it.
        with contextlib.suppress(OSError):  # stderr has no reader
            os.write(2, text)

    def close(self) -> None:
        """Print what is still due, and restore the terminal. May be called twice."""
        if self.takes_lines:
            self.takes_lines = False
            _have_lines_written(None)
        for kind, seen in sorted(self._warnings.items()):
            if seen > WARNINGS_OF_A_KIND_MAX and not self._reader_gone:
                more = output.count(seen - WARNINGS_OF_A_KIND_MAX, "more warning")
                with contextlib.suppress(OSError):
                    self.line(f"warning: {more} of {kind}; the report has them all")
        self._warnings.clear()


class QuietReporter(Reporter):
    """Warnings only."""


class PlainReporter(Reporter):
    """Lines for a log: at the start and the end of each phase, and every 5 s between them."""

    def show(self, event: Event) -> None:
        super().show(event)
        if isinstance(event, JobStarted):
            self.line(started_text(event))
        elif isinstance(event, PhaseDone):
            self._phase = ""
            self.line(f"{event.phase}: done, {done_text(event)}")
        elif isinstance(event, Progress):
            self._show_progress(event)

    def _show_progress(self, event: Progress) -> None:
        now = self._clock()
        if event.phase != self._phase:
            self._phase, self._shown_at = event.phase, now
            self.line(f"{event.phase}: {begin_text(event)}")
        elif now - self._shown_at >= PLAIN_INTERVAL_S:
            self._shown_at = now
            self.line(f"{event.phase}: {progress_text(event)}")


class JsonReporter(Reporter):
    """One JSON object a line: every event with its fields, and its class as ``event``. Progress
    within a phase is written at most once a second."""

    def show(self, event: Event) -> None:
        if isinstance(event, Progress):
            now = self._clock()
            if event.phase == self._phase and now - self._shown_at < JSON_INTERVAL_S:
                return
            self._phase, self._shown_at = event.phase, now
        self.line(json.dumps({"event": type(event).__name__, **asdict(event)}))

    def log_line(self, text: str) -> None:
        super().log_line(json.dumps({"event": "LogLine", "text": text}))


class BarReporter(Reporter):
    """One bar for each phase, drawn by rich."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        super().__init__(stream, clock)
        self._bars: Bars | None = None

    def show(self, event: Event) -> None:
        super().show(event)
        if isinstance(event, JobStarted):
            self.line(started_text(event))
        elif isinstance(event, Progress | PhaseDone):
            self._open().update(event)

    def line(self, text: str) -> None:
        if self._bars is None:
            super().line(text)
        else:
            self._bars.line(text)

    def break_off(self, text: bytes) -> None:
        if self._bars is None:
            super().break_off(text)
        else:
            self._bars.break_off(text)

    def close(self) -> None:
        super().close()
        if self._bars is not None:
            with contextlib.suppress(OSError):
                self._bars.close()
            self._bars = None

    def _open(self) -> Bars:
        if self._bars is None:
            from dsort.cli.bars import Bars

            self._bars = Bars(self._stream, self._clock)
        return self._bars


def make_reporter(style: ProgressStyle, stream: TextIO | None = None) -> Reporter:
    """The reporter for ``style``; ``auto`` draws bars on a terminal that can move its cursor. A
    reporter on stderr (``stream`` None) also writes the lines of the log, until it is closed."""
    reporter = _reporter(style, stream or sys.stderr)
    if stream is None:
        reporter.takes_lines = True
        _have_lines_written(reporter.log_line)
    return reporter


def _reporter(style: ProgressStyle, stream: TextIO) -> Reporter:
    if style == "auto":
        able = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        style = "bar" if able else "plain"
    if style == "bar":
        return BarReporter(stream)
    if style == "plain":
        return PlainReporter(stream)
    return JsonReporter(stream) if style == "json" else QuietReporter(stream)


def _have_lines_written(write: Callable[[str], None] | None) -> None:
    from dsort.log_lines import (
        lines_through,
    )  # loads logging, which a list of commands does not need

    lines_through(write)
