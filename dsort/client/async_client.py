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

from dsort.client import calls
from dsort.client.async_transport import AsyncTransport
from dsort.client.calls import LogTail, Row
from dsort.client.client import TIMEOUT_S, named_service, token_of, trusted
from dsort.client.events import JobEvent, await_events
from dsort.client.parts import RUNS_MAX
from dsort.client.transport import Patience
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
        transport = AsyncTransport(
            named_service(url),
            token_of(token, token_file),
            timeout_s=timeout_s,
            verify=trusted(verify),
            patience=patience or Patience(),
            on_wait=on_wait,
            http=http,
        )
        self._transport = transport
        self._call = transport.call
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
        return await self._call(
            calls.submit(
                spec,
                priority=priority,
                labels=labels,
                description=description,
                dry_run=dry_run,
                idempotency_key=idempotency_key,
            )
        )

    async def get(self, job_id: str) -> Job:
        """One job, with its spec and, once it has ended, its result."""
        return await self._call(calls.get(job_id))

    async def find(self, job: str) -> Job:
        """The job whose id is ``job`` or begins with it; see ``Client.find``."""
        job = job.removeprefix("srt-")
        if calls.WHOLE_ID.fullmatch(job):
            return await self.get(job)
        found = [each async for each in self.list(text=job) if each.job_id.startswith(job)]
        return await self.get(calls.only_one(job, found))

    def list(
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
        found = calls.list_jobs(
            state=state,
            owner=owner,
            label=label,
            since=since,
            kind=kind,
            schedule=schedule,
            text=text,
            limit=limit,
        )
        return self._transport.pages(found)

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
        return await self._call(calls.stop(job_id, reason))

    async def resume(self, job_id: str) -> Job:
        """Resume a job that failed or was stopped, from what is done."""
        return await self._call(calls.resume(job_id))

    async def retry(self, job_id: str) -> Job:
        """Submit the job again, as a new job with the same spec and seed."""
        return await self._call(calls.retry(job_id))

    async def remove(self, job_id: str) -> None:
        """Remove a job that has ended. Its outputs stay."""
        await self._call(calls.remove(job_id))

    async def manifest(self, job_id: str) -> Mapping[str, Any]:
        """The manifest of a finished job."""
        return await self._call(calls.manifest(job_id))

    async def report(self, job_id: str) -> JobReport:
        """The report of a job; of a plan, the report of what the job would do."""
        return await self._call(calls.report(job_id))

    async def log(self, job_id: str) -> str:
        """The log of the job's process so far."""
        return await self._call(calls.log(job_id))

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

    async def page(self, job_id: str) -> Mapping[str, Any]:
        """All data of a job's web page."""
        return await self._call(calls.page(job_id))

    async def validate(self, spec: Mapping[str, Any] | JobSpec | str | Path) -> Validation:
        """Check a spec; ``SpecError`` with all its problems."""
        return await self._call(calls.validate(spec))

    async def schema(self) -> Mapping[str, Any]:
        """The JSON Schema of a job spec."""
        return await self._call(calls.schema())

    async def whoami(self) -> Identity:
        """The identity that the service has for this client's token, with its rights."""
        return await self._call(calls.whoami())


class AsyncSchedules:
    """``client.schedules``: the methods of ``Client.schedules``, awaited."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._call = transport.call

    async def add(self, name: str, definition: Mapping[str, Any]) -> Schedule:
        """Make a schedule."""
        return await self._call(calls.add_schedule(name, definition))

    async def replace(self, name: str, definition: Mapping[str, Any]) -> Schedule:
        """Replace the definition of the schedule."""
        return await self._call(calls.replace_schedule(name, definition))

    async def list(self) -> builtins.list[Schedule]:
        """All schedules that the token may see."""
        return await self._call(calls.list_schedules())

    async def get(self, name: str) -> Schedule:
        """One schedule, with the next times at which it is due."""
        return await self._call(calls.get_schedule(name))

    async def remove(self, name: str) -> None:
        """Remove a schedule. Its jobs and their results stay."""
        await self._call(calls.remove_schedule(name))

    async def pause(self, name: str) -> Schedule:
        """Pause a schedule: it is not due until it is resumed."""
        return await self._call(calls.pause_schedule(name))

    async def resume(self, name: str) -> Schedule:
        """Resume a paused schedule."""
        return await self._call(calls.resume_schedule(name))

    async def run_now(self, name: str) -> ScheduleRun:
        """Make a job of the schedule now, besides its due times."""
        return await self._call(calls.run_schedule_now(name))

    async def runs(self, name: str, *, limit: int = RUNS_MAX) -> tuple[ScheduleRun, ...]:
        """The runs of a schedule, the newest first."""
        return await self._call(calls.runs_of_schedule(name, limit))


class AsyncTransforms:
    """``client.transforms``: the methods of ``Client.transforms``, awaited."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._call = transport.call

    async def put(self, name: str, transform: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        """(the newest version of ``name``, which has these steps; whether it is new)."""
        return await self._call(calls.put_transform(name, transform))

    async def get(self, name: str) -> Mapping[str, Any]:
        """The newest version of ``name``, or version 3 for ``name@3``."""
        return await self._call(calls.get_transform(name))

    def list(self) -> AsyncIterator[Row]:
        """All versions, the newest first."""
        return self._transport.pages(calls.list_transforms())

    async def remove(self, name: str) -> None:
        """Remove a transform, or only version 3 for ``name@3``."""
        await self._call(calls.remove_transform(name))


class AsyncTokens:
    """``client.tokens``: the methods of ``Client.tokens``, awaited."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._call = transport.call

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
        return await self._call(
            calls.add_token(
                name,
                role,
                input_buckets=input_buckets,
                output_buckets=output_buckets,
                expires_in_s=expires_in_s,
            )
        )

    async def list(self) -> builtins.list[Mapping[str, Any]]:
        """All tokens, expired ones too."""
        return await self._call(calls.list_tokens())

    async def remove(self, name: str) -> None:
        """Remove a token. The jobs of its holder stay."""
        await self._call(calls.remove_token(name))


class AsyncData:
    """``client.data``: the methods of ``Client.data``, awaited; ``shards`` and ``records`` are for
    ``async for``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._call = transport.call

    def shards(self, bucket: str, *, text: str = "") -> AsyncIterator[Row]:
        """The shards of a bucket, page by page."""
        return self._transport.pages(calls.list_shards(bucket, text))

    def objects(self, bucket: str, *, prefix: str = "") -> AsyncIterator[Row]:
        """All objects of a bucket, in byte order of their names."""
        return self._transport.pages(calls.list_objects(bucket, prefix))

    async def garbage(self, bucket: str, *, older_than_s: float = 86_400.0) -> Sequence[Row]:
        """The files that interrupted jobs left in a bucket."""
        return await self._call(calls.find_garbage(bucket, older_than_s))

    def records(
        self, bucket: str, shard: str, *, first: int = 0, text: str = ""
    ) -> AsyncIterator[Row]:
        """The records of a shard, page by page."""
        return self._transport.pages(calls.list_records(bucket, shard, first, text))

    async def show(self, bucket: str, shard: str, *numbers: int) -> Sequence[Row]:
        """These records, with previews of their members."""
        return await self._call(calls.show_records(bucket, shard, numbers))

    async def sample(self, bucket: str, shard: str, count: int, *, seed: str = "") -> Sequence[Row]:
        """``count`` records at random, in the form of ``show``."""
        return await self._call(calls.sample_records(bucket, shard, count, seed))

    async def changed(self, bucket: str, shard: str, number: int, transform: str) -> Row:
        """A record, and what a named transform makes of it."""
        return await self._call(calls.changed_record(bucket, shard, number, transform))

    async def read(self, bucket: str, shard: str, number: int, member: int = 0) -> bytes:
        """The bytes of one member of a record."""
        return await self._call(calls.read_member(bucket, shard, number, member))
