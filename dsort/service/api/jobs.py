"""``/v1/jobs``: submit, list, look at, stop, resume, retry and remove jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import AfterValidator
from sqlalchemy import Connection

from dsort.durations import parse_moment
from dsort.errors import ForbiddenError, NotFoundError, SpecError, SpecProblem
from dsort.model.base import JobState, example_of
from dsort.model.job import JobList, JobOut
from dsort.model.report import EXAMPLE_PHASES, RunReportView
from dsort.results.hooks import redacted_hook
from dsort.service.api.dependencies import (
    SPEC_BODY,
    Caller,
    Here,
    JsonAnswer,
    Submitting,
    body_like,
    note,
    number_of,
    problems,
    shown,
    shown_buckets,
)
from dsort.service.database.tables import JobRow, main_uri, shown_uris
from dsort.service.hosting.process import remove_logs
from dsort.service.jobs.rows import as_model, progress_view, read_parts
from dsort.service.jobs.states import RUNNING
from dsort.service.jobs.store import JobFilter, spec_hooks
from dsort.service.jobs.submit import Asked, allowed_priority
from dsort.service.security.spec_text import check_text
from dsort.service.security.tokens import visible
from dsort.service.service import Service

LIST_MAX = 500
ON_SHARD_SHOWN_MAX = 200
_PLACE = "The job's own route."
_PRIORITY = "A higher priority starts first; at equal priority owners take turns. Above 0: admins."
_REFUSED = problems(400, 401, 403, 404, 409, 413, 429)
JOB: Final[dict[str, Any]] = example_of(
    JobOut, phases=EXAMPLE_PHASES[:1], unreadable=None, result=None, on_success=None
)
JOB_QUEUED: Final[dict[str, Any]] = {
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
JOB_STOPPING: Final[dict[str, Any]] = {
    **JOB,
    "stopping": True,
    "stop_reason": "the images are not all there",
}
JOB_ENDED: Final[dict[str, Any]] = {
    **JOB,
    "state": "finished",
    "ended_at": "2026-01-31T02:00:11.500Z",
    "phase": "commit",
    "progress": None,
    "phases": EXAMPLE_PHASES,
    "warning_count": 1,
    "exit_code": 0,
    "result": example_of(RunReportView),
}
_WHOLE_ONLY: Final = ("spec", "result", "on_success", "on_failure")
_LISTED: Final = {name: value for name, value in JOB.items() if name not in _WHOLE_ONLY}


def seen_job(
    service: Here,
    job_id: Annotated[
        str, Path(max_length=64, pattern=r"^[A-Za-z0-9_-]+$", description="A job's id.")
    ],
    identity: Caller,
) -> JobRow:
    """The job of the path, if the caller may see it. A guest's id for the job is accepted, too."""
    row = service.store.get(service.guest.own_id(job_id))
    if row is None or not identity.may_see(row):
        raise NotFoundError(
            f"there is no job {job_id}",
            hint="`dsort show` (GET /v1/jobs) lists those that the token may see",
        )
    return row


SeenJob = Annotated[JobRow, Depends(seen_job)]


def own_job(row: SeenJob, identity: Submitting) -> JobRow:
    """The job of the path, if the caller may change it."""
    if not identity.may_change(row.owner):
        raise ForbiddenError(f"job {row.job_id} belongs to {row.owner}")
    return row


OwnJob = Annotated[JobRow, Depends(own_job)]


_DERIVED = (
    *("input_uri", "output_uri", "schedule", "queue_position", "progress", "phases", "host"),
    *("unreadable", "spec", "result", "on_success", "on_failure"),
)
_SAME = tuple(name for name in JobOut.model_fields if name not in _DERIVED)
"""The fields of ``JobOut`` that have the same names and values in a row."""


def job_out(row: JobRow, *, position: int | None = None, whole: bool = False) -> JobOut:
    """The job as answers show it; ``whole``: with its spec and result. ``unreadable`` lists the
    fields that cannot be shown."""
    is_running = row.state == RUNNING
    parts, wrong = read_parts(
        {"progress": lambda: progress_view(row.progress, row.kind) if is_running else None}
    )
    values = {
        **{name: getattr(row, name) for name in _SAME},
        **parts,
        "input_uri": shown_uris(row.input_uri),
        "output_uri": main_uri(row.output_uri),
        "schedule": row.schedule_name,
        "queue_position": position,
        "phases": row.phases or (),
        "host": row.host.partition("/")[0] if row.host else None,
        "unreadable": "; ".join(wrong) or None,
    }
    if whole:
        values |= {"spec": row.spec, "result": row.result}
        for name in ("on_success", "on_failure"):
            hook = (row.hooks or {}).get(name)
            values[name] = None if hook is None else redacted_hook(hook)
    return as_model(JobOut, values)


def _shown(service: Service, row: JobRow) -> JobOut:
    return job_out(row, position=service.store.position(row), whole=True)


def _accepted(service: Service, row: JobRow, response: Response) -> JobOut:
    """The job; sets its address in the headers of the answer."""
    response.headers["Location"] = f"/v1/jobs/{row.job_id}"
    return _shown(service, row)


routes = APIRouter(prefix="/v1/jobs", tags=["jobs"], default_response_class=JsonAnswer)


@routes.post(
    "",
    status_code=201,
    response_model=JobOut,
    response_model_exclude_unset=True,
    responses={
        **shown(201, JOB_QUEUED, located=_PLACE),
        **shown(
            200,
            JOB,
            model=JobOut,
            description="The job that an earlier request with this Idempotency-Key made.",
        ),
        **problems(400, 401, 403, 409, 413, 429),
    },
    openapi_extra=SPEC_BODY,
    summary="Submit a job",
)
async def submit_job(
    service: Here,
    request: Request,
    response: Response,
    identity: Submitting,
    priority: Annotated[int, Query(ge=-1000, le=1000, description=_PRIORITY)] = 0,
    label: Annotated[
        list[str], Query(max_length=20, description="A label to find the job by; may be repeated.")
    ] = [],  # noqa: B006 (FastAPI copies it)
    description: Annotated[
        str | None, Query(max_length=2000, description="In place of the description in the spec.")
    ] = None,
    dry_run: Annotated[
        bool, Query(description="Plan only: a job of kind `plan`, which writes nothing.")
    ] = False,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            description="A text of your own: all requests with the same text make one job.",
        ),
    ] = None,
) -> JobOut:
    """Put the job that the spec describes into the queue. The body is the spec, JSON or YAML,
    as `dsort start -f` takes it."""
    body = await request.body()
    asked = Asked(
        priority=priority,
        labels=tuple(label),
        description=description,
        dry_run=dry_run,
        idempotency_key=idempotency_key,
    )

    def on_insert(connection: Connection, new: JobRow) -> None:
        details = {**shown_buckets(new), "kind": new.kind, **_for_admins(new.spec)}
        note(request, identity.name, "job.submit", new.job_id, connection, **details)

    def take_in() -> JobOut:
        row, new = service.submitter.submit(body, identity, asked, on_insert)
        if not new:
            response.status_code = 200
            return _shown(service, row)
        service.dispatcher.wake()
        return _accepted(service, row, response)

    return await run_in_threadpool(take_in)


def _for_admins(spec: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a spec that only admins may use, by their names in the audit log."""
    on_shard, amend = spec.get("on_shard") or {}, spec.get("amend") or {}
    found = {"on_shard": " ".join(on_shard.get("exec", ()))[:ON_SHARD_SHOWN_MAX]}
    found["amends"] = f"{amend['job']} ({amend['by']})" if amend else ""
    return {name: text for name, text in found.items() if text}


@routes.get(
    "",
    response_model=JobList,
    response_model_exclude_unset=True,
    responses=shown(200, {"jobs": [_LISTED], "next_cursor": "117"}) | problems(400, 401, 429),
    summary="List jobs",
)
def list_jobs(
    service: Here,
    identity: Caller,
    state: Annotated[
        list[JobState], Query(description="Jobs in any of these states; may be repeated.")
    ] = [],  # noqa: B006
    owner: Annotated[
        str | None, Query(max_length=128, description="The name of the jobs' token.")
    ] = None,
    label: Annotated[
        list[str], Query(max_length=20, description="Jobs with all of these; may be repeated.")
    ] = [],  # noqa: B006
    kind: Annotated[
        Literal["run", "plan"] | None,
        Query(description="plan: dry runs alone; run: no dry run."),
    ] = None,
    schedule: Annotated[
        str | None,
        Query(max_length=128, description="The schedule that made the jobs."),
    ] = None,
    text: Annotated[
        str,
        Query(max_length=200, description="The beginning of an id, or a part of a description."),
    ] = "",
    since: Annotated[
        str | None,
        Query(max_length=40, description="Submitted then or later: RFC 3339, or seconds."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=LIST_MAX, description="How many on a page.")] = 50,
    cursor: Annotated[
        str | None, Query(max_length=20, description="`next_cursor` of the page before.")
    ] = None,
) -> JobList:
    """The jobs that the token may see, newest first."""
    wanted = JobFilter(
        states=state,
        kind=kind,
        owner=owner,
        labels=label,
        schedule=schedule,
        text=text,
        since=_moment(since),
        visible=visible(identity),
    )
    page = service.store.list(wanted, limit=limit, before=number_of(cursor))
    queued = service.store.positions(row.number for row in page.rows if row.state == "queued")
    found = [job_out(row, position=queued.get(row.number)) for row in page.rows]
    following = None if page.next_number is None else str(page.next_number)
    return JobList(jobs=found, next_cursor=following)


@routes.get(
    "/{job_id}",
    response_model=JobOut,
    response_model_exclude_unset=True,
    responses=shown(200, JOB_ENDED) | problems(400, 401, 404, 429),
    summary="Look at a job",
)
def get_job(service: Here, row: SeenJob) -> JobOut:
    """The job with its spec and, once it has finished, its report."""
    return _shown(service, row)


@routes.post(
    "/{job_id}/stop",
    status_code=202,
    response_model=JobOut,
    response_model_exclude_unset=True,
    responses=shown(202, JOB_STOPPING, located=_PLACE) | _REFUSED,
    openapi_extra=body_like({"reason": "the images are not all there"}),
    summary="Stop a job",
)
def stop_job(
    service: Here,
    row: OwnJob,
    request: Request,
    response: Response,
    identity: Submitting,
    reason: Annotated[
        str,
        AfterValidator(check_text),
        Body(
            embed=True,
            max_length=1000,
            description="The reason, shown beside the job.",
        ),
    ] = "",
) -> JobOut:
    """A queued job is stopped at once. A running job ends within seconds, and removes its
    unfinished work. A job that has ended stays as it is."""
    after = service.store.ask_stop(row.job_id, reason)
    note(request, identity.name, "job.stop", row.job_id, reason=reason)
    service.dispatcher.wake()
    return _accepted(service, after, response)


@routes.post(
    "/{job_id}/resume",
    status_code=202,
    response_model=JobOut,
    response_model_exclude_unset=True,
    responses=shown(202, JOB_QUEUED, located=_PLACE) | _REFUSED,
    summary="Resume a job",
)
def resume_job(
    service: Here, row: OwnJob, request: Request, response: Response, identity: Submitting
) -> JobOut:
    """Put a failed or stopped job into the queue again. The job keeps its id, makes the same bytes,
    and uses its finished work."""
    # Permissions may have changed since the submission: then this line raises an error.
    service.submitter.job_of(row.spec, identity)
    after = service.store.requeue(row.job_id)
    note(request, identity.name, "job.resume", row.job_id)
    service.dispatcher.wake()
    return _accepted(service, after, response)


@routes.post(
    "/{job_id}/retry",
    status_code=202,
    response_model=JobOut,
    response_model_exclude_unset=True,
    responses=shown(202, JOB_QUEUED, located=_PLACE) | _REFUSED,
    summary="Run a job's spec again",
)
def retry_job(
    service: Here, row: OwnJob, request: Request, response: Response, identity: Submitting
) -> JobOut:
    """A new job with the same spec and the same seed."""
    of_schedule = {"schedule_id": row.schedule_id, "due_at": row.due_at}
    asked = Asked(
        priority=allowed_priority(identity, row.priority),
        labels=row.labels,
        description=row.description,
        dry_run=row.kind == "plan",
        hooks=spec_hooks(row.hooks),
        more={**of_schedule, "after_commit": row.after_commit},
    )
    after, _ = service.submitter.put(service.submitter.job_of(row.spec, identity, asked))
    note(request, identity.name, "job.retry", after.job_id, of=row.job_id)
    service.dispatcher.wake()
    return _accepted(service, after, response)


@routes.delete(
    "/{job_id}",
    status_code=204,
    responses=_REFUSED,
    summary="Forget a job",
)
def remove_job(service: Here, row: OwnJob, request: Request, identity: Submitting) -> Response:
    """Remove an ended job from the history. Its output shards stay where they are."""
    service.store.remove(row.job_id)
    remove_logs(service.config.state_dir, row.job_id)
    note(request, identity.name, "job.remove", row.job_id)
    return Response(status_code=204)


def _moment(text: str | None) -> float | None:
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]*)?", text):
        return float(text)
    try:
        return parse_moment(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise SpecError([SpecProblem("since", str(error))]) from None
