"""The parts that routes share: the sender of a request and the beginning of a page, as parameters;
the parts of the OpenAPI document that describe bodies and answers; and answers as JSON, text and
bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeVar

import anyio.to_thread
from fastapi import Depends, Request, Response, Security
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import Connection
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from dsort.data.json_values import encodable, to_json
from dsort.errors import (
    DsortError,
    ForbiddenError,
    SpecError,
    SpecProblem,
    TooManyRequestsError,
    UnauthorizedError,
)
from dsort.service.database.tables import shown_uris
from dsort.service.problems import PROBLEM_JSON, problem_of
from dsort.service.security.tokens import ADMIN, ANYONE, SUBMITTER, HasBuckets, Identity
from dsort.spec.model import schema as job_schema
from dsort.storage.bucket import ObjectInfo

if TYPE_CHECKING:
    from dsort.service.service import Service

# A token is accepted only in a header, because addresses end up in logs.
bearer = HTTPBearer(
    scheme_name="token",
    bearerFormat="dsort_<id>_<secret>",
    description="A token as `dsort token add` prints it. A service that was started with "
    "`--no-auth` needs none.",
    auto_error=False,
)
Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(bearer)]


async def service_of(request: Request) -> Service:
    """A dependency: the service that the request is for."""
    service: Service = request.app.state.service
    return service


Here = Annotated["Service", Depends(service_of)]
"""The service."""


def address_of(request: Request) -> str:
    """The address of the client's end of the connection; empty if the connection has no address.
    Headers of proxies are not trusted."""
    return request.client.host if request.client else ""


def note(
    request: Request,
    who: str,
    action: str,
    target: str,
    connection: Connection | None = None,
    **details: Any,
) -> None:
    """Write the action into the audit trail. If ``connection`` is given, the entry is part of its
    transaction."""
    service: Service = request.app.state.service
    service.audit.note(connection, who, address_of(request), action, target, details)


def shown_buckets(of: HasBuckets) -> dict[str, Any]:
    """The buckets of a job or a schedule, for the audit trail."""
    return {"input": shown_uris(of.input_uri), "output": shown_uris(of.output_uri)}


def identity(service: Here, request: Request, credentials: Credentials) -> Identity:
    """The sender of the request. ``UnauthorizedError``, or ``TooManyRequestsError`` if the token's
    holder sent too many."""
    if service.config.no_auth:
        service.limits.request(address_of(request))
        return ANYONE
    if credentials is None:
        raise UnauthorizedError(
            "the request has no token",
            hint="set DSORT_TOKEN, or send the header `Authorization: Bearer TOKEN`",
        )
    found = service.tokens.verify(credentials.credentials)
    if found is None:
        raise UnauthorizedError(
            "the token is not known: it is wrong, was removed or has expired",
            hint="`dsort token ls` lists all tokens",
        )
    service.limits.request(found.name)
    return found


Caller = Annotated[Identity, Depends(identity)]
"""Any holder of a token."""


def require(role: str) -> Callable[[Identity], Identity]:
    """A dependency: the caller, who must have the rights of ``role``. ``ForbiddenError``."""
    article = "an" if role == ADMIN else "a"

    def allowed(caller: Caller) -> Identity:
        if not caller.at_least(role):
            raise ForbiddenError(
                f"{caller.name} is a {caller.role}, and the request needs {article} {role}",
                hint=f"ask for a token with the role {role}",
            )
        return caller

    return allowed


Submitting = Annotated[Identity, Depends(require(SUBMITTER))]
"""A submitter or an admin."""

Admin = Annotated[Identity, Depends(require(ADMIN))]
"""An admin."""


def number_of(cursor: str | None) -> int | None:
    """The number of the row after which the page begins; ``SpecError`` for a cursor that does not
    come from a page."""
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdecimal() or int(cursor) >= 2**63:
        raise SpecError([SpecProblem("cursor", "comes from no page", "take next_cursor of a page")])
    return int(cursor)


_AS_TEXT: Final = "as_text"
"""FastAPI drops all nulls from the document, also those in examples; a text keeps them."""
_TITLES: Final = {
    400: "The request or the spec is wrong: every problem is reported.",
    401: "No token, or an unknown token.",
    403: "The token's role or buckets do not allow it.",
    404: "There is no such thing, or the token may not see it.",
    409: "The request conflicts with the state of the thing.",
    413: "The body is too large.",
    422: "The data does not allow the request.",
    429: "Too many requests: `Retry-After` is the wait in seconds.",
    501: "dsort does not support this request.",
    502: "The bucket or its store fails.",
    503: "Not ready.",
}
RETRY_AFTER: Final = {
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}
}
"""The header with the time after which a client may send the request again."""


def body_like(example: object) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that takes a JSON body like ``example``."""
    return {"requestBody": {"content": {"application/json": {"example": example}}}}


def restore_examples(operation: dict[str, Any]) -> None:
    """Turn the examples of :func:`shown` in an operation of the OpenAPI document from text back
    into JSON."""
    for answer in operation["responses"].values():
        for media in answer.get("content", {}).values():
            example = media.get("example")
            if isinstance(example, dict) and _AS_TEXT in example:
                media["example"] = json.loads(example[_AS_TEXT])


def shown(
    status: int,
    example: object,
    *,
    media_type: str = "application/json",
    located: str = "",
    **more: object,
) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route that answers ``status`` with something like ``example``.
    ``located``: the description of the header ``Location``."""
    content = {media_type: {"example": {_AS_TEXT: json.dumps(example)}}}
    answer: dict[str, Any] = {"content": content, **more}
    if located:
        answer["headers"] = {"Location": {"description": located, "schema": {"type": "string"}}}
    return {status: answer}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route that may answer with problems of these statuses."""
    schema = {"$ref": "#/components/schemas/Problem"}
    found: dict[int | str, dict[str, Any]] = {
        status: {
            "description": _TITLES[status],
            "content": {PROBLEM_JSON: {"schema": schema}},
        }
        for status in statuses
    }
    if 429 in found:
        found[429]["headers"] = RETRY_AFTER
    return found


SPEC_SCHEMA = {"$ref": "#/components/schemas/JobSpec"}

_SHUFFLE = {
    "input_bck": "images",
    "output_bck": "shuffled",
    "input_format": {"template": "samples-{00..18}"},
    "output_format": "shuffled-%04d",
    "output_shard_size": "100MB",
    "algorithm": {"kind": "shuffle", "seed": 42},
}
_BY_CLASS = """\
input_bck: s3://data/images
output_bck: s3://data/by-class
output_format: class-sorted-%06d
output_shard_size: 1GB
algorithm: {kind: content, extension: .cls, content_key_type: int}
"""

SPEC_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A job spec, as `dsort start -f` takes it.",
        "content": {
            "application/json": {
                "schema": SPEC_SCHEMA,
                "examples": {"shuffle": {"summary": "A seeded shuffle", "value": _SHUFFLE}},
            },
            "application/yaml": {
                "schema": SPEC_SCHEMA,
                "examples": {"sort": {"summary": "A sort by class", "value": _BY_CLASS}},
            },
        },
    }
}


def spec_schema() -> dict[str, Any]:
    """The JSON Schema of a spec as a component, in which its own definitions are inlined."""
    schema = dict(job_schema())
    definitions = schema.pop("$defs", {})
    for outer in ("$schema", "$id"):
        schema.pop(outer, None)
    resolved = _resolved(schema, definitions)
    assert isinstance(resolved, dict)
    return resolved


def _resolved(value: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        reference = value.get("$ref", "")
        if isinstance(reference, str) and reference.startswith("#/$defs/"):
            rest = {key: each for key, each in value.items() if key != "$ref"}
            return _resolved(
                {**definitions[reference.removeprefix("#/$defs/")], **rest}, definitions
            )
        return {key: _resolved(each, definitions) for key, each in value.items()}
    if isinstance(value, list):
        return [_resolved(each, definitions) for each in value]
    return value


# -- answers --------------------------------------------------------------------------------------

# JSON and text can always be sent: no value in a row or a request prevents a list from being shown.
# A few threads read objects, each piece after the client has received the piece before.


class JsonAnswer(JSONResponse):
    """A JSON document, as :func:`~dsort.data.json_values.to_json` writes any value."""

    def render(self, content: Any) -> bytes:
        """The document in UTF-8."""
        return to_json(content).encode()


class TextAnswer(PlainTextResponse):
    """A text, with an escape for each character that cannot be encoded."""

    def render(self, content: Any) -> bytes:
        """The text in UTF-8."""
        return encodable(str(content)).encode()


def problem_answer(error: DsortError, **more: Any) -> Response:
    """The response for an error. ``more``: fields of the document."""
    headers: dict[str, str] = {}
    if isinstance(error, UnauthorizedError):
        headers["WWW-Authenticate"] = 'Bearer realm="dsort"'
    if isinstance(error, TooManyRequestsError):
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    document = problem_of(error, **more)
    return JsonAnswer(document, document["status"], headers, PROBLEM_JSON)


PIECE_BYTES: Final = 1 << 20
THREADS_MAX: Final = 16
"""The threads that read objects for all streams. Slow stores thus delay no other routes."""

_SAFE: Final = {
    # An object may be a stranger's web page: browsers must not show it as a page of this service.
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}
_limiter: anyio.CapacityLimiter | None = None
Found = TypeVar("Found")


class Readable(Protocol):
    """A source of bytes at any offset."""

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``."""


def entity_tag(*parts: str) -> str:
    """A text for the header ``ETag``, which differs if one of the parts differs."""
    text = "\0".join(parts)
    return f'"{hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]}"'


def object_headers(info: ObjectInfo, tag: str) -> dict[str, str]:
    """The headers of an object, which are equal for all parts of the object."""
    modified = formatdate(max(info.mtime_ns, 0) // 10**9, usegmt=True)
    return {**_SAFE, "ETag": tag, "Last-Modified": modified}


class BytesAnswer(StreamingResponse):
    """Bytes ``start:stop`` of ``source``. ``ends``: closed when the response ends, even by an
    error."""

    def __init__(
        self,
        source: Readable,
        start: int,
        stop: int,
        *,
        ends: ExitStack,
        status: int = 200,
        headers: Mapping[str, str],
    ) -> None:
        length = {"Content-Length": str(stop - start)}
        self._ends = ends
        self._pieces = _pieces(source, start, stop)
        super().__init__(
            self._pieces,
            status_code=status,
            headers={**headers, **length},
            media_type="application/octet-stream",
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, then close ``ends``."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Waits for the thread that reads a piece, and reads no further piece.
            await self._pieces.aclose()
            await in_thread(self._ends.close)


async def _pieces(source: Readable, start: int, stop: int) -> AsyncGenerator[bytes, None]:
    at = start
    while at < stop:
        piece = bytearray(min(PIECE_BYTES, stop - at))
        await in_thread(partial(source.read_into, memoryview(piece), at))
        at += len(piece)
        yield bytes(piece)


async def in_thread(work: Callable[[], Found]) -> Found:
    """The result of ``work``, which runs in one of the threads for objects."""
    global _limiter
    if _limiter is None:
        _limiter = anyio.CapacityLimiter(THREADS_MAX)
    return await anyio.to_thread.run_sync(work, limiter=_limiter)
