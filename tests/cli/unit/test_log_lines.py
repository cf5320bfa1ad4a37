"""Lines of the log: how they look, what is left out of them, and what importing dsort changes."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dsort import log_lines
from dsort.cli.progress import BarReporter, JsonReporter, make_reporter
from dsort.log_lines import LineFormatter, LogLine, Sparing, about, about_attempt, logger_of
from tests.support.commands import ROOT

LOG = logger_of("storage")


def written(text: str, *args: object, is_of_attempt: bool = False, name: str = LOG.name) -> str:
    record = logging.LogRecord(name, logging.WARNING, "file", 1, text, args, None)
    return LineFormatter(is_of_attempt=is_of_attempt).format(record)


@contextmanager
def lines_in(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "stderr", stream)
    with log_lines.lines_on_stderr("debug"):
        yield


def test_a_line_has_time_level_room_and_whose_it_is() -> None:
    with about("job-7"):
        about_attempt(2)
        moment, _, rest = written("%d shards", 3).partition(" ")
    assert rest == "warning dsort.storage job job-7 attempt 2: 3 shards"
    assert moment[4] == moment[7] == "-"
    assert written("%d shards", 3).partition(" ")[2] == "warning dsort.storage: 3 shards"


def test_a_line_in_the_log_of_an_attempt_does_not_repeat_the_job() -> None:
    with about("job-7"):
        line = written("read", is_of_attempt=True)
        own = written("two\nlines", is_of_attempt=True, name="dsort.service")
    assert line.partition(" ")[2] == "W dsort.storage: read"
    assert own.partition(" ")[2] == "W two\nlines"


def test_threads_of_the_one_job_of_a_process_are_about_it() -> None:
    found: list[str] = []

    def look() -> None:
        found.append(written("x"))

    with about("job-1"):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        with about("job-2"):
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            found.append(written("x"))
    assert [line.partition("storage")[2] for line in found] == [
        " job job-1: x",
        ": x",
        " job job-2: x",
    ]


def test_a_message_is_one_line_that_steers_no_terminal() -> None:
    line = written("the name %s", "a\x1b[2Jb\nc.tar")
    assert line.endswith(r": the name a\x1b[2Jb c.tar")


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://user:pass@host/a", "https://host/a"),
        ("postgresql://me@host/db", "postgresql://host/db"),
        ("dsort_0123456789ab_00ff00ff", "dsort_0123456789ab_..."),
        ("/v1/x?ticket=abc&a=1", "/v1/x?ticket=...&a=1"),
        ("s3://b/a?X-Amz-Signature=ff&x=1", "s3://b/a?X-Amz-Signature=...&x=1"),
        (
            "https://h/a?X-Goog-Credential=me&X-Goog-Signature=ff&x=1",
            "https://h/a?X-Goog-Credential=...&X-Goog-Signature=...&x=1",
        ),
        ("https://h/a?GoogleAccessId=me&Expires=9", "https://h/a?GoogleAccessId=...&Expires=9"),
        ("https://h/a?Policy=ey&Key-Pair-Id=K2", "https://h/a?Policy=...&Key-Pair-Id=..."),
        (
            "https://h/a?OSSAccessKeyId=me&Signature=f",
            "https://h/a?OSSAccessKeyId=...&Signature=...",
        ),
        ("https://h/a?access_token=ff", "https://h/a?access_token=..."),
        ("s3://bucket/a@b.tar", "s3://bucket/a@b.tar"),
    ],
)
def test_secrets_are_left_out(text: str, clean: str) -> None:
    assert written("cannot read %s", text).endswith(f"cannot read {clean}")


def test_importing_and_using_dsort_configures_no_log() -> None:
    code = """
import logging, dsort
from dsort.options import RunOptions
import dsort.storage.transport, dsort.api
top = logging.getLogger("dsort")
assert [type(each).__name__ for each in top.handlers] == ["NullHandler"], top.handlers
assert (top.level, top.propagate, logging.getLogger().handlers) == (0, True, [])
logging.getLogger("dsort.storage").warning("unasked")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_lines_end_with_what_asked_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [*logging.getLogger("dsort").handlers], logging.getLogger("dsort").level
    stream = io.StringIO()
    with lines_in(stream, monkeypatch):
        LOG.debug("inside")
    LOG.error("outside")
    assert ([*logging.getLogger("dsort").handlers], logging.getLogger("dsort").level) == before
    assert [line.rpartition(": ")[2] for line in stream.getvalue().splitlines()] == ["inside"]


def test_a_stream_without_a_reader_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    with lines_in(stream, monkeypatch):
        LOG.warning("lost")


def test_a_line_of_a_worker_is_handled_as_the_coordinators_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    origin = {"job": "job-1", "attempt": 1, "worker": 3, "node": "host-01"}
    line = LogLine(LOG.name, logging.DEBUG, 1e9, "100 % done", origin)
    log_lines.pass_on(line)
    assert caplog.records == []  # no handler wants lines of that level
    with caplog.at_level(logging.DEBUG, "dsort"):
        log_lines.pass_on(line)
    (record,) = caplog.records
    text = LineFormatter().format(record).partition(" ")[2]
    assert text == "debug dsort.storage job job-1 attempt 1 worker 3 node host-01: 100 % done"


def test_lines_come_above_bars_and_as_events(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with lines_in(stream, monkeypatch):
        with make_reporter("json") as reporter:
            assert isinstance(reporter, JsonReporter)
            LOG.warning("again")
        (event,) = map(json.loads, stream.getvalue().splitlines())
        assert event["event"] == "LogLine"
        assert event["text"].endswith("warning dsort.storage: again")
        with make_reporter("bar") as reporter:
            assert isinstance(reporter, BarReporter)
            heard: list[str] = []
            monkeypatch.setattr(reporter, "line", heard.append)
            LOG.warning("more")
        assert [line.rpartition(": ")[2] for line in heard] == ["more"]
        LOG.warning("after it")
    assert stream.getvalue().endswith("dsort.storage: after it\n")


def test_what_is_said_sparingly_is_said_at_once_and_then_seldom() -> None:
    now_s = 0.0
    sparing = Sparing(5.0, lambda: now_s)
    said = []
    for now_s in (0.0, 0.1, 4.9, 5.0, 5.1, 11.0):
        if sparing.is_due():
            said.append(now_s)
    assert said == [0.0, 5.0, 11.0]
