"""Routes that do not concern a job: specs, health, the caller, the audit trail, tokens, storage.

``/v1/audit``, ``/v1/tokens``, ``/v1/storage`` and ``/v1/garbage`` are for admins. The last two only
list: ``dsort gc`` and schedules remove.
"""

from __future__ import annotations

import pathlib
import shutil
import time
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from msgspec.structs import asdict
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from dsort.errors import ForbiddenError, NotFoundError
from dsort.model.access import (
    AuditPage,
    HealthView,
    Me,
    TokenList,
    TokenMade,
    TokenView,
    ValidationView,
)
from dsort.model.base import example_of
from dsort.model.dataset import GarbageList, StorageView
from dsort.service.api.datasets import Looking, WholeBucket
from dsort.service.api.dependencies import (
    SPEC_BODY,
    Admin,
    Caller,
    Here,
    JsonAnswer,
    body_like,
    note,
    problems,
    shown,
)
from dsort.service.jobs.rows import validated
from dsort.service.problems import PROBLEM_JSON, problem
from dsort.service.schedules.definition import ScheduleRow
from dsort.service.schedules.retention import ScheduleResults
from dsort.service.security.tokens import NAME_CHARACTERS_MAX, NAME_PATTERN, StoredToken
from dsort.service.service import Service
from dsort.spec.model import schema as job_schema

RESULTS_MAX: Final = 100
SCHEDULES_MAX: Final = 200
OLD_S: Final = 86_400.0
AUDIT_PAGE_MAX = 1000
EXPIRES_S_MAX = 100 * 366 * 86400.0
_BUCKETS = "Whole URIs of buckets, or beginnings of URIs, each followed by a `*`."


class NewToken(BaseModel):
    """A token to be made."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(
        max_length=NAME_CHARACTERS_MAX,
        pattern=NAME_PATTERN,
        description="Jobs that are submitted with the token belong to this name.",
    )
    role: Literal["viewer", "submitter", "admin"]
    input_buckets: list[str] = Field(default=["*"], max_length=100, description=_BUCKETS)
    output_buckets: list[str] = Field(default=["*"], max_length=100, description=_BUCKETS)
    expires_in_s: float | None = Field(
        default=None, gt=0, le=EXPIRES_S_MAX, description="Null: the token does not expire."
    )


_SIDES: Final = ("input_buckets", "output_buckets")
_NEW_TOKEN: Final = {
    **{name: example_of(TokenView)[name] for name in ("name", "role", *_SIDES)},
    "expires_in_s": 7776000,
}
_SCHEMA: Final = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "dsort job spec",
    "type": "object",
    "required": ["input_bck", "output_format"],
    "properties": {"output_format": {"type": "string"}},
}


routes = APIRouter(default_response_class=JsonAnswer)


@routes.post(
    "/v1/validate",
    tags=["specs"],
    response_model=ValidationView,
    responses=shown(200, example_of(ValidationView)) | problems(400, 401, 403, 413, 429),
    openapi_extra=SPEC_BODY,
    summary="Check a spec",
)
async def validate_spec(service: Here, request: Request, identity: Caller) -> ValidationView:
    """Whether a spec could be submitted here. The answer has all problems at once, or the spec
    with every default written out. The service reads no data."""
    body = await request.body()

    def check() -> ValidationView:
        loaded = service.submitter.read(body, identity)
        return ValidationView(spec=loaded.spec.canonical(), warnings=loaded.warnings)

    return await run_in_threadpool(check)


@routes.get(
    "/v1/schema",
    tags=["specs"],
    responses=shown(200, _SCHEMA) | problems(401, 429),
    summary="The JSON Schema of a spec",
)
def spec_schema(identity: Caller) -> dict[str, object]:
    """As `dsort spec schema` prints it, for editors and other tools."""
    return dict(job_schema())


@routes.get(
    "/healthz",
    tags=["service"],
    response_model=HealthView,
    responses=shown(200, {"status": "ok"}),
    summary="Whether the service answers",
)
def healthz() -> HealthView:
    """The process is alive. The request needs no token."""
    return HealthView(status="ok")


@routes.get(
    "/readyz",
    tags=["service"],
    response_model=HealthView,
    responses=shown(200, {"status": "ok"}) | problems(503),
    summary="Whether the service is ready",
)
def readyz(service: Here) -> HealthView | Response:
    """The database answers, and the service runs jobs. The request needs no token."""
    why = _not_ready(service)
    if why is None:
        return HealthView(status="ok")
    return JsonAnswer(problem("not_ready", 503, why), status_code=503, media_type=PROBLEM_JSON)


def _not_ready(service: Service) -> str | None:
    try:
        with service.database.reading() as connection:
            connection.execute(text("SELECT 1"))
    except SQLAlchemyError:
        return "the database does not answer"
    if not service.dispatcher.alive:
        return "no jobs are being run here"
    return None if service.keeper.alive else "no schedules are being watched here"


@routes.get(
    "/v1/audit",
    tags=["access"],
    response_model=AuditPage,
    responses=shown(200, example_of(AuditPage)) | problems(400, 401, 403, 429),
    summary="The audit trail",
)
def read_audit(
    service: Here,
    caller: Admin,
    limit: Annotated[int, Query(ge=1, le=AUDIT_PAGE_MAX, description="How many on a page.")] = 100,
    cursor: Annotated[
        str | None,
        Query(pattern=r"^[0-9]{1,18}$", description="`next_cursor` of the page before."),
    ] = None,
) -> AuditPage:
    """Each change of a job, schedule, token or object: who made the change, when, and from which
    address. For admins."""
    rows = service.audit.list(limit=limit + 1, before=None if cursor is None else int(cursor))
    following = str(rows[limit - 1].number) if len(rows) > limit else None
    entries = [asdict(row) for row in rows[:limit]]
    return validated(AuditPage, {"entries": entries, "next_cursor": following})


@routes.get(
    "/v1/tokens",
    tags=["access"],
    response_model=TokenList,
    responses=shown(200, example_of(TokenList)) | problems(401, 403, 429),
    summary="List tokens",
)
def list_tokens(service: Here, caller: Admin) -> TokenList:
    """All tokens, expired ones too, without their secrets. For admins."""
    views = [each.view() for each in service.tokens.list()]
    return validated(TokenList, {"tokens": views})


@routes.post(
    "/v1/tokens",
    tags=["access"],
    status_code=201,
    response_model=TokenMade,
    responses=shown(201, example_of(TokenMade)) | problems(400, 401, 403, 409, 413, 429),
    openapi_extra=body_like(_NEW_TOKEN),
    summary="Make a token",
)
def add_token(
    service: Here, caller: Admin, request: Request, response: Response, wanted: NewToken
) -> TokenMade:
    """Make a token. The answer has the text of the token; the service stores only a hash of the
    text. For admins. A service without tokens refuses the request."""
    if service.config.no_auth:
        raise ForbiddenError(
            "a service without tokens makes none",
            hint="`dsort token add` makes one, on the service's machine",
        )
    expires_at = None if wanted.expires_in_s is None else time.time() + wanted.expires_in_s

    def also(connection: Connection, made: StoredToken) -> None:
        note(request, caller.name, "token.add", made.name, connection, **made.details())

    text = service.tokens.add(
        wanted.name,
        wanted.role,
        wanted.input_buckets,
        wanted.output_buckets,
        expires_at=expires_at,
        also=also,
    )
    made = service.tokens.get(wanted.name)
    response.headers["Cache-Control"] = "no-store"
    return validated(TokenMade, {**made.view(), "token": text})


@routes.delete(
    "/v1/tokens/{name}",
    tags=["access"],
    status_code=204,
    responses=problems(400, 401, 403, 404, 429),
    summary="Remove a token",
)
def remove_token(
    service: Here,
    caller: Admin,
    request: Request,
    name: Annotated[
        str,
        Path(max_length=NAME_CHARACTERS_MAX, pattern=NAME_PATTERN, description="A token's name."),
    ],
) -> Response:
    """Remove a token. The service refuses it from now on. Its jobs stay. For admins."""
    service.tokens.remove(
        name,
        also=lambda connection: note(request, caller.name, "token.remove", name, connection),
    )
    return Response(status_code=204)


@routes.get(
    "/v1/whoami",
    tags=["access"],
    response_model=Me,
    responses=shown(200, example_of(Me)) | problems(401, 429),
    summary="Who am I?",
)
def whoami(service: Here, caller: Caller) -> Me:
    """The name, role and buckets of the token that the request has."""
    return Me.model_validate(
        {
            "name": caller.name,
            "role": caller.role,
            "input_buckets": caller.input_buckets,
            "output_buckets": caller.output_buckets,
            "authenticated": not service.config.no_auth,
            "named_transforms": service.transforms is not None,
        }
    )


@routes.get(
    "/v1/storage",
    tags=["storage"],
    response_model=StorageView,
    responses=shown(200, example_of(StorageView)) | problems(401, 403, 429),
    summary="Disks, and results that schedules keep",
)
def storage(service: Here, caller: Admin) -> StorageView:
    """The disks of this replica, and the results that each schedule keeps. For admins."""
    results = ScheduleResults(service.database)
    schedules = service.schedules.list()[:SCHEDULES_MAX]
    kept = [_kept(each, results) for each in schedules if not each.unreadable]
    return validated(StorageView, {"disks": _disks(service), "schedules": kept})


@routes.get(
    "/v1/garbage/{bucket:path}",
    tags=["storage"],
    response_model=GarbageList,
    responses=shown(200, example_of(GarbageList))
    | problems(400, 401, 403, 404, 413, 422, 429, 502),
    summary="Files that dead jobs left in a bucket",
)
async def garbage(
    service: Here,
    looks: Looking,
    request: Request,
    caller: Admin,
    bucket: WholeBucket,
    older_than_s: Annotated[
        float, Query(ge=0, le=1e9, description="Minimum age of the files, in seconds.")
    ] = OLD_S,
) -> Response:
    """The files that `dsort gc` would list for a bucket. Nothing is removed. For admins."""
    place = looks.bucket(request, caller, b"/v1/garbage/")
    if not await run_in_threadpool(place.opened().exists):
        raise NotFoundError(f'bucket "{place.shown_bucket}" does not exist')
    scratch = service.config.scratch_dir
    order = {
        "look": "garbage",
        "scratch": None if scratch is None else str(scratch),
        "older_than_s": older_than_s,
    }
    await looks.note(request, "storage.look", place)
    return await looks.answer(request, place, order)


def _kept(row: ScheduleRow, results: ScheduleResults) -> dict[str, Any]:
    retain = row.definition.retain
    found = results.finished(row.schedule_id)[:RESULTS_MAX]
    return {
        "schedule": row.name,
        "owner": row.owner,
        "output_bucket": row.output_uri,
        "retain": retain,
        "results": [
            {
                "job_id": each.job_id,
                "due_at": each.due_at,
                "goes_next": retain is not None and newer + 1 >= retain,
            }
            for newer, each in enumerate(found)
        ],
    }


def _disks(service: Service) -> list[dict[str, Any]]:
    config = service.config
    places: dict[str, pathlib.Path | None] = {
        "data": config.run.root,
        "state of the service": config.state_dir,
        "scratch of jobs": config.scratch_dir,
    }
    found = []
    for what, path in places.items():
        there = (
            next((each for each in (path, *path.parents) if each.exists()), None) if path else None
        )
        if path is not None and there is not None:
            usage = shutil.disk_usage(there)
            sizes = {"free_bytes": usage.free, "total_bytes": usage.total}
            found.append({"what": what, "path": str(path), **sizes})
    return found
