"""``/v1/jobs/{job_id}/events``: a job's events as they happen, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent

from dsort.service.http.jobs import SeenJob
from dsort.service.http.responses import problems
from dsort.service.jobs.rows import EventRow
from dsort.service.jobs.views import progress_view
from dsort.service.service import Service

__all__ = ["router"]


def router(service: Service) -> APIRouter:
    """The route of event streams."""
    routes = APIRouter(prefix="/v1/jobs", tags=["jobs"])

    @routes.get(
        "/{job_id}/events",
        response_class=EventSourceResponse,
        responses=problems(400, 401, 403, 404, 429),
        summary="Watch a job",
    )
    async def job_events(
        row: SeenJob,
        after: Annotated[int | None, Query(ge=0, lt=2**63, description=_AFTER)] = None,
        last_event_id: Annotated[str | None, Header(description=_AFTER)] = None,
    ) -> AsyncIterator[ServerSentEvent]:
        """Server-sent events, first those that there were, then each as it happens: `state`,
        `started`, `phase`, `progress`, `warning`, `log`; and `end` once the job is over. The `id`
        of an event, given as `Last-Event-ID`, goes on behind it.
        """
        if after is None and last_event_id is not None and last_event_id.isdecimal():
            after = min(int(last_event_id), 2**63 - 1)
        async for event in _stream(service, row.job_id, after or 0):
            yield event

    return routes


_AFTER = "Only events after the one of this number."


async def _stream(service: Service, job_id: str, after: int) -> AsyncIterator[ServerSentEvent]:
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
            while (live := await queue.get()) is not None:
                if live.number not in sent:
                    yield _sent(live, row.kind)
                if live.kind == "state":
                    sent.add(live.number)
                    after = max(after, live.number)
                    break
            else:
                return  # the service ends, or this stream was too slow: the client asks again


def _sent(event: EventRow, kind: str) -> ServerSentEvent:
    told = progress_view(event.data, kind) if event.kind == "progress" else event.data
    data: dict[str, Any] = {"at": event.at, **(told or {})}
    return ServerSentEvent(event=event.kind, id=str(event.number), data=data)
