"""``GET`` and ``HEAD`` of ``/v1/buckets``: buckets, and the objects in them.

The messages are those of AIStore's clients: an action in a JSON body, even with the method GET. A
request without a body requests a list. AIStore's Go clients and its SDK request MessagePack.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from msgspec.structs import replace
from pydantic import BaseModel, Field

from dsort.data.json_values import encodable
from dsort.errors import NotSupportedError, ObjectNotFoundError, StorageError
from dsort.service.aistore.answers import BucketModel, bucket_model
from dsort.service.aistore.checksums import content_checksum
from dsort.service.aistore.messages import action_message, fields_of, number_in, text_in
from dsort.service.aistore.places import BucketPath, ObjectRoute, Provider, bucket_place
from dsort.service.aistore.shards import has_members, listed_members
from dsort.service.api.dependencies import Caller, JsonAnswer, in_thread, problems, shown
from dsort.service.objects.places import (
    PAGE_MAX,
    TEXT_BYTES_MAX,
    Entry,
    ListingPage,
    ObjectPlace,
    PageAsked,
    known_buckets,
    missing,
)
from dsort.service.service import Service

MSGPACK: Final = "application/msgpack"
_ARCHIVES: Final = 1 << 3
_NAME_ONLY: Final = 1 << 4
_NO_RECURSION: Final = 1 << 11
_INVENTORY: Final = 1 << 15
_CACHED: Final = 1 << 6
_FLAGS: Final = {
    "object": _CACHED,
    "archive": _CACHED | 1 << 9,
    "member": _CACHED | 1 << 7,
    "directory": 1 << 8,
}
_SHORT: Final = {
    "name": "n",
    "size": "s",
    "checksum": "cs",
    "atime": "a",
    "version": "v",
    "flags": "f",
}
_ARCHIVES_A_PAGE: Final = 64
_ENTRIES_MAX: Final = 100_000
_EXPANDING_S_MAX: Final = 10.0


class ListedObject(BaseModel):
    """An object, or with the flag 256 a directory."""

    name: str
    size: str = Field("0", description="In bytes.")
    checksum: str = Field("", description="xxhash2, if `props` requests it.")
    atime: str = Field("", description="Time of the last change, if `props` requests it.")
    version: str = Field("", description="New after each change, if `props` requests it.")
    flags: int


class ObjectPage(BaseModel):
    """A page of objects, in the form of AIStore's clients."""

    uuid: str
    continuation_token: str
    entries: list[ListedObject]
    flags: int


_LIST: Final = {
    "uuid": "6f1f0c2f9a7b4f6f9d1f6f0e9a0b1c2d",
    "continuation_token": "",
    "entries": [{"name": "samples-00.tar", "size": "1912340480", "flags": _CACHED}],
    "flags": 0,
}
_BUCKETS: Final = [
    {"name": "images", "provider": "ais", "namespace": {"uuid": "", "name": ""}},
]


def router(service: Service) -> APIRouter:
    """The routes of buckets."""
    routes = APIRouter(
        prefix="/v1/buckets",
        tags=["objects"],
        default_response_class=JsonAnswer,
        route_class=ObjectRoute,
    )
    _add_buckets(routes, service)
    _add_objects(routes, service)
    _add_head(routes, service)
    return routes


def _add_buckets(routes: APIRouter, service: Service) -> None:
    @routes.get(
        "",
        response_model=list[BucketModel],
        responses={
            **shown(200, _BUCKETS, description="The buckets."),
            **problems(400, 401, 429, 501),
        },
        summary="List buckets",
    )
    async def list_buckets(request: Request, identity: Caller, provider: Provider = "") -> Response:
        """The buckets that the token may read: directories in the data root, and buckets that the
        operator has allowed by their whole names. Buckets of a store that only a pattern allows are
        not listed."""
        message = await action_message(request, "list")
        root = service.config.run.root.resolve()
        uris = await run_in_threadpool(
            known_buckets, identity, service.config, service.submitter.policy
        )
        found = [bucket_model(uri, root) for uri in uris]
        name = text_in(message, "name")
        return JsonAnswer(
            [
                each
                for each in found
                if provider in ("", each["provider"]) and name in ("", each["name"])
            ]
        )


def _add_objects(routes: APIRouter, service: Service) -> None:
    @routes.get(
        "/{bucket:path}",
        response_model=ObjectPage,
        responses={
            **shown(
                200,
                _LIST,
                description="A page. `continuation_token` requests the next page, and is empty on "
                f"the last. With `Accept: {MSGPACK}` the answer is in MessagePack, as that of "
                "AIStore is.",
            ),
            **problems(400, 401, 403, 404, 429, 501, 502),
        },
        summary="List the objects of a bucket",
    )
    async def list_objects(
        request: Request,
        identity: Caller,
        bucket: BucketPath,
        provider: Provider = "",
        prefix: Annotated[str, Query(description="Only names that begin with it.")] = "",
        page_size: Annotated[
            int, Query(ge=0, description=f"The most objects on the page; 0: {PAGE_MAX:,}.")
        ] = 0,
        continuation_token: Annotated[
            str, Query(description="`continuation_token` of the page before.")
        ] = "",
        uuid: Annotated[str, Query(max_length=64, description="`uuid` of the page before.")] = "",
    ) -> Response:
        """A page of the bucket's objects, in byte order of their names. AIStore's clients send
        these parameters in a body:
        `{"action": "list", "value": {"prefix": ..., "pagesize": ...}}`."""
        place = bucket_place(service, request, identity, provider)
        query = {
            "prefix": prefix,
            "pagesize": page_size,
            "continuation_token": continuation_token,
            "uuid": uuid,
        }
        value = (await action_message(request, "list")).get("value")
        asked = _Asked(query if value is None else fields_of(value))
        with service.limits.download(identity.name):
            with missing(place):
                page = await in_thread(
                    lambda: service.listings.page(
                        place.opened(), place.uri, place.client, asked.page
                    )
                )
            if asked.with_members:
                page = await _expanded(service, request, place, page)
            elif "checksum" in asked.props:
                await in_thread(lambda: _add_checksums(place, page))
        return _page_answer(page, asked, request.headers.get("Accept", ""))


def _add_head(routes: APIRouter, service: Service) -> None:
    @routes.head(
        "/{bucket:path}",
        response_class=Response,
        responses={
            200: {"description": "The bucket exists: `Ais-Bucket-Props` names its provider."},
            **problems(400, 401, 403, 404, 429, 502),
        },
        summary="Look at a bucket",
    )
    def head_bucket(
        request: Request, identity: Caller, bucket: BucketPath, provider: Provider = ""
    ) -> Response:
        """Whether the bucket exists, and the token may read it. With `bsumm_remote`, AIStore's
        clients also request a summary, which this service does not make."""
        if "bsumm_remote" in request.query_params:
            raise NotSupportedError("buckets are not summed up here", hint="list the objects")
        place = bucket_place(service, request, identity, provider)
        with missing(place):
            if not place.opened().exists():
                raise ObjectNotFoundError(place.shown)
        model = bucket_model(place.uri, service.config.run.root.resolve())
        return Response(headers={"Ais-Bucket-Props": json.dumps({"provider": model["provider"]})})


class _Asked:
    """The options of a list in a message."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        flags = number_in(fields, "flags")
        if flags & _INVENTORY or text_in(fields, "target"):
            raise NotSupportedError("there are no inventories and no targets here")
        props = text_in(fields, "props").replace(" ", "").split(",")
        self.props = frozenset() if flags & _NAME_ONLY else frozenset(props)
        self.has_sizes = not flags & _NAME_ONLY and ("" in props or "size" in props)
        self.with_members = bool(flags & _ARCHIVES)
        size = number_in(fields, "pagesize")
        if self.with_members:
            size = min(size or _ARCHIVES_A_PAGE, _ARCHIVES_A_PAGE)
        token = text_in(fields, "continuation_token", characters_max=TEXT_BYTES_MAX)
        self.page = PageAsked(
            prefix=text_in(fields, "prefix", characters_max=TEXT_BYTES_MAX),
            after=token or text_in(fields, "start_after", characters_max=TEXT_BYTES_MAX),
            listing=text_in(fields, "uuid") if token else "",
            size=size,
            flat=not flags & _NO_RECURSION,
        )


async def _expanded(
    service: Service,
    request: Request,
    place: ObjectPlace,
    page: ListingPage,
) -> ListingPage:
    """The page, with the files in each archive added behind the archive. The page ends sooner if
    there are many files, or if reading them takes long."""
    found = ListingPage(page.listing, [], page.after)
    ends_at = time.monotonic() + _EXPANDING_S_MAX
    for number, entry in enumerate(page.entries):
        is_archive = entry.kind == "object" and has_members(entry.name)
        found.entries.append(replace(entry, kind="archive") if is_archive else entry)
        if is_archive:
            found.entries += await listed_members(
                service, replace(place, name=entry.name), request.is_disconnected
            )
        is_enough = len(found.entries) >= _ENTRIES_MAX or time.monotonic() > ends_at
        if is_enough and number + 1 < len(page.entries):
            found.after = entry.name
            break
    return found


def _add_checksums(place: ObjectPlace, page: ListingPage) -> None:
    """Read the objects of the page, and add their checksums. The page ends sooner if the reading
    takes long."""
    bucket = place.opened()
    ends_at = time.monotonic() + _EXPANDING_S_MAX
    for number, entry in enumerate(page.entries):
        if number and time.monotonic() > ends_at:
            del page.entries[number:]
            page.after = page.entries[-1].name
            break
        if entry.kind == "object":
            with suppress(StorageError), bucket.open(entry.name) as opened:
                page.entries[number] = replace(entry, checksum=content_checksum(opened) or "")


def _page_answer(page: ListingPage, asked: _Asked, accept: str) -> Response:
    rows = [_row(each, asked) for each in page.entries]
    if MSGPACK in accept:
        entries = [{_SHORT[name]: value for name, value in row.items()} for row in rows]
        document = {
            "UUID": page.listing,
            "ContinuationToken": encodable(page.after),
            "Entries": entries,
            "Flags": 0,
        }
        return Response(msgspec.msgpack.encode(document), headers={"Content-Type": MSGPACK})
    return JsonAnswer(
        {
            "uuid": page.listing,
            "continuation_token": page.after,
            "entries": [
                {name: str(value) if name == "size" else value for name, value in row.items()}
                for row in rows
            ],
            "flags": 0,
        }
    )


def _row(entry: Entry, asked: _Asked) -> dict[str, str | int]:
    """The requested properties of an entry, as far as they are known, by AIStore's names."""
    row: dict[str, str | int] = {"name": encodable(entry.name), "flags": _FLAGS[entry.kind]}
    if asked.has_sizes and entry.size_bytes:
        row["size"] = entry.size_bytes
    if entry.checksum:
        row["checksum"] = entry.checksum
    if entry.mtime_ns and "atime" in asked.props:
        row["atime"] = _go_rfc822(entry.mtime_ns)
    if entry.mtime_ns and "version" in asked.props:
        row["version"] = str(entry.mtime_ns)
    return row


def _go_rfc822(time_ns: int) -> str:
    """A time in the format of AIStore's access times. This service sends the time of the last
    change in their place."""
    return datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%d %b %y %H:%M UTC")
