"""Shows the progress of a job in scripts and notebooks: bars in a terminal, and in Jupyter a table
that needs no widgets. The command line has its own display, ``dsort/cli/progress.py``."""

from __future__ import annotations

import html
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TextIO

from dsort.closing import ClosesOnExit
from dsort.results.report import Event, JobStarted, JobWarning, PhaseDone, Progress
from dsort.sizes import format_bytes, format_count

if TYPE_CHECKING:
    import rich.progress

__all__ = ["NotebookProgress", "ProgressDisplay", "TerminalProgress", "show_progress"]

DRAW_INTERVAL_S: Final = 0.2
WARNINGS_MAX: Final = 10
TERMINAL_SHELL: Final = "TerminalInteractiveShell"


class ProgressDisplay(ClosesOnExit):
    """Takes the events of a job, as ``on_event`` of :func:`dsort.run`. This class shows nothing."""

    def __call__(self, event: Event) -> None:
        """Take in ``event``."""

    def close(self) -> None:
        """Draw what is still due."""


class TerminalProgress(ProgressDisplay):
    """One bar a phase, drawn by rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._bars: rich.progress.Progress = Bars(
            TextColumn("{task.description:8}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            console=Console(file=stream),
            auto_refresh=False,
        )
        self._tasks: dict[str, Any] = {}
        self._drawn_at = 0.0
        self._bars.start()

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobWarning):
            self._bars.console.print(f"warning: {event.text}", markup=False, highlight=False)
        if not isinstance(event, Progress | PhaseDone):
            return
        if event.phase not in self._tasks:
            self._tasks[event.phase] = self._bars.add_task(event.phase, total=1.0, figures="")
        self._bars.update(
            self._tasks[event.phase], completed=_share(event), figures=_figures(event)
        )
        now = time.monotonic()
        if isinstance(event, PhaseDone) or now - self._drawn_at >= DRAW_INTERVAL_S:
            self._drawn_at = now
            self._bars.refresh()

    def close(self) -> None:
        self._bars.refresh()
        self._bars.stop()


class NotebookProgress(ProgressDisplay):
    """A table in the output of a cell. The last state stays in the notebook."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html: Callable[[str], Any] = HTML
        self._phases: dict[str, Progress | PhaseDone] = {}
        self._warnings: list[str] = []
        self._job_id, self._drawn_at = "", 0.0
        self._handle: Any = display(HTML(self._drawn()), display_id=True)

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobStarted):
            self._job_id = event.job_id
        elif isinstance(event, JobWarning):
            self._warnings.append(event.text)
        elif isinstance(event, Progress | PhaseDone):
            turns = event.phase not in self._phases or isinstance(event, PhaseDone)
            self._phases[event.phase] = event
            if turns or time.monotonic() - self._drawn_at >= DRAW_INTERVAL_S:
                self._draw()

    def close(self) -> None:
        self._draw()

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        if self._handle is not None:  # None without a frontend
            self._handle.update(self._html(self._drawn()))

    def _drawn(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(phase)}</td>"
            f'<td><progress max="1" value="{_share(event):.3f}"></progress></td>'
            f"<td>{html.escape(_figures(event))}</td></tr>"
            for phase, event in self._phases.items()
        )
        told = [html.escape(text[:500]) for text in self._warnings[:WARNINGS_MAX]]
        more = len(self._warnings) - len(told)
        told += [f"... and {more:,} more warnings"] * (more > 0)
        said = "".join(f"<div>warning: {text}</div>" for text in told)
        return f"<div>job {html.escape(self._job_id)}</div><table>{rows}</table>{said}"


def _share(event: Progress | PhaseDone) -> float:
    """How much of a phase is done, from 0 to 1."""
    if isinstance(event, PhaseDone):
        return 1.0
    if event.bytes_total:
        return min(event.bytes_done / event.bytes_total, 1.0)
    return min(event.shards_done / event.shards_total, 1.0) if event.shards_total else 0.0


def _figures(event: Progress | PhaseDone) -> str:
    if isinstance(event, PhaseDone):
        return f"{format_count(event.records, 'record')}, {format_bytes(event.bytes)}"
    shards = f"{event.shards_done:,}"
    if event.shards_total:
        shards += f"/{event.shards_total:,}"
    return f"{shards} shards, {format_bytes(event.bytes_done)}"


def is_notebook() -> bool:
    """Whether this is a kernel of a notebook."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and type(shell).__name__ != TERMINAL_SHELL


def show_progress(stream: TextIO | None = None) -> ProgressDisplay:
    """Shows the progress of a job: a table in a notebook, bars if ``stream`` (default: standard
    error) is a terminal, else nothing::

        with dsort.show_progress() as shown:
            report = dsort.run(spec, on_event=shown)
    """
    if is_notebook():
        return NotebookProgress()
    stream = stream or sys.stderr
    if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return TerminalProgress(stream)
    return ProgressDisplay()
