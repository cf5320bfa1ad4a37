"""``/v1/buckets``: list buckets and the objects in them.

The messages are those of AIStore's clients: an action in a JSON body, even where the method is GET;
without a body, a list. AIStore's Go clients and its SDK request MessagePack.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from msgspec.structs import replace
from pydantic import BaseModel, Field

from dsort.errors import (
    NotFoundError,
    NotSupportedError,
    ObjectNotFoundError,
    SpecError,
    SpecProblem,
    StorageError,
)
from dsort.service.api.answers import JsonAnswer
from dsort.service.api.dependencies import Caller
from dsort.service.api.models import problems, shown
from dsort.service.api.object_places import (
    ObjectRoute,
    Provider,
    refuse_namespace,
    sent_path,
    shard_problem,
)
from dsort.service.objects.answers import in_thread
from dsort.service.objects.buckets import BucketModel, bucket_model, known_buckets
from dsort.service.objects.checksums import content_checksum
from dsort.service.objects.listing import PAGE_MAX, TEXT_BYTES_MAX, Entry, ListingPage, PageAsked
from dsort.service.objects.members import has_members
from dsort.service.objects.messages import fields_of, message_of, number_in, text_in
from dsort.service.objects.msgpack import packed
from dsort.service.objects.places import Asking, ObjectPlace, bucket_of_path
from dsort.service.objects.processes import ShardProblemError
from dsort.service.security.tokens import Identity
from dsort.service.service import Service
from dsort.storage.registry import store_of

__all__ = ["PREFIX", "BucketPath", "absent", "action_message", "bucket_place", "router"]

PREFIX: Final = b"/v1/buckets/"
_DECLINED: Final = ("summary-bck",)
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

BucketPath = Annotated[
    str,
    Path(
        description="A bucket as in a spec: `images`, `s3%3A%2F%2Fdata%2Fimages`.",
    ),
]


class ListedObject(BaseModel):
    """An object, or with the flag 256 a directory."""

    name: str
    size: str = Field("0", description="In bytes.")
    checksum: str = Field("", description="xxhash2, if `props` has it: the object is read for it.")
    atime: str = Field("", description="When it was changed last, if `props` has it.")
    version: str = Field("", description="Another one after each change, if `props` has it.")
    flags: int


class ObjectPage(BaseModel):
    """A page of objects, as AIStore's clients know it."""

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
        """The buckets that the token may read: directories in the data root, and what the operator
        has allowed by its whole name. Those of a store that a pattern allows are not asked for."""
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
                description="A page. `continuation_token` asks for the next one; it is empty on "
                f"the last. With `Accept: {MSGPACK}` the same in MessagePack, as AIStore has it.",
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
            int, Query(ge=0, description=f"Of a page; at most {PAGE_MAX:,}, 0: that many.")
        ] = 0,
        continuation_token: Annotated[
            str, Query(description="Of the page before: its names come first.")
        ] = "",
        uuid: Annotated[str, Query(max_length=64, description="Of the page before.")] = "",
    ) -> Response:
        """A page of the bucket's objects, in byte order of their names. AIStore's clients send the
        same as a body: `{"action": "list", "value": {"prefix": ..., "pagesize": ...}}`."""
        place = bucket_place(service, request, identity, provider)
        query = {
            "prefix": prefix,
            "pagesize": page_size,
            "continuation_token": continuation_token,
            "uuid": uuid,
        }
        value = (await action_message(request, "list")).get("value")
        asked = _Asked(query if value is None else fields_of(value))
        pages: list[ListingPage] = []
        with service.limits.download(identity.name):
            await in_thread(lambda: pages.append(_page(service, place, identity, asked)))
            (page,) = pages
            if asked.with_members:
                try:
                    page = await _expanded(service, request, identity, place, page)
                except ShardProblemError as error:
                    return shard_problem(error)
            elif "checksum" in asked.props:
                await in_thread(lambda: _add_checksums(service, place, page))
        return _page_answer(page, asked, request.headers.get("Accept", ""))


def _add_head(routes: APIRouter, service: Service) -> None:
    @routes.head(
        "/{bucket:path}",
        response_class=Response,
        responses={
            200: {"description": "It is there: `Ais-Bucket-Props` says whose it is."},
            **problems(400, 401, 403, 404, 429, 502),
        },
        summary="Look at a bucket",
    )
    def head_bucket(
        request: Request, identity: Caller, bucket: BucketPath, provider: Provider = ""
    ) -> Response:
        """Whether the bucket is there, and the token may read it. With `bsumm_remote` AIStore's
        clients ask for a summary as well, which this service does not make."""
        if "bsumm_remote" in request.query_params:
            raise NotSupportedError("buckets are not summed up here", hint="list the objects")
        place = bucket_place(service, request, identity, provider)
        if not place.opened(service.config, service.submitter.policy).exists():
            raise absent(place)
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


def _page(service: Service, place: ObjectPlace, identity: Identity, asked: _Asked) -> ListingPage:
    bucket = place.opened(service.config, service.submitter.policy)
    try:
        return service.listings.page(bucket, place.uri, identity.name, asked.page)
    except ObjectNotFoundError:
        raise absent(place) from None


async def _expanded(
    service: Service,
    request: Request,
    identity: Identity,
    place: ObjectPlace,
    page: ListingPage,
) -> ListingPage:
    """The page, with the files in each archive added behind the archive. It ends sooner if there
    are many, or reading them takes long."""
    found = ListingPage(page.listing, [], page.after)
    ends_at = time.monotonic() + _EXPANDING_S_MAX
    for number, entry in enumerate(page.entries):
        is_archive = entry.kind == "object" and has_members(entry.name)
        found.entries.append(replace(entry, kind="archive") if is_archive else entry)
        if is_archive:
            found.entries += await service.members.listed(
                replace(place, name=entry.name),
                service.submitter.policy,
                identity.name,
                request.is_disconnected,
            )
        is_enough = len(found.entries) >= _ENTRIES_MAX or time.monotonic() > ends_at
        if is_enough and number + 1 < len(page.entries):
            found.after = entry.name
            break
    return found


def _add_checksums(service: Service, place: ObjectPlace, page: ListingPage) -> None:
    """Add checksums to the page by reading its objects. It ends sooner if that takes long."""
    bucket = place.opened(service.config, service.submitter.policy)
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
        entries = [
            {_SHORT[name]: value for name, value in row.items() if value != ""} for row in rows
        ]
        document = {
            "UUID": page.listing,
            "ContinuationToken": page.after,
            "Entries": entries,
            "Flags": 0,
        }
        return Response(packed(document), headers={"Content-Type": MSGPACK})
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
    """An entry with those of the requested properties that are known, by AIStore's names."""
    row: dict[str, str | int] = {"name": entry.name, "flags": _FLAGS[entry.kind]}
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
    """A time in the format of AIStore's times of access, which are times of the last change
    here."""
    return datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%d %b %y %H:%M UTC")


def bucket_place(
    service: Service, request: Request, identity: Identity, provider: str, *, writes: bool = False
) -> ObjectPlace:
    """The bucket that a request names; errors as for ``places.bucket_of_path``."""
    refuse_namespace(request)
    asking = Asking(identity, service.config, service.submitter.policy, provider, writes)
    place = bucket_of_path(sent_path(request).removeprefix(PREFIX), asking)
    store = store_of(place.ref.scheme)
    if store is not None and store.is_read_only:
        raise NotSupportedError(f"{place.uri} cannot be listed")
    return place


def absent(place: ObjectPlace) -> NotFoundError:
    """The error of a bucket that does not exist."""
    return NotFoundError(f'bucket "{place.shown_bucket}" does not exist')


# --- messages ------------------------------------------------------------------------------------


async def action_message(request: Request, *actions: str) -> dict[str, Any]:
    """The body of a request, which must have one of these actions; {} if there is no body, for a
    list."""
    message = message_of(await request.body())
    found = text_in(message, "action")
    if found in _DECLINED:
        raise NotSupportedError(f"action: {found!r} is none that this service has")
    if found not in actions and (found or actions != ("list",)):
        text = f"{found[:80]!r} is none that this service has" if found else "is missing"
        hint = " or ".join(f'{{"action": "{action}"}}' for action in actions)
        raise SpecError([SpecProblem("action", text, f"send {hint}")])
    return message
