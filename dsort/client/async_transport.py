"""Requests to a service from an event loop: the same as ``transport``, awaited."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from os import PathLike
from typing import Any, TypeVar

import httpx
from msgspec import Struct

from dsort.client.client import DsortClient
from dsort.client.transport import Patience, Query, Transport, UnavailableError
from dsort.retry import Failures, RetryPolicy

__all__ = ["AsyncTransport"]

Answer = TypeVar("Answer")


class _Request(Struct, frozen=True):
    """A request that a method of the client makes."""

    method: str
    path: str
    options: Mapping[str, Any]


class _UnansweredError(Exception):
    """A method has made a request that has no answer yet."""

    def __init__(self, request: _Request) -> None:
        super().__init__(request.path)
        self.request = request


class _Replayed(Transport):
    """Returns the answers received so far, in their order. A request beyond them is raised."""

    def __init__(self, words: Transport) -> None:
        # It has no connections of its own: it only makes error messages, and returns stored
        # answers.
        self.url, self.patience = words.url, words.patience
        self.sleep, self.clock, self.uniform = words.sleep, words.clock, words.uniform
        self.answers: list[httpx.Response] = []
        self._next = 0

    def begin(self) -> None:
        """Begin again with the first answer."""
        self._next = 0

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
    ) -> httpx.Response:
        """The next answer."""
        if self._next == len(self.answers):
            options = {"query": query, "content": content, "headers": headers}
            raise _UnansweredError(_Request(method, path, {**options, "repeatable": repeatable}))
        self._next += 1
        return self.answers[self._next - 1]


class AsyncTransport:
    """The connections to one service, through ``httpx.AsyncClient``. ``words``: a transport that is
    not awaited, which turns answers and failures into values and errors, so that both give the
    same."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout_s: float,
        verify: bool | str | PathLike[str] | ssl.SSLContext,
        patience: Patience,
        on_wait: Callable[[str], None] | None = None,
        http: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.words = Transport(
            url, token, timeout_s=timeout_s, verify=verify, patience=patience, on_wait=on_wait
        )
        self.url = self.words.url
        self._http = self.words.awaited(http)

    async def close(self) -> None:
        """Close the connections."""
        self.words.close()
        await self._http.aclose()

    async def replay(self, method: Callable[[DsortClient], Answer]) -> Answer:
        """The result of a method of the client: the method is run again with each new answer, so
        that its requests, and the handling of answers, are written only once."""
        transport = _Replayed(self.words)
        client = DsortClient.over(transport)
        while True:
            transport.begin()
            try:
                return method(client)
            except _UnansweredError as asked:
                request = asked.request
            answer = await self.request(request.method, request.path, **request.options)
            transport.answers.append(answer)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
    ) -> httpx.Response:
        """The answer to a request, if it reports success; see ``Transport.request``."""
        words, waited_s = self.words, 0.0
        failures = Failures(
            RetryPolicy(
                tries_max=words.patience.attempts,
                seconds_max=math.inf,
                delay_s_min=words.patience.delay_s / 2,
                delay_s_max=math.inf,
            )
        )
        while True:
            try:
                answer = await self._http.request(
                    method, path, params=list(query), content=content, headers=headers
                )
                return words.judged(answer, repeatable=repeatable)
            except httpx.TransportError as error:
                unavailable = words.judged_failure(error, repeatable=repeatable)
            except UnavailableError as error:
                unavailable = error
            delay_s = failures.add(unavailable.asked_s)
            if delay_s is None:
                raise unavailable.failure
            waited_s += delay_s
            words.tell_wait(unavailable, delay_s, waited_s)
            await asyncio.sleep(delay_s)

    @asynccontextmanager
    async def stream(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """An answer that is read while it arrives. ``httpx.TransportError`` if it breaks off."""
        timeout = self.words.stream_timeout
        async with self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
            if not answer.is_success:
                await answer.aread()
            yield answer
