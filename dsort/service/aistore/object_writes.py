"""``PUT`` and ``DELETE`` of ``/v1/objects/BUCKET/NAME``: requests that write or remove an object.
Submitters may send such requests for buckets that their tokens allow as outputs, because their jobs
may write and remove objects there. An object gets its name once all of its bytes have arrived.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Final, NoReturn

import anyio
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from starlette.requests import ClientDisconnect

from dsort.errors import (
    ConflictError,
    DsortError,
    NamesTakenError,
    NotFoundError,
    NotSupportedError,
    ObjectNotFoundError,
    SpecError,
    SpecProblem,
)
from dsort.results.layout import writes_prefix
from dsort.service.aistore.bucket_writes import refuse_in_use, refuse_to_change
from dsort.service.aistore.checksums import Checksum, checksum_of
from dsort.service.aistore.places import BucketPath, ObjectRoute, Provider, object_place
from dsort.service.api.datasets import NamePath
from dsort.service.api.dependencies import (
    PIECE_BYTES,
    JsonAnswer,
    Submitting,
    in_thread,
    note,
    problems,
)
from dsort.service.objects.places import ObjectPlace, missing
from dsort.service.security.spec_text import parse_text
from dsort.service.service import Service
from dsort.storage.bucket import Bucket, StagedObject

UPLOADS_MAX: Final = 16  # of one client at once
SMALL_BYTES_MAX: Final = PIECE_BYTES
WHOLE_BODY: Final = "whole"
_SDK: Final = "ais/python"
# Parameters of AIStore's other writes. A request with one of them is declined: it is no plain
# write.
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
        hint = "write fewer at once"
        with service.limits.counted(identity.name, "writes", "objects", UPLOADS_MAX, hint):
            yield

    @routes.put(
        "/{bucket}/{name:path}",
        dependencies=[Depends(counted)],
        response_class=Response,
        responses={
            200: {"description": "The object is stored."},
            307: {"description": "Over TLS: the address to which AIStore's SDK sends the body."},
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
            str, Header(description="The kind of checksum: `md5`, `crc32c`, `xxhash2`, ...")
        ] = "",
        ais_checksum_value: Annotated[
            str, Header(description="The body's checksum, in hexadecimal.")
        ] = "",
        part: Annotated[str, Query(max_length=10, include_in_schema=False)] = "",
    ) -> Response:
        """Store the body as an object. An existing object is replaced. The name appears once all
        bytes are stored. The bucket has to exist, and the token has to allow the bucket as an
        output. An object that a running job writes or reads is not replaced."""
        place = object_place(service, request, identity, provider, writes=True)
        refuse_to_change(service)
        _refuse_other_writes(request)
        if part != WHOLE_BODY and request.url.scheme == "https" and _is_sdk(request):
            # Over TLS the SDK sends no body before it has received a redirect.
            return RedirectResponse(request.url.include_query_params(part=WHOLE_BODY), 307)
        if if_none_match not in (None, "*"):
            raise SpecError([SpecProblem("if-none-match", "must be *")])
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
        details = {"bucket": place.uri, "size_bytes": size_bytes}
        await run_in_threadpool(
            note, request, identity.name, "object.put", place.name, None, **details
        )
        return Response(status_code=200)


def _add_delete(routes: APIRouter, service: Service) -> None:
    @routes.delete(
        "/{bucket}/{name:path}",
        response_class=Response,
        responses={
            200: {"description": "The object is removed."},
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
        """Remove an object. The token has to allow the bucket as an output. An object that a
        running job writes or reads is not removed."""
        place = object_place(service, request, identity, provider, writes=True)
        refuse_to_change(service)
        _refuse_other_writes(request)
        body = await request.body()
        if body.strip() and parse_text(body).get("action"):
            raise NotSupportedError("the only action on an object is to remove it")

        def remove() -> None:
            found = _bucket_to_change(service, place)
            with missing(place):
                found.stat(place.name)
            found.delete(place.name)
            note(request, identity.name, "object.remove", place.name, bucket=place.uri)

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
    bucket = place.opened()
    if place.ref.is_directory and not bucket.exists():
        raise NotFoundError(
            f'bucket "{place.shown_bucket}" does not exist', hint="POST /v1/buckets/BUCKET makes it"
        )

    def is_there(name: str) -> bool:
        return bool(bucket.stat_many([name]))

    refuse_in_use(service.database, place.uri, [place.name], is_there)
    return bucket


async def write_object(
    bucket: Bucket,
    name: str,
    body: AsyncIterator[bytes],
    *,
    size_bytes: int | None,
    checksum: Checksum | None,
    overwrite: bool,
) -> int:
    """Store ``body`` as the object ``name``; returns its number of bytes. ``size_bytes``: the
    announced number. Returns once the object survives a power cut. ``SpecError`` if the number of
    bytes or the checksum differs; without ``overwrite``, ``NamesTakenError`` if the object exists;
    ``StorageError``."""
    pieces = _Pieces(body, size_bytes, checksum)
    first = await pieces.next(SMALL_BYTES_MAX + 1)
    if len(first) > SMALL_BYTES_MAX:
        return await _write_large(bucket, name, first, pieces, overwrite=overwrite)
    pieces.check()
    if overwrite:
        await in_thread(lambda: bucket.write(name, first))
    elif not await in_thread(lambda: bucket.write_new(name, first)):
        raise NamesTakenError(f"{name} exists already")
    return len(first)


async def _write_large(
    bucket: Bucket, name: str, first: bytes, pieces: _Pieces, *, overwrite: bool
) -> int:
    """Store an object like a job's output: piece by piece in a directory, in parts in an object
    store. ``dsort gc`` removes what a killed service has left."""
    token = f"{writes_prefix()}{uuid.uuid4().hex}"
    # No room is set aside in a directory: the announced bytes may never arrive.
    parts_for = pieces.announced if bucket.seals_on_finish else None
    staged = await in_thread(lambda: bucket.stage(token, name=name, size_bytes=parts_for))
    try:
        at, piece = 0, first
        while piece:
            await in_thread(_writing(staged, at, piece))
            at += len(piece)
            piece = await pieces.next(PIECE_BYTES)
        pieces.check()

        def end() -> None:
            staged.sync()
            receipt = staged.finish()
            staged.close()
            bucket.publish(token, name, overwrite=overwrite, receipt=receipt)
            bucket.make_durable()
            if not bucket.seals_on_finish:
                bucket.discard(token)  # removes the directory of staged files, too, if it is empty

        await in_thread(end)
    except BaseException:
        # Also if the request was cancelled. In a store, closing the upload aborts it; ``discard``
        # would also abort other uploads to the same name.
        with anyio.CancelScope(shield=True), contextlib.suppress(DsortError):
            await in_thread(lambda: _give_up(bucket, staged, token))
        raise
    return at


def _give_up(bucket: Bucket, staged: StagedObject, token: str) -> None:
    staged.close()
    if not bucket.seals_on_finish:
        bucket.discard(token)


def _writing(staged: StagedObject, at: int, piece: bytes) -> Callable[[], None]:
    return lambda: staged.write_at(at, [piece])


class _Pieces:
    """A body in pieces of the requested size. At most one piece is held in memory."""

    def __init__(
        self, body: AsyncIterator[bytes], announced: int | None, checksum: Checksum | None
    ) -> None:
        self.announced = announced
        self._body = body
        self._checksum = checksum
        self._size_bytes = 0

    async def next(self, size_bytes: int) -> bytes:
        """The next bytes: at least ``size_bytes``, fewer only at the end. ``SpecError`` if more
        bytes arrive than were announced."""
        found = bytearray()
        while len(found) < size_bytes:
            try:
                found += await anext(self._body)
            except StopAsyncIteration:
                break
        self._size_bytes += len(found)
        if self.announced is not None and self._size_bytes > self.announced:
            self._refuse_size()
        piece = bytes(found)
        if self._checksum is not None:
            self._checksum.update(piece)
        return piece

    def check(self) -> None:
        """``SpecError`` if the number of bytes differs from the announced number, or the checksum
        from the sent checksum."""
        if self.announced not in (None, self._size_bytes):
            self._refuse_size()
        if self._checksum is not None:
            self._checksum.check()

    def _refuse_size(self) -> NoReturn:
        raise SpecError(
            f"the body has {self._size_bytes:,} bytes or more, and not the {self.announced:,} that "
            "Content-Length says"
        )
