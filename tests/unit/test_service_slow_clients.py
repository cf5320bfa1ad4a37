"""Clients that say nothing, or next to nothing, do not keep a connection for themselves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from dsort.service.security.limits import BodyLimit
from dsort.service.server import HurriedProtocol

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
END_S_MAX = 60.0


class Hasty(HurriedProtocol):
    head_s_max = 0.2


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body, takes its time over ``/slow``, and answers."""
    while (await receive()).get("more_body"):
        pass
    if scope["path"] == "/slow":
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3 * Hasty.head_s_max):
                await asyncio.Event().wait()
    head = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server that waits 0.2 s for a head and for a body."""
    config = uvicorn.Config(
        BodyLimit(app, bytes_max=100, seconds_max=0.2),
        http=Hasty,
        lifespan="off",
        log_config=None,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        try:
            yield reader, writer
        finally:
            writer.close()
            server.should_exit = True
            await serving


def said_to(*pieces: bytes) -> bytes:
    """All that the server says until it closes the connection; what is sent after a whole request
    is sent after its answer."""

    async def talk() -> bytes:
        async with connected() as (reader, writer):
            said = b""
            async with asyncio.timeout(END_S_MAX):
                for piece in pieces:
                    writer.write(piece)
                    if piece == REQUEST:
                        said += await reader.readuntil(b"ok")
                return said + await reader.read()

    return asyncio.run(talk())


@pytest.mark.parametrize(
    "pieces", [[], [b"GET"], [b"GET / HTTP/1.1\r\n", b"a: b\r\n", b"c: d\r\n"]]
)
def test_a_head_that_does_not_come_is_not_waited_for(pieces: list[bytes]) -> None:
    assert said_to(*pieces) == b""


def test_the_next_request_of_a_connection_has_to_come_as_soon() -> None:
    said = said_to(REQUEST, b"GET / HTTP/1.1\r\n")
    assert said.count(b"200 OK") == 1


def test_an_answer_may_take_its_time() -> None:
    said = said_to(
        REQUEST.replace(b"/ ", b"/slow ").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    )
    assert said.endswith(b"ok")


@pytest.mark.parametrize(
    "head",
    [POST + b"Content-Length: 50\r\n\r\nx", POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"],
)
def test_a_body_that_does_not_come_is_answered_with_408(head: bytes) -> None:
    said = said_to(head)
    assert b" 408 " in said
    assert b"too_slow" in said
    assert b"connection: close" in said
