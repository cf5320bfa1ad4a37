"""What a job's log and page make of its events: no counts of nothing, no warning twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dsort.service.api.results import _progress_and_warnings, _words
from dsort.service.jobs.rows import EventRow

WARNING = {"kind": "duplicate_keys", "text": "20,000 records have the key of an earlier record"}


def event(number: int, kind: str, /, **data: Any) -> EventRow:
    return EventRow(number, "a", float(number), kind, data)


def test_what_a_phase_does_not_count_is_not_reported() -> None:
    resolved = event(1, "phase", phase="resolve", elapsed_s=0.3, shards=19, records=0, bytes=2048)
    planned = event(2, "phase", phase="plan", elapsed_s=0.0, shards=0, records=1900, bytes=2048)
    assert _words(resolved.kind, resolved.data) == "resolve took 0.30 s: 19 shards, 2 KiB"
    assert _words(planned.kind, planned.data) == "plan took 0.00 s: 1,900 records, 2 KiB"


def test_warnings_are_those_of_the_newest_attempt() -> None:
    events = [
        event(1, "state", state="running", attempt=1),
        event(2, "warning", **WARNING),
        event(3, "state", state="running", attempt=2),
        event(4, "warning", **WARNING),
        event(5, "state", state="finished", attempt=2),
    ]
    store = SimpleNamespace(
        events_after=lambda after, job_id: [each for each in events if each.number > after]
    )
    service: Any = SimpleNamespace(store=store)
    assert _progress_and_warnings(service, "a") == ([], [WARNING])
