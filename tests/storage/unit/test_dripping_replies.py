"""A server that sends a byte now and then holds no read: replies that are too slow are given up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dsort.errors import StorageError, TransientStorageError
from dsort.retry import RetryPolicy
from dsort.storage.bucket import ObjectInfo
from dsort.storage.limit import StoreLimits
from dsort.storage.object_reader import PinnedObject
from dsort.storage.redirects import RuledWeb, WebBody, WebErrors
from dsort.storage.ref import BucketRef
from dsort.storage.s3.client import S3Client
from dsort.storage.transport import Transport
from tests.support.fake_clock import FakeClock
from tests.support.refusals import raises

ROOM = 1000


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(ROOM))
        self.send_header("ETag", '"e"')
        self.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(b"x" * 10)
        while not self.server.is_over.wait(0.005):
            if self.server.drips:
                self.wfile.write(b"x")

    def log_message(self, format: str, *args: object) -> None:
        """No test reads it."""


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.is_over = threading.Event()
        self.drips = False
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.is_over.set()
            server.shutdown()
            thread.join()


def test_a_read_of_a_web_body_returns_the_bytes_that_have_come(server: _Server) -> None:
    reply = RuledWeb(server.url, StoreLimits(), {}).ask("GET", f"{server.url}/a", {})
    body = WebBody(reply.raw, ROOM, "read a")
    assert 0 < body.read_into(memoryview(bytearray(ROOM))) <= 10
    body.close()


def test_a_read_of_an_s3_body_returns_the_bytes_that_have_come(
    server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    client = S3Client(BucketRef("s3", "b", server.url), StoreLimits())
    stream = client.fetch("a", 0, None, None).stream
    assert 0 < stream.read_into(memoryview(bytearray(ROOM))) <= 10
    stream.close()


def test_a_document_that_comes_too_slowly_is_given_up(server: _Server) -> None:
    server.drips = True
    web = RuledWeb(server.url, StoreLimits(request_seconds_max=0.05), {})
    with raises(TransientStorageError, "read a"), WebErrors("read a"):
        web.ask("GET", f"{server.url}/a", {}).text(ROOM)


class _Drip:
    """The body of an object, of which a byte comes each minute."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def read_into(self, view: memoryview) -> int:
        self._clock.seconds += 60.0
        return 1

    def close(self) -> None:
        """There is no connection."""


@pytest.mark.parametrize("size_bytes", [100, 64 << 20])
def test_an_object_that_comes_too_slowly_is_given_up(size_bytes: int) -> None:
    clock = FakeClock()
    policy = RetryPolicy(clock=clock.now, sleep=clock.sleep)
    pinned = PinnedObject(
        ObjectInfo("a", size_bytes, 0, "e"),
        lambda start, stop: _Drip(clock),
        bucket="s3://b",
        transport=Transport(StoreLimits(), policy=policy),
    )
    with raises(StorageError, "a in bucket s3://b"):
        pinned.read_into(memoryview(bytearray(size_bytes)), 0)
    assert clock.seconds < 12 * 3600
