"""``AsyncClient``: all functions of a service, as methods to await."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from dsort.client import calls
from dsort.client.calls import Call, Page
from dsort.client.client import (
    TIMEOUT_S,
    Answer,
    How,
    Item,
    Method,
    named,
    named_service,
    token_of,
    trusted,
)
from dsort.client.events import JobEvent, LogTail, await_events
from dsort.client.transport import AsyncTransport, Patience
from dsort.client.values import Job

__all__ = ["AsyncClient"]


def _awaited(request: Callable[How, Call[Answer]]) -> Method[How, Coroutine[Any, Any, Answer]]:
    """The method that sends a request, to be awaited."""

    async def method(self: _Part, /, *args: How.args, **how: How.kwargs) -> Answer:
        return await self._transport.call(request(*args, **how))

    return named(method, request)


def _listed(request: Callable[How, Call[Page[Item]]]) -> Method[How, AsyncIterator[Item]]:
    """The method that reads a list page by page, for ``async for``."""

    def method(self: _Part, /, *args: How.args, **how: How.kwargs) -> AsyncIterator[Item]:
        return self._transport.pages(request(*args, **how))

    return named(method, request)


class _Part:
    """Some functions of a service."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport


class AsyncSchedules(_Part):
    """``client.schedules``: the methods of ``Client.schedules``, awaited."""

    add = _awaited(calls.add_schedule)
    replace = _awaited(calls.replace_schedule)
    list = _awaited(calls.list_schedules)
    get = _awaited(calls.get_schedule)
    remove = _awaited(calls.remove_schedule)
    pause = _awaited(calls.pause_schedule)
    resume = _awaited(calls.resume_schedule)
    run_now = _awaited(calls.run_schedule_now)
    runs = _awaited(calls.runs_of_schedule)


class AsyncTransforms(_Part):
    """``client.transforms``: the methods of ``Client.transforms``, awaited."""

    put = _awaited(calls.put_transform)
    get = _awaited(calls.get_transform)
    list = _listed(calls.list_transforms)
    remove = _awaited(calls.remove_transform)


class AsyncTokens(_Part):
    """``client.tokens``: the methods of ``Client.tokens``, awaited."""

    add = _awaited(calls.add_token)
    list = _awaited(calls.list_tokens)
    remove = _awaited(calls.remove_token)


class AsyncData(_Part):
    """``client.data``: the methods of ``Client.data``, awaited; lists are for ``async for``."""

    shards = _listed(calls.list_shards)
    objects = _listed(calls.list_objects)
    garbage = _awaited(calls.find_garbage)
    records = _listed(calls.list_records)
    show = _awaited(calls.show_records)
    sample = _awaited(calls.sample_records)
    changed = _awaited(calls.changed_record)
    read = _awaited(calls.read_member)


class AsyncClient(_Part):
    """A dsort service, for Python with an event loop: the methods of ``Client``, awaited.

    Arguments, answers and errors are those of ``Client``. ``list``, ``events`` and ``follow_log``
    are for ``async for``::

        async with dsort.AsyncClient("http://127.0.0.1:8080") as client:
            job = await client.submit("shuffle.yaml")
            async for event in client.events(job.job_id):
                print(event.kind)
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        token_file: str | Path | None = None,
        timeout_s: float = TIMEOUT_S,
        verify: bool | str | Path | ssl.SSLContext | None = None,
        patience: Patience | None = None,
        on_wait: Callable[[str], None] | None = None,
        http: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        transport = AsyncTransport(
            named_service(url),
            token_of(token, token_file),
            timeout_s=timeout_s,
            verify=trusted(verify),
            patience=patience or Patience(),
            on_wait=on_wait,
            http=http,
        )
        super().__init__(transport)
        self.schedules = AsyncSchedules(transport)
        self.transforms = AsyncTransforms(transport)
        self.data = AsyncData(transport)
        self.tokens = AsyncTokens(transport)

    def __repr__(self) -> str:
        return f"<AsyncClient {self.url}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def url(self) -> str:
        """The service's address."""
        return self._transport.url

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    submit = _awaited(calls.submit)
    get = _awaited(calls.get)
    list = _listed(calls.list_jobs)
    stop = _awaited(calls.stop)
    resume = _awaited(calls.resume)
    retry = _awaited(calls.retry)
    remove = _awaited(calls.remove)
    manifest = _awaited(calls.manifest)
    report = _awaited(calls.report)
    log = _awaited(calls.log)
    page = _awaited(calls.page)
    validate = _awaited(calls.validate)
    schema = _awaited(calls.schema)
    whoami = _awaited(calls.whoami)

    async def find(self, job: str) -> Job:
        """The job whose id is ``job`` or begins with it; see ``Client.find``."""
        job = job.removeprefix("srt-")
        if calls.WHOLE_ID.fullmatch(job):
            return await self.get(job)
        found = [each async for each in self.list(text=job) if each.job_id.startswith(job)]
        return await self.get(calls.only_one(job, found))

    async def wait(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        on_event: Callable[[JobEvent], None] | None = None,
    ) -> Job:
        """The job once it has ended; see ``Client.wait``."""
        return (await self.wait_all([job_id], timeout_s=timeout_s, on_event=on_event))[0]

    async def wait_all(
        self,
        job_ids: Iterable[str],
        *,
        timeout_s: float | None = None,
        on_event: Callable[[JobEvent], None] | None = None,
    ) -> tuple[Job, ...]:
        """The jobs, in this order, once all of them have ended; see ``Client.wait_all``."""
        deadline_s = None if timeout_s is None else self._transport.clock() + timeout_s
        ended = []
        for job_id in job_ids:
            async for event in await_events(self._transport, job_id, deadline_s=deadline_s):
                if on_event is not None:
                    on_event(event)
            ended.append(await self.get(job_id))
        return tuple(ended)

    def events(self, job_id: str, *, after: int = 0) -> AsyncIterator[JobEvent]:
        """The events of a job, to its end; see ``Client.events``."""
        return await_events(self._transport, job_id, after=after)

    async def follow_log(self, job_id: str) -> AsyncIterator[str]:
        """The log in pieces of whole lines, as it grows, until the job has ended."""
        tail = LogTail()
        while True:
            ended = (await self.get(job_id)).ended
            more = tail.grown(await self.log(job_id), ended=ended)
            if more:
                yield more
            if ended:
                return
            await asyncio.sleep(tail.delay_s)
