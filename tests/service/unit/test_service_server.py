"""The law of limits: nobody gets more requests than a minute has, whoever waits gets on, and no
more of a body is read than may be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from dsort.errors import TooManyRequestsError
from dsort.service.security import limits
from dsort.service.security.limits import BodyLimit, Rate, RequestLimits


class Clock:
    """A clock that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_minutes_worth_may_come_at_once_and_then_evenly() -> None:
    clock = Clock()
    rate = Rate(6, clock=clock)
    assert [rate.take("ann") for _ in range(6)] == [0.0] * 6
    assert rate.take("ann") == pytest.approx(10)
    assert rate.take("bob") == 0.0
    clock.now_s += 10
    assert rate.take("ann") == 0.0
    assert rate.take("ann") == pytest.approx(10)
    clock.now_s += 1000
    assert [rate.take("ann") for _ in range(6)] == [0.0] * 6
    assert rate.take("ann") > 0


@given(
    per_minute=st.integers(1, 50),
    gaps_s=st.lists(st.floats(0, 30, allow_subnormal=False), max_size=60),
)
def test_no_minute_has_more_than_a_burst_and_a_minutes_worth(
    per_minute: int, gaps_s: list[float]
) -> None:
    clock = Clock()
    rate = Rate(per_minute, clock=clock)
    taken: list[float] = []
    for gap_s in gaps_s:
        clock.now_s += gap_s
        wait_s = rate.take("ann")
        if wait_s:
            clock.now_s += wait_s
            assert rate.take("ann") == 0.0  # as was promised
        taken.append(clock.now_s)
    for begin_s in taken:
        assert sum(begin_s <= at < begin_s + 60 for at in taken) <= 2 * per_minute


def test_clients_by_the_thousand_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENTS_REMEMBERED_MAX", 100)
    clock = Clock()
    rate = Rate(2, clock=clock)
    rate.take("worst")
    rate.take("worst")
    for number in range(1000):
        assert rate.take(f"client {number}") == 0.0
        assert len(rate._paid_at) <= 101
    assert rate.take("worst") > 0


def test_too_many_requests_say_when_to_come_back() -> None:
    asked = RequestLimits(2, clock=Clock())
    asked.request("ann")
    asked.request("ann")
    with pytest.raises(TooManyRequestsError) as refused:
        asked.request("ann")
    assert refused.value.retry_after_s == pytest.approx(30)


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


def test_a_length_that_is_too_much_is_refused_before_a_byte_is_read() -> None:
    status, _ = answer(echo, [], (b"content-length", b"11"))
    assert status == 413


def test_a_length_that_is_a_lie_helps_nobody() -> None:
    status, _ = answer(echo, [b"x" * 11], (b"content-length", b"3"))
    assert status == 413


def test_what_is_no_request_is_let_pass() -> None:
    called: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        called.append(scope["type"])

    asyncio.run(BodyLimit(app, bytes_max=10)({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert called == ["lifespan"]


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
