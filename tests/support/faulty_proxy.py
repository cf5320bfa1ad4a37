"""A proxy between dsort and a real S3 server. It imitates faults of proxies, networks and
overloaded stores in requests and replies."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

ERROR = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>InternalError</Code>'
    b"<Message>We encountered an internal error. Please try again.</Message></Error>"
)
PAGE = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body><p>Welcome<br></body></html>"
DOCUMENT = b"<html><head><title>Sign in</title></head><body><p>Welcome</p></body></html>"


def _reply(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


INSTEAD: dict[str, bytes] = {
    "503": _reply("503 Slow Down", "application/xml", ERROR.replace(b"InternalError", b"SlowDown")),
    "error in 200": _reply("200 OK", "application/xml", ERROR),
    "page in 200": _reply("200 OK", "text/html", PAGE),
    "document in 200": _reply("200 OK", "text/html", DOCUMENT),
    "nothing in 200": _reply("200 OK", "application/xml", b""),
    "dropped": b"",
}
"""The replies to requests that the proxy does not pass on to the store."""

KINDS = (*INSTEAD, *(f"{kind}, but done" for kind in INSTEAD), "cut", "delayed", "short")
"""``…, but done``: the store has executed the request. ``cut``: the reply breaks off, in its first
line or its body (a head that is cut between two lines looks like a whole one). ``delayed``: the
reply comes after ``delay_s``. ``short``: the reply has fewer bytes of an object, and a length that
fits them."""


@dataclass
class FaultyProxy:
    """Listens on ``endpoint_url``. ``kind``: the kind of fault that strikes the first request, and
    each later one with probability ``rate``; "": no fault. ``times_max``: strikes at most so many
    requests. ``struck``: the number of struck requests, by method."""

    endpoint_url: str
    upstream: tuple[str, int]
    kind: str = ""
    rate: float = 1.0
    times_max: int | None = None
    delay_s: float = 3.0
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    struck: Counter[str] = field(default_factory=Counter)
    over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(
        self, kind: str, *, seed: str = "", rate: float = 1.0, times_max: int | None = None
    ) -> None:
        """From here on strike with ``kind``, and count from 0."""
        with self._lock:
            self.kind, self.rate, self.times_max = kind, rate, times_max
            self.chance = random.Random(seed)
            self.struck.clear()

    def heal(self) -> int:
        """From here on pass all requests on unchanged. Returns how many requests were struck."""
        self.kind = ""
        return self.struck.total()

    def serve(self, client: socket.socket) -> None:
        """Answer one request, and close the connection."""
        with client, contextlib.suppress(OSError):
            client.settimeout(120)
            request = _received_request(client)
            if request is None:
                return
            method = request[: request.index(b" ")].decode()
            kind = self._due(method)
            reply = b""
            if kind not in INSTEAD:
                reply = self._asked(request)
            client.sendall(self._spoilt(kind, method, reply))

    def _due(self, method: str) -> str:
        with self._lock:
            is_over = self.times_max is not None and self.struck.total() >= self.times_max
            is_about = self.kind != "short" or method == "GET"
            # The first request is struck in any case: a test without a fault would prove nothing.
            is_due = self.chance.random() < self.rate or not self.struck
            if not self.kind or is_over or not is_about or not is_due:
                return ""
            self.struck[method] += 1
            return self.kind

    def _spoilt(self, kind: str, method: str, reply: bytes) -> bytes:
        if kind == "cut":
            at = self.chance.randrange(len(reply))
            is_in_head = at < reply.index(b"\r\n\r\n") + 4
            return reply[: min(at, 8) if is_in_head else at]
        if kind == "delayed":
            self.over.wait(self.delay_s)
        if kind == "short":
            return _shortened(reply)
        return INSTEAD.get(kind.removesuffix(", but done"), reply)

    def _asked(self, request: bytes) -> bytes:
        """The reply of the store, which closes the connection after it."""
        with socket.create_connection(self.upstream, timeout=120) as store:
            store.sendall(request)
            return b"".join(iter(lambda: store.recv(1 << 20), b""))


def _received_request(client: socket.socket) -> bytes | None:
    """A whole request, with a header that asks the store to close the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = client.recv(1 << 16)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    headers = {line.partition(b":")[0].strip().lower(): line for line in lines}
    if headers.pop(b"expect", None):
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    size = int(headers.get(b"content-length", b":0").partition(b":")[2])
    pieces = [body]
    size -= len(body)
    while size > 0:
        more = client.recv(1 << 20)
        if not more:
            return None
        pieces.append(more)
        size -= len(more)
    headers[b"connection"] = b"Connection: close"
    return b"\r\n".join([first, *headers.values(), b"", b"".join(pieces)])


def _shortened(reply: bytes) -> bytes:
    """An object without its last bytes; all else as it is."""
    head, _, body = reply.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    lengths = [line for line in lines if line.lower().startswith(b"content-length:")]
    if not lengths or not any(line.lower().startswith(b"etag:") for line in lines) or not body:
        return reply
    kept = body[: len(body) // 2]
    lines[lines.index(lengths[0])] = b"Content-Length: %d" % len(kept)
    return b"\r\n".join(lines) + b"\r\n\r\n" + kept


@contextmanager
def faulty_proxy(endpoint_url: str) -> Iterator[FaultyProxy]:
    """A proxy in front of the server at ``endpoint_url``, until the end of the block."""
    there = urlsplit(endpoint_url)
    assert there.hostname is not None
    assert there.port is not None
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        port = listener.getsockname()[1]
        proxy = FaultyProxy(f"http://127.0.0.1:{port}", (there.hostname, there.port))
        threads = [threading.Thread(target=_listen, args=(listener, proxy.serve), daemon=True)]
        threads[0].start()
        try:
            yield proxy
        finally:
            proxy.over.set()
            listener.shutdown(socket.SHUT_RDWR)  # to close it would not end ``accept``
            threads[0].join(120)


def _listen(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    with contextlib.suppress(OSError):  # closed: the end
        while True:
            client, _ = listener.accept()
            threading.Thread(target=serve, args=(client,), daemon=True).start()
