"""Clients that send too much read why, and keep no connection for themselves; nor do clients that
send no request."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import socket
from collections.abc import AsyncIterator, Iterable, Iterator

import pytest
import uvicorn
from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from dsort.errors import NotFoundError
from dsort.service import server
from dsort.service.aistore.places import ObjectRoute
from dsort.service.security import limits
from dsort.service.security.limits import BodyLimit
from dsort.service.server import HeadTimer

POST = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
END_S_MAX = 60.0


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body, and answers."""
    while (await receive()).get("more_body"):
        pass
    head = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def served(inner: ASGIApp = app) -> AsyncIterator[tuple[str, int]]:
    """The address of a server that takes bodies of 100 bytes."""
    config = uvicorn.Config(
        BodyLimit(inner, bytes_max=100),
        http=HeadTimer,
        lifespan="off",
        log_config=None,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield listening.getsockname()
        finally:
            server.should_exit = True
            await serving


@contextlib.asynccontextmanager
async def connected(
    inner: ASGIApp = app,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to such a server."""
    async with served(inner) as address:
        reader, writer = await asyncio.open_connection(*address)
        try:
            yield reader, writer
        finally:
            writer.close()


LARGE = b"x" * (8 << 20)


def blind_post(
    address: tuple[str, int], body: Iterable[bytes], **headers: str
) -> tuple[int, bytes]:
    """What a client reads that looks at no answer before it has sent all of its request."""
    connection = http.client.HTTPConnection(*address, timeout=END_S_MAX)
    with contextlib.closing(connection):
        connection.request("POST", "/", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def in_chunks() -> Iterator[bytes]:
    for start in range(0, len(LARGE), 1 << 16):
        yield LARGE[start : start + (1 << 16)]


@pytest.mark.parametrize("is_chunked", [False, True])
def test_who_sends_too_much_reads_why_and_not_a_broken_pipe(is_chunked: bool) -> None:
    async def ask() -> list[tuple[int, bytes]]:
        async with served() as address:
            bodies = (in_chunks() if is_chunked else [LARGE] for _ in range(16))
            length = {} if is_chunked else {"Content-Length": str(len(LARGE))}
            posts = (asyncio.to_thread(blind_post, address, body, **length) for body in bodies)
            return await asyncio.gather(*posts)

    for status, problem in asyncio.run(ask()):
        assert (status, json.loads(problem)["status"]) == (413, 413)


def test_the_answer_to_too_much_is_whole_before_the_rest_is_sent() -> None:
    async def ask() -> tuple[bytes, bytes]:
        async with connected() as (reader, writer):
            writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(LARGE))
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(re.findall(rb"content-length: (\d+)", head)[0])
            problem = await reader.readexactly(length)
            writer.write(LARGE)
            await writer.drain()
            return problem, await reader.read()

    problem, rest = asyncio.run(ask())
    assert (json.loads(problem)["status"], rest) == (413, b"")


@pytest.mark.parametrize("head", [b"", b"Expect: 100-continue\r\n"])
def test_who_is_refused_and_sends_no_more_is_not_waited_for_long(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REST_S_MAX", 0.1)

    async def talk() -> bytes:
        async with connected() as (reader, writer), asyncio.timeout(END_S_MAX):
            writer.write(POST + head + b"Content-Length: 999\r\n\r\n")
            return await reader.read()

    assert asyncio.run(talk()).startswith(b"HTTP/1.1 413")


def test_what_is_refused_is_not_read_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REST_S_MAX", 0.2)

    async def ask() -> bytes:
        async with connected() as (reader, writer):
            writer.write(POST + b"Content-Length: 99999999999\r\n\r\n")
            said = await reader.readuntil(b"\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(END_S_MAX):
                    while True:
                        writer.write(b"x" * (1 << 16))
                        await writer.drain()
            return said

    assert asyncio.run(ask()).startswith(b"HTTP/1.1 413")


def test_the_rest_of_a_refused_object_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "REST_S_MAX", 0.1)
    refusing, routes = FastAPI(), APIRouter(route_class=ObjectRoute)

    @routes.put("/")
    async def refuse() -> None:
        raise NotFoundError("there is no such bucket")

    refusing.include_router(routes)

    async def talk() -> bytes:
        async with connected(refusing) as (reader, writer), asyncio.timeout(END_S_MAX):
            writer.write(POST.replace(b"POST", b"PUT") + b"Content-Length: 99\r\n\r\nsome")
            return await reader.readuntil(b"\r\n\r\n")

    assert asyncio.run(talk()).startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\nHost: loc"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_connection_that_sends_no_whole_head_is_closed(
    start: bytes, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_S_MAX", 0.2)

    async def talk() -> bytes:
        async with connected() as (reader, writer), asyncio.timeout(END_S_MAX):
            if not is_first:
                writer.write(GET)
                await reader.readuntil(b"\r\n\r\nok")
            writer.write(start or b"G" * (not is_first))
            return await reader.read()

    assert asyncio.run(talk()) == b""


def test_a_request_whose_head_is_whole_takes_the_time_that_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "HEAD_S_MAX", 0.2)
    has_come, may_end = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        has_come.set()
        await may_end.wait()
        await app(scope, receive, send)

    async def talk() -> bytes:
        async with served(slow) as address, asyncio.timeout(END_S_MAX):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(GET)
            await has_come.wait()
            silent, other = await asyncio.open_connection(*address)
            try:
                assert await silent.read() == b""  # the time is up
            finally:
                may_end.set()
            other.close()
            answer = await reader.readuntil(b"ok")
            writer.close()
            return answer

    assert asyncio.run(talk()).startswith(b"HTTP/1.1 200")
