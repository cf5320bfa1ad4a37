"""All routes of the service, with the status of each answer to each caller: the table of the law of
access. A commit that adds a route adds its row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.routing import BaseRoute

CALLERS = ("anonymous", "stranger", "viewer", "owner", "other", "admin")
"""The callers: without a token, with an unknown token, and with a token of each role. There are two
submitters: the owner of the thing that a request names, and another submitter."""

BUCKETS = ("allowed", "input", "output")
"""The buckets of the thing that a request names: viewer and submitters may use all of them; or they
may not use its input bucket, or its output bucket."""

OK = 0  # the status that the row names
_Answers = Mapping[str, tuple[tuple[int, ...], ...]]


def _answers(allowed: str, hidden: str) -> _Answers:
    """Statuses in the order of the callers; ``ok`` is the row's own."""
    found = {}
    for bucket, line in (("allowed", allowed), ("input", hidden), ("output", hidden)):
        found[bucket] = tuple(
            tuple(OK if each == "ok" else int(each) for each in cell.split("/"))
            for cell in line.split()
        )
    return found


LAWS: Mapping[str, _Answers] = {
    #                anonymous stranger viewer owner other admin
    "open": _answers("   ok    ok     ok    ok    ok   ok", " ok   ok     ok    ok  ok  ok"),
    "token": _answers("  401   401    ok    ok    ok   ok", " 401  401    ok    ok  ok  ok"),
    "submitter": _answers("401 401    403   ok    ok   ok", " 401  401    403   ok  ok  ok"),
    "admin": _answers("  401   401    403   403   403  ok", " 401  401    403   403 403 ok"),
    "look": _answers("   401   401    ok    ok    ok   ok", " 401  401    404   404 404 ok"),
    # A viewer is refused before or after the thing is looked up.
    "change": _answers(" 401   401    403   ok    403  ok", " 401  401 403/404  404 404 ok"),
    # A schedule runs with its owner's rights, also if another user changes or runs it.
    "owners": _answers(" 401   401    403   ok    403  ok", " 401  401 403/404  404 404 403"),
    "read": _answers("   401   401    ok    ok    ok   ok", " 401  401    403   403 403 ok"),
    "submit": _answers(" 401   401    403   ok    ok   ok", " 401  401    403   403 403 ok"),
}


@dataclass(frozen=True)
class Row:
    """One route, or one use of it. In ``path`` and ``query``, ``{...}`` stands for a thing that the
    test makes: a job, a schedule, a token, a spec as body, ..."""

    law: str
    status: int = 200
    query: str = ""
    body: str = ""  # spec | schedule | token | transform | stop | an action

    def expected(self, bucket: str, caller: str) -> tuple[int, ...]:
        """The statuses, any of which is right."""
        cell = LAWS[self.law][bucket][CALLERS.index(caller)]
        return tuple(each or self.status for each in cell)

    @property
    def about_buckets(self) -> bool:
        """Whether the answer depends on the buckets of the thing that the request names."""
        return LAWS[self.law]["allowed"] != LAWS[self.law]["input"]


JOB = "/v1/jobs/{job_id}"
SCHEDULE = "/v1/schedules/{name}"

ROUTES: Mapping[str, tuple[Row, ...]] = {
    "GET /": (Row("open"),),
    "HEAD /": (Row("open"),),
    "GET /web/{name}": (Row("open"),),
    "HEAD /web/{name}": (Row("open"),),
    "GET /docs": (Row("open"),),
    "HEAD /docs": (Row("open"),),
    "GET /openapi.json": (Row("open"),),
    "HEAD /openapi.json": (Row("open"),),
    "GET /healthz": (Row("open"),),
    "GET /readyz": (Row("open", 503),),  # in these tests, no dispatcher runs
    "GET /metrics": (Row("token"),),
    "GET /v1/whoami": (Row("token"),),
    "GET /v1/schema": (Row("token"),),
    "POST /v1/validate": (Row("token", body="spec"),),
    "GET /v1/audit": (Row("admin"),),
    "GET /v1/storage": (Row("admin"),),
    "GET /v1/garbage/{bucket:path}": (Row("admin"),),
    "GET /v1/tokens": (Row("admin"),),
    "POST /v1/tokens": (Row("admin", 201, body="token"),),
    "DELETE /v1/tokens/{name}": (Row("admin", 204),),
    "GET /v1/transforms": (Row("token"),),
    "GET /v1/transforms/{use}": (Row("token"),),
    "PUT /v1/transforms/{name}": (Row("admin", 201, body="transform"),),
    "DELETE /v1/transforms/{use}": (Row("admin", 204),),
    "GET /v1/buckets": (Row("token"),),
    "GET /v1/buckets/{bucket:path}": (Row("read"),),
    "HEAD /v1/buckets/{bucket:path}": (Row("read"),),
    "POST /v1/buckets/{bucket:path}": (Row("submit", 409, body="create-bck"),),  # the bucket exists
    "DELETE /v1/buckets/{bucket:path}": (
        Row("admin", 409, body="destroy-bck"),  # a job uses it
        Row("submit", body="delete-listrange"),
    ),
    "GET /v1/objects/{bucket}/{name:path}": (Row("read"),),
    "HEAD /v1/objects/{bucket}/{name:path}": (Row("read"),),
    "PUT /v1/objects/{bucket}/{name:path}": (Row("submit"),),
    "DELETE /v1/objects/{bucket}/{name:path}": (Row("submit"),),
    "GET /v1/listings": (Row("token"),),
    "GET /v1/listings/{bucket:path}": (Row("read"),),
    "GET /v1/shards/{bucket:path}": (Row("read"),),
    "GET /v1/records/{bucket}/{name:path}": (Row("read", 400),),  # the object is no shard
    "GET /v1/samples/{bucket}/{name:path}": (Row("read", 400, "number=0"),),
    "GET /v1/members/{bucket}/{name:path}": (Row("read", 400, "number=0&member=0"),),
    "GET /v1/changed/{bucket}/{name:path}": (Row("submit", 400, "number=0&transform=half"),),
    "GET /v1/jobs": (Row("token"),),
    "POST /v1/jobs": (Row("submit", 201, body="spec"), Row("submit", 201, "dry_run=1", "spec")),
    f"GET {JOB}": (Row("look"),),
    f"DELETE {JOB}": (Row("change", 204),),
    f"GET {JOB}/events": (Row("look"),),
    f"GET {JOB}/manifest": (Row("look"),),
    f"GET {JOB}/report": (Row("look"),),
    f"GET {JOB}/log": (Row("look"),),
    f"GET {JOB}/page": (Row("look"),),
    "GET /v1/results/{job_id}/records": (Row("look", 404),),  # the job was stopped
    f"POST {JOB}/stop": (Row("change", 202),),
    f"POST {JOB}/resume": (Row("change", 202),),
    f"POST {JOB}/retry": (Row("change", 202),),
    "GET /v1/schedules": (Row("token"),),
    "POST /v1/schedules": (Row("submit", 201, body="schedule"),),
    "POST /v1/schedules/next-times": (Row("token", body="schedule"),),
    f"GET {SCHEDULE}": (Row("look"),),
    f"PUT {SCHEDULE}": (Row("owners", body="schedule"),),
    f"DELETE {SCHEDULE}": (Row("change", 204),),
    f"GET {SCHEDULE}/runs": (Row("look"),),
    f"POST {SCHEDULE}/pause": (Row("change"),),
    f"POST {SCHEDULE}/resume": (Row("change"),),
    f"POST {SCHEDULE}/run-now": (Row("owners", 202),),
    "GET /v1/sort": (Row("token"), Row("look", query="uuid={job_id}")),
    "POST /v1/sort": (Row("submit", body="spec"),),
    "DELETE /v1/sort": (Row("change", query="uuid={job_id}"),),
    "DELETE /v1/sort/abort": (Row("change", query="uuid={job_id}"),),
    "GET /v1/cluster": (Row("token", query="what=running_all"),),
    "PUT /v1/cluster": (Row("change", body="stop"),),
    "GET /v1/daemon": (Row("token", query="what=smap"),),
    "GET /v1/download": (Row("token"),),
    "PUT /v1/objects/{bucket:path}/ekm-file.json": (Row("submitter"),),
}

DECLINED = ("buckets", "objects", "cluster", "daemon", "health", "etl", "reverse", "download")
"""Beginnings of a peer's paths, which this service does not serve: for a client with a token, the
answer has this reason."""


def routes_of(routes: list[BaseRoute]) -> Iterator[str]:
    """All routes of an application as ``METHOD path``, those within included routers too."""
    for route in routes:
        inner: Any = getattr(route, "original_router", None)
        if inner is not None:
            yield from routes_of(inner.routes)
            continue
        methods, path = getattr(route, "methods", None), getattr(route, "path", None)
        assert methods is not None, f"{route} is neither a route nor a router"
        for method in sorted(methods):
            yield f"{method} {path}"
