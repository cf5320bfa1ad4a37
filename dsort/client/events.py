"""Events of a service's job as they happen: typed values from a stream that survives reconnects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import httpx
from httpx_sse import EventSource, ServerSentEvent, SSEError
from msgspec import Struct

from dsort.client.transport import AsyncTransport, Connection, Transport, UnavailableError
from dsort.client.values import WaitTimeoutError, known
from dsort.errors import DsortError, ServiceError
from dsort.log_lines import logger_of
from dsort.results.report import Event, JobStarted, JobWarning, PhaseDone, Progress
from dsort.retry import Failures, RetryPolicy

LOG_DELAY_S = 0.5
LOG_DELAY_MAX_S = 4.0
LOG_OVERLAP = 4096

RECONNECT_DELAY_S = 0.2
RECONNECT_DELAY_MAX_S = 5.0

log = logger_of("client")


class StateChanged(Struct, frozen=True):
    """The job is now queued, running, finished, failed or stopped."""

    job_id: str
    state: str
    attempt: int = 0
    reason: str | None = None


class LogText(Struct, frozen=True):
    """A piece of the job's log."""

    job_id: str
    text: str


class JobEnded(Struct, frozen=True):
    """The job has ended; no more events follow."""

    job_id: str
    state: str
    exit_code: int | None = None


Happening = Event | StateChanged | LogText | JobEnded | Mapping[str, Any]

_KINDS: Mapping[str, type[Event] | type[StateChanged] | type[LogText] | type[JobEnded]] = {
    "state": StateChanged,
    "started": JobStarted,
    "phase": PhaseDone,
    "progress": Progress,
    "warning": JobWarning,
    "log": LogText,
    "end": JobEnded,
}


class JobEvent(Struct, frozen=True):
    """One event. ``number``: grows from event to event; pass it as ``events(after=...)`` to get the
    following events. ``value``: an object of the class for its ``kind``, or the data as received
    for a kind that only newer services send."""

    number: int
    kind: str  # state | started | phase | progress | warning | log | end
    value: Happening


def stream_events(
    transport: Transport, job_id: str, *, after: int = 0, deadline_s: float | None = None
) -> Iterator[JobEvent]:
    """The events of a job after number ``after``, until it has ended.

    If a stream breaks off, the client requests the stream again from the last event on, for as long
    as the transport's patience lasts; then the client raises the error of the last try.
    ``deadline_s``: ``WaitTimeoutError`` is raised from this time on (of the transport's clock).
    """
    failures = _failures(transport)  # not policy.call, because events are yielded in between
    while True:
        failure = _ended(transport)
        try:
            for event in _one_stream(transport, job_id, after, deadline_s):
                after = event.number
                failures.clear()
                yield event
                if event.kind == "end":
                    return
        except UnavailableError as error:
            failure = error.failure
        except httpx.TransportError as error:
            failure = transport.failure(error)
        transport.sleep(_delay_s(transport, failures, failure, job_id, deadline_s))


async def await_events(
    transport: AsyncTransport, job_id: str, *, after: int = 0, deadline_s: float | None = None
) -> AsyncIterator[JobEvent]:
    """The same as :func:`stream_events`, from within an event loop."""
    failures = _failures(transport)
    while True:
        failure = _ended(transport)
        try:
            left_s = None if deadline_s is None else max(deadline_s - transport.clock(), 0.0)
            async with asyncio.timeout(left_s):
                async for event in _one_awaited(transport, job_id, after):
                    after = event.number
                    failures.clear()
                    yield event
                    if event.kind == "end":
                        return
        except UnavailableError as error:
            failure = error.failure
        except httpx.TransportError as error:
            failure = transport.failure(error)
        except TimeoutError:
            pass  # the deadline has passed: the next lines raise the error
        await asyncio.sleep(_delay_s(transport, failures, failure, job_id, deadline_s))


async def _one_awaited(
    transport: AsyncTransport, job_id: str, after: int
) -> AsyncIterator[JobEvent]:
    async with transport.stream(_path(job_id), headers=_headers(after)) as answer:
        _refuse(transport, answer)
        try:
            async for sent in EventSource(answer).aiter_sse():
                if sent.data:
                    event = _event_of(sent, job_id, after)
                    after = event.number
                    yield event
        except SSEError as error:
            raise transport.not_ours(answer) from error


def _failures(transport: Connection) -> Failures:
    return Failures(
        RetryPolicy(
            tries_max=None,
            seconds_max=transport.patience.reconnect_max_s,
            delay_s_min=RECONNECT_DELAY_S / 2,
            delay_s_max=RECONNECT_DELAY_MAX_S,
            clock=transport.clock,
            sleep=transport.sleep,
            uniform=transport.uniform,
        )
    )


def _ended(transport: Connection) -> DsortError:
    return ServiceError(f"the service at {transport.url} ended the stream of events")


def _delay_s(
    transport: Connection,
    failures: Failures,
    failure: DsortError,
    job_id: str,
    deadline_s: float | None,
) -> float:
    """How many seconds to wait before a stream is requested again. ``WaitTimeoutError`` after the
    deadline; ``failure`` if tries or time are used up."""
    now_s = transport.clock()
    if deadline_s is not None and now_s >= deadline_s:
        raise WaitTimeoutError(f"job {job_id} has not ended within the time given")
    delay_s = failures.add()
    if delay_s is None:
        raise failure
    log.debug(
        "the client requests the events of job %s again in %.1f s: %s", job_id, delay_s, failure
    )
    if failures.policy.longest_delay_s(failures.count) == RECONNECT_DELAY_MAX_S:
        transport.tell(f"{failure.message}; trying for {failures.seconds_left:.0f} s more")
    return delay_s if deadline_s is None else min(delay_s, deadline_s - now_s)


def _path(job_id: str) -> str:
    return f"/v1/jobs/{job_id}/events"


def _headers(after: int) -> dict[str, str]:
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    return {**headers, "Last-Event-ID": str(after)} if after else headers


def _refuse(transport: Connection, answer: httpx.Response) -> None:
    """Raise the error in an answer that is no stream of events."""
    if not answer.is_success:
        failure = transport.error(answer)
        if isinstance(failure, ServiceError) and answer.status_code in (429, 502, 503, 504):
            raise UnavailableError(failure)
        raise failure


def _one_stream(
    transport: Transport, job_id: str, after: int, deadline_s: float | None
) -> Iterator[JobEvent]:
    left_s = None if deadline_s is None else max(deadline_s - transport.clock(), 0.0)
    with (
        transport.stream(_path(job_id), headers=_headers(after)) as answer,
        _cut_off(answer, left_s),
    ):
        _refuse(transport, answer)
        try:
            for sent in EventSource(answer).iter_sse():
                if not sent.data:
                    # The parser yields an event for a comment that only keeps the stream open.
                    continue
                event = _event_of(sent, job_id, after)
                after = event.number
                yield event
        except SSEError as error:
            raise transport.not_ours(answer) from error


def _event_of(sent: ServerSentEvent, job_id: str, after: int) -> JobEvent:
    number = int(sent.id) if sent.id.isdecimal() else after
    try:
        data = json.loads(sent.data)
    except ValueError as error:
        raise ServiceError(f"the event {number} of job {job_id} is no JSON") from error
    kind = _KINDS.get(sent.event)
    if kind is None:
        return JobEvent(number, sent.event, data if isinstance(data, Mapping) else {"data": data})
    return JobEvent(number, sent.event, known(kind, data, job_id=job_id))


@contextlib.contextmanager
def _cut_off(answer: httpx.Response, left_s: float | None) -> Iterator[None]:
    """End the reading of ``answer`` after ``left_s`` seconds, even if the service sends nothing."""
    connection = answer.extensions.get("network_stream")
    here = connection.get_extra_info("socket") if connection is not None else None
    if left_s is None or not isinstance(here, socket.socket):
        yield
        return
    timer = threading.Timer(left_s, _shut, (here,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may be closed already
        # Not the method of an SSL socket, which would remove the state that the reading thread
        # uses.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class LogTail:
    """The part of a growing log that was not seen yet, and how long to wait for more."""

    def __init__(self) -> None:
        self._seen = ""
        self.delay_s = LOG_DELAY_S
        """Seconds until the log is read again."""

    def grown(self, text: str, *, ended: bool) -> str:
        """The part of ``text`` after what was seen: whole lines, unless the job has ended."""
        text = text if ended else text[: text.rfind("\n") + 1]
        more = _behind(self._seen, text)
        self.delay_s = LOG_DELAY_S if more else min(self.delay_s * 2, LOG_DELAY_MAX_S)
        self._seen = text if more else self._seen
        return more


def _behind(seen: str, text: str) -> str:
    """The part of ``text`` after ``seen``; a long log may have lost its beginning."""
    if text.startswith(seen):
        return text[len(seen) :]
    at = text.rfind(seen[-LOG_OVERLAP:])
    return text if at < 0 else text[at + len(seen[-LOG_OVERLAP:]) :]
