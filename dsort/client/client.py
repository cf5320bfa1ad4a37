"""``DsortClient``: all functions of a service, as methods; and its parts ``client.schedules``,
``.transforms``, ``.tokens`` and ``.data``. ``AsyncClient`` has the same methods, to await."""

from __future__ import annotations

import asyncio
import inspect
import os
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

import httpx

from dsort.client import calls
from dsort.client.calls import Call, Page
from dsort.client.events import JobEvent, LogTail, await_events, stream_events
from dsort.client.transport import AsyncTransport, Patience, Transport
from dsort.client.values import Job
from dsort.closing import ClosesOnExit
from dsort.errors import SpecError

TIMEOUT_S = 30.0

How = ParamSpec("How")
Answer = TypeVar("Answer", covariant=True)
Item = TypeVar("Item", covariant=True)
Link = TypeVar("Link", bound=Transport | AsyncTransport)


class _Part(Generic[Link]):
    """Some functions of a service. Through an ``AsyncTransport`` they are awaited."""

    def __init__(self, transport: Link) -> None:
        self._transport = transport


class _Sends(Protocol[How, Answer]):
    """A method that sends one request, as type checkers see it."""

    @overload
    def __get__(self, part: _Part[Transport], kind: Any = None) -> Callable[How, Answer]: ...
    @overload
    def __get__(
        self, part: _Part[AsyncTransport], kind: Any = None
    ) -> Callable[How, Coroutine[Any, Any, Answer]]: ...


class _Lists(Protocol[How, Item]):
    """A method that reads a list page by page, as type checkers see it."""

    @overload
    def __get__(
        self, part: _Part[Transport], kind: Any = None
    ) -> Callable[How, Iterator[Item]]: ...
    @overload
    def __get__(
        self, part: _Part[AsyncTransport], kind: Any = None
    ) -> Callable[How, AsyncIterator[Item]]: ...


def _sent(request: Callable[How, Call[Answer]]) -> _Sends[How, Answer]:
    """The method that sends a request, and returns the answer or, through an ``AsyncTransport``, a
    coroutine of the answer."""

    def method(self: _Part[Any], /, *args: How.args, **how: How.kwargs) -> Any:
        return self._transport.call(request(*args, **how))

    return cast(_Sends[How, Answer], _named(method, request))


def _listed(request: Callable[How, Call[Page[Item]]]) -> _Lists[How, Item]:
    """The method that reads a list page by page."""

    def method(self: _Part[Any], /, *args: How.args, **how: How.kwargs) -> Any:
        return self._transport.pages(request(*args, **how))

    return cast(_Lists[How, Item], _named(method, request))


def _named(method: Any, request: Callable[..., Any]) -> Any:
    """``method`` with the parameters and the docstring of ``request``, for ``help``."""
    taken = inspect.signature(request)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    names = [own, *taken.parameters.values()]
    method.__signature__ = taken.replace(
        parameters=names, return_annotation=inspect.Signature.empty
    )
    method.__doc__ = request.__doc__
    return method


class Schedules(_Part[Link]):
    """``client.schedules``: jobs that a service submits at certain times."""

    add = _sent(calls.add_schedule)
    replace = _sent(calls.replace_schedule)
    list = _sent(calls.list_schedules)
    get = _sent(calls.get_schedule)
    remove = _sent(calls.remove_schedule)
    pause = _sent(calls.pause_schedule)
    resume = _sent(calls.resume_schedule)
    run_now = _sent(calls.run_schedule_now)
    runs = _sent(calls.runs_of_schedule)


class Transforms(_Part[Link]):
    """``client.transforms``: transforms that jobs of a service may use by name. A version is a
    mapping with ``name``, ``version``, ``digest``, ``created_at``, ``created_by``, ``kinds``,
    ``runs_code``; the answers of ``get`` also have ``transform`` and ``versions``."""

    put = _sent(calls.put_transform)
    get = _sent(calls.get_transform)
    list = _listed(calls.list_transforms)
    remove = _sent(calls.remove_transform)


class Tokens(_Part[Link]):
    """``client.tokens``: for admins. A token is a mapping with the fields of the REST reference,
    without its secret."""

    add = _sent(calls.add_token)
    list = _sent(calls.list_tokens)
    remove = _sent(calls.remove_token)


class Data(_Part[Link]):
    """``client.data``: shards, their records, and the members of records, as on the service's page.
    Rows are mappings with the fields of the REST reference. ``bucket``: as in a spec; ``shard``:
    its name in the bucket; ``number``: the number of a record in its shard, from 0 on."""

    shards = _listed(calls.list_shards)
    objects = _listed(calls.list_objects)
    garbage = _sent(calls.find_garbage)
    records = _listed(calls.list_records)
    show = _sent(calls.show_records)
    sample = _sent(calls.sample_records)
    changed = _sent(calls.changed_record)
    read = _sent(calls.read_member)


class DataAndObjects(Data[Transport]):
    """``client.data`` of the synchronous client: with whole objects, too."""

    def whole(self, bucket: str, name: str) -> Iterator[bytes]:
        """The bytes of an object, in pieces, from a service with ``--aistore``."""
        path = calls.data_path("objects", bucket, name)
        try:
            with self._transport.stream(path, headers={"Accept": "*/*"}) as answer:
                if not answer.is_success:
                    raise self._transport.error(answer)
                yield from answer.iter_bytes()
        except httpx.TransportError as error:
            raise self._transport.failure(error) from error


class _Client(_Part[Link]):
    """A client of either kind. ``_link``, ``_data``: the classes of the client's transport and
    data."""

    _link: type[Link]
    _data: type[Data[Link]] = Data

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
        http: httpx.BaseTransport | httpx.AsyncBaseTransport | None = None,
    ) -> None:
        transport = self._link(
            named_service(url),
            token_of(token, token_file),
            timeout_s=timeout_s,
            verify=trusted(verify),
            patience=patience or Patience(),
            on_wait=on_wait,
            http=cast(Any, http),
        )
        super().__init__(transport)
        self.schedules = Schedules(transport)
        self.transforms = Transforms(transport)
        self.data = self._data(transport)
        self.tokens = Tokens(transport)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        """The service's address."""
        return self._transport.url

    submit = _sent(calls.submit)
    get = _sent(calls.get)
    list = _listed(calls.list_jobs)
    stop = _sent(calls.stop)
    resume = _sent(calls.resume)
    retry = _sent(calls.retry)
    remove = _sent(calls.remove)
    manifest = _sent(calls.manifest)
    report = _sent(calls.report)
    log = _sent(calls.log)
    page = _sent(calls.page)
    validate = _sent(calls.validate)
    schema = _sent(calls.schema)
    whoami = _sent(calls.whoami)


class DsortClient(_Client[Transport], ClosesOnExit):
    """A dsort service, for Python.

    ``url``: like ``http://127.0.0.1:8080``; default ``DSORT_SERVER``. ``token``: default
    ``DSORT_TOKEN``, else the content of the file that ``token_file`` or ``DSORT_TOKEN_FILE`` names;
    ``verify``: whether the service's certificate is checked, or the file (default
    ``DSORT_CA_FILE``) of the authorities to trust. All errors are ``DsortError``. A problem at the
    service becomes the error that a local call of dsort would raise; a failed connection is a
    ``ServiceError``. ``on_wait`` is called with a text when the client has to wait. Requests that
    may safely be repeated are sent again, as ``patience`` allows.
    """

    _link = Transport
    _data = DataAndObjects
    data: DataAndObjects

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def find(self, job: str) -> Job:
        """The job whose id is ``job`` or begins with it; a leading ``srt-``, which AIStore's
        clients add, is ignored. ``NotFoundError`` if no job fits; if several jobs fit,
        ``SpecError``, which lists them."""
        job = job.removeprefix("srt-")
        if calls.WHOLE_ID.fullmatch(job):
            return self.get(job)
        found = [each for each in self.list(text=job) if each.job_id.startswith(job)]
        return self.get(calls.only_one(job, found))

    def wait(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        on_event: Callable[[JobEvent], None] | None = None,
    ) -> Job:
        """Wait until the job has ended, and return it.

        The client does not poll: the service sends events, and ``on_event`` is called with each
        event. A failed job raises no error here: see ``Job.raise_if_failed``. ``WaitTimeoutError``
        after ``timeout_s``; the job runs on.
        """
        return self.wait_all([job_id], timeout_s=timeout_s, on_event=on_event)[0]

    def wait_all(
        self,
        job_ids: Iterable[str],
        *,
        timeout_s: float | None = None,
        on_event: Callable[[JobEvent], None] | None = None,
    ) -> tuple[Job, ...]:
        """Wait until all jobs have ended, and return them in this order. Like ``wait``, but with
        one time limit for all jobs. ``on_event`` gets all events of one job before the events of
        the next job, even if the next job ends sooner."""
        deadline_s = None if timeout_s is None else self._transport.clock() + timeout_s
        ended = []
        for job_id in job_ids:
            for event in stream_events(self._transport, job_id, deadline_s=deadline_s):
                if on_event is not None:
                    on_event(event)
            ended.append(self.get(job_id))
        return tuple(ended)

    def events(self, job_id: str, *, after: int = 0) -> Iterator[JobEvent]:
        """The events of a job after event number ``after`` (0: all events), up to its end. A stream
        that breaks off is resumed."""
        return stream_events(self._transport, job_id, after=after)

    def follow_log(self, job_id: str) -> Iterator[str]:
        """The log in pieces of whole lines, as it grows, until the job has ended."""
        tail = LogTail()
        while True:
            ended = self.get(job_id).ended
            more = tail.grown(self.log(job_id), ended=ended)
            if more:
                yield more
            if ended:
                return
            self._transport.sleep(tail.delay_s)


class AsyncClient(_Client[AsyncTransport]):
    """A dsort service, for Python with an event loop: the methods of ``Client``, awaited.

    Arguments, answers and errors are those of ``Client``. ``list``, ``events`` and ``follow_log``
    are for ``async for``::

        async with dsort.AsyncClient("http://127.0.0.1:8080") as client:
            job = await client.submit("shuffle.yaml")
            async for event in client.events(job.job_id):
                print(event.kind)
    """

    _link = AsyncTransport

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

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
        """Wait until the job has ended, and return it; see ``Client.wait``."""
        return (await self.wait_all([job_id], timeout_s=timeout_s, on_event=on_event))[0]

    async def wait_all(
        self,
        job_ids: Iterable[str],
        *,
        timeout_s: float | None = None,
        on_event: Callable[[JobEvent], None] | None = None,
    ) -> tuple[Job, ...]:
        """Wait until all jobs have ended, and return them in this order; see
        ``Client.wait_all``."""
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


def named_service(url: str | None) -> str:
    """The address of a service: ``url``, or the address in the environment."""
    url = url or os.environ.get("DSORT_SERVER")
    if not url:
        raise SpecError("no service is named", hint="give its address, or set DSORT_SERVER")
    return url


def trusted(
    verify: bool | str | Path | ssl.SSLContext | None,
) -> bool | str | Path | ssl.SSLContext:
    """``verify``, else the file of authorities that the environment names."""
    return (os.environ.get("DSORT_CA_FILE") or True) if verify is None else verify


def token_of(given: str | None, file: str | Path | None) -> str | None:
    """The token: ``given``, or in ``file``, or in the environment."""
    if given or (file is None and os.environ.get("DSORT_TOKEN")):
        return given or os.environ["DSORT_TOKEN"]
    path = file or os.environ.get("DSORT_TOKEN_FILE")
    if not path:
        return None
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SpecError(f"cannot read the token in {path}: {reason}") from None
    if not text:
        raise SpecError(f"there is no token in {path}: it is empty")
    return text
