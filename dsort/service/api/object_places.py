"""Shared by the routes of buckets and objects: their parameters, the place that a request names,
and errors in a form that AIStore's clients can read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import Path, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from dsort.errors import (
    DsortError,
    NotFoundError,
    NotSupportedError,
    ObjectNotFoundError,
)
from dsort.service.api.answers import JsonAnswer, problem_answer
from dsort.service.objects.places import Asking, ObjectPlace, object_of_path
from dsort.service.objects.processes import ShardProblemError
from dsort.service.problems import PROBLEM_JSON
from dsort.service.security import limits
from dsort.service.security.tokens import Identity
from dsort.service.service import Service

__all__ = [
    "BucketPath",
    "NamePath",
    "ObjectRoute",
    "Provider",
    "missing",
    "object_place",
    "refuse_namespace",
    "sent_path",
    "shard_problem",
]

PREFIX: Final = b"/v1/objects/"
DRAINED_BYTES_MAX: Final = 1 << 20
BucketPath = Annotated[
    str,
    Path(
        description="A bucket as in a spec, as one part of the path: `images`, "
        "`s3%3A%2F%2Fdata%2Fimages`.",
    ),
]
NamePath = Annotated[str, Path(description="The object's name; it may have slashes.")]
Provider = Annotated[
    str, Query(max_length=20, description="As AIStore's clients send it: `ais`, `aws`, `gcp`.")
]


class ObjectRoute(APIRoute):
    """A route whose errors also have their text as ``message``, which AIStore's command line reads;
    for HEAD it is in a header."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with errors turned into answers."""
        inner: Callable[[Request], Awaitable[Response]] = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await inner(request)
            except DsortError as error:
                if request.method == "PUT":
                    await _drain(request)
                answer = problem_answer(error, message=error.message)
                if request.method == "HEAD":
                    answer.headers["Hdr-Error"] = quote(error.message, safe=" :/,;.!?'()=@&+")
                return answer

        return handle


def shard_problem(error: ShardProblemError) -> Response:
    """The problem that the process of a shard reported, as a response."""
    document = {**error.document, "message": str(error)}
    return JsonAnswer(document, int(document["status"]), media_type=PROBLEM_JSON)


async def _drain(request: Request) -> None:
    """Read the rest of a body, if it is not long and comes soon: a client that is still sending
    does not read the answer. ``RuntimeError``: the body was read before."""
    count = 0
    with suppress(ClientDisconnect, RuntimeError, TimeoutError):
        async with asyncio.timeout(limits.REST_S_MAX):
            async for piece in request.stream():
                count += len(piece)
                if count > DRAINED_BYTES_MAX:
                    return


def sent_path(request: Request) -> bytes:
    """The path of a request as it was sent, without decoding."""
    path: bytes = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    return path.partition(b"?")[0]


def object_place(
    service: Service,
    request: Request,
    identity: Identity,
    provider: str = "",
    *,
    writes: bool = False,
    prefix: bytes = PREFIX,
) -> ObjectPlace:
    """The object that a request names, whose path begins with ``prefix``; errors as for
    ``places.object_of_path``."""
    refuse_namespace(request)
    asking = Asking(identity, service.config, service.submitter.policy, provider, writes)
    return object_of_path(sent_path(request).removeprefix(prefix), asking)


def refuse_namespace(request: Request) -> None:
    """``NotSupportedError`` for a bucket of another of AIStore's clusters or namespaces."""
    if request.query_params.get("namespace", "").strip("@#"):
        raise NotSupportedError("there are no namespaces here", hint="leave namespace out")


@contextmanager
def missing(place: ObjectPlace) -> Iterator[None]:
    """Turns the error of a missing object or bucket into a 404."""
    try:
        yield
    except ObjectNotFoundError:
        raise NotFoundError(f"there is no object {place.shown}") from None
