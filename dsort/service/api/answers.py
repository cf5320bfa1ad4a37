"""Answers as JSON, as text, and as bytes of an object.

JSON and text can always be sent: no value in a row or a request prevents a list from being shown.
An object is read piece by piece in a few threads: each when the client has taken the one before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack
from email.utils import formatdate
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import anyio.to_thread
from fastapi import Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from dsort.data.json_values import encodable, to_json
from dsort.errors import DsortError, TooManyRequestsError, UnauthorizedError
from dsort.service.problems import PROBLEM_JSON, problem_of
from dsort.storage.bucket import ObjectInfo


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
"""Of all streams together: slow stores must not delay other routes."""

_SAFE: Final = {
    # An object may be a web page of anyone: browsers must not show it as a page of this service.
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
    """The headers of an object, the same for each part of it."""
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
            # No piece is read after this: it waits for a thread that reads.
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
