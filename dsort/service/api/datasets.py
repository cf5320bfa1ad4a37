"""``/v1/listings``, ``/v1/shards``, ``/v1/records``, ``/v1/samples`` and ``/v1/members``: the
buckets, and their content. A caller who may read an object may inspect its content.

No content of a shard is sent in a form that a browser would show: answers are JSON, or bytes to be
saved.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from dsort.errors import ChangedInputError, SpecError, SpecProblem
from dsort.model.base import example_of
from dsort.model.dataset import (
    BucketList,
    ObjectList,
    RecordPage,
    ShardPage,
    ShownRecords,
)
from dsort.service.api.dependencies import (
    BytesAnswer,
    Caller,
    Here,
    JsonAnswer,
    entity_tag,
    in_thread,
    note,
    object_headers,
    problems,
    shown,
)
from dsort.service.jobs.rows import validated
from dsort.service.objects.places import (
    CURSOR_CHARACTERS_MAX,
    PAGE_MAX,
    SHARDS_MAX,
    Asking,
    Entry,
    ObjectPlace,
    PageAsked,
    bucket_of_path,
    known_buckets,
    listed_shards,
    missing,
    name_in_specs,
    object_of_path,
    random_shards,
    sent_path,
)
from dsort.service.objects.processes import MemberPart
from dsort.service.security.tokens import Identity
from dsort.service.service import Service
from dsort.storage.bucket import ObjectInfo

RECORDS_MAX: Final = 500
SHOWN_MAX: Final = 20
NUMBER_MAX: Final = 2**53
ASKED: Final = problems(400, 401, 403, 404, 413, 422, 429, 502)
BucketPart = Annotated[
    str,
    Path(description="A bucket as in a spec, as one part of the path: `s3%3A%2F%2Fdata%2Fimages`."),
]
WholeBucket = Annotated[
    str, Path(description="A bucket as in a spec: `images`, `s3%3A%2F%2Fdata%2Fimages`.")
]
NamePath = Annotated[str, Path(description="The object's name; it may have slashes.")]
Number = Annotated[int, Query(ge=0, le=NUMBER_MAX, description="Number of the record, from 0.")]
Seed = Annotated[str, Query(max_length=64, description="Each seed draws other items.")]
_BYTES: Final[dict[str, Any]] = {
    "application/octet-stream": {
        "schema": {"type": "string", "format": "binary"},
        "example": "the bytes",
    }
}
_MEMBER_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The bytes, to be saved.", "content": _BYTES},
    206: {
        "description": "The bytes that `Range` requests, or the first of these.",
        "content": _BYTES,
    },
    416: {"description": "The member has none of the bytes that `Range` requests."},
    **ASKED,
}


class Looks:
    """The parts that the routes share: limits, audit log, and answers."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def bucket(self, request: Request, identity: Identity, prefix: bytes) -> ObjectPlace:
        """The bucket that the path behind ``prefix`` names."""
        return bucket_of_path(sent_path(request).removeprefix(prefix), self._asking(identity))

    def shard(self, request: Request, identity: Identity, prefix: bytes) -> ObjectPlace:
        """The object that the path behind ``prefix`` names."""
        return object_of_path(sent_path(request).removeprefix(prefix), self._asking(identity))

    def _asking(self, identity: Identity) -> Asking:
        return Asking(identity, self.service.config, self.service.submitter.policy)

    async def note(self, request: Request, action: str, place: ObjectPlace, **more: Any) -> None:
        """Write the request into the audit log."""
        target = f"{place.uri}/{place.name}" if place.name else place.uri
        await run_in_threadpool(note, request, place.client, action, target, **more)

    async def answer(self, request: Request, place: ObjectPlace, order: dict[str, Any]) -> Response:
        """The answer of the process about a shard or a bucket, as a JSON response."""
        headers = {"Content-Type": "application/json"}
        if place.name:
            info = await self.stat(place)
            headers |= object_headers(info, entity_tag(info.etag, str(info.size_bytes), str(order)))
        made, ends = await self.service.shards.look(place, order, request.is_disconnected)
        return BytesAnswer(made, 0, made.size_bytes, ends=ends, headers=headers)

    async def stat(self, place: ObjectPlace) -> ObjectInfo:
        """The present facts of the object."""
        with missing(place):
            return await run_in_threadpool(lambda: place.opened().stat(place.name))


async def looks_of(service: Here) -> Looks:
    """A dependency: the ``Looks`` of the routes."""
    return Looks(service)


Looking = Annotated[Looks, Depends(looks_of)]


async def counted(service: Here, identity: Caller) -> AsyncIterator[None]:
    """A dependency: counts the request against the caller's limits while it is answered."""
    service.limits.look(identity.name)
    with service.limits.download(identity.name):
        yield


routes = APIRouter(prefix="/v1", tags=["data"], default_response_class=JsonAnswer)


@routes.get(
    "/listings",
    response_model=BucketList,
    responses=shown(200, example_of(BucketList)) | problems(401, 429),
    summary="List buckets",
)
def list_buckets(service: Here, identity: Caller) -> BucketList:
    """The buckets that the token may read: directories in the data root, and buckets that the
    operator has allowed by their whole names. Buckets of a store that only a pattern allows are
    not listed."""
    uris = known_buckets(identity, service.config, service.submitter.policy)
    root = service.config.run.root.resolve()
    return validated(BucketList, {"buckets": [name_in_specs(uri, root) for uri in uris]})


@routes.get(
    "/listings/{bucket:path}",
    dependencies=[Depends(counted)],
    response_model=ObjectList,
    responses=shown(200, example_of(ObjectList)) | ASKED,
    summary="List the objects of a bucket",
)
async def list_objects(
    service: Here,
    looks: Looking,
    request: Request,
    identity: Caller,
    bucket: WholeBucket,
    prefix: Annotated[str, Query(description="Only names that begin with it.")] = "",
    limit: Annotated[
        int, Query(ge=1, le=PAGE_MAX, description="The most objects on a page.")
    ] = 1_000,
    cursor: Annotated[
        str,
        Query(max_length=CURSOR_CHARACTERS_MAX, description="`next_cursor` of the page before."),
    ] = "",
) -> ObjectList:
    """A page of the objects of a bucket, in byte order of their names."""
    place = looks.bucket(request, identity, b"/v1/listings/")
    asked = PageAsked.at(cursor, size=limit, prefix=prefix)
    with missing(place):
        page = await in_thread(
            lambda: service.listings.page(place.opened(), place.uri, place.client, asked)
        )
    await looks.note(request, "data.list", place)
    rows = [{"name": each.name, "size_bytes": each.size_bytes} for each in page.entries]
    document = {"bucket": place.uri, "objects": rows, "next_cursor": page.cursor or None}
    return validated(ObjectList, document)


@routes.get(
    "/shards/{bucket:path}",
    dependencies=[Depends(counted)],
    response_model=ShardPage,
    responses=shown(200, example_of(ShardPage)) | ASKED,
    summary="List the shards of a bucket",
)
async def list_shards(
    service: Here,
    looks: Looking,
    request: Request,
    identity: Caller,
    bucket: WholeBucket,
    text: Annotated[str, Query(max_length=200, description="Only names that contain this.")] = "",
    limit: Annotated[
        int, Query(ge=1, le=SHARDS_MAX, description="About the number of shards.")
    ] = 100,
    cursor: Annotated[
        str | None,
        Query(max_length=CURSOR_CHARACTERS_MAX, description="`next_cursor` of the page before."),
    ] = None,
    random: Annotated[
        int, Query(ge=0, le=SHOWN_MAX, description="This many random shards, and no page.")
    ] = 0,
    seed: Seed = "",
) -> ShardPage:
    """The shards of a bucket with their sizes, and with the number of their records if a manifest
    in the bucket has the number. The token has to allow the bucket as an input."""
    place = looks.bucket(request, identity, b"/v1/shards/")

    def find() -> tuple[list[Entry], str]:
        if random:
            return random_shards(place.opened(), random, seed), ""
        return listed_shards(service.listings, place, text=text, cursor=cursor or "", limit=limit)

    with missing(place):
        found, goes_on = await in_thread(find)
    known: dict[str, int] = {}
    if found and not random:
        known = await service.shards.counts(place, found, request.is_disconnected)
    await looks.note(request, "data.list", place)
    rows = [
        {"name": each.name, "size_bytes": each.size_bytes, "records": known.get(each.name)}
        for each in found
    ]
    document = {"bucket": place.uri, "shards": rows, "next_cursor": goes_on or None}
    return validated(ShardPage, document)


@routes.get(
    "/records/{bucket}/{name:path}",
    dependencies=[Depends(counted)],
    response_model=RecordPage,
    responses=shown(200, example_of(RecordPage)) | ASKED,
    summary="List the records of a shard",
)
async def list_records(
    looks: Looking,
    request: Request,
    identity: Caller,
    bucket: BucketPart,
    name: NamePath,
    first: Annotated[
        int, Query(ge=0, le=NUMBER_MAX, description="Number of the first record.")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=RECORDS_MAX, description="How many on a page.")] = 50,
    text: Annotated[str, Query(max_length=200, description="Only keys that contain this.")] = "",
) -> Response:
    """The keys of records, and the names and sizes of their members. The service reads only the
    headers of a shard without compression."""
    place = looks.shard(request, identity, b"/v1/records/")
    await looks.note(request, "data.list", place)
    order = {"look": "records", "first": first, "limit": limit, "text": text}
    return await looks.answer(request, place, order)


@routes.get(
    "/samples/{bucket}/{name:path}",
    dependencies=[Depends(counted)],
    response_model=ShownRecords,
    responses=shown(200, example_of(ShownRecords)) | ASKED,
    summary="Look at records",
)
async def show_records(
    looks: Looking,
    request: Request,
    identity: Caller,
    bucket: BucketPart,
    name: NamePath,
    number: Annotated[
        list[int], Query(max_length=SHOWN_MAX, description="A record's number; may be repeated.")
    ] = [],  # noqa: B006 (FastAPI copies it)
    random: Annotated[
        int, Query(ge=0, le=SHOWN_MAX, description="Show this many random records.")
    ] = 0,
    seed: Seed = "",
) -> Response:
    """Records of a shard with previews of their members: small pictures are whole, all other
    members are cut after their beginning. The answer has at most 6 MiB."""
    place = looks.shard(request, identity, b"/v1/samples/")
    if bool(number) == bool(random):
        raise SpecError([SpecProblem("number", "give either number or random")])
    if any(not 0 <= each <= NUMBER_MAX for each in number):
        raise SpecError([SpecProblem("number", "is not that of a record")])
    which = {"random": random, "seed": seed} if random else {"numbers": number}
    await looks.note(request, "data.show", place, **which)
    order = {"look": "shown", "numbers": number, "random": random, "seed": seed}
    return await looks.answer(request, place, order)


@routes.get(
    "/members/{bucket}/{name:path}",
    dependencies=[Depends(counted)],
    response_class=Response,
    responses=_MEMBER_ANSWERS,
    summary="Read a member of a record",
)
async def read_member(
    looks: Looking,
    request: Request,
    identity: Caller,
    bucket: BucketPart,
    name: NamePath,
    number: Number,
    member: Number,
    range_: Annotated[str | None, Header(alias="range", description="One range of bytes.")] = None,
    if_range: Annotated[
        str | None, Header(description="All is sent unless this ETag fits.")
    ] = None,
) -> Response:
    """The bytes of one member of at most 64 MiB, in a shard of any container. If the request has a
    range, the answer has up to 4 MiB of the range."""
    place = looks.shard(request, identity, b"/v1/members/")
    numbers = {"number": number, "member": member}
    await looks.note(request, "data.read", place, **numbers)
    info = await looks.stat(place)
    tag = entity_tag(info.etag, str(info.size_bytes), str(numbers))
    asked = range_ if if_range is None or if_range.strip() == tag else None
    order = {"look": "payload", **numbers, "range": asked}
    made, closing = await looks.service.shards.look(place, order, request.is_disconnected)
    with closing as ends:
        # The process may have opened an object with another tag than the tag that is sent.
        now = await looks.stat(place)
        if (now.etag, now.size_bytes) != (info.etag, info.size_bytes):
            raise ChangedInputError(f"{place.name} changed while it was read", hint="ask again")
        part = MemberPart.of(made)
        headers = object_headers(info, tag) | part.headers
        headers["Content-Disposition"] = (
            f"attachment; filename*=UTF-8''record-{number}-{member}.bin"
        )
        if part.status == 416:
            return Response(status_code=416, headers=headers)
        return BytesAnswer(
            made,
            part.at,
            made.size_bytes,
            ends=ends.pop_all(),
            status=part.status,
            headers=headers,
        )
