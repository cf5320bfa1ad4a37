"""``AsyncClient``: all functions of a service, as methods to await."""

from __future__ import annotations

import asyncio
import builtins
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dsort.client.async_transport import AsyncTransport
from dsort.client.client import (
    LOG_DELAY_MAX_S,
    LOG_DELAY_S,
    TIMEOUT_S,
    behind,
    jobs_query,
    named_service,
    token_of,
    trusted,
)
from dsort.client.events import JobEvent, await_events
from dsort.client.transport import Patience, Query
from dsort.client.values import Identity, Job, Schedule, ScheduleRun, Validation
from dsort.results.report import JobReport

if TYPE_CHECKING:
    import httpx

    from dsort.spec.model import JobSpec

__all__ = ["AsyncClient", "AsyncData", "AsyncSchedules", "AsyncTokens", "AsyncTransforms"]


class AsyncClient:
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
        self._transport = AsyncTransport(
            named_service(url),
            token_of(token, token_file),
            timeout_s=timeout_s,
            verify=trusted(verify),
            patience=patience or Patience(),
            on_wait=on_wait,
            http=http,
        )
        self.schedules = AsyncSchedules(self._transport)
        self.transforms = AsyncTransforms(self._transport)
        self.data = AsyncData(self._transport)
        self.tokens = AsyncTokens(self._transport)

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

    async def submit(
        self,
        spec: Mapping[str, Any] | JobSpec | str | Path,
        *,
        priority: int = 0,
        labels: Iterable[str] = (),
        description: str = "",
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Job:
        """Put a job into the queue; see ``Client.submit``."""
        named = tuple(labels)  # an iterator would be used up: the method runs more than once
        return await self._transport.replay(
            lambda client: client.submit(
                spec,
                priority=priority,
                labels=named,
                description=description,
                dry_run=dry_run,
                idempotency_key=idempotency_key,
            )
        )

    async def get(self, job_id: str) -> Job:
        """One job, with its spec and, once it has ended, its result."""
        return await self._transport.replay(lambda client: client.get(job_id))

    async def find(self, job: str) -> Job:
        """The job whose id is ``job`` or begins with it; see ``Client.find``."""
        return await self._transport.replay(lambda client: client.find(job))

    async def list(
        self,
        *,
        state: str | Sequence[str] = (),
        owner: str | None = None,
        label: str | Sequence[str] = (),
        since: datetime | str | None = None,
        kind: str | None = None,
        schedule: str | None = None,
        text: str = "",
        limit: int | None = None,
    ) -> AsyncIterator[Job]:
        """Jobs, newest first, requested page by page; see ``Client.list``."""
        given = {"owner": owner, "kind": kind, "schedule": schedule}
        query = jobs_query(state, label, since, given, text)
        left, cursor = limit, None
        while left is None or left > 0:
            jobs, cursor = await self._page_of_jobs(query, left, cursor)
            for job in jobs:
                yield job
            left = None if left is None else left - len(jobs)
            if not cursor:
                return

    async def _page_of_jobs(
        self, query: Query, left: int | None, cursor: str | None
    ) -> tuple[Sequence[Job], str | None]:
        return await self._transport.replay(lambda client: client.page_of_jobs(query, left, cursor))

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
        clock = self._transport.words.clock
        deadline_s = None if timeout_s is None else clock() + timeout_s
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

    async def stop(self, job_id: str, *, reason: str = "") -> Job:
        """Request a job to stop; ``wait`` returns when it has stopped."""
        return await self._transport.replay(lambda client: client.stop(job_id, reason=reason))

    async def resume(self, job_id: str) -> Job:
        """Resume a job that failed or was stopped, from what is done."""
        return await self._transport.replay(lambda client: client.resume(job_id))

    async def retry(self, job_id: str) -> Job:
        """Submit the job again, as a new job with the same spec and seed."""
        return await self._transport.replay(lambda client: client.retry(job_id))

    async def remove(self, job_id: str) -> None:
        """Remove a job that has ended. Its outputs stay."""
        await self._transport.replay(lambda client: client.remove(job_id))

    async def manifest(self, job_id: str) -> Mapping[str, Any]:
        """The manifest of a finished job."""
        return await self._transport.replay(lambda client: client.manifest(job_id))

    async def report(self, job_id: str) -> JobReport:
        """The report of a job; of a plan, the report of what the job would do."""
        return await self._transport.replay(lambda client: client.report(job_id))

    async def log(self, job_id: str) -> str:
        """The log of the job's process so far."""
        return await self._transport.replay(lambda client: client.log(job_id))

    async def follow_log(self, job_id: str) -> AsyncIterator[str]:
        """The log in pieces of whole lines, as it grows, until the job has ended."""
        seen, delay_s = "", LOG_DELAY_S
        while True:
            ended = (await self.get(job_id)).ended
            text = await self.log(job_id)
            if not ended:
                text = text[: text.rfind("\n") + 1]
            more = behind(seen, text)
            if more:
                seen, delay_s = text, LOG_DELAY_S
                yield more
            if ended:
                return
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, LOG_DELAY_MAX_S)

    async def page(self, job_id: str) -> Mapping[str, Any]:
        """All data of a job's web page."""
        return await self._transport.replay(lambda client: client.page(job_id))

    async def validate(self, spec: Mapping[str, Any] | JobSpec | str | Path) -> Validation:
        """Check a spec; ``SpecError`` with all its problems."""
        return await self._transport.replay(lambda client: client.validate(spec))

    async def schema(self) -> Mapping[str, Any]:
        """The JSON Schema of a job spec."""
        return await self._transport.replay(lambda client: client.schema())

    async def whoami(self) -> Identity:
        """The identity that the service has for this client's token, with its rights."""
        return await self._transport.replay(lambda client: client.whoami())


class AsyncSchedules:
    """``client.schedules``: the methods of ``Client.schedules``, awaited."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def add(self, name: str, definition: Mapping[str, Any]) -> Schedule:
        """Make a schedule."""
        return await self._transport.replay(lambda c: c.schedules.add(name, definition))

    async def replace(self, name: str, definition: Mapping[str, Any]) -> Schedule:
        """Replace the definition of the schedule."""
        return await self._transport.replay(lambda c: c.schedules.replace(name, definition))

    async def list(self) -> builtins.list[Schedule]:
        """All schedules that the token may see."""
        return await self._transport.replay(lambda c: c.schedules.list())

    async def get(self, name: str) -> Schedule:
        """One schedule, with the next times at which it is due."""
        return await self._transport.replay(lambda c: c.schedules.get(name))

    async def remove(self, name: str) -> None:
        """Remove a schedule. Its jobs and their results stay."""
        await self._transport.replay(lambda c: c.schedules.remove(name))

    async def pause(self, name: str) -> Schedule:
        """Pause a schedule: it is not due until it is resumed."""
        return await self._transport.replay(lambda c: c.schedules.pause(name))

    async def resume(self, name: str) -> Schedule:
        """Resume a paused schedule."""
        return await self._transport.replay(lambda c: c.schedules.resume(name))

    async def run_now(self, name: str) -> ScheduleRun:
        """Make a job of the schedule now, besides its due times."""
        return await self._transport.replay(lambda c: c.schedules.run_now(name))

    async def runs(self, name: str, *, limit: int = 500) -> tuple[ScheduleRun, ...]:
        """The runs of a schedule, the newest first."""
        return await self._transport.replay(lambda c: c.schedules.runs(name, limit=limit))


class AsyncTransforms:
    """``client.transforms``: the methods of ``Client.transforms``, awaited."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def put(self, name: str, transform: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        """(the newest version of ``name``, which has these steps; whether it is new)."""
        return await self._transport.replay(lambda c: c.transforms.put(name, transform))

    async def get(self, name: str) -> Mapping[str, Any]:
        """The newest version of ``name``, or version 3 for ``name@3``."""
        return await self._transport.replay(lambda c: c.transforms.get(name))

    async def list(self) -> AsyncIterator[Mapping[str, Any]]:
        """All versions, the newest first."""
        for each in await self._transport.replay(lambda c: [*c.transforms.list()]):
            yield each

    async def remove(self, name: str) -> None:
        """Remove a transform, or only version 3 for ``name@3``."""
        await self._transport.replay(lambda c: c.transforms.remove(name))


class AsyncTokens:
    """``client.tokens``: the methods of ``Client.tokens``, awaited."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def add(
        self,
        name: str,
        role: str,
        *,
        input_buckets: Sequence[str] = ("*",),
        output_buckets: Sequence[str] = ("*",),
        expires_in_s: float | None = None,
    ) -> Mapping[str, Any]:
        """Make a token. Only this answer has its text, as ``token``."""
        return await self._transport.replay(
            lambda c: c.tokens.add(
                name,
                role,
                input_buckets=input_buckets,
                output_buckets=output_buckets,
                expires_in_s=expires_in_s,
            )
        )

    async def list(self) -> builtins.list[Mapping[str, Any]]:
        """All tokens, expired ones too."""
        return await self._transport.replay(lambda c: c.tokens.list())

    async def remove(self, name: str) -> None:
        """Remove a token. The jobs of its holder stay."""
        await self._transport.replay(lambda c: c.tokens.remove(name))


class AsyncData:
    """``client.data``: the methods of ``Client.data``, awaited; ``shards`` and ``records`` are for
    ``async for``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def shards(self, bucket: str, *, text: str = "") -> AsyncIterator[Mapping[str, Any]]:
        """The shards of a bucket, page by page."""
        cursor = ""
        while True:
            rows, cursor = await self._page_of_shards(bucket, text, cursor)
            for row in rows:
                yield row
            if not cursor:
                return

    async def objects(self, bucket: str, *, prefix: str = "") -> AsyncIterator[Mapping[str, Any]]:
        """All objects of a bucket, in byte order of their names."""
        for each in await self._transport.replay(
            lambda c: [*c.data.objects(bucket, prefix=prefix)]
        ):
            yield each

    async def garbage(
        self, bucket: str, *, older_than_s: float = 86_400.0
    ) -> Sequence[Mapping[str, Any]]:
        """The files that interrupted jobs left in a bucket."""
        return await self._transport.replay(
            lambda c: c.data.garbage(bucket, older_than_s=older_than_s)
        )

    async def records(
        self, bucket: str, shard: str, *, first: int = 0, text: str = ""
    ) -> AsyncIterator[Mapping[str, Any]]:
        """The records of a shard, page by page."""
        after: int | None = first
        while after is not None:
            rows, after = await self._page_of_records(bucket, shard, after, text)
            for row in rows:
                yield row

    async def show(self, bucket: str, shard: str, *numbers: int) -> Sequence[Mapping[str, Any]]:
        """These records, with previews of their members."""
        return await self._transport.replay(lambda c: c.data.show(bucket, shard, *numbers))

    async def sample(
        self, bucket: str, shard: str, count: int, *, seed: str = ""
    ) -> Sequence[Mapping[str, Any]]:
        """``count`` records at random, in the form of ``show``."""
        return await self._transport.replay(
            lambda c: c.data.sample(bucket, shard, count, seed=seed)
        )

    async def changed(
        self, bucket: str, shard: str, number: int, transform: str
    ) -> Mapping[str, Any]:
        """A record, and what a named transform makes of it."""
        return await self._transport.replay(
            lambda c: c.data.changed(bucket, shard, number, transform)
        )

    async def read(self, bucket: str, shard: str, number: int, member: int = 0) -> bytes:
        """The bytes of one member of a record."""
        return await self._transport.replay(lambda c: c.data.read(bucket, shard, number, member))

    async def _page_of_shards(
        self, bucket: str, text: str, cursor: str
    ) -> tuple[Sequence[Mapping[str, Any]], str]:
        return await self._transport.replay(lambda c: c.data.page_of_shards(bucket, text, cursor))

    async def _page_of_records(
        self, bucket: str, shard: str, first: int, text: str
    ) -> tuple[Sequence[Mapping[str, Any]], int | None]:
        return await self._transport.replay(
            lambda c: c.data.page_of_records(bucket, shard, first, text)
        )
