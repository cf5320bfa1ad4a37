"""``/v1/schedules``: make, list, look at, change, pause, resume, run now and remove schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field

from dsort.errors import ForbiddenError, NotFoundError
from dsort.service.api.answers import JsonAnswer
from dsort.service.api.dependencies import Caller, Submitting, address_of, number_of
from dsort.service.api.models import problems, shown
from dsort.service.database import tables
from dsort.service.schedules.definition import CatchUp, Overlap, ScheduleDefinition
from dsort.service.schedules.rows import ScheduleRow, run_view, schedule_view
from dsort.service.security.guard import parse_text
from dsort.service.security.tokens import Identity, visible
from dsort.service.service import Service

__all__ = ["router"]

RUNS_MAX: Final = 500
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
Name = Annotated[str, Path(max_length=128, pattern=NAME_PATTERN, description="A schedule's name.")]


class RunView(BaseModel):
    """What came of a due time."""

    model_config = ConfigDict(extra="allow")

    due_at: str
    by_hand: bool = Field(description="Whether somebody asked for it: run-now.")
    fired_at: str
    outcome: Literal["submitted", "skipped", "refused", "waiting"] = Field(
        description="waiting: for earlier jobs of the schedule to end."
    )
    reason: str
    job_id: str | None
    job_state: Literal["queued", "running", "finished", "failed", "stopped"] | None = Field(
        description="How its job is now; null without one, or once it is forgotten."
    )
    job_error: str | None = Field(description="Why its job failed.")
    run_id: str = Field(description="{{run_id}} of its spec.")
    removed_at: str | None = Field(description="When retention removed its outputs.")


class ScheduleView(BaseModel):
    """A schedule. Times are RFC 3339, UTC."""

    model_config = ConfigDict(extra="allow")

    name: str
    spec: dict[str, Any]
    cron: str | None
    every: str | None
    timezone: str
    paused: bool
    catch_up: CatchUp
    overlap: Overlap
    start_at: str | None
    end_at: str | None
    retain: int | None
    latest: bool | str
    on_success: dict[str, str] | None = Field(
        description="Whom to tell when a job has finished. The whole URL of a webhook is for those "
        "who may change the schedule."
    )
    on_failure: dict[str, str] | None = Field(
        description="Whom to tell when a job has failed, or could not be submitted."
    )
    priority: int
    labels: list[str]
    description: str
    owner: str
    input_uri: str = Field(description="As much of the input bucket as all runs share.")
    output_uri: str
    created_at: str
    changed_at: str
    next_times: list[str] = Field(description="The next five due times; none while it is paused.")
    run_count: int = Field(description="The jobs that it has made: the next one's {{epoch}}.")
    last_run: RunView | None
    warnings: list[str] = Field(description="About its definition; when it is made or changed.")
    unreadable: str | None = Field(
        default=None, description="What of its row cannot be read, and why; it is not run then."
    )


class ScheduleList(BaseModel):
    """All schedules that the token may see, by name."""

    schedules: list[ScheduleView]


class RunList(BaseModel):
    """Some runs, newest first."""

    runs: list[RunView]
    next_cursor: str | None = Field(description="`cursor` of the next page; null at the end.")


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
overlap: queue
catch_up: none
latest: fresh
spec:
  input_bck: s3://data/images
  output_bck: s3://data/shuffled
  output_format: fresh/{{run_id}}-%06d
  output_shard_size: 1GB
  algorithm: {kind: shuffle}
"""
_EXAMPLE_RUN: Final = {
    "due_at": "2026-11-20T01:00:00.000Z",
    "by_hand": False,
    "fired_at": "2026-11-20T01:00:00.052Z",
    "outcome": "submitted",
    "reason": "",
    "job_id": "20261120-010000-4f2a9c",
    "job_state": "finished",
    "job_error": None,
    "run_id": "20261120T010000Z",
    "removed_at": None,
}
_EXAMPLE: Final = {
    **_NIGHTLY,
    "every": None,
    "paused": False,
    "catch_up": "last",
    "overlap": "skip",
    "start_at": None,
    "end_at": None,
    "latest": True,
    "on_success": None,
    "on_failure": {"webhook": "https://hooks.example.com/dsort"},
    "priority": 0,
    "labels": [],
    "description": "",
    "owner": "alice",
    "input_uri": "file:///data/images",
    "output_uri": "file:///data/shuffled",
    "created_at": "2026-11-19T09:30:00.000Z",
    "changed_at": "2026-11-19T09:30:00.000Z",
    "next_times": [f"2026-11-{day}T01:00:00.000Z" for day in range(21, 26)],
    "run_count": 1,
    "last_run": _EXAMPLE_RUN,
    "warnings": [],
    "unreadable": None,
}


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


def seen_schedule(name: Name, request: Request, identity: Caller) -> ScheduleRow:
    """The schedule of the path, if the caller may see it."""
    row: ScheduleRow | None = request.app.state.service.schedules.get(name)
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


def router(service: Service) -> APIRouter:
    """The routes of schedules."""
    routes = APIRouter(prefix="/v1/schedules", tags=["schedules"])
    _add_reading(routes, service)
    _add_defining(routes, service)
    _add_changes(routes, service)
    return routes


def _answer(
    service: Service,
    row: ScheduleRow,
    identity: Identity,
    status: int = 200,
    *,
    warnings: Sequence[str] = (),
) -> JsonAnswer:
    store = service.schedules
    last = store.last_runs([row.schedule_id]).get(row.schedule_id)
    whole = identity.may_change(row.owner)
    view = schedule_view(row, last, now_s=store.now_s(), warnings=warnings, whole=whole)
    headers = {"Location": f"/v1/schedules/{row.name}"} if status == 201 else {}
    return JsonAnswer(view, status_code=status, headers=headers)


def _note(
    service: Service, request: Request, identity: Identity, action: str, name: str, **more: Any
) -> None:
    service.audit.note(None, identity.name, address_of(request), f"schedule.{action}", name, more)


def _add_reading(routes: APIRouter, service: Service) -> None:
    store = service.schedules

    @routes.get(
        "",
        response_model=ScheduleList,
        responses=shown(200, {"schedules": [_EXAMPLE]}) | problems(400, 401, 429),
        summary="List schedules",
    )
    def list_schedules(identity: Caller) -> Response:
        """The schedules that the token may see, by name."""
        rows = store.list(visible=visible(identity, tables.schedules))
        last = store.last_runs(row.schedule_id for row in rows)
        now_s = store.now_s()
        views = [
            schedule_view(
                row,
                last.get(row.schedule_id),
                now_s=now_s,
                whole=identity.may_change(row.owner),
            )
            for row in rows
        ]
        return JsonAnswer({"schedules": views})

    @routes.get(
        "/{name}",
        response_model=ScheduleView,
        responses=shown(200, _EXAMPLE) | problems(400, 401, 404, 429),
        summary="Look at a schedule",
    )
    def get_schedule(row: SeenSchedule, identity: Caller) -> Response:
        """The schedule with its next due times and its last run."""
        return _answer(service, row, identity)

    @routes.get(
        "/{name}/runs",
        response_model=RunList,
        responses=shown(200, {"runs": [_EXAMPLE_RUN], "next_cursor": None})
        | problems(400, 401, 404, 429),
        summary="List the runs of a schedule",
    )
    def list_runs(
        row: SeenSchedule,
        limit: Annotated[int, Query(ge=1, le=RUNS_MAX, description="How many on a page.")] = 50,
        cursor: Annotated[
            str | None, Query(max_length=20, description="`next_cursor` of the page before.")
        ] = None,
    ) -> Response:
        """What came of its due times, newest first."""
        found = store.runs(row.schedule_id, limit=limit + 1, before=number_of(cursor))
        following = str(found[limit - 1].number) if len(found) > limit else None
        views = [run_view(each) for each in found[:limit]]
        return JsonAnswer({"runs": views, "next_cursor": following})


def _add_defining(routes: APIRouter, service: Service) -> None:
    @routes.post(
        "",
        status_code=201,
        response_model=ScheduleView,
        responses=shown(201, _EXAMPLE, located="The schedule's own route.")
        | problems(400, 401, 403, 409, 413, 429),
        openapi_extra=_body(),
        summary="Make a schedule",
    )
    async def add_schedule(request: Request, identity: Submitting) -> Response:
        """Run a spec again and again. It is tried for a sample run first: every problem is told.
        The body is JSON or YAML."""
        body = await request.body()

        def add() -> Response:
            loaded = service.schedules.read(parse_text(body))
            row = service.schedules.add(loaded.definition, identity)
            buckets = {"input": row.input_uri, "output": row.output_uri}
            _note(service, request, identity, "add", row.name, **buckets)
            return _answer(service, row, identity, 201, warnings=loaded.warnings)

        return await run_in_threadpool(add)

    @routes.put(
        "/{name}",
        response_model=ScheduleView,
        responses=shown(200, _EXAMPLE) | problems(400, 401, 403, 404, 409, 413, 429),
        openapi_extra=_body(),
        summary="Replace a schedule",
    )
    async def replace_schedule(
        row: OwnSchedule, request: Request, identity: Submitting
    ) -> Response:
        """Give the schedule another definition; its history, owner and count of jobs stay."""
        body = await request.body()

        def change() -> Response:
            loaded = service.schedules.read(parse_text(body))
            after = service.schedules.change(row.name, loaded.definition, identity)
            buckets = {"input": after.input_uri, "output": after.output_uri}
            _note(service, request, identity, "change", row.name, **buckets)
            return _answer(service, after, identity, warnings=loaded.warnings)

        return await run_in_threadpool(change)


def _add_changes(routes: APIRouter, service: Service) -> None:
    refused = problems(400, 401, 403, 404, 409, 413, 429)
    changed = shown(200, _EXAMPLE) | refused

    @routes.post(
        "/{name}/pause", response_model=ScheduleView, responses=changed, summary="Pause a schedule"
    )
    def pause_schedule(row: OwnSchedule, request: Request, identity: Submitting) -> Response:
        """It is not due any more, until it is resumed. Jobs that it has made go on."""
        after = service.schedules.pause(row.name)
        _note(service, request, identity, "pause", row.name)
        return _answer(service, after, identity)

    @routes.post(
        "/{name}/resume",
        response_model=ScheduleView,
        responses=changed,
        summary="Resume a schedule",
    )
    def resume_schedule(row: OwnSchedule, request: Request, identity: Submitting) -> Response:
        """Its `catch_up` says what is made up of the due times that it missed."""
        after = service.schedules.resume(row.name)
        _note(service, request, identity, "resume", row.name)
        return _answer(service, after, identity)

    @routes.post(
        "/{name}/run-now",
        status_code=202,
        response_model=RunView,
        responses=shown(202, {**_EXAMPLE_RUN, "by_hand": True}) | refused,
        summary="Run a schedule now",
    )
    def run_schedule_now(row: OwnSchedule, request: Request, identity: Submitting) -> Response:
        """Make a job now, also of a paused schedule. Its `overlap` holds: while an earlier job is
        not over, the answer is 409 (skip), or the run waits (queue, replace)."""
        run = service.keeper.run_now(row)
        _note(service, request, identity, "run", row.name, job=run.job_id)
        return JsonAnswer(run_view(run), status_code=202)

    @routes.delete("/{name}", status_code=204, responses=refused, summary="Remove a schedule")
    def remove_schedule(row: OwnSchedule, request: Request, identity: Submitting) -> Response:
        """Forget the schedule and its history. Its jobs go on, and their results stay."""
        service.schedules.remove(row.name)
        _note(service, request, identity, "remove", row.name)
        return Response(status_code=204)
