"""``POST`` and ``DELETE`` of ``/v1/buckets/BUCKET``: requests that make a bucket, remove a bucket,
or remove several objects by their names, a template, or a prefix.

Only directories under the data root are made and removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from msgspec import Struct
from sqlalchemy import select

from dsort.errors import (
    ConflictError,
    ForbiddenError,
    NotSupportedError,
    ObjectNotFoundError,
    SpecError,
    SpecProblem,
)
from dsort.naming.inputs import parse_input_template
from dsort.naming.names import check_object_name, check_output_name, is_internal
from dsort.naming.overlap import claim_on, is_within
from dsort.service.aistore.cluster import REMOVAL, removal_id
from dsort.service.aistore.messages import action_message, fields_of, text_in
from dsort.service.aistore.places import (
    BucketPath,
    ObjectRoute,
    Provider,
    bucket_place,
    check_changed_name,
)
from dsort.service.api.dependencies import (
    JsonAnswer,
    Submitting,
    TextAnswer,
    note,
    problems,
    require,
)
from dsort.service.database.engine import Database
from dsort.service.database.tables import jobs, split_uris
from dsort.service.objects.places import TEXT_BYTES_MAX, ObjectPlace, PageAsked, missing
from dsort.service.security.tokens import ADMIN, Identity
from dsort.service.service import Service
from dsort.storage.bucket import Bucket
from dsort.storage.registry import parse_address

REMOVED_MAX: Final = 100_000
_RANGE_SIGNS: Final = "{}@%"


class RemovalAsked(Struct, frozen=True):
    """The objects to remove: ``names``, or the names of ``template``. A template without a range is
    a prefix; an empty template means all objects that are not hidden. ``flat``: False leaves out
    objects below a ``/`` behind the prefix."""

    names: Sequence[str] = ()
    template: str = ""
    flat: bool = True


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
            200: {"description": "The bucket is made."},
            **problems(400, 401, 403, 404, 409, 429, 501, 502),
        },
        openapi_extra=_action("create-bck"),
        summary="Make a bucket",
    )
    async def post_bucket(
        request: Request, identity: Submitting, bucket: BucketPath, provider: Provider = ""
    ) -> Response:
        """Make a bucket: a directory. The token has to allow the bucket as an output."""
        place = bucket_place(service, request, identity, provider, writes=True)
        refuse_to_change(service)
        await action_message(request, "create-bck")

        def create() -> None:
            _create_bucket(place)
            note(request, identity.name, "bucket.create", place.uri)

        await run_in_threadpool(create)
        return Response()

    @routes.delete(
        "/{bucket:path}",
        response_class=Response,
        responses={
            200: {
                "description": "The bucket is removed, or the objects are. For objects, the text "
                "is the id of an ended job, because AIStore's clients wait for a job.",
            },
            **problems(400, 401, 403, 404, 409, 429, 501, 502),
        },
        openapi_extra=_action("destroy-bck", REMOVAL),
        summary="Remove a bucket, or several of its objects",
    )
    async def delete_bucket(
        request: Request, identity: Submitting, bucket: BucketPath, provider: Provider = ""
    ) -> Response:
        """For an admin, `destroy-bck`: remove a directory under the data root with its content, if
        no job uses the directory. `delete-listrange`: remove the objects that the `value` of the
        message names as `objnames`, or as `template`, which may be a prefix; `non-recurs` leaves
        out objects below a `/` behind this prefix. If a running job writes or reads one of these
        objects, none is removed."""
        place = bucket_place(service, request, identity, provider, writes=True)
        refuse_to_change(service)
        message = await action_message(request, "destroy-bck", REMOVAL)
        if text_in(message, "action") == REMOVAL:
            asked = _removal(fields_of(message.get("value")))
            return await run_in_threadpool(_remove, service, request, identity, place, asked)
        require(ADMIN)(identity)

        def remove() -> None:
            with missing(place):
                _remove_bucket(place, service.database)
            note(request, identity.name, "bucket.remove", place.uri)

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
    bucket = place.opened()
    with missing(place):
        if place.ref.is_directory and not bucket.exists():
            raise ObjectNotFoundError(place.shown)
    count = _remove_objects(bucket, place.uri, service.database, asked)
    note(request, identity.name, "objects.remove", place.uri, objects=count)
    return TextAnswer(removal_id(time.time_ns()))


def _action(*names: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"action": {"enum": [*names]}},
        "required": ["action"],
    }
    content = {"schema": schema, "example": {"action": names[0]}}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def _remove_objects(bucket: Bucket, uri: str, database: Database, asked: RemovalAsked) -> int:
    """Remove the objects that exist; return their number. Either all names pass the checks, or no
    object is removed. ``SpecError`` for more than ``REMOVED_MAX`` and for names that requests may
    not change, ``ConflictError`` for objects that a running job needs, ``StorageError``."""
    names = [*islice(_names(bucket, asked), REMOVED_MAX + 1)]
    if len(names) > REMOVED_MAX:
        hint = "remove them in several requests, or the bucket with all that is in it"
        text = f"more than {REMOVED_MAX:,} objects"
        raise SpecError([SpecProblem("template" if not asked.names else "objnames", text, hint)])
    refuse_in_use(database, uri, names, lambda name: True)
    for name in names:
        bucket.delete(name)
    return len(names)


def _names(bucket: Bucket, asked: RemovalAsked) -> Iterator[str]:
    template = "" if asked.template == "*" else asked.template
    if not asked.names and not any(sign in template for sign in _RANGE_SIGNS):
        yield from _listed(bucket, template.removesuffix("*"), flat=asked.flat)
        return
    try:
        named = asked.names or islice(parse_input_template(template), REMOVED_MAX + 1)
        wanted = dict.fromkeys(named)
        for name in wanted:
            check_object_name(name)
            check_changed_name(name)
    except ValueError as error:
        raise SpecError(
            [SpecProblem("objnames" if asked.names else "template", str(error))]
        ) from None
    if len(wanted) > REMOVED_MAX:
        yield from wanted
        return
    there = bucket.stat_many([*wanted])
    yield from (name for name in wanted if name in there)


def _listed(bucket: Bucket, prefix: str, *, flat: bool) -> Iterator[str]:
    PageAsked(prefix=prefix).check()
    for info in bucket.list(prefix):
        rest = info.name.removeprefix(prefix)
        is_hidden = any(part.startswith(".") for part in info.name.split("/"))
        if not is_internal(info.name) and not is_hidden and (flat or "/" not in rest):
            yield info.name


def _create_bucket(place: ObjectPlace) -> None:
    """Make the directory ``place``. ``ConflictError`` if the directory exists, ``SpecError`` for an
    invalid name, ``NotSupportedError`` in a store."""
    _refuse_store(place)
    for each in place.ref.path.strip("/").split("/"):
        try:
            check_output_name(each)
        except ValueError as error:
            raise SpecError(f"bucket {error}") from None
    bucket = place.opened()
    if bucket.exists():
        raise ConflictError(f'bucket "{place.shown_bucket}" already exists')
    try:
        bucket.create()
    except ObjectNotFoundError as error:  # an object is in the way
        raise ConflictError(error.message) from None


def _remove_bucket(place: ObjectPlace, database: Database) -> None:
    """Remove the directory ``place`` with everything in it, as AIStore's ``destroy-bck`` does.
    ``ConflictError`` if a job uses it, ``ForbiddenError`` outside the data root or if the service
    has files of its own in it, ``NotSupportedError`` in a store, ``ObjectNotFoundError``."""
    _refuse_store(place)
    directory = Path(parse_address(place.uri).path)
    root = Path(os.path.realpath(place.asking.config.run.root))
    written = root / place.ref.path if not place.ref.scheme else Path(place.ref.path)
    if root not in directory.parents or Path(os.path.normpath(written)) != directory:
        raise ForbiddenError(
            f"{place.uri} is no directory of its own under the data root",
            hint="its operator can remove it",
        )
    if any(directory in Path(own).parents for own in place.asking.policy.fetch_policy().denied):
        raise ForbiddenError(
            f"the service keeps files of its own in {place.uri}",
            hint="its operator can remove the bucket",
        )
    _refuse_bucket_in_use(database, place.uri)
    if not place.opened().exists():
        raise ObjectNotFoundError(f"there is no bucket {place.shown_bucket}")
    try:
        shutil.rmtree(directory)
    except OSError as error:  # a file was created there meanwhile, or belongs to another user
        raise ConflictError(
            f"the bucket {place.asked} could not be removed whole: {error.strerror}",
            hint="see what is left in it, and remove it again",
        ) from None


def _refuse_store(place: ObjectPlace) -> None:
    if not place.ref.is_directory:
        raise NotSupportedError(
            f"{place.uri} is a bucket of a store", hint="make and remove it in the store itself"
        )


def refuse_in_use(
    database: Database, uri: str, names: Iterable[str], is_there: Callable[[str], bool]
) -> None:
    """``ConflictError`` if a running job may write one of ``names`` in the bucket ``uri``; or if
    one of these objects exists, and a running job reads the bucket. A new object in the bucket does
    no harm.

    Without this check, the object would change while the job reads it, and the job would fail. With
    the check, the writer gets an error, and the job continues. A job that begins after the check
    notices the change."""
    query = select(jobs.c.job_id, jobs.c.input_uri, jobs.c.claims).where(jobs.c.state == "running")
    rows = database.rows(query)
    for name, (job_id, input_uri, claims) in product(names if rows else (), rows):
        if _may_write(claims, uri, name):
            raise ConflictError(
                f"job {job_id}, which runs, may write {name}", hint="wait for it, or stop it"
            )
        if any(is_within(uri, name, each) for each in split_uris(input_uri)) and is_there(name):
            raise ConflictError(
                f"job {job_id}, which runs, reads the bucket that has {name}",
                hint="wait for it, stop it, or choose another name",
            )


def _refuse_bucket_in_use(database: Database, uri: str) -> None:
    """``ConflictError`` if a job that has not ended reads or writes in the bucket ``uri``, in a
    bucket that contains this bucket, or in a bucket inside it."""
    query = select(jobs.c.job_id, jobs.c.input_uri, jobs.c.output_uri).where(
        jobs.c.state.in_(("queued", "running"))
    )
    for job_id, *texts in database.rows(query):
        for other in (each for text in texts for each in split_uris(text)):
            if is_within(uri, "", other) or is_within(other, "", uri):
                raise ConflictError(
                    f"job {job_id}, which has not ended, uses the bucket",
                    hint="wait for it, or stop it",
                )


def _may_write(claims: Sequence[Sequence[str]] | None, uri: str, name: str) -> bool:
    """Whether the templates of ``claims`` can make ``name`` in the bucket ``uri``. Texts that are
    not templates match nothing: the engine refuses them."""
    with contextlib.suppress(ValueError):
        return claim_on(claims or (), uri, name) is not None
    return False
