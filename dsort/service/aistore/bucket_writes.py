"""``POST`` and ``DELETE`` of ``/v1/buckets/BUCKET``: buckets that requests make and remove, and
several objects that one request removes. The messages are those of AIStore's clients."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from dsort.errors import ForbiddenError, ObjectNotFoundError, SpecError, SpecProblem
from dsort.service.aistore.bucket_changes import (
    RemovalAsked,
    create_bucket,
    remove_bucket,
    remove_objects,
)
from dsort.service.aistore.removals import REMOVAL, removal_id
from dsort.service.api.answers import JsonAnswer, TextAnswer
from dsort.service.api.buckets import BucketPath, absent, action_message, bucket_place
from dsort.service.api.dependencies import Submitting, address_of, require
from dsort.service.api.models import problems
from dsort.service.api.object_places import ObjectRoute, Provider
from dsort.service.objects.listing import TEXT_BYTES_MAX
from dsort.service.objects.messages import fields_of, text_in
from dsort.service.objects.places import ObjectPlace
from dsort.service.security.tokens import ADMIN, Identity
from dsort.service.service import Service

__all__ = ["refuse_to_change", "router"]


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(
        prefix="/v1/buckets",
        tags=["objects"],
        default_response_class=JsonAnswer,
        route_class=ObjectRoute,
    )
    _add_changes(routes, service)
    return routes


def refuse_to_change(service: Service) -> None:
    """``ForbiddenError`` if the operator does not allow objects to be written over HTTP."""
    if not service.config.object_bytes_max:
        raise ForbiddenError(
            "this service changes no objects and no buckets",
            hint="its operator can allow it: dsort serve --max-object-size 64GiB",
        )


def _add_changes(routes: APIRouter, service: Service) -> None:
    @routes.post(
        "/{bucket:path}",
        response_class=Response,
        responses={
            200: {"description": "It is made."},
            **problems(400, 401, 403, 404, 409, 429, 501, 502),
        },
        openapi_extra=_action("create-bck"),
        summary="Make a bucket",
    )
    async def post_bucket(
        request: Request, identity: Submitting, bucket: BucketPath, provider: Provider = ""
    ) -> Response:
        """Make a bucket: a directory. The token has to be for it as an output."""
        place = bucket_place(service, request, identity, provider, writes=True)
        refuse_to_change(service)
        await action_message(request, "create-bck")

        def create() -> None:
            create_bucket(place, service.config, service.submitter.policy)
            _note(service, request, identity, "bucket.create", place)

        await run_in_threadpool(create)
        return Response()

    @routes.delete(
        "/{bucket:path}",
        response_class=Response,
        responses={
            200: {
                "description": "It is gone, or the objects are: then the text is the id of a job "
                "that is over, as AIStore's clients await one.",
            },
            **problems(400, 401, 403, 404, 409, 429, 501, 502),
        },
        openapi_extra=_action("destroy-bck", REMOVAL),
        summary="Remove a bucket, or several of its objects",
    )
    async def delete_bucket(
        request: Request, identity: Submitting, bucket: BucketPath, provider: Provider = ""
    ) -> Response:
        """For an admin, `destroy-bck`: remove a directory under the data root which no job uses,
        with all that is in it. `delete-listrange`: remove the objects that the `value` of the
        message names as `objnames`, or as `template`, which may be a prefix; `non-recurs` leaves
        out what is below a `/` behind it. What a running job writes or reads stays as it is: then
        none is removed."""
        place = bucket_place(service, request, identity, provider, writes=True)
        refuse_to_change(service)
        message = await action_message(request, "destroy-bck", REMOVAL)
        if text_in(message, "action") == REMOVAL:
            asked = _removal(fields_of(message.get("value")))
            return await run_in_threadpool(_remove, service, request, identity, place, asked)
        require(ADMIN)(identity)

        def remove() -> None:
            try:
                remove_bucket(place, service.database, service.config, service.submitter.policy)
            except ObjectNotFoundError:
                raise absent(place) from None
            _note(service, request, identity, "bucket.remove", place)

        await run_in_threadpool(remove)
        return Response()


def _removal(value: Mapping[str, Any]) -> RemovalAsked:
    names = value.get("objnames") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SpecError([SpecProblem("objnames", "is no list of names")])
    template = text_in(value, "template", characters_max=TEXT_BYTES_MAX)
    return RemovalAsked(tuple(names), template, flat=not value.get("non-recurs"))


def _remove(
    service: Service, request: Request, identity: Identity, place: ObjectPlace, asked: RemovalAsked
) -> Response:
    bucket = place.opened(service.config, service.submitter.policy)
    if place.ref.is_directory and not bucket.exists():
        raise absent(place)
    count = remove_objects(bucket, place.uri, service.database, asked)
    _note(service, request, identity, "objects.remove", place, objects=count)
    return TextAnswer(removal_id(time.time_ns()))


def _action(*names: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"action": {"enum": [*names]}},
        "required": ["action"],
    }
    content = {"schema": schema, "example": {"action": names[0]}}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def _note(
    service: Service,
    request: Request,
    identity: Identity,
    action: str,
    place: ObjectPlace,
    **more: int,
) -> None:
    service.audit.note(None, identity.name, address_of(request), action, place.uri, more)
