"""What requests and answers look like, for the OpenAPI document: one nightly shuffle of 19 shards,
told by all routes that tell of jobs."""

from __future__ import annotations

from typing import Any, Final

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


_ID: Final = "20260131-020000-4f2a9c"
_SPEC: Final[Json] = {
    "input_bck": "s3://data/images",
    "output_bck": "s3://data/shuffled",
    "input_format": {"template": "samples-{00..19}", "objnames": None, "prefix": None},
    "input_extension": ".tar",
    "output_format": "shuffled-%04d",
    "output_extension": ".tar",
    "output_shard_size": 1000000000,
    "algorithm": {"kind": "shuffle", "seed": "42", "decreasing": False},
    "description": "Shuffle the images",
}

# -- jobs ------------------------------------------------------------------------------------------

_PHASES: Final = [
    {"phase": name, "seconds": seconds, "shards": shards, "records": records, "bytes": size}
    for name, seconds, shards, records, size in (
        ("resolve", 0.1, 19, 0, 1912340480),
        ("extract", 4.2, 19, 19000, 1912340480),
        ("plan", 0.3, 0, 19000, 1892884480),
        ("create", 4.6, 2, 19000, 1892884480),
        ("commit", 0.2, 2, 19000, 1912340480),
    )
]
JOB: Final[Json] = {
    "job_id": _ID,
    "kind": "run",
    "state": "running",
    "stopping": False,
    "owner": "alice",
    "labels": ["nightly"],
    "priority": 0,
    "description": "Shuffle the images",
    "input_uri": "s3://data/images",
    "output_uri": "s3://data/shuffled",
    "schedule": None,
    "due_at": None,
    "created_at": "2026-01-31T02:00:00.000Z",
    "started_at": "2026-01-31T02:00:01.000Z",
    "ended_at": None,
    "queue_position": None,
    "attempt": 1,
    "phase": "extract",
    "progress": {
        "phase": "extract",
        "shards_done": 12,
        "shards_total": 19,
        "records_done": 12000,
        "bytes_done": 1207793664,
        "bytes_total": 1912340480,
        "elapsed_s": 2.6,
        "share": 0.2915,
        "bytes_per_s": 464536024.6,
        "left_s": 1.5,
    },
    "phases": _PHASES[:1],
    "warning_count": 0,
    "stop_reason": None,
    "error": None,
    "exit_code": None,
    "host": "worker-1",
    "unreadable": None,
    "spec": _SPEC,
    "result": None,
    "on_success": None,
    "on_failure": {"webhook": "https://hooks.example.com/…"},
}
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
PROBLEM: Final[Json] = {
    "type": "urn:dsort:problem:spec",
    "title": "Spec",
    "status": 400,
    "detail": "algorithm.kind: must be one of none, alphanumeric, shuffle, md5, content",
    "hint": "",
    "exit_code": 2,
    "problems": [
        {
            "path": "algorithm.kind",
            "message": "must be one of none, alphanumeric, shuffle, md5, content",
            "hint": 'did you mean "shuffle"?',
        }
    ],
}

# -- what they make --------------------------------------------------------------------------------

_TIMELINE: Final = [
    [0.0, "resolve", 0, 0.0],
    [0.1, "extract", 0, 0.0],
    [2.7, "extract", 1207793664, 464536024.6],
    [4.3, "extract", 1912340480, 440341760.0],
    [4.6, "create", 0, 0.0],
    [9.2, "create", 1892884480, 411496626.1],
    [9.4, "commit", 1912340480, 0.0],
]
_MIXING: Final[Json] = {
    "input_shards": 19,
    "output_shards": 2,
    "input_bins": 19,
    "output_bins": 2,
    "output_bin_shards": 1,
    "counts": [[523 + 7 * (shard % 3 - 1), 477 - 7 * (shard % 3 - 1)] for shard in range(19)],
    "chi2": 2.543,
    "degrees_of_freedom": 18,
    "p_value": 0.999996,
    "verdict": "even",
    "words": "Each output shard holds records of all input shards in proportion: chi-squared 3 for "
    "18 degrees of freedom, p = 1.00. An even shuffle gives p below 0.001 once in a thousand jobs.",
}
_SECONDS: Final = {each["phase"]: each["seconds"] for each in _PHASES}
_REACTIONS: Final = [{"kind": "missing_shards", "count": 1, "samples": ["samples-07.tar"]}]
_WARNING: Final = "1 of 20 input shards is missing: samples-07.tar"
MANIFEST: Final[Json] = {
    "manifest": 1,
    "job_id": _ID,
    "created": "2026-01-31T02:00:10+00:00",
    "dsort": {"dsort": "1.0.0", "python": "3.12.8"},
    "spec": _SPEC,
    "totals": {
        "input_shards": 19,
        "output_shards": 2,
        "records": 19000,
        "members": 38000,
        "payload_bytes": 1873428480,
        "file_bytes": 1912340480,
    },
    "move": {
        "way": "map",
        "reason": "1.8 GiB of inputs fit twice in the 18.8 GiB that the job may use",
        "runtime": "local",
        "workers": 4,
        "buckets": 1,
        "memory_bytes": 20221208166,
    },
    "phase_seconds": {**_SECONDS, "commit": 0.0},
    "reactions": _REACTIONS,
    "index": None,
    "mixing": _MIXING,
    "timeline": _TIMELINE,
    "inputs": [
        {
            "name": "samples-00.tar",
            "bytes": 100649499,
            "mtime_ns": 1769800000000000000,
            "etag": "9f620878e06d28774406017480a59fd4",
            "records": 1000,
        }
    ],
    "outputs": [
        {
            "name": "shuffled-0000.tar",
            "records": 9930,
            "members": 19860,
            "payload_bytes": 979803095,
            "file_bytes": 1000154112,
            "xxh3": "bdbcecb34a67657a",
        },
        {
            "name": "shuffled-0001.tar",
            "records": 9070,
            "members": 18140,
            "payload_bytes": 893625385,
            "file_bytes": 912186368,
            "xxh3": "c5e6c0359d8a98b3",
        },
    ],
}
REPORT: Final[Json] = {
    "job_id": _ID,
    "state": "finished",
    "output_uri": "s3://data/shuffled",
    "manifest_name": f".dsort/{_ID}/manifest.json",
    "move": "map",
    "workers": 4,
    **MANIFEST["totals"],
    "seed": "42",
    "phase_seconds": _SECONDS,
    "reactions": _REACTIONS,
    "warnings": [_WARNING],
    "error": None,
    "mixing": _MIXING,
    "timeline": _TIMELINE,
}
PLAN_REPORT: Final[Json] = {
    "job_id": "20260131-015500-0b77e1",
    **without(MANIFEST["totals"], "output_shards"),
    "shards": [
        {name: each[name] for name in ("name", "records", "payload_bytes", "file_bytes")}
        for each in MANIFEST["outputs"]
    ],
    "shards_total": 2,
    "move": "map",
    "move_reason": MANIFEST["move"]["reason"],
    "workers": 4,
    "memory_bytes": 20221208166,
    "scratch_bytes": 0,
    "seed": "42",
    "reactions": _REACTIONS,
    "warnings": [_WARNING],
    "mixing": _MIXING,
}
JOB_ENDED: Final[Json] = {
    **JOB,
    "state": "finished",
    "ended_at": "2026-01-31T02:00:11.500Z",
    "phase": "commit",
    "progress": None,
    "phases": _PHASES,
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
PAGE: Final[Json] = {
    "title": "Shuffle the images",
    "job": JOB_ENDED,
    "phases": _PHASES,
    "timeline": _TIMELINE,
    "inputs": {"total": 19, "bytes": 1912340480},
    "shards": {
        "total": 2,
        "rows": [["shuffled-0000.tar", 9930, 1000154112], ["shuffled-0001.tar", 9070, 912186368]],
    },
    "warnings": [{"kind": "missing_shards", "text": _WARNING}],
    "mixing": _MIXING,
}
LOG: Final = f"""\
2026-01-31T02:00:00.000Z state   queued
2026-01-31T02:00:01.000Z state   running, attempt 1
2026-01-31T02:00:01.900Z phase   resolve took 0.1 s: 19 shards, 1.8 GiB
2026-01-31T02:00:01.901Z started 19 input shards, 1.8 GiB, 4 workers, way map
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

VALIDATION: Final[Json] = {"ok": True, "spec": _SPEC, "warnings": []}
SCHEMA: Final[Json] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "dsort job spec",
    "type": "object",
    "required": ["input_bck", "output_format"],
    "properties": {"output_format": {"type": "string"}},
}
ME: Final[Json] = {
    "name": "alice",
    "role": "submitter",
    "input_buckets": ["s3://data/*"],
    "output_buckets": ["s3://data/alice/*"],
    "authenticated": True,
}
NEW_TOKEN: Final[Json] = {
    "name": "alice",
    "role": "submitter",
    "input_buckets": ["s3://data/*"],
    "output_buckets": ["s3://data/alice/*"],
    "expires_in_s": 7776000,
}
_TOKEN: Final[Json] = {
    **without(NEW_TOKEN, "expires_in_s"),
    "created_at": "2026-01-31T02:00:00.000Z",
    "expires_at": "2026-05-01T02:00:00.000Z",
}
TOKENS: Final[Json] = {"tokens": [_TOKEN]}
TOKEN_MADE: Final[Json] = {**_TOKEN, "token": "dsort_0123456789ab_" + "0" * 48}
AUDIT: Final[Json] = {
    "entries": [
        {
            "number": 12,
            "at": "2026-01-31T02:00:00.000Z",
            "who": "alice",
            "address": "192.0.2.7",
            "action": "job.submit",
            "target": _ID,
            "details": {
                "input": "s3://data/images",
                "output": "s3://data/shuffled",
                "kind": "run",
            },
        }
    ],
    "next_cursor": None,
}
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
