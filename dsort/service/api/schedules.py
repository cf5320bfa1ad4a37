"""``/v1/schedules``: make, list, look at, change, pause, resume, run now and remove schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from dsort.errors import ForbiddenError, NotFoundError
from dsort.model.base import example_of
from dsort.model.schedule import NextTimes, RunList, RunView, ScheduleList, ScheduleView
from dsort.results.hooks import redacted_hook
from dsort.service.api.dependencies import (
    Caller,
    Here,
    JsonAnswer,
    Submitting,
    note,
    number_of,
    problems,
    shown,
    shown_buckets,
)
from dsort.service.database import tables
from dsort.service.database.tables import main_uri, shown_uris
from dsort.service.jobs.rows import as_model, read_parts, rfc3339, validated
from dsort.service.schedules.create import SAMPLE, parse_timing, warnings_of_inputs
from dsort.service.schedules.definition import RunRow, ScheduleDefinition, ScheduleRow
from dsort.service.schedules.due import due_times, next_due, run_id_of
from dsort.service.schedules.render import render, seed_of
from dsort.service.security.spec_text import TextLimits, parse_text
from dsort.service.security.tokens import Identity, visible
from dsort.service.service import Service

RUNS_MAX: Final = 500
# The spec in a schedule is one level deeper.
_LIMITS: Final = TextLimits(depth_max=TextLimits().depth_max + 1)
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
Name = Annotated[str, Path(max_length=128, pattern=NAME_PATTERN, description="A schedule's name.")]


_NIGHTLY: Final = {
    "name": "nightly-shuffle",
    "cron": "0 2 * * *",
    "timezone": "Europe/Berlin",
    "retain": 7,
    "spec": {
        "input_bck": "images",
        "output_bck": "shuffled",
        "output_format": "nightly/{{date}}/shuffled-%06d",
        "output_shard_size": "100MB",
        "algorithm": {"kind": "shuffle", "seed": "{{run_id}}"},
    },
}
_HOURLY: Final = """\
name: six-hourly
every: 6h
overlap: replace
catch_up: none
latest: fresh
spec:
  input_bck: s3://data/images
  output_bck: s3://data/shuffled
  output_format: fresh/{{run_id}}-%06d
  output_shard_size: 1GB
  algorithm: {kind: shuffle}
"""
_EXAMPLE: Final = example_of(ScheduleView, unreadable=None)
_EXAMPLE_RUN: Final = example_of(RunView)


def _body() -> dict[str, Any]:
    schema = ScheduleDefinition.model_json_schema()
    return {
        "requestBody": {
            "required": True,
            "description": "A schedule, as `dsort schedule add -f` takes it.",
            "content": {
                "application/json": {
                    "schema": schema,
                    "examples": {"nightly": {"summary": "Every night at two", "value": _NIGHTLY}},
                },
                "application/yaml": {
                    "schema": schema,
                    "examples": {"hourly": {"summary": "Every six hours", "value": _HOURLY}},
                },
            },
        }
    }


NEXT_TIMES: Final = 5


def run_view(run: RunRow) -> dict[str, Any]:
    """The RunView of a run."""
    return {
        "due_at": rfc3339(run.due_at),
        "by_hand": run.by_hand,
        "fired_at": rfc3339(run.fired_at),
        "outcome": run.outcome,
        "reason": run.reason,
        "job_id": run.job_id,
        "job_state": run.job_state,
        "job_error": None if run.job_error is None else str(run.job_error.get("detail", "")),
        "run_id": run_id_of(run.due_at),
        "removed_at": rfc3339(run.removed_at),
    }


def _hook(hook: Mapping[str, str] | None, whole: bool) -> Mapping[str, str] | None:
    return hook if hook is None or whole else redacted_hook(hook)


def next_times(
    definition: ScheduleDefinition, *, anchor_s: float, now_s: float
) -> list[str | None]:
    """The next due times. ``anchor_s``: see ``due.next_due``."""
    due = due_times(definition, anchor_s=anchor_s, after_s=now_s)
    return [rfc3339(each) for each in islice(due, NEXT_TIMES)]


def _next_seed(row: ScheduleRow, now_s: float) -> str | int | None:
    definition = row.definition
    due_s = next_due(definition, anchor_s=row.created_at, after_s=now_s)
    return None if due_s is None else seed_of(definition, due_s, row.run_count)


def schedule_view(
    row: ScheduleRow,
    last_run: RunRow | None,
    *,
    now_s: float,
    warnings: Sequence[str] = (),
    whole: bool = False,
) -> dict[str, Any]:
    """The ScheduleView of a row. ``next_times``: empty if the schedule is paused. ``whole``: with
    the URLs of webhooks, for those who may change the schedule. ``unreadable`` lists the fields
    that cannot be shown."""
    definition = row.definition
    rests = row.paused or bool(row.unreadable)
    parts, wrong = read_parts(
        {
            "start_at": lambda: rfc3339(definition.start_s),
            "end_at": lambda: rfc3339(definition.end_s),
            "created_at": lambda: rfc3339(row.created_at),
            "changed_at": lambda: rfc3339(row.changed_at),
            "next_times": lambda: (
                [] if rests else next_times(definition, anchor_s=row.created_at, now_s=now_s)
            ),
            "next_seed": lambda: None if rests else _next_seed(row, now_s),
            "last_run": lambda: None if last_run is None else run_view(last_run),
        }
    )
    return {
        "name": row.name,
        "spec": definition.spec,
        "cron": definition.cron,
        "every": definition.every,
        "timezone": definition.timezone,
        "paused": row.paused,
        "catch_up": definition.catch_up,
        "overlap": definition.overlap,
        "retain": definition.retain,
        "latest": definition.latest,
        **{name: _hook(definition.hooks.get(name), whole) for name in ("on_success", "on_failure")},
        "priority": definition.priority,
        "labels": list(definition.labels),
        "description": definition.description,
        "owner": row.owner,
        "input_uri": shown_uris(row.input_uri),
        "output_uri": main_uri(row.output_uri),
        **parts,
        "due_now": not rests and row.next_due_at is not None and row.next_due_at <= now_s,
        "run_count": row.run_count,
        "warnings": list(warnings),
        "unreadable": "; ".join([row.unreadable] * bool(row.unreadable) + wrong) or None,
    }


def seen_schedule(service: Here, name: Name, identity: Caller) -> ScheduleRow:
    """The schedule of the path, if the caller may see it."""
    row = service.schedules.get(name)
    if row is None or not identity.may_see(row):
        raise NotFoundError(
            f"there is no schedule {name}",
            hint="`dsort schedule ls` (GET /v1/schedules) lists those that the token may see",
        )
    return row


SeenSchedule = Annotated[ScheduleRow, Depends(seen_schedule)]


def own_schedule(row: SeenSchedule, identity: Submitting) -> ScheduleRow:
    """The schedule of the path, if the caller may change it."""
    if not identity.may_change(row.owner):
        raise ForbiddenError(f"schedule {row.name} belongs to {row.owner}")
    return row


OwnSchedule = Annotated[ScheduleRow, Depends(own_schedule)]


routes = APIRouter(prefix="/v1/schedules", tags=["schedules"], default_response_class=JsonAnswer)


def _shown(
    service: Service,
    row: ScheduleRow,
    identity: Identity,
    *,
    warnings: Sequence[str] = (),
) -> ScheduleView:
    store = service.schedules
    last = store.last_runs([row.schedule_id]).get(row.schedule_id)
    whole = identity.may_change(row.owner)
    view = schedule_view(row, last, now_s=store.now_s(), warnings=warnings, whole=whole)
    return as_model(ScheduleView, view)


async def _defined(
    service: Service,
    request: Request,
    identity: Identity,
    store: Callable[[ScheduleDefinition, Identity], ScheduleRow],
    action: str,
) -> ScheduleView:
    """Read the definition in the body, and ``store`` it; then check whether its inputs exist."""
    body = await request.body()

    def define() -> ScheduleView:
        loaded = service.schedules.read(parse_text(body, _LIMITS), identity)
        row, definition = store(loaded.definition, identity), loaded.definition
        note(request, identity.name, action, row.name, **shown_buckets(row))
        spec = service.submitter.check(render(definition.spec, SAMPLE), identity).spec
        policy = service.submitter.policy.fetch_policy()
        absent = warnings_of_inputs(definition.spec, spec, service.config.run, policy)
        return _shown(service, row, identity, warnings=(*loaded.warnings, *absent))

    return await run_in_threadpool(define)


@routes.get(
    "",
    response_model=ScheduleList,
    responses=shown(200, {"schedules": [_EXAMPLE]}) | problems(400, 401, 429),
    summary="List schedules",
)
def list_schedules(service: Here, identity: Caller) -> ScheduleList:
    """The schedules that the token may see, by name."""
    store = service.schedules
    rows = store.list(visible=visible(identity, tables.schedules))
    last = store.last_runs(row.schedule_id for row in rows)
    now_s = store.now_s()
    views = (
        schedule_view(
            row,
            last.get(row.schedule_id),
            now_s=now_s,
            whole=identity.may_change(row.owner),
        )
        for row in rows
    )
    return ScheduleList(schedules=[as_model(ScheduleView, view) for view in views])


@routes.get(
    "/{name}",
    response_model=ScheduleView,
    responses=shown(200, _EXAMPLE) | problems(400, 401, 404, 429),
    summary="Look at a schedule",
)
def get_schedule(service: Here, row: SeenSchedule, identity: Caller) -> ScheduleView:
    """The schedule with its next due times and its last run."""
    return _shown(service, row, identity)


@routes.get(
    "/{name}/runs",
    response_model=RunList,
    responses=shown(200, {"runs": [_EXAMPLE_RUN], "next_cursor": None})
    | problems(400, 401, 404, 429),
    summary="List the runs of a schedule",
)
def list_runs(
    service: Here,
    row: SeenSchedule,
    limit: Annotated[int, Query(ge=1, le=RUNS_MAX, description="How many on a page.")] = 50,
    cursor: Annotated[
        str | None, Query(max_length=20, description="`next_cursor` of the page before.")
    ] = None,
) -> RunList:
    """The runs of a schedule, newest first."""
    found = service.schedules.runs(row.schedule_id, limit=limit + 1, before=number_of(cursor))
    following = str(found[limit - 1].number) if len(found) > limit else None
    runs = [validated(RunView, run_view(each)) for each in found[:limit]]
    return RunList(runs=runs, next_cursor=following)


@routes.post(
    "",
    status_code=201,
    response_model=ScheduleView,
    responses=shown(201, _EXAMPLE, located="The schedule's own route.")
    | problems(400, 401, 403, 409, 413, 429),
    openapi_extra=_body(),
    summary="Make a schedule",
)
async def add_schedule(
    service: Here, request: Request, response: Response, identity: Submitting
) -> ScheduleView:
    """Make a schedule, which runs a spec again and again. The service checks the spec for a sample
    run, and reports every problem. The body is JSON or YAML."""
    made = await _defined(service, request, identity, service.schedules.add, "schedule.add")
    response.headers["Location"] = f"/v1/schedules/{made.name}"
    return made


@routes.post(
    "/next-times",
    response_model=NextTimes,
    responses=shown(200, example_of(NextTimes)) | problems(400, 401, 413, 429),
    openapi_extra=_body(),
    summary="See when a schedule would be due",
)
async def post_next_times(service: Here, request: Request, identity: Caller) -> NextTimes:
    """The next due times that follow from `cron` or `every`, `timezone`, `start_at` and `end_at`.
    Other fields of the body are ignored, and no schedule is made."""
    body = await request.body()

    def look() -> NextTimes:
        definition, now_s = parse_timing(parse_text(body, _LIMITS)), service.schedules.now_s()
        times = next_times(definition, anchor_s=now_s, now_s=now_s)
        return validated(NextTimes, {"timezone": definition.timezone, "next_times": times})

    return await run_in_threadpool(look)


@routes.put(
    "/{name}",
    response_model=ScheduleView,
    responses=shown(200, _EXAMPLE) | problems(400, 401, 403, 404, 409, 413, 429),
    openapi_extra=_body(),
    summary="Replace a schedule",
)
async def replace_schedule(
    service: Here, row: OwnSchedule, request: Request, identity: Submitting
) -> ScheduleView:
    """Give the schedule another definition; its history, owner and count of jobs stay."""
    change = partial(service.schedules.change, row.name)
    return await _defined(service, request, identity, change, "schedule.change")


_REFUSED: Final = problems(400, 401, 403, 404, 409, 413, 429)
_CHANGED: Final = shown(200, _EXAMPLE) | _REFUSED


@routes.post(
    "/{name}/pause", response_model=ScheduleView, responses=_CHANGED, summary="Pause a schedule"
)
def pause_schedule(
    service: Here, row: OwnSchedule, request: Request, identity: Submitting
) -> ScheduleView:
    """Pause a schedule. A paused schedule is never due. The jobs that it has made continue."""
    after = service.schedules.pause(row.name)
    note(request, identity.name, "schedule.pause", row.name)
    return _shown(service, after, identity)


@routes.post(
    "/{name}/resume",
    response_model=ScheduleView,
    responses=_CHANGED,
    summary="Resume a schedule",
)
def resume_schedule(
    service: Here, row: OwnSchedule, request: Request, identity: Submitting
) -> ScheduleView:
    """Resume a paused schedule. Its `catch_up` decides which missed due times get a job."""
    after = service.schedules.resume(row.name)
    note(request, identity.name, "schedule.resume", row.name)
    return _shown(service, after, identity)


@routes.post(
    "/{name}/run-now",
    status_code=202,
    response_model=RunView,
    responses=shown(202, {**_EXAMPLE_RUN, "by_hand": True}) | _REFUSED,
    summary="Run a schedule now",
)
def run_schedule_now(
    service: Here, row: OwnSchedule, request: Request, identity: Submitting
) -> RunView:
    """Make a job now, also of a paused schedule. If an earlier job has not ended, `overlap`
    decides: with `skip` the answer is 409; with `replace` the earlier job is stopped, and the run
    waits for the end of that job."""
    run = service.keeper.run_now(row)
    note(request, identity.name, "schedule.run", row.name, job=run.job_id)
    return validated(RunView, run_view(run))


@routes.delete("/{name}", status_code=204, responses=_REFUSED, summary="Remove a schedule")
def remove_schedule(
    service: Here, row: OwnSchedule, request: Request, identity: Submitting
) -> Response:
    """Remove the schedule and its history. Its jobs continue, and their results stay."""
    service.schedules.remove(row.name)
    note(request, identity.name, "schedule.remove", row.name)
    return Response(status_code=204)
