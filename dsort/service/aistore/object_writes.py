"""``PUT`` and ``DELETE`` of ``/v1/objects/BUCKET/NAME``: objects that requests write and remove.

Submitters may use them in buckets that their tokens allow as outputs: those in which their jobs
could do the same. Other kinds of writes of AIStore's clients (to append, to copy, to put a file
into a shard, an upload in parts) are declined, and never taken for a plain write.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from starlette.requests import ClientDisconnect

from dsort.errors import (
    ConflictError,
    NotFoundError,
    NotSupportedError,
    ObjectNotFoundError,
    SpecError,
    SpecProblem,
)
from dsort.service.aistore.bucket_writes import refuse_to_change
from dsort.service.aistore.in_use import refuse_in_use
from dsort.service.aistore.uploads import write_object
from dsort.service.api.answers import JsonAnswer
from dsort.service.api.dependencies import Submitting, address_of
from dsort.service.api.models import problems
from dsort.service.api.object_places import (
    BucketPath,
    NamePath,
    ObjectRoute,
    Provider,
    missing,
    object_place,
)
from dsort.service.objects.checksums import checksum_of
from dsort.service.objects.places import ObjectPlace
from dsort.service.security.guard import parse_text
from dsort.service.service import Service
from dsort.storage.bucket import Bucket

__all__ = ["router"]

WHOLE_BODY: Final = "whole"
_SDK: Final = "ais/python"
_OTHER_WRITES: Final = (
    "append_handle",
    "append_type",
    "archmime",
    "archpath",
    "etl_name",
    "etl_pipeline",
    "object_to",
    "partNumber",
    "transform",
    "uploadId",
)
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "description": "The object's bytes.",
        "content": {
            "application/octet-stream": {
                "schema": {"type": "string", "format": "binary"},
                "example": "the bytes",
            }
        },
    }
}


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(
        prefix="/v1/objects",
        tags=["objects"],
        default_response_class=JsonAnswer,
        route_class=ObjectRoute,
    )
    _add_put(routes, service)
    _add_delete(routes, service)
    return routes


def _add_put(routes: APIRouter, service: Service) -> None:
    async def counted(identity: Submitting) -> AsyncIterator[None]:
        with service.limits.upload(identity.name):
            yield

    @routes.put(
        "/{bucket}/{name:path}",
        dependencies=[Depends(counted)],
        response_class=Response,
        responses={
            200: {"description": "It is stored."},
            307: {"description": "Over TLS: where AIStore's SDK is to send the body."},
            **problems(400, 401, 403, 404, 409, 413, 429, 501, 502),
        },
        openapi_extra=_BODY,
        summary="Write an object",
    )
    async def put_object(
        request: Request,
        identity: Submitting,
        bucket: BucketPath,
        name: NamePath,
        provider: Provider = "",
        if_none_match: Annotated[
            str | None, Header(description="`*`: only if there is no such object.")
        ] = None,
        ais_checksum_type: Annotated[
            str, Header(description="Of the body: `md5`, `crc32c`, `xxhash2`, ...")
        ] = "",
        ais_checksum_value: Annotated[str, Header(description="In hexadecimal.")] = "",
        part: Annotated[str, Query(max_length=10, include_in_schema=False)] = "",
    ) -> Response:
        """Store the body as an object, in place of the one that there is. The name appears once all
        bytes are stored. The token has to be for the bucket as an output, and the bucket has to be
        there. What a running job writes or reads stays as it is."""
        place = object_place(service, request, identity, provider, writes=True)
        refuse_to_change(service)
        _refuse_other_writes(request)
        if part != WHOLE_BODY and request.url.scheme == "https" and _is_sdk(request):
            # Over TLS the SDK sends no body before it has received a redirect.
            return RedirectResponse(request.url.include_query_params(part=WHOLE_BODY), 307)
        if if_none_match not in (None, "*"):
            raise SpecError([SpecProblem("if-none-match", "is not *, which is all that is taken")])
        checksum = checksum_of(ais_checksum_type, ais_checksum_value)
        found = await run_in_threadpool(_bucket_to_change, service, place)
        try:
            size_bytes = await write_object(
                found,
                place.name,
                request.stream(),
                size_bytes=_length(request),
                checksum=checksum,
                overwrite=if_none_match is None,
            )
        except ObjectNotFoundError as error:  # the bucket exists: another object is in the way
            raise ConflictError(error.message) from None
        except ClientDisconnect:
            raise SpecError("the body ended too soon") from None
        await run_in_threadpool(
            _note, service, request, identity.name, "object.put", place, size_bytes=size_bytes
        )
        return Response(status_code=200)


def _add_delete(routes: APIRouter, service: Service) -> None:
    @routes.delete(
        "/{bucket}/{name:path}",
        response_class=Response,
        responses={
            200: {"description": "It is gone."},
            **problems(400, 401, 403, 404, 409, 413, 429, 501, 502),
        },
        summary="Remove an object",
    )
    async def delete_object(
        request: Request,
        identity: Submitting,
        bucket: BucketPath,
        name: NamePath,
        provider: Provider = "",
    ) -> Response:
        """Remove an object. The token has to be for the bucket as an output. What a running job
        writes or reads stays as it is."""
        place = object_place(service, request, identity, provider, writes=True)
        refuse_to_change(service)
        _refuse_other_writes(request)
        body = await request.body()
        if body.strip() and parse_text(body).get("action"):
            raise NotSupportedError("of actions on an object there is only to remove it")

        def remove() -> None:
            found = _bucket_to_change(service, place)
            with missing(place):
                found.stat(place.name)
            found.delete(place.name)
            _note(service, request, identity.name, "object.remove", place)

        await run_in_threadpool(remove)
        return Response(status_code=200)


def _refuse_other_writes(request: Request) -> None:
    other = [each for each in _OTHER_WRITES if each in request.query_params]
    if other:
        raise NotSupportedError(
            f"objects are written whole here: there is no {', '.join(other)}",
            hint="write the whole object: PUT /v1/objects/BUCKET/NAME",
        )


def _is_sdk(request: Request) -> bool:
    return request.headers.get("User-Agent", "").startswith(_SDK)


def _length(request: Request) -> int | None:
    text = request.headers.get("Content-Length", "")
    return int(text[:20]) if text.isascii() and text.isdecimal() else None


def _bucket_to_change(service: Service, place: ObjectPlace) -> Bucket:
    """The bucket, if it exists and the object may be changed. ``NotFoundError``,
    ``ConflictError``."""
    bucket = place.opened(service.config, service.submitter.policy)
    if place.ref.is_directory and not bucket.exists():
        raise NotFoundError(
            f'bucket "{place.shown_bucket}" does not exist', hint="POST /v1/buckets/BUCKET makes it"
        )

    def is_there(name: str) -> bool:
        return bool(bucket.stat_many([name]))

    refuse_in_use(service.database, place.uri, [place.name], is_there)
    return bucket


def _note(
    service: Service,
    request: Request,
    who: str,
    action: str,
    place: ObjectPlace,
    **more: Any,
) -> None:
    details = {"bucket": place.uri, **more}
    service.audit.note(None, who, address_of(request), action, place.name, details)
