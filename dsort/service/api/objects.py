"""``/v1/objects/BUCKET/NAME``: reads objects of buckets, as they are or transformed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from dsort.errors import (
    ChangedInputError,
    ForbiddenError,
    NotSupportedError,
    SpecError,
    SpecProblem,
)
from dsort.service.api.answers import JsonAnswer
from dsort.service.api.dependencies import Caller
from dsort.service.api.models import problems
from dsort.service.api.object_places import (
    BucketPath,
    NamePath,
    ObjectRoute,
    Provider,
    missing,
    object_place,
    shard_problem,
)
from dsort.service.objects.answers import BytesAnswer, entity_tag, in_thread, object_headers
from dsort.service.objects.checksums import CONTENT_KIND, content_checksum
from dsort.service.objects.places import ObjectPlace
from dsort.service.objects.processes import ShardProblemError
from dsort.service.objects.ranges import UnsatisfiableRangeError, parse_range
from dsort.service.security.tokens import SUBMITTER, Identity
from dsort.service.service import Service
from dsort.storage.bucket import ObjectInfo, ReadObject

__all__ = ["router"]

COMMAND: Final = "ais/cli"
"""The user agent of AIStore's command, whose ``get --checksum`` does not mark its request for a
checksum."""

Transform = Annotated[
    str | None,
    Query(
        max_length=80,
        description="Send the shard as this transform makes it: `resize@3`, or `resize` for the "
        "newest version. For submitters.",
    ),
]
EtlName = Annotated[
    str | None, Query(max_length=80, description="The same, as AIStore's clients say it.")
]
MemberPath = Annotated[
    str | None,
    Query(max_length=4096, description="Send this file of a tar or a zip, and not all of it."),
]
_BYTES: Final[dict[str, Any]] = {
    "application/octet-stream": {
        "schema": {"type": "string", "format": "binary"},
        "example": "the bytes",
    }
}
_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The object, or the transformed shard.", "content": _BYTES},
    206: {"description": "The bytes that `Range` asks for.", "content": _BYTES},
    304: {"description": "It is the one that `If-None-Match` names."},
    416: {"description": "It has none of the bytes that `Range` asks for."},
    **problems(400, 401, 403, 404, 413, 422, 429, 502),
}


def router(service: Service) -> APIRouter:
    """The routes of objects."""
    routes = APIRouter(
        prefix="/v1/objects",
        tags=["objects"],
        default_response_class=JsonAnswer,
        route_class=ObjectRoute,
    )
    _add_get(routes, service)
    _add_head(routes, service)
    return routes


def _add_get(routes: APIRouter, service: Service) -> None:
    async def counted(identity: Caller) -> AsyncIterator[None]:
        with service.limits.download(identity.name):
            yield

    @routes.get(
        "/{bucket}/{name:path}",
        dependencies=[Depends(counted)],
        response_class=Response,
        responses=_ANSWERS,
        summary="Read an object",
    )
    async def get_object(
        request: Request,
        identity: Caller,
        bucket: BucketPath,
        name: NamePath,
        provider: Provider = "",
        transform: Transform = None,
        etl_name: EtlName = None,
        archpath: MemberPath = None,
        range_: Annotated[
            str | None, Header(alias="range", description="One range of bytes.")
        ] = None,
        if_range: Annotated[str | None, Header(description="An ETag: else all is sent.")] = None,
        if_none_match: Annotated[str | None, Header(description="ETags that are known.")] = None,
    ) -> Response:
        """The bytes of an object, or a range of them. With `transform` a shard as that transform
        makes it: what `dsort transform` would write, byte for byte; it comes whole. The token has
        to be for the bucket as an input."""
        place = object_place(service, request, identity, provider)
        use = _use(identity, transform, etl_name)
        asked = _Asked(range_, if_range, if_none_match)
        if _is_of_archive(request, archpath):
            return await _member(service, request, identity, place, archpath or "", asked)
        if use is not None:
            return await _transformed(service, request, identity, place, use, asked)
        checked = request.headers.get("User-Agent", "").startswith(COMMAND)
        return await _as_it_is(service, place, asked, with_checksum=checked)


def _add_head(routes: APIRouter, service: Service) -> None:
    @routes.head(
        "/{bucket}/{name:path}",
        response_class=Response,
        responses={
            200: {"description": "How long the object is, and its `ETag`."},
            **problems(400, 401, 403, 404, 429, 502),
        },
        summary="Look at an object",
    )
    async def head_object(
        request: Request,
        identity: Caller,
        bucket: BucketPath,
        name: NamePath,
        provider: Provider = "",
        transform: Transform = None,
        etl_name: EtlName = None,
        archpath: MemberPath = None,
    ) -> Response:
        """As for GET, without the bytes. The length of a transformed shard, and of a file in a
        shard, is unknown."""
        place = object_place(service, request, identity, provider)
        use = _use(identity, transform, etl_name)
        with missing(place):
            info = await run_in_threadpool(
                lambda: place.opened(service.config, service.submitter.policy).stat(place.name)
            )
        if _is_of_archive(request, archpath):
            tag = entity_tag(info.etag, str(info.size_bytes), archpath or "")
            return _bare(200, object_headers(info, tag) | {"Accept-Ranges": "none"})
        if use is None:
            headers = object_headers(info, entity_tag(info.etag, str(info.size_bytes)))
            if "checksum" in request.query_params.get("props", "").split(","):
                with service.limits.download(identity.name), ExitStack() as ends:
                    headers |= await _checksum(await _opened(service, place, ends))
            length = {"Content-Length": str(info.size_bytes), "Accept-Ranges": "bytes"}
            return _bare(200, headers | length)
        spec = (await run_in_threadpool(service.inline.spec, place, use, identity)).spec
        assert spec.transform is not None
        tag = entity_tag(info.etag, str(info.size_bytes), str(spec.transform.canonical()))
        more = {"Dsort-Transform": spec.transform.use or "", "Accept-Ranges": "none"}
        return _bare(200, object_headers(info, tag) | more)


class _Asked:
    """The headers of a request that decide which bytes are sent."""

    def __init__(self, range_: str | None, if_range: str | None, known: str | None) -> None:
        self.range_ = range_
        self._if_range = if_range
        self._known = [] if known is None else [tag.strip() for tag in known.split(",")]

    def knows(self, tag: str) -> bool:
        """Whether the client has the version with this tag already."""
        return "*" in self._known or tag in [each.removeprefix("W/") for each in self._known]

    def part(self, tag: str, size_bytes: int) -> tuple[int, int] | None:
        """The requested bytes; None: all. ``UnsatisfiableRangeError``."""
        if self._if_range is not None and self._if_range.strip() != tag:
            return None
        return parse_range(self.range_, size_bytes)


def _use(identity: Identity, transform: str | None, etl_name: str | None) -> str | None:
    if transform is not None and etl_name is not None:
        raise SpecError([SpecProblem("etl_name", "there is transform, too: only one of them goes")])
    use = transform if transform is not None else etl_name
    if use is not None and not identity.at_least(SUBMITTER):
        raise ForbiddenError(
            f"{identity.name} is a {identity.role}, and to transform shards is for a {SUBMITTER}",
            hint=f"ask for a token with the role {SUBMITTER}",
        )
    return use


async def _as_it_is(
    service: Service, place: ObjectPlace, asked: _Asked, *, with_checksum: bool
) -> Response:
    with ExitStack() as ends:
        source = await _opened(service, place, ends)
        info = source.info
        tag = entity_tag(info.etag, str(info.size_bytes))
        headers = object_headers(info, tag) | {"Accept-Ranges": "bytes"}
        if asked.knows(tag):
            return _bare(304, headers)
        try:
            part = asked.part(tag, info.size_bytes)
        except UnsatisfiableRangeError:
            return _bare(416, headers | {"Content-Range": f"bytes */{info.size_bytes}"})
        if part is None:
            if with_checksum:
                headers |= await _checksum(source)
            whole = 0, info.size_bytes
            return BytesAnswer(source, *whole, ends=ends.pop_all(), headers=headers)
        sent = f"bytes {part[0]}-{part[1] - 1}/{info.size_bytes}"
        headers |= {"Content-Range": sent}
        return BytesAnswer(source, *part, ends=ends.pop_all(), status=206, headers=headers)


async def _checksum(source: ReadObject) -> dict[str, str]:
    """Headers with the checksum of an object, if it has one."""
    found: list[str | None] = []
    await in_thread(lambda: found.append(content_checksum(source)))
    (value,) = found
    if value is None:
        return {}
    return {"Ais-Checksum-Type": CONTENT_KIND, "Ais-Checksum-Value": value}


def _is_of_archive(request: Request, archpath: str | None) -> bool:
    """Whether the request is for a file in the object. AIStore's SDK sends unused parameters as
    empty."""
    if request.query_params.get("archregx") or request.query_params.get("archmode"):
        raise NotSupportedError(
            "several files of a shard are not sent at once",
            hint="ask for one: archpath; `dsort cat --as tar` writes a record",
        )
    if archpath and {"transform", "etl_name"} & {*request.query_params}:
        raise SpecError(
            [SpecProblem("archpath", "there is a transform, too: only one of them goes")]
        )
    return bool(archpath)


async def _member(
    service: Service,
    request: Request,
    identity: Identity,
    place: ObjectPlace,
    path: str,
    asked: _Asked,
) -> Response:
    with ExitStack() as ends:
        # Checks that it may be read, and which version it is.
        source = await _opened(service, place, ends)
        info = source.info
    tag = entity_tag(info.etag, str(info.size_bytes), path)
    headers = object_headers(info, tag) | {"Accept-Ranges": "none"}
    if asked.knows(tag):
        return _bare(304, headers)
    try:
        made, closing = await service.members.member(
            place, path, service.submitter.policy, identity.name, request.is_disconnected
        )
    except ShardProblemError as error:
        return shard_problem(error)
    closing = await _if_unchanged(service, place, info, closing)
    return BytesAnswer(made, 0, made.size_bytes, ends=closing, headers=headers)


async def _transformed(
    service: Service,
    request: Request,
    identity: Identity,
    place: ObjectPlace,
    use: str,
    asked: _Asked,
) -> Response:
    inline = await run_in_threadpool(service.inline.spec, place, use, identity)
    spec = inline.spec
    assert spec.transform is not None
    with ExitStack() as ends:
        # Checks that it may be read, and which version it is.
        source = await _opened(service, place, ends)
        info = source.info
    tag = entity_tag(info.etag, str(info.size_bytes), str(spec.transform.canonical()))
    headers = object_headers(info, tag)
    headers |= {"Accept-Ranges": "none", "Dsort-Transform": spec.transform.use or ""}
    if asked.knows(tag):
        return _bare(304, headers)
    try:
        shard, closing = await service.inline.run(
            inline, info.size_bytes, identity.name, request.is_disconnected
        )
    except ShardProblemError as error:
        return shard_problem(error)
    closing = await _if_unchanged(service, place, info, closing)
    return BytesAnswer(shard, 0, shard.size_bytes, ends=closing, headers=headers)


async def _if_unchanged(
    service: Service, place: ObjectPlace, info: ObjectInfo, closing: ExitStack
) -> ExitStack:
    """``closing``, if the object has not changed since ``info``. ``ChangedInputError``."""
    with closing.pop_all() as ends:
        now = (await _opened(service, place, ends)).info
        if (now.etag, now.size_bytes) != (info.etag, info.size_bytes):
            raise ChangedInputError(f"{place.name} changed while it was read", hint="ask again")
        return ends.pop_all()


async def _opened(service: Service, place: ObjectPlace, ends: ExitStack) -> ReadObject:
    found: list[ReadObject] = []

    def open_it() -> None:
        bucket = place.opened(service.config, service.submitter.policy)
        found.append(bucket.open(place.name))

    with missing(place):
        await in_thread(open_it)
    ends.callback(found[0].close)
    return found[0]


def _bare(status: int, headers: dict[str, str]) -> Response:
    answer = Response(status_code=status)
    answer.headers.update(headers)
    return answer
