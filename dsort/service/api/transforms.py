"""``/v1/transforms``: the named transforms that jobs may use. Admins write them."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Connection

from dsort.errors import ForbiddenError
from dsort.model.base import example_of
from dsort.model.transform import TransformList, TransformView, WholeTransformView
from dsort.service.api.answers import JsonAnswer
from dsort.service.api.dependencies import Admin, Caller, address_of, number_of
from dsort.service.api.models import problems, shown
from dsort.service.jobs.rows import rfc3339, validated
from dsort.service.security.guard import bounded_problems, parse_text
from dsort.service.service import Service
from dsort.spec.load import read_transform
from dsort.spec.named import NAME_PATTERN, NamedTransform, parse_use
from dsort.transforms.steps import STEPS

__all__ = ["router"]

LIST_MAX: Final = 100
Name = Annotated[
    str, Path(max_length=64, pattern=rf"^{NAME_PATTERN}$", description="A transform's name.")
]
Use = Annotated[
    str,
    Path(
        max_length=74,
        pattern=rf"^{NAME_PATTERN}(@[1-9][0-9]{{0,8}})?$",
        description="A transform's name, or one of its versions: `resize@3`.",
    ),
]
_EXAMPLE: Final = example_of(WholeTransformView)
_BODY: Final = {
    "requestBody": {
        "required": True,
        "description": "As `transform` of a spec has it: `steps`, and what becomes of records at "
        "which they fail.",
        "content": {
            "application/json": {
                "schema": {"type": "object"},
                "example": _EXAMPLE["transform"],
            },
            "application/yaml": {
                "schema": {"type": "object"},
                "example": "steps:\n- sample: {fraction: 0.1}\n",
            },
        },
    }
}


def router(service: Service) -> APIRouter:
    """The routes of transforms."""
    routes = APIRouter(
        prefix="/v1/transforms", tags=["transforms"], default_response_class=JsonAnswer
    )
    _add_reading(routes, service)
    _add_writing(routes, service)
    return routes


def _view(each: NamedTransform) -> dict[str, Any]:
    kinds = [kind for step in each.fields["steps"] for kind in step]
    safe = (kind in STEPS and STEPS[kind].is_safe_from_network for kind in kinds)
    return {
        "name": each.name,
        "version": each.version,
        "digest": each.digest,
        "created_at": rfc3339(each.created_at),
        "created_by": each.owner,
        "kinds": kinds,
        "runs_code": not all(safe),
    }


def _whole(service: Service, each: NamedTransform) -> WholeTransformView:
    versions = service.transforms.versions(each.name)
    more = {"transform": each.fields, "versions": versions}
    return validated(WholeTransformView, {**_view(each), **more})


def _add_reading(routes: APIRouter, service: Service) -> None:
    @routes.get(
        "",
        response_model=TransformList,
        responses=shown(200, {"transforms": [example_of(TransformView)], "next_cursor": None})
        | problems(400, 401, 429),
        summary="List transforms",
    )
    def list_transforms(
        caller: Caller,
        limit: Annotated[
            int, Query(ge=1, le=LIST_MAX, description="How many on a page.")
        ] = LIST_MAX,
        cursor: Annotated[
            str | None, Query(max_length=20, description="`next_cursor` of the page before.")
        ] = None,
    ) -> TransformList:
        """All versions of all transforms, the newest first."""
        page = service.transforms.list(limit=limit, before=number_of(cursor))
        following = None if page.next_number is None else str(page.next_number)
        views = [_view(each) for each in page.versions]
        return validated(TransformList, {"transforms": views, "next_cursor": following})

    @routes.get(
        "/{use}",
        response_model=WholeTransformView,
        responses=shown(200, _EXAMPLE) | problems(400, 401, 404, 429),
        summary="Look at a transform",
    )
    def get_transform(caller: Caller, use: Use) -> WholeTransformView:
        """The newest version, or the one that is named, with its steps."""
        return _whole(service, service.transforms.find(*parse_use(use)))


def _add_writing(routes: APIRouter, service: Service) -> None:
    @routes.put(
        "/{name}",
        response_model=WholeTransformView,
        responses={
            **shown(201, _EXAMPLE, model=WholeTransformView, description="The new version."),
            **shown(200, _EXAMPLE, description="The newest version: it has these steps."),
            **problems(400, 401, 403, 409, 413, 429),
        },
        openapi_extra=_BODY,
        summary="Add a version of a transform",
    )
    async def put_transform(
        caller: Admin, request: Request, response: Response, name: Name
    ) -> WholeTransformView:
        """The next version of the name; a version never changes. Running jobs, and specs that name
        an earlier version, keep that version. For admins; the steps may run code, and then every
        submitter of jobs may use them."""
        body = await request.body()

        def note(connection: Connection, made: NamedTransform) -> None:
            details = {"digest": made.digest, **_steps_of(made)}
            where, audit = address_of(request), service.audit
            audit.note(connection, caller.name, where, "transform.put", made.use, details)

        def put() -> WholeTransformView:
            fields = parse_text(body)
            with bounded_problems():
                code = read_transform(fields)[1].code_kinds
            if code and service.config.no_auth:
                raise ForbiddenError(
                    f"{code[0]} runs code, which a service that asks nobody for a token does for "
                    "nobody on the network",
                    hint="make tokens: `dsort token add NAME --role admin`",
                )
            made, is_new = service.transforms.put(name, fields, caller.name, also=note)
            response.status_code = 201 if is_new else 200
            return _whole(service, made)

        return await run_in_threadpool(put)

    @routes.delete(
        "/{use}",
        status_code=204,
        responses=problems(400, 401, 403, 404, 429),
        summary="Remove a transform",
    )
    def remove_transform(caller: Admin, request: Request, use: Use) -> Response:
        """All of its versions, or the one that is named. Jobs that began with it go on; their
        numbers are not given again. For admins."""
        name, version = parse_use(use)
        service.transforms.remove(
            name,
            version,
            also=lambda connection: service.audit.note(
                connection, caller.name, address_of(request), "transform.remove", use
            ),
        )
        return Response(status_code=204)


def _steps_of(made: NamedTransform) -> dict[str, Any]:
    """For the audit log: the steps that run under this name from now on."""
    return {"steps": [kind for step in made.fields["steps"] for kind in step]}
