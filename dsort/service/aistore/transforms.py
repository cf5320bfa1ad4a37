"""``/v1/transforms``: named transforms, which admins write and specs use. ``/v1/changed`` tries a
transform on a record.

A version is a row that never changes. The number of a version is never used again. A removed
version stays as a row without a definition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from msgspec import Struct
from pydantic import Field
from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from dsort.errors import ConflictError, ForbiddenError, NotFoundError
from dsort.model.base import Model, Time, example_of
from dsort.model.dataset import ShownRecord
from dsort.service.aistore.shards import InlineTransforms
from dsort.service.api.datasets import ASKED, BucketPart, Looks, NamePath, Number, counted
from dsort.service.api.dependencies import (
    Admin,
    Caller,
    JsonAnswer,
    note,
    number_of,
    problems,
    require,
    shown,
)
from dsort.service.database.engine import Database
from dsort.service.database.tables import transforms
from dsort.service.jobs.rows import rfc3339, validated
from dsort.service.security.spec_text import bounded_problems, parse_text
from dsort.service.security.tokens import SUBMITTER
from dsort.service.service import Service
from dsort.spec.load import read_transform
from dsort.spec.transform import NAME_PATTERN, VERSION_MAX, NamedTransform, parse_use
from dsort.transforms.steps import STEPS

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


class TransformView(Model):
    """One version of a transform."""

    name: str = Field(examples=["resize"])
    version: int = Field(description="Versions count from 1 and never change.", examples=[3])
    digest: str = Field(description="SHA-256 of the steps.", examples=["5f" * 32])
    created_at: Time = Field(examples=["2026-01-31T02:00:00.000Z"])
    created_by: str = Field(description="The token that added it.", examples=["ada"])
    kinds: list[str] = Field(description="The kinds of its steps.", examples=[["filter", "fields"]])
    runs_code: bool = Field(
        description="Whether steps run code, or open files or addresses that they name. All "
        "submitters may use such a transform, too, because an admin registered it.",
        examples=[False],
    )


class WholeTransformView(TransformView):
    """One version of a transform, with its steps."""

    transform: dict[str, Any] = Field(
        description="As `transform` of a spec has it, with every default.",
        examples=[
            {"steps": [{"filter": 'size("jpg") < 5_000_000'}, {"fields": {"drop": ["xmp"]}}]}
        ],
    )
    versions: list[int] = Field(
        description="All versions of this name that are not removed.", examples=[[1, 3]]
    )


class TransformList(Model):
    """Versions, the newest first."""

    transforms: list[TransformView]
    next_cursor: str | None = Field(default=None, examples=[None])


class ChangedRecord(Model):
    """A record, and the records that a transform makes of it."""

    before: ShownRecord
    after: list[ShownRecord] = Field(description="Empty: the transform drops it.")


class TransformPage(Struct, frozen=True):
    """Versions, the newest first. ``next_number``: pass it as ``before`` to get the next page."""

    versions: Sequence[NamedTransform]
    next_number: int | None


class TransformStore:
    """The transforms of a service. Safe to use from many threads."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def put(
        self,
        name: str,
        fields: Mapping[str, Any],
        owner: str,
        *,
        also: Callable[[Connection, NamedTransform], None] = lambda connection, made: None,
    ) -> tuple[NamedTransform, bool]:
        """(the newest version of ``name``, which has the ``fields``; whether this call made the
        version). ``SpecError`` if ``fields`` are no transform, ``ConflictError`` if another request
        adds a version at the same moment. ``also`` is called in the same transaction."""
        parse_use(name)
        kept, transform = read_transform(fields)
        columns = transforms.c
        try:
            with self._database.writing() as connection:
                newest = connection.execute(
                    select(transforms)
                    .where(columns.name == name)
                    .order_by(columns.version.desc())
                    .limit(1)
                ).first()
                if newest is not None and newest.definition == kept:
                    return _named(newest), False
                version = 1 if newest is None else newest.version + 1
                if version > VERSION_MAX:
                    raise ConflictError(f"there are no more numbers for versions of {name}")
                digest, now_s = transform.steps_digest(), self._clock()
                made = NamedTransform(name, version, digest, kept, now_s, owner)
                connection.execute(
                    insert(transforms).values(
                        name=name,
                        version=version,
                        digest=digest,
                        definition=kept,
                        created_at=now_s,
                        created_by=owner,
                    )
                )
                also(connection, made)
        except IntegrityError:
            raise ConflictError(
                f"another request adds a version of {name} at this moment", hint="try again"
            ) from None
        return made, True

    def find(self, name: str, version: int | None = None) -> NamedTransform:
        """Version ``version`` of ``name``; None: the newest that is not removed.
        ``NotFoundError``."""
        columns = transforms.c
        query = select(transforms).where(columns.name == name, columns.removed_at.is_(None))
        if version is not None:
            query = query.where(columns.version == version)
        found = self._database.rows(query.order_by(columns.version.desc()).limit(1))
        if not found:
            raise _none_of(name, version)
        return _named(found[0])

    def versions(self, name: str) -> list[int]:
        """The numbers of all versions that are not removed."""
        columns = transforms.c
        query = select(columns.version).where(columns.name == name, columns.removed_at.is_(None))
        return [each.version for each in self._database.rows(query.order_by(columns.version))]

    def list(self, *, limit: int, before: int | None = None) -> TransformPage:
        """Versions that are not removed, ``limit`` at most, of the rows below ``before``."""
        columns = transforms.c
        query = select(transforms).where(columns.removed_at.is_(None))
        if before is not None:
            query = query.where(columns.number < before)
        query = query.order_by(columns.number.desc()).limit(limit + 1)
        rows = self._database.rows(query)
        following = rows[limit - 1].number if len(rows) > limit else None
        return TransformPage([_named(row) for row in rows[:limit]], following)

    def remove(
        self,
        name: str,
        version: int | None = None,
        *,
        also: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        """Remove a version (all versions if ``version`` is None), so that jobs that begin from now
        on cannot use it. ``NotFoundError``. ``also`` is called in the same transaction."""
        columns = transforms.c
        change = update(transforms).where(columns.name == name, columns.removed_at.is_(None))
        if version is not None:
            change = change.where(columns.version == version)
        with self._database.writing() as connection:
            gone = {"definition": None, "removed_at": self._clock()}
            if not connection.execute(change.values(gone)).rowcount:
                raise _none_of(name, version)
            also(connection)


def _named(row: Row[Any]) -> NamedTransform:
    return NamedTransform(
        row.name, row.version, row.digest, row.definition, row.created_at, row.created_by
    )


def _none_of(name: str, version: int | None) -> NotFoundError:
    use = name if version is None else f"{name}@{version}"
    return NotFoundError(
        f"there is no transform {use}", hint="GET /v1/transforms lists all transforms"
    )


_EXAMPLE: Final = example_of(WholeTransformView)
_BODY: Final = {
    "requestBody": {
        "required": True,
        "description": "As `transform` of a spec has it: `steps`, and the reaction to records at "
        "which a step fails.",
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
    routes = APIRouter(prefix="/v1", tags=["transforms"], default_response_class=JsonAnswer)
    _add_reading(routes, service)
    _add_writing(routes, service)
    _add_changed(routes, Looks(service), InlineTransforms(service))
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
    versions = TransformStore(service.database).versions(each.name)
    more = {"transform": each.fields, "versions": versions}
    return validated(WholeTransformView, {**_view(each), **more})


def _add_reading(routes: APIRouter, service: Service) -> None:
    @routes.get(
        "/transforms",
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
        page = TransformStore(service.database).list(limit=limit, before=number_of(cursor))
        following = None if page.next_number is None else str(page.next_number)
        views = [_view(each) for each in page.versions]
        return validated(TransformList, {"transforms": views, "next_cursor": following})

    @routes.get(
        "/transforms/{use}",
        response_model=WholeTransformView,
        responses=shown(200, _EXAMPLE) | problems(400, 401, 404, 429),
        summary="Look at a transform",
    )
    def get_transform(caller: Caller, use: Use) -> WholeTransformView:
        """A transform with its steps: the named version, or the newest."""
        return _whole(service, TransformStore(service.database).find(*parse_use(use)))


def _add_writing(routes: APIRouter, service: Service) -> None:
    @routes.put(
        "/transforms/{name}",
        response_model=WholeTransformView,
        responses={
            **shown(201, _EXAMPLE, model=WholeTransformView, description="The new version."),
            **shown(
                200, _EXAMPLE, description="No new version: the newest version has these steps."
            ),
            **problems(400, 401, 403, 409, 413, 429),
        },
        openapi_extra=_BODY,
        summary="Add a version of a transform",
    )
    async def put_transform(
        caller: Admin, request: Request, response: Response, name: Name
    ) -> WholeTransformView:
        """Add the next version of a name. A version never changes. Running jobs, and specs that
        name an earlier version, keep that version. For admins. If the steps run code, every
        submitter of jobs may use this code."""
        body = await request.body()

        def also(connection: Connection, made: NamedTransform) -> None:
            details = {"digest": made.digest, **_steps_of(made)}
            note(request, caller.name, "transform.put", made.use, connection, **details)

        def put() -> WholeTransformView:
            fields = parse_text(body)
            with bounded_problems():
                code = read_transform(fields)[1].code_kinds
            if code and service.config.no_auth:
                raise ForbiddenError(
                    f"{code[0]} runs code, which a service without tokens refuses from the network",
                    hint="make tokens: `dsort token add NAME --role admin`",
                )
            made, is_new = TransformStore(service.database).put(
                name, fields, caller.name, also=also
            )
            response.status_code = 201 if is_new else 200
            return _whole(service, made)

        return await run_in_threadpool(put)

    @routes.delete(
        "/transforms/{use}",
        status_code=204,
        responses=problems(400, 401, 403, 404, 429),
        summary="Remove a transform",
    )
    def remove_transform(caller: Admin, request: Request, use: Use) -> Response:
        """Remove the named version, or all versions. Jobs that began with a removed version
        continue. Numbers of removed versions are never used again. For admins."""
        name, version = parse_use(use)
        TransformStore(service.database).remove(
            name,
            version,
            also=lambda connection: note(request, caller.name, "transform.remove", use, connection),
        )
        return Response(status_code=204)


def _steps_of(made: NamedTransform) -> dict[str, Any]:
    """For the audit log: the steps that run under this name from now on."""
    return {"steps": [kind for step in made.fields["steps"] for kind in step]}


def _add_changed(routes: APIRouter, looks: Looks, inline: InlineTransforms) -> None:
    @routes.get(
        "/changed/{bucket}/{name:path}",
        dependencies=[Depends(counted)],
        response_model=ChangedRecord,
        responses=shown(200, example_of(ChangedRecord)) | ASKED,
        summary="Try a transform on a record",
    )
    async def show_changed(
        request: Request,
        identity: Caller,
        bucket: BucketPart,
        name: NamePath,
        number: Number,
        transform: Annotated[
            str,
            Query(max_length=80, description="`resize@3`, or `resize` for the newest version."),
        ],
    ) -> Response:
        """A record, and the records that a named transform makes of it. A job with only this record
        makes them, and writes to no bucket. For submitters."""
        place = looks.shard(request, identity, b"/v1/changed/")
        require(SUBMITTER)(identity)
        made = await run_in_threadpool(inline.spec, place, transform)
        await looks.note(request, "data.change", place, number=number, transform=transform)
        order = {**made.order(), "look": "changed", "number": number}
        return await looks.answer(request, place, order)
