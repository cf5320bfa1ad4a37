"""The bars of :mod:`dsort.cli.progress`. Only this module loads rich, and only to draw.

There is no drawing thread: events draw, ten times a second at most.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dsort.cli import output
from dsort.cli.summary import speed_text, time_left_s
from dsort.results.report import PhaseDone, Progress

DRAW_INTERVAL_S = 0.1
SHOW_CURSOR = "\x1b[?25h"
LINE_COLUMNS_MAX = 100


class Bars:
    """A row for each phase that has begun, redrawn in place."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._drawn_at = 0.0
        self._phases: dict[str, Progress | PhaseDone] = {}
        self._stream = stream
        self._writes = self._is_broken_off = False
        self._lock = threading.RLock()  # lines of the log also come from other threads
        self._due = b""  # the message of a signal that arrived while something was being written
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def update(self, event: Progress | PhaseDone) -> None:
        """Take the new figures from ``event``; draw if it begins or ends a phase or the last
        drawing is old."""
        known = self._phases.get(event.phase)
        self._phases[event.phase] = event
        now = self._clock()
        turning = known is None or isinstance(event, PhaseDone)
        if turning or now - self._drawn_at >= DRAW_INTERVAL_S:
            self._drawn_at = now
            self._draw()

    def line(self, text: str) -> None:
        """Write one line above the bars."""
        with self._writing():
            if self._is_broken_off:
                self._stream.write(text + "\n")
                self._stream.flush()
            else:
                self._console.print(Text(text), soft_wrap=True)

    def break_off(self, text: bytes) -> None:
        """Write a line of a signal handler below the bars, and draw no bars after that, because
        they would appear once more below the line."""
        if not self._is_broken_off:
            text = b"\n" + text  # the cursor is behind the last bar
        self._is_broken_off = True
        if self._writes:
            self._due += text
        else:
            self._write_at_once(text)

    def close(self) -> None:
        """Draw the last state and give the cursor back."""
        if self._is_broken_off:
            self._stream.write(SHOW_CURSOR)
            self._stream.flush()
        else:
            self._draw()
            self._live.stop()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A context in which the message of a signal handler waits until the write is done."""
        with self._lock:
            self._writes = True
            try:
                yield
            finally:
                self._writes = False
                due, self._due = self._due, b""
                self._write_at_once(due)

    def _write_at_once(self, text: bytes) -> None:
        with contextlib.suppress(OSError):  # stderr has no reader
            os.write(2, text)

    def _draw(self) -> None:
        # The bar takes the room that the figures leave in the line.
        grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
        grid.width = min(self._console.width, LINE_COLUMNS_MAX)
        grid.add_column(width=8)
        grid.add_column(ratio=1, min_width=4)
        for least in (16, 10, 11, 10):
            grid.add_column(justify="right", no_wrap=True, min_width=least)
        for event in self._phases.values():
            grid.add_row(*_row(event))
        with self._writing():
            if not self._is_broken_off:
                self._live.update(grid, refresh=True)


def _row(event: Progress | PhaseDone) -> tuple[str | ProgressBar, ...]:
    if isinstance(event, PhaseDone):
        shards = output.count(event.shards, "shard") if event.shards else ""
        return (
            event.phase,
            ProgressBar(total=1, completed=1),
            shards,
            _short_records(event.records),
            speed_text(event.phase, event.bytes, event.elapsed_s),
            output.duration(event.elapsed_s),
        )
    done, total = event.bytes_done, event.bytes_total
    if not total:
        done, total = event.shards_done, event.shards_total
    shards = f"{event.shards_done:,}/{event.shards_total:,} shards" if event.shards_total else ""
    left_s = time_left_s(event)
    return (
        event.phase,
        ProgressBar(total=total or 1, completed=min(done, total)),
        shards,
        _short_records(event.records_done),
        speed_text(event.phase, event.bytes_done, event.elapsed_s),
        "" if left_s is None else f"{_clock_text(left_s)} left",
    )


def _short_records(records: int) -> str:
    if not records:
        return ""
    if records < 100_000:
        return f"{records:,} rec"
    return f"{records / 1e6:,.1f} M rec"


def _clock_text(span_s: float) -> str:
    minutes, seconds = divmod(round(span_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
