"""Limits for each client: requests a minute, streams at once, bytes of a body.

A proxy in front limits the time that a body takes; ``server`` limits connections, and the time
until the head of a request is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsort.errors import TooLargeError, TooManyRequestsError
from dsort.service.problems import PROBLEM_JSON, problem_of
from dsort.sizes import format_bytes

CLIENTS_REMEMBERED_MAX = 10_000
STREAMS_MAX = 256
STREAM_RETRY_S = 10.0
DOWNLOADS_MAX = 64
LOOKS_PER_MINUTE_MAX = 600
SMALL_BYTES_MAX = 128 << 10
REST_S_MAX = 10.0
"""The seconds for which the rest of a refused body is read."""


class Rate:
    """Limits how many requests a client may send in a minute. These requests may come at once;
    further requests have to be evenly spaced.

    This is the generic cell rate algorithm: each request costs some time. The limiter stores the
    moment when a client will have paid for its requests, and drops clients that have paid.
    """

    def __init__(self, per_minute_max: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._each_s = 60.0 / per_minute_max
        self._clock = clock
        self._paid_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, client: str) -> float:
        """Count one request of ``client``: 0 if the request is allowed, else the seconds to wait; a
        refused request does not count."""
        with self._lock:
            now_s = self._clock()
            paid_at = max(self._paid_at.get(client, now_s), now_s) + self._each_s
            wait_s = paid_at - now_s - 60.0
            if wait_s > 1e-6:  # or rounding would refuse the last request that is allowed
                return wait_s
            self._make_room(now_s)
            self._paid_at[client] = paid_at
            return 0.0

    def _make_room(self, now_s: float) -> None:
        if len(self._paid_at) < CLIENTS_REMEMBERED_MAX:
            return
        owing = {client: at for client, at in self._paid_at.items() if at > now_s}
        # Requests come from tens of thousands of addresses: drop the clients that owe least.
        most = sorted(owing, key=owing.__getitem__)[-CLIENTS_REMEMBERED_MAX // 2 :]
        self._paid_at = {client: owing[client] for client in most}


class RequestLimits:
    """The limits of a service for each client: the name of a token, or the address of a request
    without a token.

    Failures to authenticate are not counted: a secret of 192 random bits cannot be guessed, and
    counting by address would lock out the holders of tokens behind the same proxy."""

    def __init__(
        self,
        requests_per_minute_max: int,
        *,
        looks_per_minute_max: int = LOOKS_PER_MINUTE_MAX,
    ) -> None:
        self._requests = Rate(requests_per_minute_max)
        self._looks = Rate(looks_per_minute_max)
        self._at_once: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def request(self, client: str) -> None:
        """Count a request. ``TooManyRequestsError`` if the limit is exceeded."""
        _refuse(self._requests.take(client), f"too many requests from {client}", "")

    def look(self, client: str) -> None:
        """Count a read inside a shard, which takes a process of its own. ``TooManyRequestsError``
        if the limit is exceeded."""
        hint = "; `dsort cat` and the loader read without a limit"
        _refuse(self._looks.take(client), f"{client} looks into too many shards", hint)

    def stream(self, client: str) -> AbstractContextManager[None]:
        """Count a stream of events while it lasts. ``TooManyRequestsError`` if the limit is
        exceeded: each stream holds a connection, for as long as a job takes."""
        hint = "close some of the streams; GET /v1/jobs shows all jobs at once"
        return self.counted(client, "watches", "jobs", STREAMS_MAX, hint)

    def download(self, client: str) -> AbstractContextManager[None]:
        """Count an object while it is sent. ``TooManyRequestsError`` if the limit is exceeded."""
        return self.counted(client, "reads", "objects", DOWNLOADS_MAX, "read fewer at once")

    @contextlib.contextmanager
    def counted(
        self, client: str, verb: str, things: str, at_most: int, hint: str
    ) -> Iterator[None]:
        """Count one of ``things`` for as long as the context lasts. ``TooManyRequestsError`` if the
        client has ``at_most`` of them already."""
        with self._lock:
            if self._at_once[client, verb] >= at_most:
                text = f"{client} {verb} {at_most} {things} already, which is the limit"
                raise TooManyRequestsError(text, retry_after_s=STREAM_RETRY_S, hint=hint)
            self._at_once[client, verb] += 1
        try:
            yield
        finally:
            with self._lock:
                self._at_once[client, verb] -= 1
                if not self._at_once[client, verb]:
                    del self._at_once[client, verb]


def _refuse(wait_s: float, text: str, hint: str) -> None:
    if wait_s:
        hint = f"see the header Retry-After{hint}"
        raise TooManyRequestsError(text, retry_after_s=wait_s, hint=hint)


class BodyLimit:
    """ASGI middleware: a request whose body has more than ``bytes_max`` is answered with 413.

    FastAPI reads a body before the check of the token, except on routes that read the body
    themselves: ``reads_itself`` returns True for the paths of these routes. On all other routes a
    body has at most ``SMALL_BYTES_MAX``, because otherwise any client could make the service hold a
    megabyte for each connection. ``stored_max`` returns the longest allowed body of a request whose
    body is stored as it comes; None for all other requests.

    Bytes are counted as they come, because a body in chunks has no ``Content-Length``.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        bytes_max: int,
        reads_itself: Callable[[str], bool] = lambda path: True,
        stored_max: Callable[[Scope], int | None] = lambda scope: None,
    ) -> None:
        self._app = app
        self._bytes_max = bytes_max
        self._reads_itself = reads_itself
        self._stored_max = stored_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        bytes_max, hint = self._bytes_max, _FILE_HINT
        stored_max = self._stored_max(scope)
        if stored_max is not None:
            bytes_max, hint = stored_max, "its operator can allow more: --max-object-size"
        elif not self._reads_itself(scope.get("path", "")):
            bytes_max = min(bytes_max, SMALL_BYTES_MAX)
        request = _CountedRequest(receive, send, bytes_max, hint)
        if _length(scope) > bytes_max:
            await request.refuse()
            return
        with contextlib.suppress(_TooLarge):
            await self._app(scope, request.receive, request.send)
        if request.is_too_large:
            await request.refuse()


_FILE_HINT = "a long list of names may come from a file: ekm_file, or a range as input_format"


class _TooLarge(Exception):  # noqa: N818
    """Ends the reading of a body, in any code that reads it."""


class _CountedRequest:
    def __init__(self, receive: Receive, send: Send, bytes_max: int, hint: str) -> None:
        self._receive = receive
        self._send = send
        self._bytes_max = bytes_max
        self._hint = hint
        self._received_bytes = 0
        self._is_whole = False
        self._answered = False
        self._refused = False

    @property
    def is_too_large(self) -> bool:
        return self._received_bytes > self._bytes_max

    async def receive(self) -> Message:
        message = await self._receive()
        self._received_bytes += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        if self.is_too_large:
            raise _TooLarge
        return message

    async def send(self, message: Message) -> None:
        # The refusal is the answer, whatever the framework made of the exception.
        if self.is_too_large and not self._answered:
            await self.refuse()
        elif not self._refused:
            self._answered = True
            await self._send(message)

    async def refuse(self) -> None:
        """Answer with 413, unless an answer was sent."""
        if self._answered:
            return
        self._answered = self._refused = True
        text = f"the request's body has more than {format_bytes(self._bytes_max)}"
        body = json.dumps(problem_of(TooLargeError(text, hint=self._hint))).encode()
        headers = [
            (b"content-type", PROBLEM_JSON.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await self._send({"type": "http.response.start", "status": 413, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        await self._drop_rest()
        await self._send({"type": "http.response.body", "body": b""})

    async def _drop_rest(self) -> None:
        """Read and drop the rest of the body. A connection that is closed with unread bytes is
        reset: a client that still sends gets a broken pipe, and may never read the answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REST_S_MAX):
                while not self._is_whole:
                    message = await self._receive()
                    self._is_whole = not message.get("more_body", False)


def _length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0
