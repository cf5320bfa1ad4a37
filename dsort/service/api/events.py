"""``/v1/jobs/{job_id}/events``: a job's events as they happen, as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from enum import Enum
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Header, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.exc import SQLAlchemyError

from dsort.data.total_json import to_json
from dsort.service.api import examples
from dsort.service.api.dependencies import Caller
from dsort.service.api.jobs import SeenJob
from dsort.service.api.responses import problems, shown
from dsort.service.change_feed import Subscriber
from dsort.service.jobs.rows import EventRow
from dsort.service.jobs.views import NOT_READ, progress_view
from dsort.service.service import Service

__all__ = ["router"]

LOOK_S: Final = 30.0
"""For so long a stream goes on after its token was removed, or an event was missed."""


def router(service: Service) -> APIRouter:
    """The route of event streams."""
    routes = APIRouter(prefix="/v1/jobs", tags=["jobs"])

    async def counted(identity: Caller) -> AsyncIterator[None]:
        with service.limits.stream(identity.name):
            yield

    @routes.get(
        "/{job_id}/events",
        dependencies=[Depends(counted)],
        response_class=EventSourceResponse,
        responses=shown(200, examples.EVENTS, media_type="text/event-stream")
        | problems(400, 401, 404, 429),
        summary="Watch a job",
    )
    async def job_events(
        row: SeenJob,
        identity: Caller,
        after: Annotated[int | None, Query(ge=0, lt=2**63, description=_AFTER)] = None,
        last_event_id: Annotated[str | None, Header(description=_AFTER)] = None,
    ) -> AsyncIterator[ServerSentEvent]:
        """Server-sent events, first those that there were, then each as it happens: `state`,
        `started`, `phase`, `progress`, `warning`, `log`; and `end` once the job is over. The `id`
        of an event, given as `Last-Event-ID`, goes on behind it.
        """
        behind = after or 0
        if last_event_id is not None and _NUMBER.fullmatch(last_event_id):
            behind = max(behind, int(last_event_id))  # who asks again does so at the same address

        def may_go_on() -> bool:
            now = service.identity_of(identity.name)
            return now is not None and now.may_see(row)

        with contextlib.suppress(SQLAlchemyError):  # the database is away: the client asks again
            async for event in _stream(service, row.job_id, behind, may_go_on):
                yield event

    return routes


class _Sign(Enum):
    LOOK = "look at the rows again"


LOOK: Final = _Sign.LOOK
_NUMBER = re.compile(r"[0-9]{1,18}")
_AFTER = "Only events after the one of this number."


async def _stream(
    service: Service, job_id: str, after: int, may_go_on: Callable[[], bool]
) -> AsyncIterator[ServerSentEvent]:
    asked = _Asked(may_go_on)
    sent: set[int] = set()  # of those read here, which the feed may bring as well
    with service.feed.watch(job_id) as queue:
        while True:
            row = await run_in_threadpool(service.store.get, job_id)
            if row is None:
                return
            while past := await run_in_threadpool(service.store.events_after, after, job_id=job_id):
                for event in past:
                    if event.number not in sent:
                        yield _sent(event, row.kind)
                sent.update(event.number for event in past)
                after = past[-1].number
            if row.ended:
                end = {"state": row.state, "exit_code": row.exit_code}
                yield ServerSentEvent(event="end", data=end)
                return
            while (live := await asked.next(queue)) is not LOOK:
                if live is None:
                    return  # the service ends, the token has, or the client was too slow: it asks
                if live.number not in sent:
                    yield _sent(live, row.kind)
                    sent.add(live.number)
                if live.kind == "state":
                    break
            else:
                sent = {number for number in sent if number > after}  # not for ever more


class _Asked:
    """Events of a subscriber. Every ``LOOK_S`` it asks whether that one may still have them, and
    has the rows looked at again: the feed may have missed one that took long to commit."""

    def __init__(self, may_go_on: Callable[[], bool]) -> None:
        self._may_go_on = may_go_on
        self._look_at = time.monotonic() + LOOK_S

    async def next(self, queue: Subscriber) -> EventRow | Literal[_Sign.LOOK] | None:
        """The next event; None is the end."""
        try:
            async with asyncio.timeout(self._look_at - time.monotonic()):
                return await queue.get()
        except TimeoutError:
            self._look_at = time.monotonic() + LOOK_S
            return LOOK if await run_in_threadpool(self._may_go_on) else None


def _sent(event: EventRow, kind: str) -> ServerSentEvent:
    told: Mapping[str, Any] | None = event.data
    if event.kind == "progress":
        with contextlib.suppress(*NOT_READ):  # else as it is: the stream goes on
            told = progress_view(event.data, kind)
    data: dict[str, Any] = {"at": event.at, **(told or {})}
    return ServerSentEvent(event=event.kind, id=str(event.number), raw_data=to_json(data))
