"""Limits of requests and bodies, clients that send too much or nothing at all, and what keeps a
service from starting."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import re
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import APIRouter, FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsort.errors import NotFoundError, SpecError, StorageError
from dsort.service import server
from dsort.service.aistore.places import ObjectRoute
from dsort.service.security import limits
from dsort.service.security.limits import BodyLimit, Rate
from dsort.service.server import HeadTimer, run_service
from tests.support.fake_clock import FakeClock
from tests.support.refusals import raises
from tests.support.service_here import config_for


def test_a_minutes_worth_may_come_at_once_and_then_evenly() -> None:
    clock = FakeClock(100.0)
    rate = Rate(6, clock=clock.now)
    assert [rate.take("ann") for _ in range(6)] == [0.0] * 6
    assert rate.take("ann") == pytest.approx(10)
    assert rate.take("bob") == 0.0
    clock.seconds += 10
    assert rate.take("ann") == 0.0
    assert rate.take("ann") == pytest.approx(10)
    clock.seconds += 1000
    assert [rate.take("ann") for _ in range(6)] == [0.0] * 6
    assert rate.take("ann") > 0


@given(
    per_minute=st.integers(1, 50),
    gaps_s=st.lists(st.floats(0, 30, allow_subnormal=False), max_size=60),
)
def test_no_minute_has_more_than_a_burst_and_a_minutes_worth(
    per_minute: int, gaps_s: list[float]
) -> None:
    clock = FakeClock(100.0)
    rate = Rate(per_minute, clock=clock.now)
    taken: list[float] = []
    for gap_s in gaps_s:
        clock.seconds += gap_s
        wait_s = rate.take("ann")
        if wait_s:
            clock.seconds += wait_s
            assert rate.take("ann") == 0.0  # as was promised
        taken.append(clock.seconds)
    for begin_s in taken:
        assert sum(begin_s <= at < begin_s + 60 for at in taken) <= 2 * per_minute


def test_clients_by_the_thousand_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENTS_REMEMBERED_MAX", 100)
    clock = FakeClock(100.0)
    rate = Rate(2, clock=clock.now)
    rate.take("worst")
    rate.take("worst")
    for number in range(1000):
        assert rate.take(f"client {number}") == 0.0
        assert len(rate._paid_at) <= 101
    assert rate.take("worst") > 0


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads all of a body and answers with its length."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


async def hiding(scope: Scope, receive: Receive, send: Send) -> None:
    """Takes whatever goes wrong with a body for its own mistake, as frameworks do."""
    try:
        await echo(scope, receive, send)
    except limits._TooLarge:
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"cannot be parsed"})


def answer(app: Any, pieces: Iterable[bytes], *headers: tuple[bytes, bytes]) -> tuple[int, Any]:
    """How ``app`` behind a limit of ten bytes answers to a body; nothing is sent twice, and a body
    that is refused is read to its end."""
    sent: list[Message] = []
    waiting = list(pieces)

    async def receive() -> Message:
        body = waiting.pop(0) if waiting else b""
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": list(headers)}
    asyncio.run(BodyLimit(app, bytes_max=10)(scope, receive, send))
    assert not waiting
    kinds = [each["type"] for each in sent]
    assert kinds == ["http.response.start", *["http.response.body"] * (len(sent) - 1)]
    more = [each.get("more_body", False) for each in sent[1:]]
    assert more == [True] * (len(more) - 1) + [False]
    return sent[0]["status"], json.loads(b"".join(each["body"] for each in sent[1:]))


@pytest.mark.parametrize("app", [echo, hiding])
def test_a_body_in_chunks_is_counted_as_it_comes(app: Any) -> None:
    assert answer(app, [b"12345", b"67890", b""]) == (200, 10)
    status, problem = answer(app, [b"12345", b"67890", b"1", b"never read"])
    assert (status, problem["status"]) == (413, 413)
    assert problem["type"] == "urn:dsort:problem:too_large"


@pytest.mark.parametrize(("is_stored", "status"), [(True, 200), (False, 413)])
def test_a_body_that_is_stored_may_be_longer(is_stored: bool, status: int) -> None:
    pieces, sent = [b"x" * 50], list[Message]()

    async def receive() -> Message:
        return {"type": "http.request", "body": pieces.pop() if pieces else b""}

    async def send(message: Message) -> None:
        sent.append(message)

    limit = BodyLimit(echo, bytes_max=10, stored_max=lambda scope: 100 if is_stored else None)
    asyncio.run(limit({"type": "http", "headers": []}, receive, send))
    assert sent[0]["status"] == status


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
        BodyLimit(inner, bytes_max=100), http=HeadTimer, lifespan="off", log_config=None
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
def test_a_client_that_sends_too_much_reads_why(is_chunked: bool) -> None:
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
def test_a_refused_client_that_stops_sending_is_cut_off(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REST_S_MAX", 0.1)

    async def talk() -> bytes:
        async with connected() as (reader, writer), asyncio.timeout(END_S_MAX):
            writer.write(POST + head + b"Content-Length: 999\r\n\r\n")
            return await reader.read()

    assert asyncio.run(talk()).startswith(b"HTTP/1.1 413")


def test_a_refused_body_is_read_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
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


def refusal(tmp_path: Path, kind: type[Exception], **more: object) -> str:
    said: list[str] = []
    (tmp_path / "state").mkdir(exist_ok=True)
    with pytest.raises(kind) as caught:
        run_service(config_for(tmp_path, **{"port": 0, **more}), say=said.append)
    assert not [line for line in said if "serves" in line]
    return str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "dsort.example", "::"])
def test_without_tokens_only_this_machine_is_served(tmp_path: Path, host: str) -> None:
    assert host in refusal(tmp_path, SpecError, host=host, no_auth=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "dsort.example", "::"])
def test_tokens_are_not_sent_in_the_clear_by_mistake(tmp_path: Path, host: str) -> None:
    (tmp_path / "state").mkdir()
    config = config_for(tmp_path, port=0, host=host, no_auth=False)
    with raises(SpecError, hint="--insecure") as caught:
        run_service(config, say=lambda text: None)
    assert "--ssl-certfile" in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"host": "0.0.0.0", "no_auth": False, "insecure": True}, "no token yet"),
        ({"ssl_certfile": Path("cert.pem")}, "--ssl-keyfile"),
        ({"root": Path("/nowhere")}, "/nowhere is no directory"),
        *(
            ({"webhook_allow_hosts": (host,)}, host)
            for host in ("https://hooks.example.com/", "hooks.example.com:", "me@host")
        ),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(
    tmp_path: Path, config: dict[str, object], said: str
) -> None:
    assert said in refusal(tmp_path, SpecError, **config)


def test_an_address_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in refusal(tmp_path, StorageError, port=port)


def test_a_state_directory_has_one_service(tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "state").mkdir()
    with (tmp_path / "state" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another service" in refusal(tmp_path, StorageError)


def test_answers_are_not_held_back_for_more_to_send(tmp_path: Path) -> None:
    from dsort.service.server import _socket

    with _socket(config_for(tmp_path, port=0)) as listening:
        assert listening.proto == socket.IPPROTO_TCP  # what asyncio looks at, for TCP_NODELAY


def test_connections_of_clients_that_have_disappeared_end(tmp_path: Path) -> None:
    from dsort.service.server import _socket

    with (
        _socket(config_for(tmp_path, port=0)) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        after_s, each_s, count = (accepted.getsockopt(socket.IPPROTO_TCP, name) for name in names)
        assert after_s + each_s * count <= 120


def test_a_service_that_has_ended_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    loggers = [logging.getLogger(name) for name in ("", "dsort")]
    before = [([*each.handlers], each.level) for each in loggers]
    refusal(tmp_path, SpecError, host="0.0.0.0", no_auth=False, insecure=True)
    assert [([*each.handlers], each.level) for each in loggers] == before
