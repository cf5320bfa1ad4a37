"""Requests to a service: repeated where that is safe, with failures as readable errors."""

from __future__ import annotations

import asyncio
import math
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from msgspec import Struct

from dsort.client.calls import Call, Page
from dsort.client.values import error_of
from dsort.closing import ClosesOnExit
from dsort.errors import DsortError, ServiceError, SpecError, TooManyRequestsError
from dsort.log_lines import logger_of
from dsort.retry import JITTER, Failures, RetryPolicy

Answer = TypeVar("Answer")
Item = TypeVar("Item")
AGAIN_STATUSES = frozenset((502, 503, 504))
CONNECT_TIMEOUT_S = 10.0
READ_STREAM_TIMEOUT_S = 50.0
"""A stream that sends nothing for so many seconds is dead, because the service sends a comment
every 15 s."""
SHOWN_CHARS_MAX = 200
NO_ROUTE = "urn:dsort:problem:no_route"
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
GUESTS_ROUTE = re.compile(r"/v1/(transforms|objects|changed)\b")

log = logger_of("client")


class Patience(Struct, frozen=True):
    """How long a client waits for a service that does not answer at once.

    ``attempts``: how often a repeatable request is sent; ``delay_s``: the longest pause before the
    second attempt, doubled for each further one; ``wait_max_s``: the longest wait in all that a
    service may request (``Retry-After``); ``reconnect_max_s``: for how long the client tries to
    continue a broken stream of events, for example while the service restarts.
    """

    attempts: int = 4
    delay_s: float = 0.2
    wait_max_s: float = 60.0
    reconnect_max_s: float = 120.0


class UnavailableError(Exception):
    """The service is unavailable now, perhaps for a short time, as during a restart. ``failure``:
    the error to raise if the service stays unavailable; ``asked_s``: the wait that the service
    requests, in seconds (0: none)."""

    def __init__(self, failure: DsortError, asked_s: float = 0.0) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.asked_s = asked_s


def checked_url(text: str) -> str:
    """The base address of a service's routes; ``SpecError`` if ``text`` is not a valid address."""
    parts = urlsplit(text.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SpecError(f"{text!r} is no address of a service", hint="as in http://127.0.0.1:8080")
    if parts.username or parts.password:
        raise SpecError(
            "the address of a service holds no credentials",
            hint="tokens come from DSORT_TOKEN or a file",
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


class Connection:
    """The base of both transports: it has the address of a service, and interprets answers and
    failures, so both return the same values and raise the same errors."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout_s: float,
        verify: bool | str | os.PathLike[str] | ssl.SSLContext,
        patience: Patience,
        on_wait: Callable[[str], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = JITTER,
    ) -> None:
        self.url = checked_url(url)
        self.patience = patience
        self.sleep = sleep
        self.clock = clock
        self.uniform = uniform
        self._timeout_s = timeout_s
        self._on_wait = on_wait
        headers = {"Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {_checked_token(token)}"
        self._how: dict[str, Any] = {
            "base_url": self.url,
            "headers": headers,
            "timeout": httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
            "verify": _trusting(verify),
            "follow_redirects": False,  # so that the token goes only to that service
        }

    @property
    def stream_timeout(self) -> httpx.Timeout:
        """The timeout of an answer that is read while it arrives."""
        connect_s = min(self._timeout_s, CONNECT_TIMEOUT_S)
        return httpx.Timeout(READ_STREAM_TIMEOUT_S, connect=connect_s)

    def read(self, call: Call[Answer], answer: httpx.Response) -> Answer:
        """The value that the call makes of ``answer``."""
        try:
            return call.read(answer.json() if call.is_json else answer)
        except _UNREADABLE as error:
            raise self.not_ours(answer) from error

    @staticmethod
    def following(call: Call[Page[Item]], page: Page[Item]) -> Call[Page[Item]] | None:
        """The call for the page after ``page``. ``ServiceError`` if the page after ``page`` is the
        same page."""
        if page.more is not None and page.more.query == call.query:
            raise ServiceError("the service's list has no end: the next page is the same page")
        return page.more

    def judged(self, answer: httpx.Response, *, repeatable: bool) -> httpx.Response:
        """``answer``, if it reports success. If not, ``UnavailableError`` where another try can
        help, and otherwise the error that ``answer`` describes."""
        if answer.is_success:
            return answer
        refusal = self.error(answer)
        asked_s = _retry_after_s(answer, refusal)
        if asked_s is None and not (repeatable and answer.status_code in AGAIN_STATUSES):
            raise refusal
        raise UnavailableError(refusal, asked_s or 0.0)

    def judged_failure(self, error: httpx.RequestError, *, repeatable: bool) -> UnavailableError:
        """Like ``judged`` if no answer arrived. Errors that another try cannot cure are raised."""
        failure = self.failure(error)
        unseen = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        if (repeatable or unseen) and not _about_tls(error):
            return UnavailableError(failure)
        raise failure from error

    def tell_wait(self, error: UnavailableError, delay_s: float, waited_s: float) -> None:
        """Report a wait of ``delay_s`` seconds. Raises the failure if ``waited_s``, the time of all
        waits with this one, is too long."""
        if waited_s > self.patience.wait_max_s:
            raise error.failure
        log.debug(
            "the client sends the request again in %.2f s: %s", delay_s, error.failure.message
        )
        if delay_s >= 1:
            self.tell(f"{error.failure.message}; trying again in {delay_s:.0f} s")

    def tell(self, text: str) -> None:
        """Report through ``on_wait`` that the client waits, and the reason."""
        if self._on_wait is not None:
            self._on_wait(text)

    # --- failures --------------------------------------------------------------------------------

    def error(self, answer: httpx.Response) -> DsortError:
        """The error that ``answer`` describes."""
        try:
            document = answer.json()
        except (RecursionError, ValueError):
            document = None
        if isinstance(document, dict) and ("type" in document or "detail" in document):
            if document.get("type") == NO_ROUTE and GUESTS_ROUTE.search(answer.url.path):
                document["hint"] = "only `dsort serve --aistore` has this route"
            return error_of({"status": answer.status_code, **document})
        if answer.is_redirect:
            there = answer.headers.get("location", "elsewhere")
            return ServiceError(
                f"{self.url} redirects to {there[:SHOWN_CHARS_MAX]}",
                hint="give the address of the service itself",
            )
        if answer.status_code in AGAIN_STATUSES:
            return ServiceError(
                f"the service behind {self.url} does not answer "
                f"({answer.status_code} {answer.reason_phrase})",
                hint="is `dsort serve` running there?",
            )
        if answer.status_code in (401, 403, 413, 429):
            words = f"{self.url} refuses: {answer.status_code} {answer.reason_phrase}"
            return error_of({"status": answer.status_code, "detail": words})
        return self.not_ours(answer)

    def not_ours(self, answer: httpx.Response) -> ServiceError:
        """The error for an answer that does not come from a dsort service."""
        kind = answer.headers.get("content-type", "").partition(";")[0] or "nothing"
        return ServiceError(
            f"the server at {self.url} is no dsort service: {answer.status_code} with {kind}",
            hint="give --server or DSORT_SERVER the address that `dsort serve` prints",
        )

    def failure(self, error: httpx.RequestError) -> ServiceError:
        """The error if no answer arrived."""
        about_tls = _about_tls(error)
        if about_tls is not None:
            return self._tls_failure(about_tls)
        if isinstance(error, httpx.ConnectTimeout):
            return ServiceError(f"no service answers at {self.url}", hint=_IS_IT_THERE)
        if isinstance(error, httpx.ConnectError):
            why = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or "no connection"
            return ServiceError(f"there is no service at {self.url}: {why}", hint=_IS_IT_THERE)
        if isinstance(error, httpx.TimeoutException):
            return ServiceError(
                f"the service at {self.url} did not answer within {self._timeout_s:g} s",
                hint="the service may have carried out the request nevertheless",
            )
        hint = ""
        if isinstance(error, httpx.RemoteProtocolError) and self.url.startswith("http:"):
            hint = "try https:// in place of http://"
        return ServiceError(f"the service at {self.url} broke off: {error}", hint=hint)

    def _tls_failure(self, error: ssl.SSLError) -> ServiceError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return ServiceError(
                f"the certificate of {self.url} is not trusted: {error.verify_message}",
                hint="if it is signed by an authority of your own, DSORT_CA_FILE names its file",
            )
        reason = str(getattr(error, "reason", None) or error)
        hint = "try http:// in place of https://" if "WRONG_VERSION" in reason else ""
        return ServiceError(f"no TLS with {self.url}: {reason.replace('_', ' ')}", hint=hint)


class _Tries:
    """The tries of one request. Calls that are not ``repeatable`` are sent again only if the
    service cannot have received the call, or answers that it did not carry out the call."""

    def __init__(self, connection: Connection, call: Call[Any]) -> None:
        self._connection, self._repeatable = connection, call.repeatable
        self._waited_s = 0.0
        delay_s = connection.patience.delay_s
        self._failures = Failures(
            RetryPolicy(
                tries_max=connection.patience.attempts,
                seconds_max=math.inf,  # `wait_max_s` limits only the waits, not slow answers
                delay_s_min=delay_s / 2,
                delay_s_max=math.inf,
                clock=connection.clock,
                uniform=connection.uniform,
            )
        )
        self.sent: dict[str, Any] = {
            "method": call.method,
            "url": call.path,
            "params": list(call.query),
            "content": call.content,
            "headers": call.headers,
        }

    def judged(self, answer: httpx.Response) -> httpx.Response:
        """See ``Connection.judged``."""
        return self._connection.judged(answer, repeatable=self._repeatable)

    def pause_s(self, error: httpx.RequestError | UnavailableError) -> float:
        """The seconds until the next try. Raises the error if there is no further try."""
        if not isinstance(error, UnavailableError):
            error = self._connection.judged_failure(error, repeatable=self._repeatable)
        delay_s = self._failures.add(error.asked_s)
        if delay_s is None:
            raise error.failure from error
        self._waited_s += delay_s
        self._connection.tell_wait(error, delay_s, self._waited_s)
        return delay_s


FAILED = (httpx.TransportError, httpx.DecodingError, UnavailableError)


class Transport(Connection, ClosesOnExit):
    """The connections to one service, through ``httpx.Client``. ``how``: further arguments of
    ``Connection``."""

    def __init__(
        self, url: str, token: str | None, *, http: httpx.BaseTransport | None = None, **how: Any
    ) -> None:
        super().__init__(url, token, **how)
        self._http = httpx.Client(**self._how, transport=http)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def call(self, call: Call[Answer]) -> Answer:
        """The value of the answer to a call."""
        return self.read(call, self.request(call))

    def pages(self, call: Call[Page[Item]]) -> Iterator[Item]:
        """All rows of a list, requested page by page."""
        more: Call[Page[Item]] | None = call
        while more is not None:
            page = self.call(more)
            yield from page.rows
            more = self.following(more, page)

    def request(self, call: Call[Any]) -> httpx.Response:
        """The answer to a call, if it reports success."""
        tries = _Tries(self, call)
        while True:
            try:
                return tries.judged(self._http.request(**tries.sent))
            except FAILED as error:
                pause_s = tries.pause_s(error)
            self.sleep(pause_s)

    @contextmanager
    def stream(self, path: str, *, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """An answer that is read while it arrives. ``httpx.TransportError`` if it breaks off."""
        with self._http.stream("GET", path, headers=headers, timeout=self.stream_timeout) as answer:
            if not answer.is_success:
                answer.read()
            yield answer


class AsyncTransport(Connection):
    """The connections to one service, through ``httpx.AsyncClient``."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        http: httpx.AsyncBaseTransport | None = None,
        **how: Any,
    ) -> None:
        super().__init__(url, token, **how)
        self._http = httpx.AsyncClient(**self._how, transport=http)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def call(self, call: Call[Answer]) -> Answer:
        """The value of the answer to a call."""
        return self.read(call, await self.request(call))

    async def pages(self, call: Call[Page[Item]]) -> AsyncIterator[Item]:
        """All rows of a list, requested page by page."""
        more: Call[Page[Item]] | None = call
        while more is not None:
            page = await self.call(more)
            for row in page.rows:
                yield row
            more = self.following(more, page)

    async def request(self, call: Call[Any]) -> httpx.Response:
        """The answer to a call, if it reports success."""
        tries = _Tries(self, call)
        while True:
            try:
                return tries.judged(await self._http.request(**tries.sent))
            except FAILED as error:
                pause_s = tries.pause_s(error)
            await asyncio.sleep(pause_s)

    @asynccontextmanager
    async def stream(
        self, path: str, *, headers: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """An answer that is read while it arrives. ``httpx.TransportError`` if it breaks off."""
        timeout = self.stream_timeout
        async with self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
            if not answer.is_success:
                await answer.aread()
            yield answer


_IS_IT_THERE = "is `dsort serve` running there? --server and DSORT_SERVER set the address"


def _checked_token(token: str) -> str:
    stripped = token.strip()
    if not stripped.isascii() or not stripped.isprintable() or " " in stripped:
        raise SpecError("the token is not valid: it has spaces or characters that no token has")
    return stripped


def _trusting(verify: bool | str | os.PathLike[str] | ssl.SSLContext) -> bool | ssl.SSLContext:
    if isinstance(verify, bool | ssl.SSLContext):
        return verify
    try:
        return ssl.create_default_context(cafile=os.fspath(verify))
    except OSError as error:
        raise SpecError(f"cannot read certificates from {os.fspath(verify)}: {error}") from error


def _about_tls(error: BaseException | None) -> ssl.SSLError | None:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _retry_after_s(answer: httpx.Response, failure: DsortError) -> float | None:
    """The wait in seconds that the service requests; None if the answer gives no hint that waiting
    helps."""
    if answer.status_code not in (429, 503):
        return None
    text = answer.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    if text:
        try:
            then = parsedate_to_datetime(text)
        except ValueError:
            return None
        then = then.replace(tzinfo=then.tzinfo or UTC)  # "-0000" is UTC, too
        return max((then - datetime.now(UTC)).total_seconds(), 0.0)
    return failure.retry_after_s if isinstance(failure, TooManyRequestsError) else None
