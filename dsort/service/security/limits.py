"""What one client may ask for: requests a minute, failures to authenticate, bytes in a body."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from ipaddress import ip_address, ip_network

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsort.core.sizes import format_bytes
from dsort.errors import TooLargeError, TooManyRequestsError
from dsort.service.http.problems import PROBLEM_JSON, problem_of

__all__ = ["BodyLimit", "Rate", "RequestLimits"]

FAILURES_PER_MINUTE_MAX = 20
CLIENTS_REMEMBERED_MAX = 10_000


class Rate:
    """So many a minute for each client, which may come at once; after that, evenly.

    It keeps the moment at which each client will have paid for all that it took (the generic cell
    rate algorithm), and forgets who has paid.
    """

    def __init__(self, per_minute_max: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._each_s = 60.0 / per_minute_max
        self._clock = clock
        self._paid_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, client: str) -> float:
        """Count one for ``client``: 0 if it may have it, else the seconds to wait (and it does not
        count)."""
        with self._lock:
            now_s = self._clock()
            wait_s = self._wait_s(client, now_s)
            if not wait_s:
                self._make_room(now_s)
                self._paid_at[client] = max(self._paid_at.get(client, now_s), now_s) + self._each_s
            return wait_s

    def wait_s(self, client: str) -> float:
        """The seconds until ``client`` may have another; 0 if it may now. Counts nothing."""
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
        # Addresses by the ten thousand: whoever owes least is let off.
        most = sorted(owing, key=owing.__getitem__)[-CLIENTS_REMEMBERED_MAX // 2 :]
        self._paid_at = {client: owing[client] for client in most}


class RequestLimits:
    """The rates of a service: requests of a client, and failures to authenticate of an address."""

    def __init__(
        self,
        requests_per_minute_max: int,
        *,
        failures_per_minute_max: int = FAILURES_PER_MINUTE_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = Rate(requests_per_minute_max, clock=clock)
        self._failures = Rate(failures_per_minute_max, clock=clock)

    def request(self, client: str) -> None:
        """Count a request. ``TooManyRequestsError`` if it is one too many."""
        wait_s = self._requests.take(client)
        if wait_s:
            raise TooManyRequestsError(
                f"too many requests from {client}",
                retry_after_s=wait_s,
                hint="see the header Retry-After",
            )

    def check_failures(self, address: str) -> None:
        """``TooManyRequestsError`` if too many have failed; to be asked before a token is looked
        at, since that costs time and memory."""
        wait_s = self._failures.wait_s(_whose(address))
        if wait_s:
            raise TooManyRequestsError(
                f"too many requests from {address} without a token that is known",
                retry_after_s=wait_s,
                hint="see the header Retry-After, and check the token",
            )

    def failure(self, address: str) -> None:
        """Count a failure to authenticate."""
        self._failures.take(_whose(address))


def _whose(address: str) -> str:
    """What one client has at hand: of IPv6 a network of 2**64 addresses."""
    try:
        found = ip_address(address)
    except ValueError:  # a socket of this machine
        return address
    if found.version == 4:
        return address
    return str(found.ipv4_mapped or ip_network((int(found) >> 64 << 64, 64)))


class BodyLimit:
    """ASGI middleware: a request whose body has more than ``bytes_max`` is answered with 413.

    Bytes are counted as they come, whatever ``Content-Length`` says: a body in chunks has none.
    """

    def __init__(self, app: ASGIApp, *, bytes_max: int) -> None:
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = _CountedRequest(receive, send, self._bytes_max)
        if _length(scope) > self._bytes_max:
            await request.refuse()
            return
        try:
            await self._app(scope, request.receive, request.send)
        except _BodyTooLarge:
            await request.refuse()


class _BodyTooLarge(Exception):  # noqa: N818
    """Ends the reading of a body, wherever that is done."""


class _CountedRequest:
    def __init__(self, receive: Receive, send: Send, bytes_max: int) -> None:
        self._receive = receive
        self._send = send
        self._bytes_max = bytes_max
        self._received_bytes = 0
        self._answered = False
        self._refused = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._received_bytes += len(message.get("body", b""))
            if self._received_bytes > self._bytes_max:
                raise _BodyTooLarge
        return message

    async def send(self, message: Message) -> None:
        # Whatever a framework makes of the exception, this is what has happened.
        if self._received_bytes > self._bytes_max and not self._answered:
            await self.refuse()
        elif not self._refused:
            self._answered = True
            await self._send(message)

    async def refuse(self) -> None:
        """Answer with 413, unless there has been an answer."""
        if self._answered:
            return
        self._answered = self._refused = True
        error = TooLargeError(
            f"the request's body has more than {format_bytes(self._bytes_max)}",
            hint="a long list of names may come from a file: ekm_file, or a range as input_format",
        )
        body = json.dumps(problem_of(error)).encode()
        headers = [
            (b"content-type", PROBLEM_JSON.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),  # what is left of the body is not read
        ]
        start = {"type": "http.response.start", "status": error.http_status, "headers": headers}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


def _length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0
