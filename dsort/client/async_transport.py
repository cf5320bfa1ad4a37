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

from dsort.client.calls import Call, Page
from dsort.client.transport import Patience, Transport, UnavailableError
from dsort.retry import Failures, RetryPolicy

__all__ = ["AsyncTransport"]

Answer = TypeVar("Answer")
Item = TypeVar("Item")


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

    async def call(self, call: Call[Answer]) -> Answer:
        """The value of the answer to a call."""
        return self.words.read(call, await self.request(call))

    async def pages(self, call: Call[Page[Item]]) -> AsyncIterator[Item]:
        """All rows of a list, requested page by page."""
        more: Call[Page[Item]] | None = call
        while more is not None:
            page = await self.call(more)
            for row in page.rows:
                yield row
            more = self.words.following(more, page)

    async def request(self, call: Call[Any]) -> httpx.Response:
        """The answer to a call, if it reports success; see ``Transport.request``."""
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
                    call.method,
                    call.path,
                    params=list(call.query),
                    content=call.content,
                    headers=call.headers,
                )
                return words.judged(answer, repeatable=call.repeatable)
            except (httpx.TransportError, httpx.DecodingError) as error:
                unavailable = words.judged_failure(error, repeatable=call.repeatable)
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
