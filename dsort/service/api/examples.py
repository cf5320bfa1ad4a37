"""Examples of requests and answers for the OpenAPI document: one nightly shuffle of 19 shards.

The values come from the fields of ``dsort.model``; this module adds how a job looks in each state.
"""

from __future__ import annotations

from typing import Any, Final

from dsort.model.access import AuditPage, Me, TokenList, TokenMade, TokenView, ValidationView
from dsort.model.base import Problem, example_of
from dsort.model.job import JobOut, PageView
from dsort.model.report import EXAMPLE_ID as _ID
from dsort.model.report import (
    EXAMPLE_PHASES,
    ManifestView,
    PlanReportView,
    RunReportView,
)
from dsort.model.report import EXAMPLE_WARNING as _WARNING

__all__ = [
    "AUDIT",
    "EVENTS",
    "JOB",
    "JOBS",
    "JOB_ENDED",
    "JOB_FAILED",
    "JOB_QUEUED",
    "JOB_STOPPING",
    "LOG",
    "MANIFEST",
    "ME",
    "METRICS",
    "NEW_TOKEN",
    "PAGE",
    "PLAN_REPORT",
    "PROBLEM",
    "REPORT",
    "SCHEMA",
    "TOKENS",
    "TOKEN_MADE",
    "VALIDATION",
    "without",
]

Json = dict[str, Any]


def without(document: Json, *names: str) -> Json:
    """The document without some of its fields."""
    return {name: value for name, value in document.items() if name not in names}


JOB: Final[Json] = example_of(
    JobOut, phases=EXAMPLE_PHASES[:1], unreadable=None, result=None, on_success=None
)
JOBS: Final[Json] = {
    "jobs": [without(JOB, "spec", "result", "on_success", "on_failure")],
    "next_cursor": "117",
}
JOB_QUEUED: Final[Json] = {
    **JOB,
    "state": "queued",
    "started_at": None,
    "queue_position": 1,
    "attempt": 0,
    "phase": None,
    "progress": None,
    "phases": [],
    "host": None,
}
JOB_STOPPING: Final[Json] = {**JOB, "stopping": True, "stop_reason": "the images are not all there"}
PROBLEM: Final[Json] = example_of(Problem)
MANIFEST: Final[Json] = example_of(ManifestView)
REPORT: Final[Json] = example_of(RunReportView)
PLAN_REPORT: Final[Json] = example_of(PlanReportView)
JOB_ENDED: Final[Json] = {
    **JOB,
    "state": "finished",
    "ended_at": "2026-01-31T02:00:11.500Z",
    "phase": "commit",
    "progress": None,
    "phases": EXAMPLE_PHASES,
    "warning_count": 1,
    "exit_code": 0,
    "result": REPORT,
}
JOB_FAILED: Final[Json] = {
    **JOB_ENDED,
    "state": "failed",
    "ended_at": "2026-01-31T02:00:02.100Z",
    "phase": "resolve",
    "phases": [],
    "warning_count": 0,
    "exit_code": 3,
    "error": {
        "type": "urn:dsort:problem:missing_shard",
        "title": "Missing shard",
        "status": 422,
        "detail": "1 of 20 input shards is missing: samples-07.tar",
        "hint": "set missing_shards to warn to go on without it",
        "exit_code": 3,
    },
    "result": None,
}
PAGE: Final[Json] = example_of(PageView, job=JOB_ENDED, phases=EXAMPLE_PHASES)
LOG: Final = f"""\
2026-01-31T02:00:00.000Z state   queued
2026-01-31T02:00:01.000Z state   running, attempt 1
2026-01-31T02:00:01.900Z phase   resolve took 0.1 s: 19 shards, 1.8 GiB
2026-01-31T02:00:01.901Z started 19 input shards, 1.8 GiB, 4 workers, movement map
2026-01-31T02:00:01.902Z warning missing_shards: {_WARNING}
2026-01-31T02:00:11.500Z state   finished, attempt 1
"""
EVENTS: Final = f"""\
event: state
data: {{"at": 1769824801.0, "state": "running", "attempt": 1}}
id: 41

event: started
data: {{"at": 1769824801.9, "job_id": "{_ID}", "move": "map", "workers": 4, "input_shards": 19, \
"input_bytes": 1912340480}}
id: 42

event: warning
data: {{"at": 1769824801.9, "job_id": "{_ID}", "kind": "missing_shards", "text": "{_WARNING}"}}
id: 43

event: progress
data: {{"at": 1769824804.5, "phase": "extract", "shards_done": 12, "shards_total": 19, \
"records_done": 12000, "bytes_done": 1207793664, "bytes_total": 1912340480, "elapsed_s": 2.6, \
"bytes_per_s": 464536024.6, "share": 0.2915, "left_s": 1.5}}
id: 44

event: phase
data: {{"at": 1769824806.1, "job_id": "{_ID}", "phase": "extract", "elapsed_s": 4.2, "shards": 19, \
"records": 19000, "bytes": 1912340480}}
id: 45

event: state
data: {{"at": 1769824811.5, "state": "finished", "attempt": 1}}
id: 46

event: end
data: {{"state": "finished", "exit_code": 0}}

"""

# -- the rest --------------------------------------------------------------------------------------

VALIDATION: Final[Json] = example_of(ValidationView)
SCHEMA: Final[Json] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "dsort job spec",
    "type": "object",
    "required": ["input_bck", "output_format"],
    "properties": {"output_format": {"type": "string"}},
}
ME: Final[Json] = example_of(Me)
NEW_TOKEN: Final[Json] = {
    **without(example_of(TokenView), "created_at", "expires_at"),
    "expires_in_s": 7776000,
}
TOKENS: Final[Json] = example_of(TokenList)
TOKEN_MADE: Final[Json] = example_of(TokenMade)
AUDIT: Final[Json] = example_of(AuditPage)
METRICS: Final = f"""\
# HELP dsort_jobs Jobs of all replicas, the same on each of them
# TYPE dsort_jobs gauge
dsort_jobs{{state="queued"}} 3.0
dsort_jobs{{state="running"}} 1.0
# HELP dsort_phase_bytes_total Bytes that jobs worked off
# TYPE dsort_phase_bytes_total counter
dsort_phase_bytes_total{{phase="extract"}} 1.91234048e+09
# HELP dsort_job_progress_ratio How much of a running job is done
# TYPE dsort_job_progress_ratio gauge
dsort_job_progress_ratio{{job="{_ID}"}} 0.2915
"""
