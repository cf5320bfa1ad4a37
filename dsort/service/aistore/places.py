"""The common part of AIStore's routes of buckets and objects: parameters, the place that a request
names, and errors in a form that AIStore's clients can read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import Path, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from dsort.errors import DsortError, NotSupportedError, SpecError, SpecProblem
from dsort.naming.names import has_control_characters, is_hidden
from dsort.service.api.dependencies import JsonAnswer, problem_answer
from dsort.service.objects.places import (
    Asking,
    ObjectPlace,
    bucket_of_path,
    object_of_path,
    sent_path,
)
from dsort.service.objects.processes import ShardProblemError
from dsort.service.problems import PROBLEM_JSON
from dsort.service.security import limits
from dsort.service.security.guard import is_hidden_directory
from dsort.service.security.tokens import Identity
from dsort.service.service import Service
from dsort.storage.registry import store_of

_OBJECTS: Final = b"/v1/objects/"
_BUCKETS: Final = b"/v1/buckets/"
DRAINED_BYTES_MAX: Final = 1 << 20
NAME_BYTES_MAX: Final = 1024  # the limit of object stores
BucketPath = Annotated[
    str, Path(description="A bucket as in a spec: `images`, `s3%3A%2F%2Fdata%2Fimages`.")
]
Provider = Annotated[
    str,
    Query(
        max_length=20, description="The bucket's provider, by AIStore's names: `ais`, `aws`, `gcp`."
    ),
]


class ObjectRoute(APIRoute):
    """A route whose errors also have their text as ``message``, for AIStore's command line. Answers
    to HEAD have the text in a header."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with errors turned into answers."""
        inner: Callable[[Request], Awaitable[Response]] = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await inner(request)
            except ShardProblemError as error:
                document = {**error.document, "message": str(error)}
                return JsonAnswer(document, int(document["status"]), media_type=PROBLEM_JSON)
            except DsortError as error:
                if request.method == "PUT":
                    await _drain(request)
                answer = problem_answer(error, message=error.message)
                if request.method == "HEAD":
                    answer.headers["Hdr-Error"] = quote(error.message, safe=" :/,;.!?'()=@&+")
                return answer

        return handle


async def _drain(request: Request) -> None:
    """Read the rest of a body, if the rest is short and arrives soon, because a client that still
    sends does not read the answer. ``RuntimeError``: the body was read before."""
    count = 0
    with suppress(ClientDisconnect, RuntimeError, TimeoutError):
        async with asyncio.timeout(limits.REST_S_MAX):
            async for piece in request.stream():
                count += len(piece)
                if count > DRAINED_BYTES_MAX:
                    return


def object_place(
    service: Service, request: Request, identity: Identity, provider: str, *, writes: bool = False
) -> ObjectPlace:
    """The object that a request names. Errors as for ``places.object_of_path``; also for a place to
    which requests must not write."""
    asking = _asking(service, request, identity, provider, writes)
    place = object_of_path(sent_path(request).removeprefix(_OBJECTS), asking)
    if writes:
        _refuse_unwritable(place)
        check_changed_name(place.name)
    return place


def bucket_place(
    service: Service, request: Request, identity: Identity, provider: str, *, writes: bool = False
) -> ObjectPlace:
    """The bucket that a request names. Errors as for ``places.bucket_of_path``; also for a place
    that requests must not write or list."""
    asking = _asking(service, request, identity, provider, writes)
    place = bucket_of_path(sent_path(request).removeprefix(_BUCKETS), asking)
    if writes:
        _refuse_unwritable(place)
    elif (store := store_of(place.ref.scheme)) is not None and not store.is_listed:
        raise NotSupportedError(f"{place.uri} cannot be listed")
    return place


def _refuse_unwritable(place: ObjectPlace) -> None:
    if place.ref.is_directory and is_hidden_directory(place.uri, place.asking.policy):
        raise SpecError([SpecProblem("bucket", f"{place.uri} is hidden: no request writes there")])
    store = store_of(place.ref.scheme)
    if store is not None and store.is_read_only:
        raise NotSupportedError(f"{place.uri} is in a store that cannot be written")


def check_changed_name(name: str) -> None:
    """``SpecError`` for names that requests may not write or remove. Shells and other programs read
    hidden files when they start."""
    problem = ""
    if has_control_characters(name):
        problem = "has a control character in it"
    elif len(name.encode()) > NAME_BYTES_MAX:
        problem = f"has more than {NAME_BYTES_MAX:,} bytes"
    elif is_hidden(name):
        problem = "has a part that begins with a dot: such files are hidden"
    if problem:
        raise SpecError([SpecProblem("name", problem)])


def _asking(
    service: Service, request: Request, identity: Identity, provider: str, writes: bool
) -> Asking:
    """The caller and the rules of a request for a place. ``NotSupportedError`` for a bucket in a
    namespace or another cluster of AIStore."""
    if request.query_params.get("namespace", "").strip("@#"):
        raise NotSupportedError("there are no namespaces here", hint="leave namespace out")
    return Asking(identity, service.config, service.submitter.policy, provider, writes)
