"""``GET`` and ``HEAD`` of ``/v1/objects/BUCKET/NAME``: objects of buckets as they are or
transformed, and files in shards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from dsort.errors import (
    ChangedInputError,
    NotSupportedError,
    SpecError,
    SpecProblem,
)
from dsort.service.aistore.checksums import CONTENT_KIND, content_checksum
from dsort.service.aistore.places import BucketPath, ObjectRoute, Provider, object_place
from dsort.service.aistore.shards import InlineTransforms, read_member
from dsort.service.api.datasets import NamePath
from dsort.service.api.dependencies import (
    BytesAnswer,
    Caller,
    JsonAnswer,
    entity_tag,
    in_thread,
    object_headers,
    problems,
    require,
)
from dsort.service.objects.places import ObjectPlace, missing
from dsort.service.objects.processes import MadeFile
from dsort.service.objects.shard_looks import UnsatisfiableRangeError, parse_range
from dsort.service.security.tokens import SUBMITTER, Identity
from dsort.service.service import Service
from dsort.spec.model import JobSpec
from dsort.storage.bucket import ObjectInfo, ReadObject

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
EtlName = Annotated[str | None, Query(max_length=80, description="AIStore's name for `transform`.")]
MemberPath = Annotated[
    str | None,
    Query(max_length=4096, description="Send only this file of a tar or a zip."),
]
_BYTES: Final[dict[str, Any]] = {
    "application/octet-stream": {
        "schema": {"type": "string", "format": "binary"},
        "example": "the bytes",
    }
}
_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The object, or the transformed shard.", "content": _BYTES},
    206: {"description": "The bytes that `Range` requests.", "content": _BYTES},
    304: {"description": "The client has the object already: see `If-None-Match`."},
    416: {"description": "The object has none of the bytes that `Range` requests."},
    **problems(400, 401, 403, 404, 413, 422, 429, 502),
}


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(
        prefix="/v1/objects",
        tags=["objects"],
        default_response_class=JsonAnswer,
        route_class=ObjectRoute,
    )
    reads = _Reads(service)
    _add_get(routes, reads)
    _add_head(routes, reads)
    return routes


def _add_get(routes: APIRouter, reads: _Reads) -> None:
    async def counted(identity: Caller) -> AsyncIterator[None]:
        with reads.service.limits.download(identity.name):
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
        if_range: Annotated[
            str | None, Header(description="All is sent unless this ETag fits.")
        ] = None,
        if_none_match: Annotated[
            str | None, Header(description="ETags that the client has.")
        ] = None,
    ) -> Response:
        """The bytes of an object, or a range of them. With `transform`, the whole shard that this
        transform makes, byte for byte as `dsort transform` would write it. The token has to allow
        the bucket as an input."""
        place = object_place(reads.service, request, identity, provider)
        use = _use(identity, transform, etl_name)
        known = [tag.strip() for tag in (if_none_match or "").split(",")]
        if _is_of_archive(request, archpath):
            return await reads.member(request, place, archpath or "", known)
        if use is not None:
            return await reads.transformed(request, place, use, known)
        with ExitStack() as ends:
            source = await reads.opened(place, ends)
            info = source.info
            tag = _tag(info)
            headers = _headers(info, tag) | {"Accept-Ranges": "bytes"}
            if _is_known(tag, known):
                return _bare(304, headers)
            asked = range_ if if_range is None or if_range.strip() == tag else None
            try:
                part = parse_range(asked, info.size_bytes)
            except UnsatisfiableRangeError:
                return _bare(416, headers | {"Content-Range": f"bytes */{info.size_bytes}"})
            start, stop = part or (0, info.size_bytes)
            if part is not None:
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{info.size_bytes}"
            elif request.headers.get("User-Agent", "").startswith(COMMAND):
                headers |= await in_thread(partial(_checksum, source))
            status = 200 if part is None else 206
            return BytesAnswer(
                source, start, stop, ends=ends.pop_all(), status=status, headers=headers
            )


def _add_head(routes: APIRouter, reads: _Reads) -> None:
    service = reads.service

    @routes.head(
        "/{bucket}/{name:path}",
        response_class=Response,
        responses={
            200: {"description": "The length of the object, and its `ETag`."},
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
        info = await reads.stat(place)
        without_length = {"Accept-Ranges": "none"}
        if _is_of_archive(request, archpath):
            return _bare(200, _headers(info, _tag(info, archpath or "")) | without_length)
        if use is not None:
            spec = (await run_in_threadpool(reads.inline.spec, place, use)).spec
            return _bare(200, _transform_headers(info, spec))
        headers = _headers(info, _tag(info))
        if "checksum" in request.query_params.get("props", "").split(","):
            with service.limits.download(identity.name), ExitStack() as ends:
                headers |= await in_thread(partial(_checksum, await reads.opened(place, ends)))
        length = {"Content-Length": str(info.size_bytes), "Accept-Ranges": "bytes"}
        return _bare(200, headers | length)


class _Reads:
    """Opens objects, and sends the files that processes make of shards."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.inline = InlineTransforms(service)

    async def opened(self, place: ObjectPlace, ends: ExitStack) -> ReadObject:
        """The object, which ``ends`` closes."""
        with missing(place):
            found = await in_thread(lambda: place.opened().open(place.name))
        ends.callback(found.close)
        return found

    async def stat(self, place: ObjectPlace) -> ObjectInfo:
        """The present facts of the object."""
        with missing(place):
            return await run_in_threadpool(lambda: place.opened().stat(place.name))

    async def member(
        self,
        request: Request,
        place: ObjectPlace,
        path: str,
        known: Sequence[str],
    ) -> Response:
        """A file in a shard."""
        info = await self._readable(place)
        tag = _tag(info, path)
        headers = _headers(info, tag) | {"Accept-Ranges": "none"}
        if _is_known(tag, known):
            return _bare(304, headers)
        made = await read_member(self.service, place, path, request.is_disconnected)
        return await self._sent(place, info, headers, *made)

    async def transformed(
        self,
        request: Request,
        place: ObjectPlace,
        use: str,
        known: Sequence[str],
    ) -> Response:
        """A shard as the transform ``use`` makes it."""
        inline = await run_in_threadpool(self.inline.spec, place, use)
        info = await self._readable(place)
        headers = _transform_headers(info, inline.spec)
        if _is_known(headers["ETag"], known):
            return _bare(304, headers)
        made = await self.inline.run(inline, place, info.size_bytes, request.is_disconnected)
        return await self._sent(place, info, headers, *made)

    async def _readable(self, place: ObjectPlace) -> ObjectInfo:
        """The facts of the object, which can be opened."""
        with ExitStack() as ends:
            return (await self.opened(place, ends)).info

    async def _sent(
        self,
        place: ObjectPlace,
        info: ObjectInfo,
        headers: Mapping[str, str],
        made: MadeFile,
        closing: ExitStack,
    ) -> Response:
        """``made``, if the object has not changed since ``info``. ``ChangedInputError``."""
        with closing as ends:
            now = await self._readable(place)
            if (now.etag, now.size_bytes) != (info.etag, info.size_bytes):
                raise ChangedInputError(f"{place.name} changed while it was read", hint="ask again")
            return BytesAnswer(made, 0, made.size_bytes, ends=ends.pop_all(), headers=headers)


def _use(identity: Identity, transform: str | None, etl_name: str | None) -> str | None:
    if transform is not None and etl_name is not None:
        raise SpecError([SpecProblem("etl_name", "cannot be combined with transform")])
    use = transform if transform is not None else etl_name
    if use is not None:
        require(SUBMITTER)(identity)
    return use


def _is_of_archive(request: Request, archpath: str | None) -> bool:
    """Whether the request is for a file in the object. AIStore's SDK sends unused parameters with
    empty values."""
    if request.query_params.get("archregx") or request.query_params.get("archmode"):
        raise NotSupportedError(
            "several files of a shard are not sent at once",
            hint="ask for one: archpath; `dsort cat --as tar` writes a record",
        )
    if archpath and {"transform", "etl_name"} & {*request.query_params}:
        raise SpecError([SpecProblem("archpath", "cannot be combined with a transform")])
    return bool(archpath)


def _tag(info: ObjectInfo, *parts: str) -> str:
    return entity_tag(info.etag, str(info.size_bytes), *parts)


def _is_known(tag: str, known: Sequence[str]) -> bool:
    """Whether the client has the version with this tag already."""
    return "*" in known or tag in [each.removeprefix("W/") for each in known]


def _headers(info: ObjectInfo, tag: str) -> dict[str, str]:
    # AIStore's clients require that an object is marked as present in the cluster: else they do not
    # resume an interrupted read. Times of access are not stored: the time of the last change is
    # sent.
    changed = str(max(info.mtime_ns, 0))
    own = {"Ais-Present": "true", "Ais-Atime": changed, "Ais-Version": changed}
    return object_headers(info, tag) | own


def _transform_headers(info: ObjectInfo, spec: JobSpec) -> dict[str, str]:
    assert spec.transform is not None
    headers = _headers(info, _tag(info, str(spec.transform.canonical())))
    return headers | {"Accept-Ranges": "none", "Dsort-Transform": spec.transform.use or ""}


def _checksum(source: ReadObject) -> dict[str, str]:
    """Headers with the checksum of an object; {} if the checksum is not computed."""
    value = content_checksum(source)
    if value is None:
        return {}
    return {"Ais-Checksum-Type": CONTENT_KIND, "Ais-Checksum-Value": value}


def _bare(status: int, headers: Mapping[str, str]) -> Response:
    answer = Response(status_code=status)
    del answer.headers["Content-Length"]  # 0, of the empty body: ``headers`` may set a length
    answer.headers.update(headers)
    return answer
