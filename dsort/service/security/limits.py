"""Limits of one client: requests a minute, streams at once, the bytes of a body and the time it
takes.

Failures to authenticate are not counted. A secret of 192 random bits cannot be guessed, and
counting failures by address would lock out the holders of tokens behind the same proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsort.errors import DsortError, TooLargeError, TooManyRequestsError, TooSlowError
from dsort.service.problems import PROBLEM_JSON, problem_of
from dsort.sizes import format_bytes

__all__ = ["BodyLimit", "Rate", "RequestLimits"]

CLIENTS_REMEMBERED_MAX = 10_000
STREAMS_MAX = 256
STREAM_RETRY_S = 10.0
DOWNLOADS_MAX = 64
LOOKS_PER_MINUTE_MAX = 600
UPLOADS_MAX = 16
BODY_S_MAX = 60.0
STREAMED_BYTES_PER_S_MIN = 64 << 10
SMALL_BYTES_MAX = 128 << 10
QUIET_S_MAX = 5.0
"""The seconds for which a refused client may send nothing before its connection is closed."""


class Rate:
    """A number of requests a minute for each client, which may come at once; after that, evenly.

    It stores the moment at which each client will have paid for all that it took (the generic cell
    rate algorithm), and forgets clients that have paid.
    """

    def __init__(self, per_minute_max: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._each_s = 60.0 / per_minute_max
        self._clock = clock
        self._paid_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, client: str) -> float:
        """Count one request of ``client``: 0 if it is allowed, else the seconds to wait (and it
        does not count)."""
        with self._lock:
            now_s = self._clock()
            wait_s = self._wait_s(client, now_s)
            if not wait_s:
                self._make_room(now_s)
                self._paid_at[client] = max(self._paid_at.get(client, now_s), now_s) + self._each_s
            return wait_s

    def wait_s(self, client: str) -> float:
        """The seconds until ``client`` may send another request; 0 if it may now. Counts
        nothing."""
        with self._lock:
            return self._wait_s(client, self._clock())

    def _wait_s(self, client: str, now_s: float) -> float:
        owed_s = self._paid_at.get(client, now_s) - now_s
        over_s = owed_s + self._each_s - 60.0
        return over_s if over_s > 1e-6 else 0.0

    def _make_room(self, now_s: float) -> None:
        if len(self._paid_at) < CLIENTS_REMEMBERED_MAX:
            return
        owing = {client: at for client, at in self._paid_at.items() if at > now_s}
        # Requests come from tens of thousands of addresses: forget the clients that owe least.
        most = sorted(owing, key=owing.__getitem__)[-CLIENTS_REMEMBERED_MAX // 2 :]
        self._paid_at = {client: owing[client] for client in most}


class RequestLimits:
    """The limits of a service for each client: the name of a token, or an address without one."""

    def __init__(
        self,
        requests_per_minute_max: int,
        *,
        looks_per_minute_max: int = LOOKS_PER_MINUTE_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = Rate(requests_per_minute_max, clock=clock)
        self._looks = Rate(looks_per_minute_max, clock=clock)
        self._streams: Counter[str] = Counter()
        self._downloads: Counter[str] = Counter()
        self._uploads: Counter[str] = Counter()
        self._lock = threading.Lock()

    def request(self, client: str) -> None:
        """Count a request. ``TooManyRequestsError`` if the limit is exceeded."""
        wait_s = self._requests.take(client)
        if wait_s:
            raise TooManyRequestsError(
                f"too many requests from {client}",
                retry_after_s=wait_s,
                hint="see the header Retry-After",
            )

    def look(self, client: str) -> None:
        """Count a read inside a shard, which takes a process of its own. ``TooManyRequestsError``
        if the limit is exceeded."""
        wait_s = self._looks.take(client)
        if wait_s:
            raise TooManyRequestsError(
                f"{client} looks into too many shards",
                retry_after_s=wait_s,
                hint="see the header Retry-After; `dsort cat` and the loader read without a limit",
            )

    @contextlib.contextmanager
    def stream(self, client: str) -> Iterator[None]:
        """Count a stream of events while it lasts. ``TooManyRequestsError`` if the limit is
        exceeded: each stream holds a connection, for as long as a job takes."""
        with self._counted(
            self._streams,
            client,
            STREAMS_MAX,
            f"{client} watches {STREAMS_MAX} jobs already, as many as anyone may",
            "close some of the streams; GET /v1/jobs shows all jobs at once",
        ):
            yield

    @contextlib.contextmanager
    def download(self, client: str) -> Iterator[None]:
        """Count an object while it is sent. ``TooManyRequestsError`` if the limit is exceeded."""
        with self._counted(
            self._downloads,
            client,
            DOWNLOADS_MAX,
            f"{client} reads {DOWNLOADS_MAX} objects already, as many as anyone may",
            "read fewer at once",
        ):
            yield

    @contextlib.contextmanager
    def upload(self, client: str) -> Iterator[None]:
        """Count an object while it is received. ``TooManyRequestsError`` if the limit is
        exceeded."""
        with self._counted(
            self._uploads,
            client,
            UPLOADS_MAX,
            f"{client} writes {UPLOADS_MAX} objects already, as many as anyone may",
            "write fewer at once",
        ):
            yield

    @contextlib.contextmanager
    def _counted(
        self, counter: Counter[str], client: str, at_most: int, text: str, hint: str
    ) -> Iterator[None]:
        with self._lock:
            if counter[client] >= at_most:
                raise TooManyRequestsError(text, retry_after_s=STREAM_RETRY_S, hint=hint)
            counter[client] += 1
        try:
            yield
        finally:
            with self._lock:
                counter[client] -= 1
                if not counter[client]:
                    del counter[client]


class BodyLimit:
    """ASGI middleware: a request whose body has more than ``bytes_max`` is answered with 413, one
    whose body takes longer than ``seconds_max`` with 408.

    FastAPI reads a body before it checks the token, except on routes that read the body themselves:
    ``reads_itself`` is true for their paths. On all other routes a body has at most
    ``SMALL_BYTES_MAX``, because otherwise any client could make the service hold a megabyte for
    each connection.

    ``stored_max`` returns the longest body of a request whose body is stored as it comes; None for
    all other requests. Such a body has ``seconds_max``, and a second more for each
    ``STREAMED_BYTES_PER_S_MIN`` of it. Only the time spent waiting for the client counts. A refused
    client gets the answer at once; what it still sends is read and dropped, for as long as the body
    might have taken.

    Bytes are counted as they come, whatever ``Content-Length`` is: a body in chunks has none.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        bytes_max: int,
        seconds_max: float = BODY_S_MAX,
        reads_itself: Callable[[str], bool] = lambda path: True,
        stored_max: Callable[[Scope], int | None] = lambda scope: None,
    ) -> None:
        self._app = app
        self._bytes_max = bytes_max
        self._reads_itself = reads_itself
        self._stored_max = stored_max
        self._seconds_max = seconds_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stored_max = self._stored_max(scope)
        bytes_max = self._bytes_max if stored_max is None else stored_max
        if stored_max is None and not self._reads_itself(scope.get("path", "")):
            bytes_max = min(bytes_max, SMALL_BYTES_MAX)
        request = _CountedRequest(
            receive, send, bytes_max, self._seconds_max, is_stored=stored_max is not None
        )
        if _length(scope) > bytes_max:
            await request.refuse(request.too_large())
            return
        try:
            await self._app(scope, request.receive, request.send)
        except _BodyRefused as refused:
            await request.refuse(refused.error)


class _BodyRefused(Exception):  # noqa: N818
    """Ends the reading of a body, in whatever code reads it."""

    def __init__(self, error: DsortError) -> None:
        super().__init__()
        self.error = error


class _CountedRequest:
    def __init__(
        self,
        receive: Receive,
        send: Send,
        bytes_max: int,
        seconds_max: float,
        *,
        is_stored: bool,
    ) -> None:
        self._receive = receive
        self._send = send
        self._bytes_max = bytes_max
        self._seconds_max = seconds_max
        self._is_stored = is_stored
        self._left_s = seconds_max  # the seconds that the service still waits for the client
        self._received_bytes = 0
        self._wrong: DsortError | None = None  # the error of the body
        self._is_whole = False
        self._answered = False
        self._refused = False

    async def receive(self) -> Message:
        if self._is_whole:
            return await self._receive()
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:
            async with asyncio.timeout(max(self._left_s, 0.0)):
                message = await self._receive()
        except TimeoutError:
            raise self._refusal(self._too_slow()) from None
        self._left_s -= loop.time() - began_at
        if message["type"] == "http.request":
            count = len(message.get("body", b""))
            self._received_bytes += count
            if self._is_stored:
                self._left_s += count / STREAMED_BYTES_PER_S_MIN
            if self._received_bytes > self._bytes_max:
                raise self._refusal(self.too_large())
        self._is_whole = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        # The error of the body is the answer, whatever the framework made of the exception.
        if self._wrong is not None and not self._answered:
            await self.refuse(self._wrong)
        elif not self._refused:
            self._answered = True
            await self._send(message)

    async def refuse(self, error: DsortError) -> None:
        """Answer with the error, unless an answer was sent."""
        if self._answered:
            return
        self._answered = self._refused = True
        body = json.dumps(problem_of(error)).encode()
        headers = [
            (b"content-type", PROBLEM_JSON.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        start = {"type": "http.response.start", "status": error.http_status, "headers": headers}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        await self._drop_rest()
        await self._send({"type": "http.response.body", "body": b""})

    async def _drop_rest(self) -> None:
        """Read and drop the rest of the body, as long as it comes in time. A connection that is
        closed with unread bytes is reset: a client that is still sending would get a broken pipe,
        and may never read the answer."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._left_s
        with contextlib.suppress(TimeoutError):
            while not self._is_whole and (left_s := until - loop.time()) > 0:
                async with asyncio.timeout(min(left_s, QUIET_S_MAX)):
                    message = await self._receive()
                self._is_whole = not message.get("more_body", False)

    def too_large(self) -> DsortError:
        """The error for a body of too many bytes."""
        text = f"the request's body has more than {format_bytes(self._bytes_max)}"
        if self._is_stored:
            return TooLargeError(text, hint="its operator can allow more: --max-object-size")
        return TooLargeError(
            text,
            hint="a long list of names may come from a file: ekm_file, or a range as input_format",
        )

    def _too_slow(self) -> DsortError:
        more = (
            f" and a second for each {format_bytes(STREAMED_BYTES_PER_S_MIN)}"
            if self._is_stored
            else ""
        )
        return TooSlowError(f"the request's body took longer than {self._seconds_max:.0f} s{more}")

    def _refusal(self, error: DsortError) -> _BodyRefused:
        self._wrong = error
        return _BodyRefused(error)


def _length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0
