"""How far a job is, reported in the way that suits who reads it, and never at the job's expense."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import pytest

from dsort.cli.bars import Bars
from dsort.cli.progress import (
    WARNINGS_OF_A_KIND_MAX,
    BarReporter,
    JsonReporter,
    PlainReporter,
    ProgressStyle,
    QuietReporter,
    Reporter,
    make_reporter,
)
from dsort.cli.summary import time_left_s
from tests.support.internals import Event, JobStarted, JobWarning, PhaseDone, Progress

MIB = 1 << 20
STARTED = JobStarted("job-1", "map", 2, 10, 100 * MIB)


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ClosedPipe(io.StringIO):
    """A stream whose reader is gone. Counts the attempts to write."""

    tries = 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise BrokenPipeError


def progress(done: int, *, phase: str = "extract", elapsed_s: float = 2.0) -> Progress:
    return Progress("job-1", phase, done, 10, done * 100, done * 10 * MIB, 100 * MIB, elapsed_s)


def done(phase: str = "extract") -> PhaseDone:
    return PhaseDone("job-1", phase, 4.0, 10, 1000, 100 * MIB)


def reported(reporter: Reporter, stream: io.StringIO, events: Sequence[Event]) -> list[str]:
    with reporter:
        for event in events:
            reporter(event)
    return stream.getvalue().splitlines()


def test_plain_lines_frame_each_phase() -> None:
    stream = io.StringIO()
    lines = reported(
        PlainReporter(stream, Clock()),
        stream,
        [STARTED, progress(0), progress(5), done(), progress(0, phase="create"), done("create")],
    )
    assert lines == [
        "job job-1: 10 shards, 100 MiB, map, 2 workers",
        "extract: 10 shards, 100 MiB",
        "extract: done, 4.00 s, 10 shards, 1,000 records, 100 MiB, 25 MiB/s",
        "create: 10 shards, 100 MiB",
        "create: done, 4.00 s, 10 shards, 1,000 records, 100 MiB, 25 MiB/s",
    ]


def test_plain_lines_within_a_phase_come_every_five_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    reporter = PlainReporter(stream, clock)
    for second in range(21):
        clock.now_s = 100.0 + second
        reporter(progress(second // 4, elapsed_s=second))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "extract: 10 shards, 100 MiB"
    assert len(lines) == 1 + 4
    assert lines[2] == ("extract: 2/10 shards, 200 records, 20 MiB, 2 MiB/s, about 1 min 30 s left")


def test_json_within_a_phase_comes_once_a_second() -> None:
    stream, clock = io.StringIO(), Clock()
    reporter = JsonReporter(stream, clock)
    for tenth in range(31):
        clock.now_s = 100.0 + tenth / 10
        reporter(progress(tenth // 4))
    assert len(stream.getvalue().splitlines()) == 4


@pytest.mark.parametrize("style", ["plain", "none", "bar"])
def test_warnings_of_one_kind_are_bounded_and_counted(style: ProgressStyle) -> None:
    stream = io.StringIO()
    many = [JobWarning("job-1", "missing_shards", f"number {n}") for n in range(500)]
    lines = reported(make_reporter(style, stream), stream, many)
    assert len(lines) == WARNINGS_OF_A_KIND_MAX + 1
    assert lines[-1] == "warning: 490 more warnings of missing_shards; the report has them all"


def test_a_warning_cannot_steer_the_terminal() -> None:
    stream = io.StringIO()
    events = [JobWarning("job-1", "odd", "a\x1b[2Jb")]
    assert reported(QuietReporter(stream), stream, events) == ["warning: a\\x1b[2Jb"]


@pytest.mark.parametrize("style", ["plain", "none", "json", "bar"])
def test_a_reader_that_goes_away_does_not_end_the_job(style: ProgressStyle) -> None:
    stream = ClosedPipe()
    reporter = make_reporter(style, stream)
    with reporter:
        for number in range(20):
            reporter(JobWarning("job-1", "odd", f"number {number}"))
        tries = stream.tries
        reporter(progress(1))
        reporter(done())
    assert tries == 1
    assert stream.tries == tries


def test_bars_are_for_terminals_that_can_move_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_reporter("auto", Terminal()), BarReporter)
    assert isinstance(make_reporter("auto", io.StringIO()), PlainReporter)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_reporter("auto", Terminal()), PlainReporter)
    assert isinstance(make_reporter("bar", io.StringIO()), BarReporter)
    assert isinstance(make_reporter("json", Terminal()), JsonReporter)


def test_a_signal_leaves_the_bars_as_they_are_drawn(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    reporter = BarReporter(stream, Clock())
    for event in (STARTED, progress(0), progress(5)):
        reporter(event)
    drawn = stream.getvalue()
    reporter.break_off(b"stopping\n")
    assert capfd.readouterr().err == "\nstopping\n"  # not in the line of the last bar
    reporter(progress(10))
    reporter(done())
    reporter(JobWarning("job-1", "odd", "something is odd"))
    reporter.break_off(b"stopping, please wait\n")
    reporter.close()
    assert stream.getvalue() == drawn + "warning: something is odd\n\x1b[?25h"
    assert capfd.readouterr().err == "stopping, please wait\n"


def test_a_signal_while_bars_are_drawn_is_shown_behind_them(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(Terminal):
        def write(self, text: str) -> int:
            if "extract" in text:
                reporter.break_off(b"stopping\n")
                assert capfd.readouterr().err == ""
            return super().write(text)

    monkeypatch.setenv("COLUMNS", "80")
    stream = Interrupted()
    reporter = BarReporter(stream, Clock())
    reporter(progress(0))
    assert capfd.readouterr().err == "\nstopping\n"
    assert stream.getvalue().count("extract") == 1


@pytest.mark.parametrize("columns", ["80", "200"])
def test_bars_fit_the_line(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    stream = Terminal()
    bars = Bars(stream, Clock())
    large = Progress("job-1", "extract", 98_765, 99_999, 10**9, 1 << 44, 1 << 45, 40_000.0)
    bars.update(large)
    bars.update(PhaseDone("job-1", "create", 4000.0, 99_999, 10**9, 1 << 45))
    bars.close()
    plain = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", stream.getvalue())
    extract, create = plain.splitlines()[-2:]
    assert extract.startswith("extract ")
    assert "98,765/99,999 shards" in extract
    assert extract.endswith("33:20:00 left")
    assert "1,000.0 M rec" in create
    assert create.endswith("1 h 06 min")
    assert max(len(line) for line in plain.splitlines()) <= min(int(columns), 100)


def test_time_left_follows_bytes_and_waits_until_it_knows() -> None:
    def create(done: int, *, elapsed_s: float = 1.0) -> Progress:
        return Progress("job-1", "create", done, 10, 0, done, 10, elapsed_s)

    assert time_left_s(create(5, elapsed_s=10.0)) == pytest.approx(10.0)
    assert time_left_s(create(5, elapsed_s=0.5)) is None
    assert time_left_s(create(0)) is None
    assert time_left_s(create(10)) is None
    by_shards = Progress("job-1", "plan", 1, 4, 0, 0, 0, 3.0)
    assert time_left_s(by_shards) == pytest.approx(9.0)
